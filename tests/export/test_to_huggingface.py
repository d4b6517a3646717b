"""Export for Hugging Face: equal logits, equal token ids, equal greedy translations."""

import pytest
import torch

from nmtkit import files
from nmtkit.errors import EnvironmentProblem
from nmtkit.export import folder, stage, to_huggingface
from nmtkit.models import loading
from nmtkit.nn.embeddings import sinusoids
from nmtkit.text.vocabulary import BOS, PAD, SPECIALS, load_vocabularies
from nmtkit.translate.forced import pair_batch
from nmtkit.translate.hypotheses import length_limit
from tests.export.conftest import EOS, SETTINGS
from tests.export.test_stage import LINES, command, readme_code
from tests.full_disk import full_disk
from tests.manifests import read_json, write_json
from tests.random_systems import add_system, prepare

SRC, TGT = [[5, 9, 7, 30, 2], [8, 2]], [[11, 4, 2], [6, 7, 20, 21, 2]]
APART = {
    "pre-target": {"norm": "pre", "tie": "target"},
    "pre-none": {"norm": "pre", "tie": "none", "softmax_bias": True, "encoder_layers": 0},
    "post-none": {"tie": "none", "attn_bias": False, "d_model": 15, "heads": 3},
}
"""Systems of a run whose sides have vocabularies of different sizes."""


@pytest.fixture(scope="module")
def separate(tmp_path_factory):
    run = prepare(tmp_path_factory.mktemp("separate") / "run", joint_vocab=False)
    with (run.prep / "vocab.src.txt").open("a", encoding="utf-8") as file:
        file.writelines(f"never-{number}\n" for number in range(50))  # more than on the target side
    manifest = read_json(run.prep / "manifest.json")
    manifest["vocabulary"]["src"] += 50
    write_json(run.prep / "manifest.json", manifest)
    for name, model in APART.items():
        add_system(run, name, "transformer", eos=EOS if "softmax_bias" in model else 0, **model)
    return run


@pytest.fixture(params=[*SETTINGS, "blind", "transformer-cycle", *APART])
def system(request, run, separate):
    """A run and the name of a system."""
    return separate if request.param in APART else run, request.param


def load_exported(out, model):
    """Return the Transformers model of a folder in float64, with nmtkit's positions.

    It fills its table of positions in float32.
    """
    from transformers import AutoModelForSeq2SeqLM

    exported, info = AutoModelForSeq2SeqLM.from_pretrained(out, output_loading_info=True)
    assert not any(info.values())  # no weight is missing or unknown
    positions = sinusoids(1024, model.width)[:, to_huggingface.sines_first(model.width)]
    exported = exported.double().eval()
    for stack in (exported.model.encoder, exported.model.decoder):
        torch.testing.assert_close(stack.embed_positions.weight, positions, rtol=0, atol=1e-6)
        stack.embed_positions.weight.data.copy_(positions)
    return exported


def test_exported_model_computes_the_same_logits(system, tmp_path):
    run, name = system
    out = stage.export(run, name, "huggingface", out=tmp_path / "out")
    model = loading.load_system(run, run.system(name)).double()
    exported, pre = load_exported(out, model), model.settings.norm == "pre"
    cls = "PegasusForConditionalGeneration" if pre else "MarianMTModel"
    assert type(exported).__name__ == cls
    batch = pair_batch(SRC, TGT)
    mask = (batch.src != 0).long()
    with torch.inference_mode():
        expected = model.logits(model.decode(batch.tgt_in, model.encode(batch))[0])
        found = exported(
            input_ids=batch.src, attention_mask=mask, decoder_input_ids=batch.tgt_in
        ).logits
    size = expected.size(-1)
    for row, tgt in enumerate(TGT):
        logits = found[row, : len(tgt)]
        torch.testing.assert_close(logits[:, :size], expected[row, : len(tgt)], rtol=0, atol=1e-10)
        beyond = logits.softmax(-1)[:, size:]  # ids that only the source has
        assert not beyond.any() and (beyond.numel() > 0) == (pre and name in APART)


