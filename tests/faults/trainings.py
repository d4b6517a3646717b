"""Short trainings of a tiny run, and interruptions of them."""

import contextlib

import pytest

from tests.train.tiny import options, trainer

SETTINGS = options(
    "train.max_steps=6",
    "train.checkpoint_every=2",
    "train.validate_every=100",
    "train.dev_bleu=false",
    "train.samples=0",
)


class Killed(BaseException):
    """Replaces SIGKILL; only `except BaseException` would catch it."""


fit = trainer(SETTINGS)


def interfere(monkeypatch, owner, name, numbers, action):
    """Call `action` before some calls of a function, by number from 1; return a list: [calls]."""
    original, calls = getattr(owner, name), [0]

    def wrapped(*args, **kwargs):
        calls[0] += 1
        if calls[0] in numbers:
            action()
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, wrapped)
    return calls


def fail(monkeypatch, owner, name, error, numbers):
    """Raise an error in some calls of a function, by number from 1; return a list: [calls]."""

    def raise_error():
        raise error

    return interfere(monkeypatch, owner, name, numbers, raise_error)


@contextlib.contextmanager
def killed(owner, name, number=1):
    """Kill the process (here: raise Killed) in the n-th call of a function."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        fail(patch, owner, name, Killed, {number})
        yield
