"""Code that a stranger's run names is executed only if the user allows it."""

import importlib
import importlib.util
import os
import py_compile
import shutil
import sys

import pytest
from typer.testing import CliRunner

import nmtkit
from nmtkit import trust
from nmtkit.cli import app
from nmtkit.errors import ConfigError
from nmtkit.models.variants import load_variant
from nmtkit.records import FindingInputs
from nmtkit.report.commands import analyze_command
from nmtkit.run import Run
from tests.manifests import edit
from tests.models.cases import TOY
from tests.random_systems import add_system, prepare
from tests.refused import refused

PAYLOAD = """
from pathlib import Path
from tests.toy_recurrent import ToyRecurrent
Path({flag!r}).touch()
class Model(ToyRecurrent):
    pass
"""
COMMANDS = (
    "translate --jobs 1",
    "translate - --jobs 1",
    "translate --jobs 1 --force-target {target} --on test",
    "analyze cost",
    "analyze layers",
    "analyze attention",
    "export --system toy --to ctranslate2",
    "train --dry-run --match-parameters toy --system new --preset tiny",
)


@pytest.fixture(scope="module")
def ready(tmp_path_factory):
    run = prepare(tmp_path_factory.mktemp("trust") / "run")
    add_system(run, "toy", TOY, d_model=16)
    return run.path


@pytest.fixture(autouse=True)
def new_process(monkeypatch, tmp_path):
    """Forget what a test has imported and allowed."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.setattr(trust, "_named", set())
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if "payload" in name:
            del sys.modules[name]


def forget(monkeypatch):
    """Continue as in a new process of the same user."""
    for name in [name for name in sys.modules if "payload" in name]:
        del sys.modules[name]
    monkeypatch.setattr(trust, "_named", set())
    monkeypatch.setattr(sys, "path", [p for p in sys.path if "pytest-" not in p])


@pytest.fixture
def flag(tmp_path):
    """A file that exists once the payload has been executed."""
    return tmp_path / "executed"


@pytest.fixture
def downloaded(ready, tmp_path, flag, monkeypatch):
    """A stranger's run with payload.py beside run.toml, as the current folder."""
    return stranger(ready, tmp_path / "downloaded", flag, monkeypatch)


def stranger(ready, folder, flag, monkeypatch, variant="payload:Model"):
    shutil.copytree(ready, folder)
    (folder / "payload.py").write_text(PAYLOAD.format(flag=str(flag)), "utf-8")
    config = folder / "systems/toy/config.toml"
    edit(config, TOY, variant)
    monkeypatch.chdir(folder)
    return folder


def call(words, run, **texts):
    result = CliRunner().invoke(
        app, [*words.format(**texts).split(), "--run", str(run)], input="x\n"
    )
    return result.exit_code, result.output


def names_file(words, run, name):
    """True if a command ends as a user error that names a file of the run."""
    code, output = call(words, run)
    return code == 2 and str(run / name) in output.replace("\n", "")


@pytest.mark.parametrize("command", COMMANDS)
def test_code_beside_a_run_is_refused_with_its_path(downloaded, command, flag):
    before, target = sys.path[:], downloaded / "prep/text/test.ref"
    if command == "analyze attention":
        (downloaded / "systems/toy/translate/test").mkdir(parents=True)
        for name in ("hyp.txt", "hyp.subwords.txt"):
            shutil.copy(target, downloaded / "systems/toy/translate/test" / name)
    code, output = call(command, downloaded, target=target)
    assert code == 2 and "--allow-code payload" in output
    assert str(downloaded / "payload.py") in output.replace("\n", "")
    assert not flag.exists() and sys.path == before


def test_load_refuses_code_beside_a_run_unless_allowed(downloaded, flag):
    refused(ConfigError, "payload.py", nmtkit.load, downloaded)
    assert not flag.exists()
    nmtkit.load(downloaded, allow_code=["payload"])
    assert flag.exists()


def test_init_from_reads_weights_without_executing_code(downloaded, ready, tmp_path, flag):
    words = f"train --variant {TOY} --set model.d_model=16 --set train.max_steps=1"
    words += f" --init-from {downloaded}/systems/toy --system new --preset tiny"
    shutil.copytree(ready, tmp_path / "mine")
    code, output = call(words, tmp_path / "mine")
    assert code == 0, output
    assert "payload.py" in output.replace("\n", "")
    assert not flag.exists()


