"""`--compile`: the losses of the eager model, few graphs for all shapes, and an early error if there
is no compiler.
"""

import copy
import dataclasses
import logging
from functools import partial

import numpy as np
import pytest
import torch

from nmtkit.errors import ConfigError
from nmtkit.models import csan
from nmtkit.models.lookups import WordsWithoutVector
from nmtkit.nn.capture import capture
from nmtkit.nn.dropout import seed_everything
from nmtkit.nn.loops import compile_steps
from nmtkit.train import compiling
from nmtkit.train import loss as losses
from nmtkit.train.divergence import first_not_finite
from nmtkit.train.stage import train
from tests.models.cases import DISTINCT
from tests.models.contract import Case, batch_for, full, loss_of, packed_for, pairs
from tests.processes import python
from tests.refused import refused
from tests.train.test_waits import emulate
from tests.train.tiny import make_run, metrics, options


@pytest.fixture(autouse=True)
def no_graphs(monkeypatch):
    """Start and end without compiled graphs, and trace faster than by default.

    Tracing does not cache operations on symbolic shapes, which takes a fifth of its time, collects
    no garbage after a graph, of which a test process has much, and prepares no records for a trace
    log.
    """
    torch._dynamo.reset()
    monkeypatch.setattr(logging.getLogger("torch.__trace"), "handlers", [])
    quick = torch._dynamo.config.patch(fake_tensor_cache_enabled=False, run_gc_after_compile=False)
    with quick, torch.fx.experimental._config.patch(use_duck_shape=True):  # torch's default
        yield
    torch._dynamo.reset()


def traced(graphs):
    """A backend that records the graphs, and traces the operations forwards and backwards."""
    trace = torch._dynamo.lookup_backend("aot_eager")
    return lambda graph, inputs: graphs.append(graph) or trace(graph, inputs)


def recorded(graphs):
    """A backend that records the graphs, and runs them as they are."""
    return lambda graph, inputs: graphs.append(graph) or graph


def build(variant="transformer", dtype=torch.float32, **sizes):
    return Case(variant).build(dtype=dtype, dropout=0.1, **sizes).train()


ONE_LAYER = {"encoder_layers": 1, "decoder_layers": 1}


def test_compiled_and_eager_training_have_the_same_losses():
    eager = build(activation_dropout=0.1, **ONE_LAYER)
    compiled, graphs, shapes, curves = copy.deepcopy(eager), [], set(), ([], [])
    compiling.compile_training(compiled, batch_for(eager), recorded(graphs))
    models = [(m, torch.optim.SGD(m.parameters(), lr=0.5)) for m in (eager, compiled)]
    for step in range(10):
        batch = batch_for(eager, pairs(3 + step, seed=step, longest=8))
        shapes.add((*batch.src.shape, batch.tgt_in.size(1)))
        for (model, optimizer), curve in zip(models, curves, strict=True):
            seed_everything(1, step, 0)  # the same masks
            hidden, _ = model.decode(batch.tgt_in, model.encode(batch))
            scale = 1 / int(batch.tgt_lengths.sum())
            curve.append(losses.backward(model.logits, hidden, batch, 0.1, scale, 512)[0] * scale)
            optimizer.step()
            optimizer.zero_grad()
    np.testing.assert_allclose(curves[1], curves[0], rtol=1e-5)
    assert curves[0][-1] < curves[0][0] - 0.1  # the gradients took part
    # Ten shapes; one graph a verb, one more where the sources of a batch are all of one length.
    assert len(shapes) == 10 and 2 <= len(graphs) <= 4


def test_compiled_model_runs_eagerly_in_evaluation_and_when_a_fault_is_searched():
    model, batch, graphs = build(), batch_for(build()), []
    compiling.compile_training(model, batch, recorded(graphs))
    with capture() as captured:
        full(model.eval(), batch)
    assert captured
    with torch.no_grad():
        model.train().encoder[0].feed_forward.inner.weight.fill_(torch.nan)
    cause = first_not_finite(model, lambda: model.encode(batch))
    assert cause == "output of encoder.0.feed_forward.inner"
    assert not graphs
    model.encode(batch)
    assert graphs


def steps_alone(model, example, backend):
    """Compile the steps inside loops, not the verbs around them, which takes half of the time."""
    compile_steps(model, partial(torch.compile, dynamic=True, backend=backend))


