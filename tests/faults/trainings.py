"""Short trainings of a tiny run, and what they leave."""

import json

from nmtkit import files
from nmtkit.models import checkpoints
from nmtkit.train.stage import train
from tests.train.tiny import options

SETTINGS = options(
    "train.max_steps=6",
    "train.checkpoint_every=2",
    "train.validate_every=100",
    "train.dev_bleu=false",
    "train.samples=0",
)


class Killed(BaseException):
    """Stands for SIGKILL: nothing that cleans up may run (only `except BaseException` would
    catch it).
    """


def fit(run, *assignments, **more):
    """Train with `SETTINGS`; the assignments win."""
    train(run, assignments=[*SETTINGS, *assignments], **more)


def newest(run):
    """The last whole checkpoint."""
    return checkpoints.find_checkpoints(run.system("transformer"))[-1]


def state_of(run):
    return files.read_json(newest(run) / "state.json")


def metrics_of(run):
    return [json.loads(line) for line in run.system("transformer").metrics.read_text().splitlines()]


def interfere(monkeypatch, owner, name, numbers, action):
    """Call `action` before the calls of these numbers (from 1) of a function; return the count of
    calls.
    """
    original, calls = getattr(owner, name), [0]

    def wrapped(*args, **kwargs):
        calls[0] += 1
        if calls[0] in numbers:
            action()
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, wrapped)
    return calls


def fail(monkeypatch, owner, name, error, numbers):
    """Let the calls of these numbers (from 1) raise an error; return the count of calls."""

    def raise_error():
        raise error

    return interfere(monkeypatch, owner, name, numbers, raise_error)
