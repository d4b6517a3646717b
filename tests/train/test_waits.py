"""Waits for the device: one for each line of the log, counted on a CPU by a stand-in."""

import contextlib

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from nmtkit import files
from nmtkit.data.documents import documents_file
from nmtkit.models.variants import load_variant
from nmtkit.nn import cpu
from nmtkit.train.loop import Trainer
from nmtkit.train.stage import train
from tests.models.cases import DISTINCT
from tests.train.tiny import TRAIN, make_run, options

SETTINGS = ("train.log_every=4", "train.update_size=150", "train.validate_every=1000")
RECURRENT = ("model.d_hidden=8", "model.d_embedding=8")
# Operations whose result a GPU must give to the host: a number, or the size of a tensor.
READS = {"_local_scalar_dense", "nonzero", "masked_select", "unique", "_unique2", "equal"}
LISTS = {torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.cpu}


class Reads(TorchDispatchMode):
    """Counts what would make the host wait for a GPU."""

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
    """Counts the calls that copy a tensor to the host without an operation."""

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
    """Take the paths that a GPU takes, on a CPU."""
    monkeypatch.setattr(cpu, "writes_attention_out", lambda q, k: False)
    monkeypatch.setattr(cpu, "reads_at_once", lambda x: False)
    monkeypatch.setattr(cpu, "row_multiple", lambda device: 1)
    monkeypatch.setattr(cpu, "dropout", lambda x, p: torch.dropout(x, p, True))


@pytest.mark.parametrize("variant", sorted({*DISTINCT} - {"transformer-cycle"}))
def test_an_update_waits_for_the_device_at_a_line_of_the_log_only(variant, tmp_path, monkeypatch):
    """With documents, which some variants read."""
    emulate(monkeypatch)
    reads, of_updates, make_update = [], [], Trainer.make_update

    def counted(self):
        del reads[:]
        with Reads(reads), Lists(reads):
            make_update(self)
        of_updates.append(list(dict.fromkeys(reads)))

    monkeypatch.setattr(Trainer, "make_update", counted)
    run = make_run(tmp_path / "run", pairs=120, dev=0)
    files.write_lines(documents_file(run.prep, "train"), list(map(str, range(0, 120, 6))))
    recurrent = "d_hidden" in load_variant(variant).Settings.model_fields
    model = (*TRAIN, *RECURRENT) if recurrent else options()
    more = ("train.max_steps=8", "train.ema=0.9", "train.clip_norm=0.5")
    train(run, variant=variant, assignments=[*model, *SETTINGS, *more])
    assert of_updates == [[], [], [], ["tolist"]] * 2