def test_code_below_the_current_folder_is_refused(ready, tmp_path, monkeypatch, flag):
    folder = tmp_path / "runs/downloaded"
    stranger(ready, folder, flag, monkeypatch, "runs.downloaded.payload:Model")
    monkeypatch.chdir(tmp_path)
    assert names_file("translate --jobs 1", folder, "payload.py")
    assert not flag.exists()


def test_parent_packages_of_a_module_are_not_imported_to_find_it(
    ready, tmp_path, monkeypatch, flag
):
    folder = tmp_path / "downloaded"
    stranger(ready, folder, flag, monkeypatch, "payload_package.inner:Model")
    (folder / "payload_package").mkdir()
    for name in ("__init__", "inner"):
        shutil.copy(folder / "payload.py", folder / "payload_package" / f"{name}.py")
    assert names_file("translate --jobs 1", folder, "payload_package/__init__.py")
    assert not flag.exists()


def test_allowed_code_stays_allowed_until_it_changes(downloaded, monkeypatch, flag):
    assert call("translate --jobs 1 --allow-code payload", downloaded)[0] == 0
    assert flag.exists()
    forget(monkeypatch)
    assert call("translate --jobs 1 --force", downloaded)[0] == 0
    forget(monkeypatch)
    flag.unlink()
    with open(downloaded / "payload.py", "a", encoding="utf-8") as stream:
        stream.write("# changed\n")
    assert call("translate --jobs 1 --force", downloaded)[0] == 2
    assert not flag.exists()


def compile_for(source, other, mode):
    """Put bytecode of another file into the cache of a source file."""
    cache = importlib.util.cache_from_source(source)
    if mode is py_compile.PycInvalidationMode.TIMESTAMP:  # time and size must be equal
        status = source.stat()
        with open(other, "a", encoding="utf-8") as stream:
            stream.write("#" * (status.st_size - other.stat().st_size))
        os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    py_compile.compile(other, cfile=cache, doraise=True, invalidation_mode=mode)


@pytest.mark.parametrize("mode", ["UNCHECKED_HASH", "TIMESTAMP"])
@pytest.mark.parametrize("cached", ["payload", "payload_helper", "payload_package.inner"])
def test_cached_bytecode_of_an_allowed_module_is_not_executed(
    ready, tmp_path, monkeypatch, mode, cached
):
    """An archive can contain __pycache__, which Python would execute instead of the code."""
    folder = tmp_path / "downloaded"
    variant = cached if "." in cached else "payload"
    stranger(ready, folder, tmp_path / "flag", monkeypatch, f"{variant}:Model")
    (folder / "payload_package").mkdir()
    (folder / "payload_package/__init__.py").write_text("import payload_helper", "utf-8")
    (folder / "payload_helper.py").write_text(f"# {'a line of the helper ' * 9}\n", "utf-8")
    shutil.copy(folder / "payload.py", folder / "payload_package/inner.py")
    with open(folder / "payload.py", "a", encoding="utf-8") as stream:
        stream.write("import payload_helper\n")
    assert call(f"translate --jobs 1 --allow-code {variant}", folder)[0] == 0
    forget(monkeypatch)
    evil = tmp_path / "evil.py"
    evil.write_text(f"raise SystemExit({'executed'!r})\n", "utf-8")
    source = folder / f"{cached.replace('.', '/')}.py"
    compile_for(source, evil, py_compile.PycInvalidationMode[mode])
    importlib.invalidate_caches()
    code, output = call("translate --jobs 1 --force", folder)
    assert code == 0, output


def test_code_that_was_checked_is_the_code_that_is_executed(downloaded, monkeypatch):
    """A file that changes between the check and the execution does not count."""
    assert call("translate --jobs 1 --allow-code payload", downloaded)[0] == 0
    forget(monkeypatch)
    checked, evil = trust._is_remembered, "raise SystemExit('executed')"

    def exchanged(path, *content):
        good = checked(path, *content)
        (downloaded / "payload.py").write_text(evil, "utf-8")
        return good

    monkeypatch.setattr(trust, "_is_remembered", exchanged)
    assert call("translate --jobs 1 --force", downloaded)[0] == 0