@pytest.mark.parametrize(
    ("variant", "compile_model", "backend"),
    [
        ("caru", steps_alone, traced),
        ("gru-inv", steps_alone, traced),
        ("rnnsearch", compiling.compile_training, recorded),
    ],
)
def test_compiled_steps_of_a_loop_have_the_same_gradients(variant, compile_model, backend):
    eager = build(variant, torch.float64)
    compiled, graphs, counts = copy.deepcopy(eager), [], []
    compile_model(compiled, batch_for(eager), backend(graphs))
    for count, longest in [(5, 7), (4, 12)]:
        batch = batch_for(eager, pairs(count, longest=longest))
        gradients = []
        for model in (eager, compiled):
            seed_everything(1, count, 0)
            gradients.append(torch.autograd.grad(loss_of(model, batch), list(model.parameters())))
        torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-12)
        counts.append(len(graphs))
    assert counts[1] == counts[0] > 0  # no graph for another shape


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
def test_all_shapes_share_few_graphs_on_a_gpu(variant, monkeypatch):
    """Nothing breaks a graph but the loops that are left out on purpose. Batches are packed if the
    model reads that, as on a GPU.
    """
    emulate(monkeypatch)
    layers = {} if variant in {"rnnsearch", "caru"} else ONE_LAYER
    if (
        variant == "csan"
    ):  # as on a GPU, a row has many blocks, and a sentence is wider than a window
        monkeypatch.setattr(csan, "BLOCK", 32)
        layers = ONE_LAYER | {"window": 3}
    model, graphs, counts = build(variant, **layers), [], []
    make_batch = partial(packed_for, multiple=9) if model.reads_packed else batch_for
    batches = [
        make_batch(model, pairs(rows, seed=rows, longest=longest))
        for rows, longest in [(5, 7), (6, 9), (8, 12), (4, 5), (9, 14)]
    ]
    compiling.compile_training(model, batches[0], recorded(graphs))
    breaks = torch._dynamo.utils.counters["graph_break"]
    breaks.clear()
    for batch in batches:
        model.decode(batch.tgt_in, model.encode(batch))
        counts.append(len(graphs))
    assert [reason for reason in breaks if "disable" not in reason] == []
    assert set(counts[1:]) == {counts[-1]}
    assert counts[-1] <= GRAPHS.get(variant, 2)


def test_left_out_words_have_no_vector_in_a_compiled_model():
    eager = Case("transformer").build(encoder_layers=0).train()
    compiled, batch = copy.deepcopy(eager), batch_for(eager)
    compiling.compile_training(compiled, batch, "eager")
    src = batch.src.clone()
    src[2, 0] = ~src[2, 0]
    left_out = dataclasses.replace(batch, src=src)
    with WordsWithoutVector():
        found, expected = (model.encode(left_out)["states"] for model in (compiled, eager))
    torch.testing.assert_close(found, expected)
    assert not torch.allclose(found[2], eager.encode(batch)["states"][2])


def test_training_with_a_real_compiler_has_the_eager_losses(tmp_path):
    """A training with --compile has the curve of one without, but not the same bits.

    Every kernel costs seconds of g++ where none is cached. So all batches are padded, which makes
    one graph a verb (the first test has the others), and dropout, at which kernels end, is in one
    place of the only layer. Without vector instructions, torch does not test the processor; with
    one thread, it starts no processes.
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
        "model.dropout=0",
        "model.activation_dropout=0.1",
    )
    with config.patch({"cpp.vec_isa_ok": False, "compile_threads": 1}):
        for run, compile_model in zip(runs, (False, True), strict=True):
            train(run, assignments=settings, compile_model=compile_model)
    eager, compiled = ([line["loss"] for line in metrics(run, "train")] for run in runs)
    assert len(eager) == 4 and eager[-1] < eager[0]
    np.testing.assert_allclose(compiled, eager, rtol=1e-5)


def test_missing_compiler_is_an_error_before_the_training(run, monkeypatch):
    from torch._inductor import config

    monkeypatch.setattr(config.cpp, "cxx", (None, "no-such-compiler"))
    caught = refused(
        ConfigError, None, train, run, assignments=options("train.max_steps=2"), compile_model=True
    )
    assert caught.where == "--compile"
    assert "compiler" in caught.message and "g++" in caught.hint
    assert not run.system("transformer").checkpoints.exists()


def test_training_without_compile_does_not_import_the_compiler(run):
    """The import takes a second. The recurrent models have loops that --compile treats apart."""
    sizes = ["model.d_hidden=8", "model.d_embedding=8", "train.max_steps=2"]
    code = (
        "import sys, pathlib, nmtkit.run, nmtkit.train.stage, nmtkit.models.caru\n"
        f"run = nmtkit.run.Run(pathlib.Path({str(run.path)!r}))\n"
        f"nmtkit.train.stage.train(run, variant='rnnsearch', assignments={sizes})\n"
        "sys.exit('torch._dynamo' in sys.modules)"
    )
    assert python("-c", code).returncode == 0
