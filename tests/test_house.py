"""Rules of the code: layers of imports, no needless torch, variants named only in their files."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

import nmtkit
from nmtkit.models.variants import VARIANTS
from tests.processes import python

PACKAGE = Path(nmtkit.__file__).parent
# Lowest first: a room imports itself and the rooms before it.
ORDER = """
    environment errors names arrays console files folders owned_files trust user_classes parallel
    presets toml other_toolkits settings options fields tables records locks run curves text data
    corpora demo prep nn models score translate export train measures analyze report api cli
"""
ROOMS = ORDER.split()
IMPORTED_ONLY_BY = {"demo": "", "prep": "cli"}
"""The table of data sets names the demo's generator; other stages read only the files of prep."""
MODULES = sorted(
    p
    for p in PACKAGE.rglob("*.py")
    if p.name not in {"__init__.py", "__main__.py"} or p.parent != PACKAGE
)


def imported_rooms(source):
    """Return the rooms of nmtkit that a module imports, also inside functions."""
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


def forbidden_imports(room, source):
    """Return the rooms that the code of a room must not import but does."""
    return {
        other
        for other in imported_rooms(source) - {room}
        if ROOMS.index(other) > ROOMS.index(room) or room != IMPORTED_ONLY_BY.get(other, room)
    }


def room_of(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def test_rooms_import_only_rooms_below():
    assert {room_of(path) for path in MODULES} <= {*ROOMS, "__init__", "__main__"}
    for path in MODULES:
        assert forbidden_imports(room_of(path), path.read_text("utf-8")) == set(), path


def test_import_rule_finds_violations():
    assert forbidden_imports("nn", "def f():\n    from nmtkit.train import loop") == {"train"}
    assert forbidden_imports("data", "from nmtkit import files, cli") == {"cli"}
    assert forbidden_imports("train", "import nmtkit.data.store") == set()
    assert forbidden_imports("analyze", "from nmtkit.demo import separable_expressions") == {"demo"}
    assert forbidden_imports("demo", "from nmtkit.demo.draw import Draw") == set()
    assert forbidden_imports("translate", "from nmtkit.prep.check import Inputs") == {"prep"}
    assert forbidden_imports("cli", "from nmtkit.prep import stage") == set()


SETS_A_VARIABLE = re.compile(r"environ(\[[^]]+\] \|?= |\.(setdefault|update|pop)\b| \|= )|putenv")


def test_only_environment_py_sets_environment_variables():
    assert [path.name for path in MODULES if SETS_A_VARIABLE.search(path.read_text("utf-8"))] == [
        "environment.py"
    ]


WRITES_IN_PLACE = re.compile(r"\bopen\([^()]*[\"'][awx]b?\+?[\"']|\.unlink\(")
WRITES_ELSEWHERE = {"corpora", "demo", "prep", "cli"}
"""Rooms that write into the cache, or into a work folder that is checked at its end."""


def test_only_files_py_appends_to_and_removes_files_of_a_run():
    """nmtkit/files.py refuses to write through a link."""
    exempt = {"files.py", "folders.py", "locks.py", "stage.py", "checkpoints.py"}
    for path in MODULES:
        if room_of(path) not in WRITES_ELSEWHERE and path.name not in exempt:
            assert not WRITES_IN_PLACE.search(path.read_text("utf-8")), path
    assert WRITES_IN_PLACE.search('open(path, "a", encoding="utf-8")')


def test_only_console_and_output_print():
    """nmtkit/console.py escapes control characters; output.py writes translations unchanged."""
    names = {
        path.name
        for path in MODULES
        if re.search(r"(?<!def )(?<![.\w])print\(|stdout\.write", code(path))
    }
    assert names == {"console.py", "output.py"}


def code(path):
    return re.sub(r'""".*?"""', "", path.read_text("utf-8"), flags=re.S)


def test_only_models_and_corpora_name_variants():
    """A new model needs no change of training, search, scores, analyses or the command line."""
    for path in MODULES:
        if room_of(path) not in {"models", "corpora"}:
            assert variants_named(code(path)) == set(), path


def variants_named(code):
    """Return the variants that code names by name, by class or by an import of their module."""
    # `pr` is a name of length buckets too.
    patterns = [(name, rf"(?<![\w-]){name}(?![\w-])") for name in set(VARIANTS) - {"pr"}]
    for variant in VARIANTS.values():
        module, _, cls = variant.target.removeprefix("nmtkit.models.").partition(":")
        patterns += [(cls, rf"\b{cls}\b"), (module, rf"\bmodels(\.| import ){module}\b")]
    return {name for name, pattern in patterns if re.search(pattern, code)}


@pytest.mark.parametrize(
    "code",
    [
        "if variant == 'enc-dc':",
        "if variant == 'caru':",
        "isinstance(m, PhraseTransformer)",
        "from nmtkit.models import phrase",
        "'full-dc'",
        "RNNSearch()",
    ],
)
def test_variant_rule_finds_violations(code):
    assert variants_named(code)
    assert not variants_named("phrase = pr + latency_gatts")


def test_command_line_and_reports_do_not_load_torch():
    modules = "cli, nmtkit.run, nmtkit.score.stage, nmtkit.data.store, nmtkit.report.stage"
    code = f"import sys, nmtkit.{modules}; sys.exit('torch' in sys.modules)"
    assert python("-c", code).returncode == 0


def test_every_benchmark_can_be_imported():
    folder = Path(__file__).parent / "benchmarks"
    names = sorted(path.stem for path in folder.glob("*.py"))
    code = f"import sys; sys.path.insert(0, {str(folder)!r})\nimport {', '.join(names)}"
    assert len(names) > 5
    python("-c", code, check=True)


def rooms_without_a_test(tests, fast):
    """Return the rooms with tests of which none is a fast test."""
    tested = {path.name.removeprefix("test_").removesuffix(".py") for path in tests.iterdir()}
    return {
        room
        for room in tested & set(ROOMS)
        if not any(re.match(rf"tests/({room}(/|$)|test_{room}\.py)", name) for name in fast)
    }


def test_fast_tests_cover_every_room():
    tests = Path(__file__).parent
    listed = re.search(r"^FAST=\(.*?^\)", (tests / "run.sh").read_text("utf-8"), re.M | re.S)[0]
    shown = ["bash", "-c", listed + '; printf "%s\\n" "${FAST[@]}"']
    fast = subprocess.run(shown, check=True, capture_output=True, text=True).stdout.split()
    assert [name for name in fast if not (tests.parent / name.split("::")[0]).exists()] == []
    assert rooms_without_a_test(tests, fast) == set()
    for room in ("prep", "cli"):  # a folder, a file
        others = [name for name in fast if not re.match(rf"tests/(test_)?{room}\b", name)]
        assert rooms_without_a_test(tests, others) == {room}
