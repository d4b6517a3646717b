"""`train.packed`: which models read packed batches on which device, and a packed training with the
losses of a padded one.
"""

import numpy as np
import pytest
import torch

from nmtkit.data.store import Store
from nmtkit.errors import ConfigError
from nmtkit.models.base import Vocabularies
from nmtkit.models.properties import NOT_PACKED
from nmtkit.models.transformer import Transformer
from nmtkit.models.variants import VARIANTS, build_model
from nmtkit.nn import gpu
from nmtkit.settings import TrainSettings
from nmtkit.train import gradients
from nmtkit.train.checks import warn_of_model
from nmtkit.train.gradients import packed_multiple
from nmtkit.train.stage import train
from nmtkit.train.state import TrainState
from tests.models.cases import LOCAL
from tests.models.contract import Case
from tests.train.tiny import make_run, mark_documents, metrics, options

PACKED = {"transformer", "transformer-cycle", "enc-dc", "dec-dc", "full-dc", "csan", "pr"}
PACKED |= {"amn", "context-aware", "han", "concat"}


def test_models_that_read_packed_batches():
    assert {name for name in VARIANTS if Case(name).build().reads_packed} == PACKED
    assert not Case("amn", (("memory_scope", "batch"),)).build().reads_packed


@pytest.mark.parametrize(
    ("variant", "packed", "device", "unit", "multiple"),
    [
        ("transformer", "auto", "cpu", "tgt_tokens", 0),
        ("transformer", "yes", "cpu", "tgt_tokens", 32),
        ("concat", "auto", "cpu", "tgt_tokens", 32),
        ("han", "auto", "cpu", "tgt_tokens", 0),
        ("transformer", "auto", "cuda", "tgt_tokens", 512),
        ("transformer", "auto", "cuda", "sentences", 128),
        ("transformer", "auto", "mps", "tgt_tokens", 0),
        ("transformer", "no", "cuda", "tgt_tokens", 0),
        ("rnnsearch", "auto", "cuda", "tgt_tokens", 0),
        ("tests.toy_recurrent:ToyRecurrent", "auto", "cuda", "tgt_tokens", 0),
    ],
)
def test_multiple_of_packed_rows_by_model_and_device(variant, packed, device, unit, multiple):
    settings = TrainSettings(packed=packed, batch_size=4096, batch_unit=unit)
    assert packed_multiple(Case(variant).build(), settings, device) == multiple


@pytest.mark.parametrize(("micro_batch", "multiple"), [("auto", 2048), ("batch", 512)])
def test_packed_rows_of_joined_batches_are_longer(micro_batch, multiple):
    """A 24th of an update, not an eighth of a batch."""
    settings = TrainSettings(batch_size=4096, update_size=24 * 2048, micro_batch=micro_batch)
    assert packed_multiple(Case("transformer").build(), settings, "cuda") == multiple


def test_warning_if_a_model_mixes_packed_sentences(run, monkeypatch, stderr):
    def reads_the_word_before(self, x, visible):
        return original(self, x + torch.nn.functional.pad(x, (0, 0, 1, 0))[:, :-1], visible)

    sizes = {"d_model": 16, "d_ff": 32, "heads": 2}
    model = build_model("transformer", sizes, Vocabularies(28, 28, shared=True))
    store = Store(run.prep / "train")
    warn_of_model("its:Own", model, store)
    assert stderr() == ""
    original = Transformer.through_encoder
    monkeypatch.setattr(Transformer, "through_encoder", reads_the_word_before)
    warn_of_model("its:Own", model, store)
    assert f"its:Own: {NOT_PACKED}" in " ".join(stderr().split())


def test_gpu_without_a_row_kernel_packs_models_with_contexts_only():
    models = {name: Case(name).build() for name in ("transformer", "han", "rnnsearch")}
    packed = {
        name: packed_multiple(m, TrainSettings(), "cuda", False) for name, m in models.items()
    }
    assert [name for name, multiple in packed.items() if multiple] == ["han"]


@pytest.mark.parametrize(
    ("kernels", "autocast", "fits"),
    [(object(), torch.bfloat16, True), (object(), None, False), (None, torch.bfloat16, False)],
)
def test_row_kernel_is_used_in_16_bits_if_it_is_there(kernels, autocast, fits, monkeypatch):
    monkeypatch.setattr(gpu, "_kernels", kernels)
    asked = []
    monkeypatch.setattr(gradients, "packed_multiple", lambda *of: asked.append(of[3]) or 0)
    arguments = {"device_type": "cpu", "dtype": autocast, "enabled": autocast is not None}
    model = Case("transformer").build()
    gradients.Gradients(model, None, TrainSettings(), arguments, TrainState())
    assert asked == [fits]


def test_packed_yes_is_refused_for_a_model_that_cannot_read_packed_batches(run):
    with pytest.raises(ConfigError, match="RNNSearch does not read packed batches") as caught:
        settings = ["train.packed=yes", "train.max_steps=1", "model.d_hidden=16"]
        train(run, variant="rnnsearch", assignments=settings)
    assert caught.value.where == "train.packed" and "packs = True" not in caught.value.hint
    with pytest.raises(ConfigError, match="LocalTransformer does not read") as caught:
        packed_multiple(Case(LOCAL).build(), TrainSettings(packed="yes"), "cpu")
    assert "write in it: packs = True" in caught.value.hint


def test_perturbed_batches_are_padded_if_the_context_is_in_the_source():
    model, settings = Case("concat").build(), TrainSettings(word_dropout=0.1)
    assert packed_multiple(model, settings, "cuda") == 0
    assert packed_multiple(Case("han").build(), settings, "cuda") > 0


@pytest.mark.parametrize("variant", ["transformer", "han"])
def test_packed_training_has_the_losses_of_a_padded_one(variant, tmp_path):
    """Without dropout, whose masks differ. The log counts the padding of packed rows."""
    runs = [make_run(tmp_path / packed) for packed in ("no", "yes")]
    settings = options(
        "train.max_steps=6",
        "train.log_every=1",
        "train.precision=float32",
        "train.update_size=150",
        "model.dropout=0",
    )
    for run in runs:
        mark_documents(run, "train", range(0, 60, 5))
        train(run, variant=variant, assignments=[*settings, f"train.packed={run.path.name}"])
    padded, packed = (metrics(run, "train", variant) for run in runs)
    assert len(padded) == 6 and padded[-1]["loss"] < padded[0]["loss"]
    for key in ("loss", "grad_norm"):
        curves = ([line[key] for line in lines] for lines in (packed, padded))
        np.testing.assert_allclose(*curves, rtol=1e-4)
    assert all(0 < line["padding"] < 0.5 for line in packed)
    assert [line["padding"] for line in packed] != [line["padding"] for line in padded]


def test_batches_have_the_contexts_of_training_also_if_a_model_was_evaluated_before():
    model = Case("amn", (("memory_scope", "batch"),)).build().eval()
    of_evaluation = model.context_rule
    arguments = {"device_type": "cpu", "dtype": None, "enabled": False}
    computer = gradients.Gradients(model, None, TrainSettings(), arguments, TrainState())
    assert computer._rule == model.train().context_rule != of_evaluation
