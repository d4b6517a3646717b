"""The house rules that keep rooms apart: imports go down only, no torch where none is needed, no
variant named outside its file.
"""

import ast
import re
import subprocess
from pathlib import Path

import pytest

import nmtkit
from nmtkit.models.variants import VARIANTS
from tests.processes import python

PACKAGE = Path(nmtkit.__file__).parent
# Lowest first; a room may import itself and what stands before it.
ORDER = (
    "environment errors names arrays console files folders owned_files trust user_classes parallel presets toml other_toolkits settings options fields tables records locks run curves"
    " text data corpora demo prep nn models score translate export train measures analyze report api cli"
)
ROOMS = ORDER.split()
IMPORTED_ONLY_BY = {"demo": "", "prep": "cli"}
"""The table of data sets names the demo's generator; other stages read what prep has written."""
MODULES = sorted(
    p
    for p in PACKAGE.rglob("*.py")
    if p.name not in {"__init__.py", "__main__.py"} or p.parent != PACKAGE
)


def imported_rooms(source):
    """The rooms of nmtkit that a module imports, anywhere in it."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names |= (
                {node.module or ""}
                if node.module != "nmtkit"
                else {f"nmtkit.{alias.name}" for alias in node.names}
            )
    return {
        name.split(".")[1]
        for name in names
        if name.startswith("nmtkit.") and name.split(".")[1] in ROOMS
    }


def climbs(room, source):
    """The rooms that `source`, of `room`, imports though it must not: those above it, and those
    that only another room imports.
    """
    return {
        other
        for other in imported_rooms(source) - {room}
        if ROOMS.index(other) > ROOMS.index(room) or room != IMPORTED_ONLY_BY.get(other, room)
    }


def room_of(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def test_imports_go_down_only():
    assert {room_of(path) for path in MODULES} <= {*ROOMS, "__init__", "__main__"}
    for path in MODULES:
        assert climbs(room_of(path), path.read_text("utf-8")) == set(), path


def test_the_import_rule_can_fail():
    assert climbs("nn", "def f():\n    from nmtkit.train import loop") == {"train"}
    assert climbs("data", "from nmtkit import files, cli") == {"cli"}
    assert climbs("train", "import nmtkit.data.store") == set()
    assert climbs("analyze", "from nmtkit.demo import separable_expressions") == {"demo"}
    assert climbs("demo", "from nmtkit.demo.draw import Draw") == set()
    assert climbs("translate", "from nmtkit.prep.check import Inputs") == {"prep"}
    assert climbs("cli", "from nmtkit.prep import stage") == set()


SETS_A_VARIABLE = re.compile(r"environ(\[[^]]+\] \|?= |\.(setdefault|update|pop)\b| \|= )|putenv")


def test_one_file_sets_environment_variables():
    assert [path.name for path in MODULES if SETS_A_VARIABLE.search(path.read_text("utf-8"))] == [
        "environment.py"
    ]


WRITES_IN_PLACE = re.compile(r"\bopen\([^()]*[\"'][awx]b?\+?[\"']|\.unlink\(")
WRITES_ELSEWHERE = {"corpora", "demo", "prep", "cli"}
"""Rooms that write into the cache, or into a work folder that is checked as a whole."""


def test_files_of_a_run_are_appended_to_and_removed_in_one_file():
    """nmtkit/files.py refuses to do so through a link."""
    alone = {"files.py", "folders.py", "locks.py", "stage.py", "checkpoints.py"}
    for path in MODULES:
        if room_of(path) not in WRITES_ELSEWHERE and path.name not in alone:
            assert not WRITES_IN_PLACE.search(path.read_text("utf-8")), path
    assert WRITES_IN_PLACE.search('open(path, "a", encoding="utf-8")')


def test_all_that_is_printed_goes_through_the_console():
    """nmtkit/console.py makes control characters visible. A pipe gets translations as they are."""
    names = {
        path.name
        for path in MODULES
        if re.search(r"(?<!def )(?<![.\w])print\(|stdout\.write", code(path))
    }
    assert names == {"console.py", "output.py"}


def code(path):
    return re.sub(r'""".*?"""', "", path.read_text("utf-8"), flags=re.S)


def test_no_room_but_models_names_a_variant():
    """Adding a model must need no edit in training, search, scores, analyses or the command
    line.
    """
    for path in MODULES:
        if room_of(path) not in {"models", "corpora"}:
            assert variants_named(code(path)) == set(), path


def variants_named(code):
    """The variants of the table that code names: by their name, their class, or an import of
    their module.
    """
    found = {
        name for name in set(VARIANTS) - {"pr"} if re.search(rf"(?<![\w-]){name}(?![\w-])", code)
    }  # pr is a name of buckets of lengths, too
    for variant in VARIANTS.values():
        module, _, cls = variant.target.removeprefix("nmtkit.models.").partition(":")
        for name, pattern in (
            (cls, rf"\b{cls}\b"),
            (module, rf"\bmodels(\.| import ){module}\b"),
        ):
            found |= {name} if re.search(pattern, code) else set()
    return found


@pytest.mark.parametrize(
    "code",
    [
        "if variant == 'enc-dc':",
        "isinstance(m, PhraseTransformer)",
        "from nmtkit.models import phrase",
        "'full-dc'",
        "RNNSearch()",
    ],
)
def test_the_rule_of_variants_can_fail(code):
    assert variants_named(code)
    assert not variants_named("phrase = pr + latency_gatts")


def test_no_torch_where_none_is_needed():
    modules = "cli, nmtkit.run, nmtkit.score.stage, nmtkit.data.store, nmtkit.report.stage"
    code = f"import sys, nmtkit.{modules}; sys.exit('torch' in sys.modules)"
    assert python("-c", code).returncode == 0


def test_every_benchmark_finds_what_it_imports():
    folder = Path(__file__).parent / "benchmarks"
    names = sorted(path.stem for path in folder.glob("*.py"))
    code = f"import sys; sys.path.insert(0, {str(folder)!r})\nimport {', '.join(names)}"
    assert len(names) > 5
    python("-c", code, check=True)


def rooms_without_a_test(tests, fast):
    """The rooms with a folder or a file of tests of which the fast tests have nothing."""
    tested = {path.name.removeprefix("test_").removesuffix(".py") for path in tests.iterdir()}
    return {
        room
        for room in tested & set(ROOMS)
        if not any(re.match(rf"tests/({room}(/|$)|test_{room}\.py)", name) for name in fast)
    }


def test_the_fast_tests_have_some_of_every_room():
    tests = Path(__file__).parent
    listed = re.search(r"^FAST=\(.*?^\)", (tests / "run.sh").read_text("utf-8"), re.M | re.S)[0]
    shown = ["bash", "-c", listed + '; printf "%s\\n" "${FAST[@]}"']
    fast = subprocess.run(shown, check=True, capture_output=True, text=True).stdout.split()
    assert [name for name in fast if not (tests.parent / name.split("::")[0]).exists()] == []
    assert rooms_without_a_test(tests, fast) == set()
    for room in ("prep", "cli"):  # a folder, a file
        others = [name for name in fast if not re.match(rf"tests/(test_)?{room}\b", name)]
        assert rooms_without_a_test(tests, others) == {room}
