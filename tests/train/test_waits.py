"""A training waits for its device once a line of the log; on a CPU, operations that would wait are
counted.
"""

import contextlib
from types import SimpleNamespace

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from nmtkit.models.variants import load_variant
from nmtkit.nn import cpu
from nmtkit.train import loop
from nmtkit.train.loop import Trainer
from nmtkit.train.stage import train
from tests.models.cases import DISTINCT
from tests.train.tiny import TRAIN, make_run, mark_documents, metrics, options, state_of

SETTINGS = ("train.log_every=4", "train.update_size=150", "train.validate_every=1000")
RECURRENT = ("model.d_hidden=8", "model.d_embedding=8")
# Operations whose result a GPU must give to the host: a number, or the size of a tensor.
READS = {"_local_scalar_dense", "nonzero", "masked_select", "unique", "_unique2", "equal"}
LISTS = {torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.cpu}


class Reads(TorchDispatchMode):
    """Records operations for which the host would wait for a GPU."""

    def __init__(self, reads):
        super().__init__()
        self.reads = reads

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        name = operation._schema.name.partition("::")[2]
        indexed = name == "index" and any(x is not None and x.dtype == torch.bool for x in args[1])
        if name in READS or indexed:
            self.reads.append(name)
        return operation(*args, **(kwargs or {}))


class Lists(TorchFunctionMode):
    """Records calls that copy a tensor to the host without an operation."""

    def __init__(self, reads):
        super().__init__()
        self.reads = reads

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function in LISTS:
            self.reads.append(function.__name__)
            with contextlib.ExitStack() as stack:  # its numbers are read one by one
                stack.enter_context(torch._C.DisableTorchFunction())
                return function(*args, **(kwargs or {}))
        return function(*args, **(kwargs or {}))


def emulate(monkeypatch):
    """Take the code paths of a GPU, on a CPU."""
    monkeypatch.setattr(cpu, "writes_attention_out", lambda q, k: False)
    monkeypatch.setattr(cpu, "reads_at_once", lambda x: False)
    monkeypatch.setattr(cpu, "row_multiple", lambda device: 1)
    monkeypatch.setattr(cpu, "dropout", lambda x, p: torch.dropout(x, p, True))


@pytest.mark.parametrize("variant", sorted({*DISTINCT} - {"transformer-cycle"}))
def test_updates_wait_for_the_device_at_lines_of_the_log_only(variant, tmp_path, monkeypatch):
    """With documents, which some variants read."""
    emulate(monkeypatch)
    reads, of_updates, update = [], [], Trainer.update

    def counted(self):
        del reads[:]
        with Reads(reads), Lists(reads):
            update(self)
        of_updates.append(list(dict.fromkeys(reads)))

    monkeypatch.setattr(Trainer, "update", counted)
    run = make_run(tmp_path / "run", pairs=120, dev=0)
    mark_documents(run, "train", range(0, 120, 6))
    recurrent = "d_hidden" in load_variant(variant).Settings.model_fields
    model = (*TRAIN, *RECURRENT) if recurrent else options()
    more = ("train.max_steps=8", "train.ema=0.9", "train.clip_norm=0.5")
    train(run, variant=variant, assignments=[*model, *SETTINGS, *more])
    assert of_updates == [[], [], [], ["tolist"]] * 2


def test_waiting_for_the_device_counts_as_time_of_the_updates(run, monkeypatch):
    """Also before a validation and a checkpoint. An update takes a second of the device alone."""
    clock, count = [0.0], Trainer._count

    def wait_and_count(self, *update):
        clock[0] += 1
        count(self, *update)

    monkeypatch.setattr(Trainer, "_count", wait_and_count)
    clocks = dict.fromkeys(("monotonic", "process_time"), lambda: clock[0])
    monkeypatch.setattr(loop, "time", SimpleNamespace(**clocks))
    more = ("train.max_steps=12", "train.validate_every=3", "train.checkpoint_every=5")
    train(run, assignments=[*options(*SETTINGS), *more])
    assert [line["seconds"] for line in metrics(run, "train")] == [4, 4, 4]
    assert state_of(run)["seconds"] == 10  # known at the beginning of the last update
