"""`--compile`: the losses of the model as it is written, few graphs whatever the shapes, an
early word where it cannot work.
"""

import copy
import dataclasses
import logging
from functools import partial

import numpy as np
import pytest
import torch

from nmtkit.data.batches import collate
from nmtkit.data.store import Store
from nmtkit.errors import ConfigError
from nmtkit.models import csan, loading
from nmtkit.models.lookups import WordsWithoutVector
from nmtkit.models.variants import build_model
from nmtkit.nn import cpu
from nmtkit.nn.capture import capture
from nmtkit.nn.loops import compile_steps
from nmtkit.train import compiling
from nmtkit.train import loss as losses
from nmtkit.train.divergence import first_not_finite
from nmtkit.train.gradients import seed_everything
from nmtkit.train.stage import train
from tests.models import contract
from tests.models.cases import DISTINCT
from tests.processes import python
from tests.refused import refused
from tests.train.tiny import make_run, metrics, options

SIZES = {
    "d_model": 16,
    "d_ff": 32,
    "heads": 2,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "dropout": 0.1,
    "activation_dropout": 0.1,
}


@pytest.fixture(autouse=True)
def no_graphs(monkeypatch):
    """Start and end without compiled graphs.

    Tracing keeps no results of operations on symbolic shapes: keeping them takes a fifth of its
    time. It collects no garbage after a graph either: a test process holds a great deal. It prepares
    no records of its traces, which nobody writes.
    """
    torch._dynamo.reset()
    monkeypatch.setattr(logging.getLogger("torch.__trace"), "handlers", [])
    quick = torch._dynamo.config.patch(fake_tensor_cache_enabled=False, run_gc_after_compile=False)
    with quick, torch.fx.experimental._config.patch(use_duck_shape=True):  # torch's default
        yield
    torch._dynamo.reset()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("compiling") / "run")


def counting(graphs):
    """The backend that leaves a graph's operations as they are, forwards and backwards, and
    counts the graphs.
    """
    whole = torch._dynamo.lookup_backend("aot_eager")

    def backend(graph, inputs):
        graphs.append(graph)
        return whole(graph, inputs)

    return backend


def kept(graphs):
    """The backend that counts the graphs and runs them as they are."""
    return lambda graph, inputs: graphs.append(graph) or graph


def test_compiled_and_eager_training_have_the_same_losses(run):
    store = Store(run.prep / "train")
    torch.manual_seed(1)
    eager = build_model("transformer", SIZES, loading.vocabulary_sizes(run)).train()
    compiled = copy.deepcopy(eager)
    graphs = []
    compiling.compile_training(compiled, collate(store, np.arange(2)), counting(graphs))
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.5) for model in (eager, compiled)]
    draw, shapes, curves = np.random.default_rng(0), set(), ([], [])
    for step in range(10):
        batch = collate(store, draw.choice(60, 3 + step, replace=False))
        shapes.add((*batch.src.shape, batch.tgt_in.size(1)))
        for model, optimizer, curve in zip((eager, compiled), optimizers, curves, strict=True):
            seed_everything(1, step, 0)  # the same masks
            hidden, _ = model.decode(batch.tgt_in, model.encode(batch))
            tokens = int(batch.tgt_lengths.sum())
            curve.append(
                float(losses.backward(model.logits, hidden, batch, 0.1, 1 / tokens, 512)[0])
                / tokens
            )
            optimizer.step()
            optimizer.zero_grad()
    np.testing.assert_allclose(curves[1], curves[0], rtol=1e-5)
    assert curves[0][-1] < curves[0][0] - 0.1  # the gradients took part
    # Ten shapes; one graph a verb, one more where the sources of a batch are all of one length.
    assert len(shapes) == 10
    assert 2 <= len(graphs) <= 4
    graphs.clear()
    compiled.eval()
    with capture() as seen:  # in evaluation the model runs as it is written
        compiled.decode(batch.tgt_in, compiled.encode(batch))
    assert seen and not graphs
    with torch.no_grad():
        compiled.train().encoder[0].feed_forward.inner.weight.fill_(torch.nan)
    cause = first_not_finite(compiled, lambda: compiled.encode(batch))
    assert cause == "output of encoder.0.feed_forward.inner"


def steps_alone(model, example, backend):
    """Compile the steps inside loops, not the verbs around them, which takes half of the time."""
    compile_steps(model, partial(torch.compile, dynamic=True, backend=backend))


