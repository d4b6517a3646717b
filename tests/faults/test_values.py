"""Commands refuse endless files, wrong kinds of files, invalid UTF-8, impossible numbers.

And they name missing packages and broken installations.
"""

import contextlib
import math
import os
import re
import signal
import socket
import subprocess
import tomllib
from pathlib import Path
from unittest.mock import Mock

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from nmtkit.analyze import ANALYSES, stage
from nmtkit.cli import app
from nmtkit.cli.analyze import analysis_command
from nmtkit.errors import ConfigError, DataError, is_out_of_memory, of_the_machine
from nmtkit.models.variants import VARIANTS, load_variant
from nmtkit.options import Options
from nmtkit.score import plain_files
from nmtkit.settings import LARGEST, STAGES, SearchSettings, build, parse_set
from nmtkit.toml import read_toml
from nmtkit.translate.hypotheses import length_limit, length_penalty
from nmtkit.translate.options import TranslateOptions
from tests.manifests import write_best
from tests.processes import python
from tests.random_systems import add_system, prepare
from tests.refused import refused

NAMES_PATHS = re.compile("FILE|SRC|HYP|LINKS|DIR|RUN|FOLDER")
"""Metavars of options whose value is a path."""


def commands():
    """Return every command by name, each analysis included."""
    found = dict(get_command(app).commands)
    del found["analyze"]
    return found | {f"analyze {name}": analysis_command(name) for name in ANALYSES}


def option_classes(cls=Options):
    """Yield every class of options of nmtkit."""
    for name in ANALYSES:
        stage.find(name)
    for child in cls.__subclasses__():
        if child.__module__.startswith("nmtkit."):
            yield child
        yield from option_classes(child)


def extra(field):
    """Return metavar and names of an option."""
    return field.json_schema_extra or {}


PATH_OPTIONS = [
    (cls, key, extra(field)["metavar"])
    for cls in dict.fromkeys(option_classes())
    for key, field in cls.model_fields.items()
    if NAMES_PATHS.search(extra(field).get("metavar") or "")
]


@pytest.fixture(autouse=True)
def nothing_takes_long():
    """Let a command that waits for ever fail."""

    def stop(number, frame):
        raise TimeoutError("a command waits")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 100)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def no_files(tmp_path, monkeypatch):
    """Paths that are no text files, by kind."""
    paths = {"zero": Path("/dev/zero"), "folder": tmp_path / "folder"}
    paths["folder"].mkdir()
    os.mkfifo(tmp_path / "pipe")
    listening = socket.socket(socket.AF_UNIX)
    monkeypatch.chdir(tmp_path)
    listening.bind("socket")  # the path of a socket must be short
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "loop").symlink_to("loop")
    yield paths | {name: tmp_path / name for name in ("pipe", "socket", "dangling", "loop")}
    listening.close()


def test_metavars_of_paths_are_recognised():
    for cls in option_classes():
        for key, field in cls.model_fields.items():
            if "Path" in str(field.annotation):
                assert (cls, key, extra(field)["metavar"]) in PATH_OPTIONS


@pytest.mark.parametrize(("cls", "key", "metavar"), PATH_OPTIONS)
def test_path_that_is_no_file_is_refused_with_its_option(cls, key, metavar, no_files, tmp_path):
    (good := tmp_path / "good.de").write_text("a\n", "utf-8")
    required = {k: "x" for k, field in cls.model_fields.items() if field.is_required()}
    field, spelled = cls.model_fields[key], extra(cls.model_fields[key])
    several = re.search("list|tuple", str(field.annotation))
    typed = metavar if spelled.get("argument") else (spelled["names"] or [key])[0]
    names = {name.replace("-", "_").strip("_") for name in (typed, metavar)}
    if not re.search("FILE|SRC|HYP|LINKS", metavar) or "NAME" in metavar.split("|"):
        del no_files["folder"]  # the option takes folders
    for path in no_files.values():
        values = [f"x={path}"] if metavar.startswith(("SET=", "NAME=")) else [str(path)]
        values += [f"{good},{path}"] * ("," in metavar or metavar.startswith("SRC"))
        for value in values:
            options = {**required, key: [value] if several else value}
            error = refused(DataError, None, cls.of, options)
            assert error.where.replace("-", "_").strip("_") in names
            assert str(path) in error.message


def test_file_without_permission_is_refused(tmp_path, monkeypatch):
    (path := tmp_path / "secret.toml").write_text("", "utf-8")
    access = os.access
    monkeypatch.setattr(os, "access", lambda p, mode: Path(p) != path and access(p, mode))
    message = f"no permission to read {path}"
    error = refused(DataError, message, TranslateOptions.of, {"config": path})
    assert (error.where, error.hint) == ("--config", f"chmod u+r {path}")


def test_pipes_of_the_shell_and_dev_null_are_accepted(pipe):
    options = TranslateOptions.of({"config": pipe("[search]\nbeam = 2\n"), "source": "-"})
    assert tomllib.loads(options.config.read_text("utf-8")) == {"search": {"beam": 2}}
    assert TranslateOptions.of({"config": Path(os.devnull)})