@pytest.mark.parametrize("side", ["src", "tgt"])
def test_exported_tokenizer_gives_the_same_ids(separate, tmp_path, side):
    from transformers import AutoTokenizer

    out = stage.export(separate, "pre-target", "huggingface", out=tmp_path / "out")
    tokenizer = AutoTokenizer.from_pretrained(
        out / ("" if side == "src" else to_huggingface.TARGET)
    )
    vocabulary = load_vocabularies(separate.prep)[side == "tgt"]
    known = list(vocabulary)[len(SPECIALS) :]
    subwords = [*known, "unheard-of", *SPECIALS, "a<s>", *SPECIALS[::-1], known[0], known[0]]
    ids = vocabulary.encode(subwords)
    assert tokenizer(" ".join(subwords))["input_ids"] == ids
    decoded = tokenizer.decode(ids, skip_special_tokens=True)
    assert decoded.split(" ") == vocabulary.decode(ids)  # <unk> stays
    batch = tokenizer([known[0], ""], padding=True)
    assert dict(batch) == {
        "input_ids": [[4, 2], [2, 0]],
        "attention_mask": [[1, 1], [1, 0]],
    }


# One system of each kind of logits; the logits of all systems are compared above.
@pytest.mark.parametrize("system", ["post", "pre", "pre-target", "post-none"], indirect=True)
def test_check_finds_equal_translations_and_the_readme_code_runs(
    system, tmp_path, stdout, monkeypatch
):
    from transformers import GenerationMixin

    run, name = system
    out, searches, generate = tmp_path / "out", [], GenerationMixin.generate
    options = f"{name} --to huggingface --out {out} --check --lines 20 --at-least 100"
    with monkeypatch.context() as patch:
        patch.setattr(
            GenerationMixin,
            "generate",
            lambda self, **values: searches.append(values) or generate(self, **values),
        )
        result = command(run, options)
    penalties = {(values["num_beams"], values.get("length_penalty")) for values in searches}
    assert penalties == {(1, None), (3, 0.0)}
    assert result.exit_code == 0, result.stdout + result.stderr
    greedy, beam = (line for line in result.stdout.splitlines() if " of 20 (" in line)
    assert "20 of 20 (100.0%)" in greedy and int(beam.split()[1]) >= 18
    monkeypatch.chdir(out)
    exec(readme_code(out).replace('["…"]', repr(LINES)), {})
    assert stdout().startswith("['")


def test_generation_config_and_readme_describe_the_search(run, tmp_path):
    out = stage.export(run, "pre", "huggingface", out=tmp_path / "out")
    values = read_json(out / "generation_config.json")
    assert (values["num_beams"], values["length_penalty"]) == (3, 0.6)
    search = run.system("pre").searching()
    assert values["max_new_tokens"] == length_limit(search.max_source + 1, search)
    assert values["suppress_tokens"] == [PAD, BOS]
    shortest = search.model_dump() | {"max_length_a": 0.0, "max_length_b": 0}
    assert to_huggingface.generation_config(shortest)["max_new_tokens"] == 1
    page = (out / folder.README).read_text("utf-8")
    assert "for Hugging Face" in page and "log P / |Y|^α" in page and "{" not in page


def test_config_has_each_dropout_of_the_settings(run):
    model = loading.load_system(run, run.system("pre"))
    values = {"dropout": 0.1, "attention_dropout": 0.2, "activation_dropout": 0.3}
    model.settings = model.settings.model_copy(update=values)
    assert values.items() <= to_huggingface.config(model, positions=9).items()


def test_full_disk_keeps_the_earlier_export(run, tmp_path):
    stage.export(run, "post", "huggingface", out=tmp_path / "out")
    before = hashes(tmp_path)
    room = (tmp_path / "out/model.safetensors").stat().st_size - 1
    with full_disk(room), pytest.raises(EnvironmentProblem, match="cannot write .*model.safe"):
        stage.export(run, "post", "huggingface", out=tmp_path / "out", force=True)
    assert hashes(tmp_path) == before


def hashes(folder):
    return files.hashes((path for path in folder.rglob("*") if path.name != ".lock"), folder)