def test_environment_variable_allows_code_without_recording_it(downloaded, tmp_path, monkeypatch):
    monkeypatch.setenv("NMTKIT_ALLOW_CODE", "other, payload")
    assert call("translate --jobs 1", downloaded)[0] == 0
    forget(monkeypatch)
    monkeypatch.delenv("NMTKIT_ALLOW_CODE")
    assert call("translate --jobs 1 --force", downloaded)[0] == 2
    assert not (tmp_path / "settings").exists()


def test_missing_module_cannot_be_allowed(downloaded):
    code, output = call("translate --jobs 1 --allow-code pay", downloaded)
    assert code == 2 and "No module named 'pay'" in output


def test_permission_of_the_author_is_not_copied_with_a_run(ready, tmp_path, monkeypatch, flag):
    mine = tmp_path / "mine"
    stranger(ready, mine, flag, monkeypatch)
    shutil.rmtree(mine / "systems")
    words = "train --variant payload:Model --system toy --preset tiny --set train.max_steps=1"
    words += " --set model.d_model=16"
    code, output = call(words, mine)
    assert code == 0, output
    forget(monkeypatch)
    code, output = call("translate --jobs 1", mine)
    assert code == 0, output
    forget(monkeypatch)
    theirs = tmp_path / "theirs"
    shutil.copytree(mine, theirs)  # a run holds no permission
    (theirs / "payload.py").write_text("raise SystemExit('executed')", "utf-8")
    monkeypatch.chdir(theirs)
    assert names_file("translate --jobs 1 --force", theirs, "payload.py")


@pytest.mark.parametrize(
    "name", ["this:Model", "..payload:Model", "/payload:Model", ":", "payload."]
)
def test_invalid_names_of_model_classes_are_refused(downloaded, name, stdout):
    refused(ConfigError, None, load_variant, name)
    assert "this" not in sys.modules and stdout() == ""


def test_suggested_commands_name_no_code_of_a_run(downloaded, flag):
    config = downloaded / "systems/toy/config.toml"
    assert "--variant package.module:Class" in call("train --system toy", downloaded)[1]
    edit(config, 'variant = "', 'corpus = "another"\nvariant = "')
    assert "--variant package.module:Class" in call("status", downloaded)[1]
    inputs = FindingInputs(
        analysis="payload:A", systems=["toy"], files={}, words=["--allow-code", "payload"]
    )
    command = analyze_command("a", inputs, ["toy"])
    assert command == "nmtkit analyze package.module:Class"
    named = inputs.model_copy(update={"analysis": ""})
    assert analyze_command("lengths", named, ["toy"]) == "nmtkit analyze lengths"
    assert not flag.exists()
    edit(config, "payload:Model", "m:X; curl evil")
    code, output = call("train --system toy", downloaded)
    assert code == 2 and "damaged: 'variant'" in output and "--variant m:X" not in output


def test_only_an_analysis_named_on_the_command_line_is_executed(downloaded, flag):
    finding = downloaded / "analyze/payload:Words"
    finding.mkdir(parents=True)
    call("report", downloaded)
    call("status", downloaded)
    assert not flag.exists()
    assert "is not a subclass" in call("analyze payload:Model", downloaded)[1].replace("\n", "")
    assert flag.exists()
    assert Run(downloaded).systems()


def test_score_and_report_execute_no_code(downloaded, flag):
    folder = downloaded / "systems/toy/translate/test"
    folder.mkdir(parents=True)
    shutil.copy(downloaded / "prep/text/test.ref", folder / "hyp.txt")
    assert call("score --resamples 10 --trials 10", downloaded)[0] == 0
    assert call("report", downloaded)[0] == 0
    assert not flag.exists()


def test_systems_without_code_of_a_run_are_translated(downloaded, flag):
    add_system(Run(downloaded), "plain", "transformer")
    code, output = call("translate --jobs 1", downloaded)
    assert code == 0 and str(downloaded / "payload.py") in output.replace("\n", "")
    assert (downloaded / "systems/plain/translate/test/hyp.txt").is_file()
    assert not flag.exists()


def test_unwritable_folder_of_user_settings_stops_no_command(downloaded, tmp_path):
    (tmp_path / "settings").write_text("a file", "utf-8")
    code, output = call("translate --jobs 1 --allow-code payload", downloaded)
    assert code == 0 and "not remembered" in output