def test_option_values_that_are_names_of_folders_too_are_accepted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("blank", "phrase", "pronouns"):
        (tmp_path / name).mkdir()
    assert TranslateOptions.of({"source": "-", "docs": "blank"})
    assert stage.find("agreement").Options.of({"pairs": "pronouns"})
    assert stage.find("lengths").Options.of({"paper": "phrase"})


SETTINGS_FILES = [
    "prep demo --config {}",
    "train --dry-run --config {}",
    "translate - --config {}",
    "score --paper {} --table table1",
    "analyze lengths --paper {} --table table1",
]


@pytest.mark.parametrize("line", [*SETTINGS_FILES, "score {} --ref {}", "score x.de --ref {}"])
@pytest.mark.parametrize("kind", ["zero", "pipe"])
def test_commands_refuse_endless_devices_and_pipes_without_a_writer(
    run, line, kind, no_files, tmp_path
):
    (tmp_path / "x.de").write_text("a\n", "utf-8")
    words = line.format(no_files[kind], no_files[kind]).split()
    words += [] if "--ref" in words else ["--run", str(run)]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2, result.output
    assert str(no_files[kind]) in result.output and "internal" not in result.output


@contextlib.contextmanager
def endless(line):
    """Yield the path of a pipe that repeats a line without end."""
    with subprocess.Popen(["yes", line], stdout=subprocess.PIPE) as process:
        try:
            yield f"/dev/fd/{process.stdout.fileno()}"
        finally:
            process.kill()


@pytest.mark.parametrize("line", SETTINGS_FILES)
def test_endless_settings_file_is_refused(run, line):
    with endless("# comment") as path:
        result = CliRunner().invoke(app, [*line.format(path).split(), "--run", str(run)])
    assert result.exit_code == 2, result.output
    assert re.search(rf"has more than 16 MiB\n  in: {path}\n  try: check --", result.output)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("{} --ref x.de", "{} has more than 99 lines"),
        ("x.de --ref {}", "{} has more than 99 lines"),
        (
            "x.de --ref x.de --metric-scores M={}",
            "more numbers in {} for 1 sentence\n  in: --metric-scores M=",
        ),
    ],
)
def test_score_refuses_texts_with_endless_lines(words, message, tmp_path, monkeypatch):
    monkeypatch.setattr(plain_files, "MOST_LINES", 99)
    monkeypatch.chdir(tmp_path)
    Path("x.de").write_text("a\n", "utf-8")
    with endless("1") as path:
        result = CliRunner().invoke(app, ["score", *words.format(path).split()])
    assert result.exit_code == 2 and message.format(path) in result.output, result.output


# Bytes that are not UTF-8


@pytest.mark.parametrize("name", commands())
def test_option_that_is_not_utf8_is_refused(name):
    for parameter in commands()[name].params:
        if getattr(parameter, "is_flag", False) or "int" in (parameter.metavar or ""):
            continue
        option = max(parameter.opts, key=len)
        words = [option, "a\udcff"] if option.startswith("-") else ["a\udcff"]
        result = CliRunner().invoke(app, [*name.split(), *words])
        assert result.exit_code == 2 and "internal" not in result.output, result.output


def test_path_that_is_not_utf8_is_refused_before_prep_writes(tmp_path):
    words = ["prep", "mine", "--train", "a\udcff.de", "a.en", "--run", str(tmp_path / "run")]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2 and not (tmp_path / "run").exists()
    assert "not UTF-8: a\\xff.de\n  in: --train\n" in result.output


@pytest.mark.parametrize("stream", ["", "PYTHONIOENCODING=ascii"])
def test_texts_and_paths_are_utf8_in_every_locale(tmp_path, stream):
    """Tested in the C locale, whose paths are ASCII."""
    (tmp_path / "hä.de").write_text("Das Mädchen läuft.\n", "utf-8")
    (tmp_path / "hä.toml").write_text("[search]\nbeam = 'ä'\n", "utf-8")
    variables = ["LC_ALL=C", "PYTHONUTF8=0", "PYTHONCOERCECLOCALE=0"]
    variables += [stream] * bool(stream)
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("LC_", "LANG"))}
    environment |= dict(text.split("=") for text in variables)
    words = ["-m", "nmtkit", "score", "hä.de", "--ref", "hä.de", "--resamples", "2"]
    done = python(*words, env=environment, cwd=tmp_path, text=False)
    assert done.returncode == 0, done.stderr
    assert "hä.de" in done.stdout.decode("utf-8")


# Numbers

HOSTILE = [
    *("-1", "1e-320", "1000000000", "1000000000000000000000", "1e20", "1e31", "1e308", "inf"),
    *("-inf", "nan", "1e309", "0x" + "f" * 5000, "9" * 5000, "[" * 3000, "true", "''", "-1e300"),
]
SCHEMAS = {**STAGES, **{name: load_variant(name).Settings for name in VARIANTS}}


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_setting_refuses_impossible_numbers(name):
    section = name if name in STAGES else "model"
    for key, field in SCHEMAS[name].model_fields.items():
        for text in HOSTILE:
            values = parse_set([f"{section}.{key}={text}"])[section]
            try:
                value = getattr(build(SCHEMAS[name], values, section), key)
            except ConfigError as error:
                assert f"{section}.{key}" in str(error) and len(str(error)) < 1200
                continue
            if field.annotation in LARGEST:
                assert abs(value) <= LARGEST[field.annotation]


