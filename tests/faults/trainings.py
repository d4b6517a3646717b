"""Short trainings of a tiny run, and what they leave."""

from tests.train.tiny import options, trainer

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


fit = trainer(SETTINGS)


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