@pytest.mark.parametrize(
    ("variant", "compile_model", "backend"),
    [
        ("caru", steps_alone, counting),
        ("gru-inv", steps_alone, counting),
        ("rnnsearch", compiling.compile_training, kept),
    ],
)
def test_compiled_steps_of_a_loop_have_the_same_gradients(variant, compile_model, backend):
    eager = contract.Case(variant).build(dtype=torch.float64, dropout=0.1).train()
    compiled, graphs = copy.deepcopy(eager), []
    example = contract.batch_for(eager, contract.pairs())
    compile_model(compiled, example, backend(graphs))
    counts = []
    for count, longest in [(5, 7), (4, 12)]:
        batch = contract.batch_for(eager, contract.pairs(count, longest=longest))
        gradients = []
        for model in (eager, compiled):
            seed_everything(1, count, 0)
            loss = contract.loss_of(model, batch)
            gradients.append(torch.autograd.grad(loss, list(model.parameters())))
        for found, expected in zip(*gradients, strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
        counts.append(len(graphs))
    assert counts[1] == counts[0] > 0  # no graph for another shape


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """Take the paths that a GPU takes, on a CPU."""
    monkeypatch.setattr(cpu, "writes_attention_out", lambda q, k: False)
    monkeypatch.setattr(cpu, "row_multiple", lambda device: 1)
    monkeypatch.setattr(cpu, "dropout", lambda x, p: torch.dropout(x, p, True))


# Two graphs, one a verb, are enough. A loop over time cuts a verb in two, and `amn` has several.
# Attention inside a loop is a graph. A batch without a context is one graph more.
GRAPHS = {
    **dict.fromkeys(("context-aware", "han", "concat"), 3),
    **dict.fromkeys(("rnnsearch", "caru"), 5),
    "amn": 15,
}
# Each is compiled as another one: as full-dc (the first two), han and caru.
COVERED = {"transformer", "transformer-cycle", "concat", "gatt"}


@pytest.mark.parametrize("variant", sorted({*DISTINCT} - COVERED))
def test_a_gpu_gets_the_same_graphs_for_all_shapes(variant, as_on_a_gpu, monkeypatch):
    """Nothing breaks a graph but the loops that are left out on purpose. Batches are packed if the
    model reads that, as on a GPU.
    """
    recurrent = variant in {"rnnsearch", "caru"}
    layers = {} if recurrent else {"encoder_layers": 1, "decoder_layers": 1}
    if (
        variant == "csan"
    ):  # as on a GPU, a row has many blocks, and no window is wider than a sentence
        monkeypatch.setattr(csan, "BLOCK", 32)
        layers["window"] = 3
    model = contract.Case(variant).build(dtype=torch.float32, dropout=0.1, **layers).train()
    samples = [
        contract.pairs(rows, seed=rows, longest=longest)
        for rows, longest in [(5, 7), (6, 9), (8, 12), (4, 5), (9, 14)]
    ]
    packed = model.reads_packed
    batches = [
        contract.packed_for(model, sample, multiple=9)
        if packed
        else contract.batch_for(model, sample)
        for sample in samples
    ]
    graphs = []
    compiling.compile_training(model, batches[0], kept(graphs))
    breaks = torch._dynamo.utils.counters["graph_break"]
    breaks.clear()
    counts = []
    for batch in batches:
        model.decode(batch.tgt_in, model.encode(batch))
        counts.append(len(graphs))
    assert [reason for reason in breaks if "disable" not in reason] == []
    assert set(counts[1:]) == {counts[-1]}
    assert counts[-1] <= GRAPHS.get(variant, 2)


def test_words_left_out_have_no_vector_in_a_compiled_model(run):
    torch.manual_seed(1)
    sizes = SIZES | {"dropout": 0.0, "activation_dropout": 0.0, "encoder_layers": 0}
    eager = build_model("transformer", sizes, loading.vocabulary_sizes(run)).train()
    compiled = copy.deepcopy(eager)
    batch = collate(Store(run.prep / "train"), np.arange(5))
    compiling.compile_training(compiled, batch, "eager")
    src = batch.src.clone()
    src[2, 0] = -1
    left_out = dataclasses.replace(batch, src=src)
    with WordsWithoutVector():
        found, expected = (model.encode(left_out)["states"] for model in (compiled, eager))
    torch.testing.assert_close(found, expected)
    assert not torch.allclose(found[2], eager.encode(batch)["states"][2])


def test_a_training_with_a_real_compiler(tmp_path):
    """The stage with --compile and without: the same curve, not the same bits.

    Every kernel costs seconds of g++ where none is cached: so batches that are all padded, which
    are one graph a verb (the first test has the others), and dropout, at which kernels end, in one
    place of the only layer. Without vectors, torch need not try what the processor has; with one
    thread, it starts no processes.
    """
    from torch._inductor import config

    runs = [make_run(tmp_path / name) for name in ("eager", "compiled")]
    settings = options(
        "train.max_steps=4",
        "train.log_every=1",
        "train.precision=float32",
        "train.validate_every=100",
        "train.batch_size=250",
        "model.encoder_layers=0",
        "model.decoder_layers=1",
        "model.dropout=0",
        "model.activation_dropout=0.1",
    )
    with config.patch({"cpp.vec_isa_ok": False, "compile_threads": 1}):
        for run, compile_model in zip(runs, (False, True), strict=True):
            train(run, assignments=settings, compile_model=compile_model)
    eager, compiled = ([line["loss"] for line in metrics(run, "train")] for run in runs)
    assert len(eager) == 4 and eager[-1] < eager[0]
    np.testing.assert_allclose(compiled, eager, rtol=1e-5)


def test_without_a_compiler_it_ends_before_it_begins(run, monkeypatch):
    from torch._inductor import config

    monkeypatch.setattr(config.cpp, "cxx", (None, "no-such-compiler"))
    caught = refused(
        ConfigError, None, train, run, assignments=options("train.max_steps=2"), compile_model=True
    )
    assert caught.where == "--compile"
    assert "compiler" in caught.message and "g++" in caught.hint
    assert not run.system("transformer").checkpoints.exists()


def test_no_training_loads_the_compiler(run):
    """Loading it takes a second, and only --compile needs it; the recurrent models have loops
    that it must leave alone.
    """
    sizes = ["model.d_hidden=8", "model.d_embedding=8", "train.max_steps=2"]
    code = (
        "import sys, pathlib, nmtkit.run, nmtkit.train.stage, nmtkit.models.caru\n"
        f"run = nmtkit.run.Run(pathlib.Path({str(run.path)!r}))\n"
        f"nmtkit.train.stage.train(run, variant='rnnsearch', assignments={sizes})\n"
        "sys.exit('torch._dynamo' in sys.modules)"
    )
    assert python("-c", code).returncode == 0