def test_length_penalty_of_the_longest_translation_is_finite():
    keys = ("length_penalty", "max_length_a", "max_length_b", "max_source")
    fields = SearchSettings.model_fields
    most = {key: max(getattr(m, "le", 0) for m in fields[key].metadata) for key in keys}
    longest = length_limit(most["max_source"], SearchSettings(**most))
    assert math.isfinite(length_penalty(longest, most["length_penalty"]))


@pytest.mark.parametrize(
    "option",
    [
        *("--beam=100000", "--length-penalty=1e308", "--nbest=1000000", "--mbr=10000000"),
        *("--jobs=1000000", "--jobs=-1", "--seed=1000000000000000000000", "--top-k=1e20"),
        *("--temperature=inf", "--diversity=1e300", "--beam=" + "9" * 5000),
        *("--set=search.max_length_b=99999999", "--set=search.batch_size=1e18"),
        *("--set=search.max_length_a=nan", "--set=search.beam=0x" + "f" * 5000),
    ],
)
def test_impossible_number_is_refused_with_option_and_range(run, option):
    result = CliRunner().invoke(app, ["translate", "-", "--run", str(run), option], input="x\n")
    assert result.exit_code == 2 and "internal" not in result.output, result.output
    key = option.removeprefix("--set=search.").partition("=")[0].strip("-").replace("-", "_")
    assert key in result.output.replace("-", "_")
    assert re.search("must (be|have)|whole", result.output), result.output


def test_settings_file_with_a_huge_number_or_deep_nesting_is_refused(tmp_path):
    for text in ("9" * 5000, "[" * 3000):
        (path := tmp_path / "c.toml").write_text(f"[train]\nseed = {text}\n", "utf-8")
        arguments = path, "the settings file", "--config", ""
        error = refused(ConfigError, "not valid TOML", read_toml, *arguments)
        assert error.where == str(path)


def test_too_little_memory_is_an_environment_error(run, monkeypatch):
    error = RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9")
    assert is_out_of_memory(MemoryError()) and not is_out_of_memory(RuntimeError("other"))
    assert is_out_of_memory(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"))
    monkeypatch.setattr("nmtkit.score.stage.score", Mock(side_effect=error))
    result = CliRunner().invoke(app, ["score", "--run", str(run)])
    assert result.exit_code == 3 and "too little memory" in result.output


# Packages and folders


@pytest.mark.parametrize(
    "error",
    [
        OSError("libcublas.so.12: cannot open shared object file: No such file or directory"),
        ImportError("/x/libtorch_cpu.so: undefined symbol: iJIT_NotifyEvent", name="_C"),
    ],
)
def test_broken_installation_of_torch_is_an_environment_error(run, monkeypatch, error):
    monkeypatch.setattr("nmtkit.score.stage.score", Mock(side_effect=error))
    result = CliRunner().invoke(app, ["score", "--run", str(run)])
    assert result.exit_code == 3, result.output
    assert f"cannot load a library: {error}" in result.output
    assert "pip install --force-reinstall torch" in result.output


def test_missing_name_in_a_library_is_no_environment_error():
    error = ImportError("cannot import name 'x' from 'y' (/z/y.cpython-311-x86_64-linux-gnu.so)")
    assert of_the_machine(error) is None


def test_unknown_home_folder_is_an_environment_error(monkeypatch):
    for name in ("HOME", "NMTKIT_CACHE", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", Mock(side_effect=KeyError("uid not found")))
    for line in ("datasets", "train --allow-code os"):
        result = CliRunner().invoke(app, line.split())
        assert result.exit_code == 3, result.output
        assert "the home folder is unknown\n  try: export HOME=" in result.output


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    made = prepare(tmp_path_factory.mktemp("values") / "run")
    add_system(made, "plain", "transformer")
    write_best(made.system("plain").path, "step-00000001")
    return made.path


@pytest.mark.parametrize(
    ("package", "line"),
    [
        ("zstandard", "score x.de.zst --ref x.de.zst"),
        ("jinja2", "report"),
        ("sacremoses", "translate - --jobs 1"),
    ],
)
def test_missing_package_is_named_with_the_command_that_installs_it(
    run, package, line, tmp_path, monkeypatch
):
    (tmp_path / "x.de.zst").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    code = f"import sys; sys.modules[{package!r}] = None; sys.argv[0] = 'nmtkit'\n"
    code += "from nmtkit.__main__ import main; main()"
    words = line.split()
    words += [] if "--ref" in words else ["--run", str(run)]
    done = python("-c", code, *words, input="x\n")
    assert done.returncode == 3 and "Traceback" not in done.stderr, done.stderr
    assert f"the package {package} is not installed\n  try: " in done.stderr
    assert f"-m pip install {package}\n" in done.stderr
