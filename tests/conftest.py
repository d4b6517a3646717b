"""Fixtures that every test may use."""

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

# Ranks of all tests come from one server, which reads this when the first test starts it; the command
# sets it itself.
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
# With it, a program never finds out at its end that its output cannot be written.
os.environ.pop("PYTHONUNBUFFERED", None)

# Without a GPU, Triton's kernels are interpreted. Triton reads this when it is imported.
if not ON_GPU:
    os.environ["TRITON_INTERPRET"] = "1"

# No test cuts the power, and a killed process loses nothing that it has written.
os.fsync = lambda descriptor: None

# The same examples everywhere and always, and no deadline: a machine may be slow or busy.
settings.register_profile(
    "bounded", derandomize=True, deadline=None, max_examples=60, database=None
)
settings.load_profile("bounded")


LONGEST = ("test_a_training_with_a_real_compiler", "test_types_agree")
"""Tests that take up to a minute each where nothing is cached."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest tests: at the end one would run alone, on one core."""
    items.sort(key=lambda item: item.name not in LONGEST)


def pytest_collection_finish() -> None:
    """Leave what is loaded out of every collection of garbage, and collect less often.

    The modules of all tests are a million objects: to walk through them takes as long as some tests.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def pytest_unconfigure() -> None:
    """At its end a process frees everything, or a library warns of what leaks."""
    gc.unfreeze()


@pytest.fixture(scope="session", autouse=True)
def every_printed_table_fits() -> Iterator[None]:
    """Every table that a test prints is tried on terminals of several widths, too."""
    printed = Table.print

    def tried(table: Table, output_format: str = "table") -> None:
        table_width.check(table)
        printed(table, output_format)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Table, "print", tried)
        yield


@pytest.fixture(scope="session", autouse=True)
def a_demo_corpus_is_generated_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A demo corpus of the same arguments is a copy of the first one (tests/demo shows that it is
    the same), and has sets of 60 sentences where it would have 500.
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
def a_program_is_made_once() -> Iterator[None]:
    """Tests call the program a thousand times, and to make its commands takes 8 ms a call."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.testing, "_get_command", functools.cache(typer.testing._get_command))
        yield


@pytest.fixture(scope="session", autouse=True)
def seeds_are_for_the_devices_that_are_here() -> Iterator[None]:
    """Without a GPU, torch writes a traceback down for every seed, in case one comes later."""
    torch = sys.modules.get("torch")  # few tests need none
    with pytest.MonkeyPatch.context() as patch:
        if torch and not ON_GPU:
            for device in (torch.cuda, torch.xpu):
                patch.setattr(device, "manual_seed_all", lambda seed: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def texts_are_counted_once() -> Iterator[None]:
    """Counting n-grams takes most of the time of a score, and tests score equal texts."""
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
def only_the_models_of_tests_are_allowed(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[None]:
    """The user's folder of settings, where allowed code is remembered, is a new one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("settings")))
        patch.setenv("NMTKIT_ALLOW_CODE", "tests.toy_recurrent,tests.export.toy_derived")
        yield


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real data beside the checkout; on CI its absence is a failure."""
    folder = ROOT.parent / "shared"
    if not (folder / "data").is_dir():
        message = (
            f"no real data at {folder}: this test needs the folder 'shared' beside the checkout"
        )
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    return folder


@pytest.fixture(scope="session")
def audit(shared):
    """The parameter counts of reference/parameter_counts.py, which knows no torch and nothing of
    this code.
    """
    with contextlib.redirect_stdout(io.StringIO()):
        return runpy.run_path(str(shared / "reference" / "parameter_counts.py"))


@pytest.fixture
def pipe() -> Iterator[Callable[[str], Path]]:
    """A function: the path, as a shell's `<(…)` has it, of a pipe with a short text that can be
    read once.
    """
    with contextlib.ExitStack() as held:

        def filled(text: str) -> Path:
            reading, writing = os.pipe()
            held.callback(os.close, reading)
            with os.fdopen(writing, "w", encoding="utf-8") as stream:
                stream.write(text)
            return Path(f"/dev/fd/{reading}")

        yield filled


@pytest.fixture
def read_only(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """A function: from now on a folder is as on a disk that cannot be written (root may write
    whatever the permissions say).
    """

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
    """Multi30k English-German, prepared once a session with 2,000 merges; read only."""
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
    """What was written to stderr since the last call of this function."""
    return lambda: capsys.readouterr().err


@pytest.fixture
def stdout(capsys):
    """What was written to stdout since the last call of this function."""
    return lambda: capsys.readouterr().out
