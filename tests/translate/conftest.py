"""The fixture `run` for the tests of this folder."""

from toy_run import run  # noqa: F401
