"""Fixtures for all tests, and speed-ups of repeated work."""

import builtins
import contextlib
import errno
import functools
import gc
import io
import os
import runpy
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.testing
from hypothesis import settings

from nmtkit import demo
from nmtkit.score import counts
from nmtkit.tables.table import Table
from tests import ROOT, table_width
from tests.device import ON_GPU

# One server starts the ranks of all tests and reads this variable at its start. `nmtkit train` sets
# the variable itself.
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
# With this variable a program does not notice at its end that its output cannot be written.
os.environ.pop("PYTHONUNBUFFERED", None)

# Without a GPU, Triton's kernels are interpreted. Triton reads this when it is imported.
if not ON_GPU:
    os.environ["TRITON_INTERPRET"] = "1"

# No test cuts the power, and the kernel keeps what a killed process has written.
os.fsync = lambda descriptor: None

# The same examples on every machine, and no deadline: a machine may be slow or busy.
settings.register_profile(
    "bounded", derandomize=True, deadline=None, max_examples=60, database=None
)
settings.load_profile("bounded")


LONGEST = ("test_training_with_a_real_compiler_has_the_eager_losses", "test_mypy_finds_no_error")
"""Tests that take up to a minute each where nothing is cached."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest tests: one that runs last keeps only one core busy."""
    items.sort(key=lambda item: item.name not in LONGEST)


def pytest_collection_finish() -> None:
    """Exclude the loaded modules from garbage collection, and collect less often.

    The modules of all tests are a million objects; a visit of all takes as long as some tests.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def pytest_unconfigure() -> None:
    """Let the process free all objects at its end; otherwise a library warns of leaks."""
    gc.unfreeze()


@pytest.fixture(scope="session", autouse=True)
def printed_tables_fit_terminals() -> Iterator[None]:
    """Check on terminals of several widths every table that a test prints."""
    original = Table.print

    def checked_print(table: Table, output_format: str = "table") -> None:
        table_width.check(table)
        original(table, output_format)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Table, "print", checked_print)
        yield


@pytest.fixture(scope="session", autouse=True)
def demo_corpora_are_generated_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Copy the first demo corpus of equal arguments, with 60 sentences a set instead of 500.

    tests/demo checks that equal arguments give equal corpora.
    """
    generate = demo.generate

    @functools.cache
    def generated(**arguments: int) -> Path:
        folder = tmp_path_factory.mktemp("demo")
        generate(folder, **arguments)
        return folder

    def copied(out_dir: Path, **arguments: int) -> None:
        folder = generated(**{"dev": 60, "test": 60} | arguments)
        shutil.copytree(folder, out_dir, dirs_exist_ok=True)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "generate", copied)
        yield


@pytest.fixture(scope="session", autouse=True)
def program_is_built_once() -> Iterator[None]:
    """Build the command line once: building takes 8 ms, and tests call commands 1,000 times."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.testing, "_get_command", functools.cache(typer.testing._get_command))
        yield


@pytest.fixture(scope="session", autouse=True)
def seeds_skip_absent_devices() -> Iterator[None]:
    """Skip seeding of absent GPUs, for which torch records a traceback at every seed."""
    torch = sys.modules.get("torch")  # few tests need none
    with pytest.MonkeyPatch.context() as patch:
        if torch and not ON_GPU:
            for device in (torch.cuda, torch.xpu):
                patch.setattr(device, "manual_seed_all", lambda seed: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def ngrams_are_counted_once() -> Iterator[None]:
    """Cache n-gram counts: counting takes most of the time of scoring, and tests repeat texts."""
    count = counts.count

    @functools.lru_cache(200)
    def remembered(*_: Any) -> list[Any]:
        return []  # filled by the first call

    def counted(metric: Any, hyps: list[str], refs: list[list[str]]) -> Any:
        settings = counts.PRIVATE, type(metric), metric.get_signature().format()
        result = remembered(settings, tuple(hyps), tuple(map(tuple, refs)))
        if not result:
            result += count(metric, hyps, refs)
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counts, "count", counted)
        yield


@pytest.fixture(scope="session", autouse=True)
def only_test_models_are_allowed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Use an empty folder of user settings, where allowed code is recorded."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("settings")))
        patch.setenv("NMTKIT_ALLOW_CODE", "tests.toy_recurrent,tests.export.toy_derived")
        yield


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real data beside the checkout; CI fails without it."""
    folder = ROOT.parent / "shared"
    if not (folder / "data").is_dir():
        message = f"no real data: this test needs the folder {folder} beside the checkout"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    return folder


@pytest.fixture(scope="session")
def audit(shared):
    """The functions of reference/parameter_counts.py, an oracle without torch and nmtkit."""
    with contextlib.redirect_stdout(io.StringIO()):
        return runpy.run_path(str(shared / "reference" / "parameter_counts.py"))


@pytest.fixture
def pipe() -> Iterator[Callable[[str], Path]]:
    """A function that puts a short text into a pipe and returns its path, like a shell's `<(…)`."""
    with contextlib.ExitStack() as open_ends:

        def fill(text: str) -> Path:
            reading, writing = os.pipe()
            open_ends.callback(os.close, reading)
            with os.fdopen(writing, "w", encoding="utf-8") as stream:
                stream.write(text)
            return Path(f"/dev/fd/{reading}")

        yield fill


@pytest.fixture
def read_only(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """A function that makes a folder read-only; permissions would not stop root."""

    def refuse(folder: Path) -> None:
        original = builtins.open

        def opened(path: Any, mode: str = "r", *rest: Any, **options: Any) -> Any:
            if (
                not isinstance(path, int)
                and Path(path).is_relative_to(folder)
                and set(mode) & set("wax+")
            ):
                raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
            return original(path, mode, *rest, **options)

        access = os.access
        monkeypatch.setattr(builtins, "open", opened)
        monkeypatch.setattr(
            os,
            "access",
            lambda path, mode: (
                not (mode & os.W_OK and Path(path).is_relative_to(folder)) and access(path, mode)
            ),
        )

    return refuse


@pytest.fixture(scope="session")
def multi30k_run(shared, tmp_path_factory):
    """Multi30k English-German with 2,000 merges, prepared once a session. Tests only read it."""
    from nmtkit.prep.stage import prep

    folder = tmp_path_factory.mktemp("multi30k") / "run"
    return prep(
        "multi30k-ende",
        from_dir=shared / "data" / "multi30k" / "raw",
        jobs=2,
        assignments=["prep.merges=2000"],
        run_dir=folder,
    )


@pytest.fixture
def stderr(capsys):
    """A function that returns what was written to stderr since its last call."""
    return lambda: capsys.readouterr().err


@pytest.fixture
def stdout(capsys):
    """A function that returns what was written to stdout since its last call."""
    return lambda: capsys.readouterr().out
