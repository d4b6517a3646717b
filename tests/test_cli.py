"""The command line: all stages on the demo corpus, and the messages for wrong input."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner

from nmtkit import __version__, errors, load
from nmtkit.cli import app, program
from nmtkit.cli.command import Command, without_effect
from nmtkit.errors import DataError
from nmtkit.files import cache_folder
from nmtkit.settings import STAGES, TrainSettings, build, load_config, load_preset
from tests.manifests import edit, read_json
from tests.processes import python
from tests.refused import refused
from tests.systems import needs_dev_full
from tests.terminal import terminal

TINY = (
    "--set model.d_model=16 --set model.d_ff=32 --set model.encoder_layers=1"
    " --set model.decoder_layers=1"
)
SHORT = "--set search.max_length_b=5"
BRIEF = (
    "--set train.max_steps=6 --set train.validate_every=3 --set train.checkpoint_every=3 " + SHORT
)


def nmtkit(line, stdin=""):
    """Run a command line in this process: .exit_code, .stdout, .stderr."""
    return CliRunner().invoke(app, shlex.split(line), input=stdin)


def ok(line, stdin=""):
    result = nmtkit(line, stdin=stdin)
    assert result.exit_code == 0, result.stderr
    return result


def shell(command, **options):
    """Run a line of bash with the nmtkit of this process."""
    command = re.sub(r"^(.*[|] )?nmtkit ", rf"\1{sys.executable} -m nmtkit ", command)
    return subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, check=False, **options
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A demo corpus of 200 pairs and two systems, trained for six steps and translated."""
    folder = tmp_path_factory.mktemp("cli") / "run"
    ok(f"prep demo --size 200 --run {folder} --jobs 1")
    ok(f"train --run {folder} {TINY} {BRIEF}")
    ok(
        f"train --run {folder} --variant tests.toy_recurrent:ToyRecurrent --system toy"
        f" --set model.d_model=16 {BRIEF}"
    )
    ok(f"translate --run {folder} --jobs 1 {SHORT}")
    return folder


@pytest.fixture
def copy(run, tmp_path):
    """A copy of the run that a test may change."""
    return Path(shutil.copytree(run, tmp_path / "run"))


# All stages


def test_score_compares_both_systems_and_stores_signatures(run):
    result = ok(f"score --run {run} --by-length --buckets 10")
    assert all(word in result.stdout for word in ("transformer", "toy", "version:"))
    scores = read_json(run / "score/test/scores.json")
    assert json.dumps(scores).count("signature") >= 2


def test_stdout_carries_results_only(run):
    result = ok(
        f"translate - --run {run} --system transformer --jobs 1",
        stdin="The cat sleeps.\n\n \nA dog.\n",
    )
    lines = result.stdout.split("\n")
    assert len(lines) == 5 and lines[1] == lines[2] == lines[4] == ""
    as_json = ok(f"score --run {run} --format json")
    assert json.loads(as_json.stdout)


def test_translating_a_file_equals_translating_the_test_set(run):
    source = run / "prep/text/test.src"
    printed = ok(f"translate {source} --run {run} --system toy --jobs 1 {SHORT}").stdout
    assert printed == (run / "systems/toy/translate/test/hyp.txt").read_text()


def test_progress_bar_is_shown_while_stdout_is_a_file(run, tmp_path, monkeypatch):
    source, printed = run / "prep/text/test.src", tmp_path / "out"
    command = f"translate {source} --run {run} --system toy --jobs 1"
    with printed.open("w") as out, terminal(monkeypatch) as sent, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", out)
        app(shlex.split(command), standalone_mode=False)
    assert printed.read_text() == ok(command).stdout
    assert "100%" in sent[0]


def test_analyze_variants_and_datasets_list_their_entries(run):
    assert "lengths" in ok("analyze").stdout
    ok(f"analyze lengths --run {run}")
    assert read_json(run / "analyze/lengths/finding.json")
    ok(f"analyze cost --run {run}")
    variants = json.loads(ok("variants --json --preset dc-wmt --vocab-size 33432").stdout)
    assert {v["name"]: v["parameters"] for v in variants}["transformer"] == 61_255_680
    assert "multi30k-ende" in {d["name"] for d in json.loads(ok("datasets --json").stdout)}


def test_repeated_commands_report_up_to_date(run):
    assert "up to date" in ok(f"prep demo --size 200 --run {run} --jobs 1").stderr
    assert "already at step 6 of 6" in ok(f"train --run {run} {TINY} {BRIEF}").stderr
    assert "up to date" in ok(f"translate --run {run} --jobs 1 {SHORT}").stderr


# Wrong input: exit code 2, a message with place and hint; no output, no new file


def wrong(line):
    """Run a command that ends as a user error; return its stderr."""
    result = nmtkit(line)
    assert result.exit_code == 2, (result.exit_code, result.stderr, result.exception)
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    return result.stderr


def files_of(folder):
    return {p.relative_to(folder) for p in Path(folder).rglob("*")} - {
        Path("history.jsonl"),
        Path(".lock"),
    }


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("prep dmo", "did you mean 'demo'"),
        ("prep wmt14", "these begin so: wmt14-ende, wmt14-deen, wmt14-enfr, wmt14-fren ("),
        ("prep demo --config nope.toml", "nope.toml"),
        (
            "prep demo --size 0",
            "nmtkit: bad value for '--size': must be at least 1 (got 0)\n  in: nmtkit prep\n",
        ),
        ("prep demo --force=3", "does not take a value\n  in: nmtkit prep\n"),
        ("analyze cost --measure=3", "does not take a value\n  in: nmtkit analyze cost\n"),
        ("prep demo --size x", "bad value for '--size': must be a whole number (got x)"),
        ("translate --beam 0", "bad value for '--beam': must be at least 1 (got 0)"),
        (
            "prep x --train nope.en nope.de --dev nope.en nope.de",
            "no such file: nope.en\n  in: --train\n",
        ),
        ("variants --vocab-size 2000000000", "bad value for '--vocab-size': must be at most"),
        ("prep demo --test nope.en,nope.de", "no such file: nope.en\n  in: --test\n"),
        ("prep demo --parses train=nope.txt", "no such file: nope.txt\n  in: --parses\n"),
        ("score --hyp nope.txt --ref nope.ref", "no such file: nope.txt\n  in: HYP\n"),
    ],
)
def test_wrong_arguments_without_a_run_are_refused(tmp_path, monkeypatch, line, message):
    monkeypatch.chdir(tmp_path)
    assert message in wrong(line)
    assert files_of(tmp_path) == set()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("train --variant transfromer", "did you mean 'transformer'"),
        ("train --variant no.such:Model", "cannot import"),
        ("train --variant json:JSONDecoder", "not a subclass"),
        ("train --system new --set train.max_steps=soon", "train.max_steps"),
        ("train --system new --init-from transfomer", "did you mean 'transformer'"),
        ("train --system 'sp ace+x'", "a letter or a digit first"),
        ("train --system new --set model.heads=3", "multiple of heads"),
        (f"train {TINY} {BRIEF} --set train.label_smoothing=0.2", "label_smoothing"),
        (f"train {TINY} {BRIEF} --allow-change train.ler", "did you mean 'train.lr'"),
        ("train --system new --allow-change nosuch.setting", "unknown setting 'nosuch.setting'"),
        ("translate --system ty", "toy"),
        ("translate --on tset", "did you mean 'test'"),
        ("translate nope.txt --system toy", "nope.txt"),
        ("translate --beam 2 --nbest 3", "nbest"),
        ("score --against transformr", "did you mean 'transformer'"),
        ("score --buckets ten", "ten"),
        ("analyze length", "did you mean 'lengths'"),
    ],
)
def test_wrong_arguments_about_a_run_are_refused(run, line, message):
    before = files_of(run)
    assert message in wrong(f"{line} --run {run}")
    assert files_of(run) == before


def test_tilde_in_a_path_is_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for command in ("report --run=~/x", "status ~/x", "score --hyp ~/x --ref ~/x"):
        assert f"{tmp_path}/x" in wrong(command)
    monkeypatch.setenv("NMTKIT_RUN", "~/x")
    assert f"no run at {tmp_path}/x" in wrong("report")
    refused(DataError, f"{tmp_path}/x", load, "~/x")
    monkeypatch.setenv("NMTKIT_CACHE", "~/x")
    assert cache_folder() == tmp_path / "x"


def test_version_has_a_short_option():
    assert ok("-V").stdout == ok("--version").stdout == f"nmtkit {__version__}\n"


def test_shell_completes_names_of_commands():
    words = {"COMP_WORDS": "nmtkit tra", "COMP_CWORD": "1"}
    code = "import sys; sys.argv[0] = 'nmtkit'; from nmtkit.__main__ import main; main()"
    environment = {**os.environ, **words, "_NMTKIT_COMPLETE": "complete_bash"}
    done = python("-c", code, env=environment)
    assert done.stdout.split() == ["train", "translate"], done.stderr


def test_platform_without_file_locks_is_an_environment_error():
    code = "import sys; sys.modules['fcntl'] = None; from nmtkit.__main__ import main; main()"
    done = python("-c", code)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (3, "", 1)
    assert "POSIX" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("option", "setting"),
    [
        ("--lr 1", "--set train.lr=…"),
        ("--batch-size=9", "--set train.batch_size=…"),
        ("--steps 5", "--set train.max_steps=…"),
        ("--resume", "train command again resumes"),
        ("--gpu", "--device cuda"),
        ("--set lr=1", "--set train.lr=…"),
        ("--set train.dropout=0.1", "--set model.dropout=…"),
    ],
)
def test_option_of_another_toolkit_is_answered_with_the_setting(run, option, setting):
    message = wrong(f"train --run {run} {option}").replace("the same nmtkit ", "")
    assert f"  try: {setting}" in message and "Possible options" not in message


def test_config_of_a_system_trains_an_equal_system(copy):
    config, variant = copy / "systems/toy/config.toml", "tests.toy_recurrent:ToyRecurrent"
    before = tomllib.loads(config.read_text())
    message = ok(f"train --run {copy} --variant {variant} --system again --config {config}").stderr
    assert tomllib.loads((copy / "systems/again/config.toml").read_text()) == before
    assert re.search(r"^nmtkit: device cpu \(.*\), b?float(16|32)$", message, re.MULTILINE)
    log = (copy / "systems/again/train.log").read_text()  # details of the arithmetic are here only
    assert "float32 products" in log and "float32 products" not in message
    message = wrong(f"train --run {copy} --system third --config {config}")
    assert f"the settings of '{variant}'" in message


def test_printed_settings_of_a_preset_are_a_valid_config_file(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(ok("settings --preset small --variant csan --toml").stdout)
    assert "\nema = 0.0\n" in path.read_text("utf-8")  # only a setting without a value is left out
    again = load_config(path, "csan")
    for section, values in load_preset("small").items():
        assert {key: again[section][key] for key in values} == values
    assert build(TrainSettings, again["train"], "train").max_steps


SAMPLING = ("sample", "temperature", "top_k", "top_p", "seed", "mbr", "diverse_groups", "diversity")
UNUSED = [  # a command, options without effect there, the reason
    ("translate text.txt", ["--force", "--on test"], "a file or stdin goes to stdout"),
    ("translate -", ["--on test"], "a file or stdin goes to stdout"),
    (
        "translate text.txt --force-target text.txt",
        [
            *("--beam 5", "--nbest 1", "--length-penalty 0.6", "--preset small"),
            *(f"--set search.{key}=1" for key in ("beam", "nbest", "length_penalty")),
            *("--set search.max_length_a=1.5", "--set search.max_length_b=9", "--config text.txt"),
            *("--prefix text.txt", "--constraints text.txt", "--metric x=cat", "--sample"),
            *("--temperature 2", "--top-k 2", "--top-p 0.5", "--seed 2", "--mbr 2"),
            *("--diverse-groups 2", "--diversity 1", "--set search.precision=int8"),
            *(f"--set search.{key}=1" for key in SAMPLING),
        ],
        "with --force-target nothing is searched or kept",
    ),
    *(
        (
            f"translate {sample}",
            [
                *("--beam 5", "--length-penalty 1"),
                *("--set search.beam=5", "--set search.length_penalty=1"),
            ],
            "--sample draws translations, so that no beam is searched",
        )
        for sample in ("--sample", "--set search.sample=true")
    ),
    (
        "prep demo --shards 2 --shard 1",
        ["--finish", "--engine dask"],
        "a job of an array (--shard) only cleans its part of the text, without an engine",
    ),
    ("prep demo", ["--shards 2"], "only the jobs of an array are numbered"),
    ("train --seed 2", ["--set train.seed=3"], "--seed is given too, and wins"),
    *(
        (
            f"translate --{key.replace('_', '-')}" + " 1" * (key != "sample"),
            [f"--set search.{key}=1"],
            f"--{key.replace('_', '-')} is given too, and wins",
        )
        for key in ("beam", "length_penalty", "nbest", "average", *SAMPLING)
    ),
    (
        "translate --force-target text.txt --on test",
        ["--force"],
        "with --force-target nothing is searched or kept",
    ),
    ("score", ["--src text.txt", "--lang de"], "the translations of a run are scored"),
    (
        "score --hyp text.txt --ref text.txt",
        ["--system toy", "--on test", "--run x", "--force"],
        "outside files are scored, without a run",
    ),
    ("score", ["--table table1"], "no paper is named"),
    (
        "score --ref text.txt",
        ["--group-by seed", "--paper text.txt", "--table table1"],
        "outside files are scored, without a run",
    ),
    ("score --ref text.txt", ["--force"], "outside files are scored, without a run"),
    (
        "export --to ctranslate2 --system transformer",
        ["--lines 5", "--at-least 90"],
        "without --check nothing is compared",
    ),
    ("settings --json", ["--toml"], "JSON is printed"),
    ("status .", ["--run ."], "runs are named without it"),
    ("settings train", ["--variant x"], "only the section model depends on the variant"),
    (
        "prep mine --spm x.model",
        [
            *("--set prep.vocab_size=9", "--set prep.vocab_threshold=9"),
            *("--set prep.merges=9", "--set prep.sentencepiece=bpe"),
        ],
        "--spm brings a model that is learnt already",
    ),
    ("datasets", ["--from-dir x"], "data sets are listed"),
    ("datasets --fetch senteval", ["--json"], "files are brought here"),
]


def long_name(option):
    """Return an option without its value: "--beam" or "--set search.beam"."""
    return option.partition("=")[0] if option.startswith("--set ") else option.split()[0]


@pytest.mark.parametrize(
    ("command", "option", "reason"),
    [(command, option, reason) for command, options, reason in UNUSED for option in options],
)
def test_option_without_effect_is_refused(run, tmp_path, monkeypatch, command, option, reason):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NMTKIT_RUN", str(run))  # must not count as an option of the command
    (tmp_path / "text.txt").write_text("A dog.\n")
    before = files_of(run)
    message, where, hint = wrong(f"{command} {option}").splitlines()
    assert message == f"nmtkit: {reason}: {long_name(option)} has no effect"
    assert where.strip() == f"in: {long_name(option)}"
    assert "leave it out" in hint or "nmtkit analyze NAME" in hint
    assert files_of(run) == before


@pytest.mark.parametrize(
    ("command", "option", "value"),
    [
        ("prep mine --like --dev dev.tsv", "--like", "--dev"),
        ("train --variant --preset tiny", "--variant", "--preset"),
    ],
)
def test_option_in_place_of_a_value_is_refused(command, option, value, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    message = f"nmtkit: {option} needs a value, got the option '{value}'\n  in: {option}\n"
    assert wrong(command).startswith(message)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "command",
    [
        "prep mine --train a.tsv --dev dev.tsv --train b.tsv",
        "prep mine --train a.tsv --dev dev.tsv --dev=b.tsv",
        "train --config a.toml --config b.toml",
    ],
)
def test_option_for_one_file_is_refused_when_given_twice(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "is given twice" in wrong(command) and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        (" search.beam = 3", "--beam is given too, and wins: --set search.beam has no effect"),
        ("search.sample = true", "--beam has no effect"),
    ],
)
def test_setting_without_effect_may_have_spaces(setting, message):
    words = ["translate", "text.txt", "--beam", "3", "--set", setting]
    assert message in CliRunner().invoke(app, words).stderr


def test_words_after_two_dashes_are_no_options():
    printed = CliRunner().invoke(app, ["train", "--config", "a.toml", "--", "--config"]).stderr
    assert "given twice" not in printed and "--config" in printed


def test_help_shows_a_default_of_0_where_it_means_something():
    assert "[default: 0]" in " ".join(ok("translate --help").stdout.split())


def test_cases_above_are_those_of_ineffective_toml():
    tried = {
        (command.split()[0], long_name(option))
        for command, options, _ in UNUSED
        for option in options
    }
    rules = [*without_effect().items(), ("settings", [{"options": ["--variant"]}])]
    assert tried == {
        (name, option) for name, cases in rules for case in cases for option in case["options"]
    }
    for name, option in tried:
        assert isinstance(COMMANDS[name], Command)
        if option.startswith("--set "):
            section, _, key = option.removeprefix("--set ").partition(".")
            assert key in STAGES[section].model_fields
        else:
            assert option in {word for param in COMMANDS[name].params for word in param.opts}


def test_options_before_the_name_of_an_analysis_are_refused():
    for option in ("--system toy", "--buckets dc", "--force", "--run x cost"):
        assert "the name of the analysis must come before its options" in wrong(f"analyze {option}")


def test_nmtkit_run_names_the_run_and_buckets_imply_by_length(run, tmp_path, monkeypatch):
    ref = tmp_path / "ref.de"
    ref.write_text("ein Hund\n")
    monkeypatch.setenv("NMTKIT_RUN", str(run))
    ok(f"score --hyp {ref} --ref {ref} --lang de --src {ref} --buckets 3")
    by_length = json.loads(ok("score --buckets 7 --format json --on test").stdout)[0]["by_length"]
    assert by_length["buckets"] == "7"
    assert (
        "by_length" not in json.loads(ok(f"score --hyp {ref} --ref {ref} --format json").stdout)[0]
    )
    ok("analyze")


def test_commands_other_than_train_refuse_torchrun(monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    ok("settings train")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "leave out torchrun" in wrong("settings train")


def test_missing_stage_is_named_with_the_command_to_run_first(tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "not prepared" in wrong(f"train --run {empty}")
    assert "no run at" in wrong(f"score --run {tmp_path / 'nope'}")
    ok(f"prep demo --size 50 --run {empty} --jobs 1")
    assert "nmtkit train" in wrong(f"translate --run {empty}")
    assert "nmtkit t" in wrong(f"score --run {empty}")


def test_score_refuses_files_of_different_length(run, tmp_path):
    (tmp_path / "hyp.de").write_text("a\nb\nc\n")
    (tmp_path / "ref.de").write_text("a\nb\n")
    message = wrong(f"score --hyp {tmp_path / 'hyp.de'} --ref {tmp_path / 'ref.de'}")
    assert "3" in message and "2" in message


@pytest.mark.parametrize(
    "command", ["translate --force --jobs 1 --system toy", "analyze cost", "analyze layers"]
)
def test_system_whose_class_cannot_be_imported_is_named(copy, command):
    config = copy / "systems/toy/config.toml"
    edit(config, "tests.toy_recurrent:", "elsewhere.toy_recurrent:")
    message, where, hint = wrong(f"{command} --run {copy}").splitlines()[-3:]
    assert "system 'toy': cannot import variant 'elsewhere.toy_recurrent:ToyRecurrent'" in message
    assert where.strip() == f"in: {config}"
    assert "PYTHONPATH" in hint and "--system transformer" in hint


def test_damaged_best_json_is_named_and_a_missing_one_is_not_needed(copy):
    best, command = copy / "systems/toy/best.json", f"translate --run {copy} --force --jobs 1"
    for damaged in ('{"a', "{}"):
        best.write_text(damaged)
        message, where, hint = wrong(f"{command} --system toy {SHORT}").splitlines()[-3:]
        assert "the file is damaged" in message and where.strip() == f"in: {best}"
        assert "nmtkit train" in hint
    best.unlink()
    ok(f"{command} --system toy {SHORT}")


@pytest.mark.parametrize(
    ("section", "value"),
    [("train", 'lr = "x"'), ("model", 'd_ff = "x"'), ("search", 'beam = "x"')],
)
def test_bad_value_in_a_systems_config_is_named_with_its_file(copy, section, value):
    config = copy / "systems/transformer/config.toml"
    key = value.split()[0]
    text = config.read_text()
    config.write_text(re.sub(rf"^{key} = .*$", value, text, flags=re.M))
    assert config.read_text() != text
    commands = [f"train --run {copy} {TINY} {BRIEF}"]
    if section != "train":
        commands += [f"translate --run {copy} --system transformer --force --jobs 1 {SHORT}"]
    for command in commands:
        message = wrong(command)
        assert f"bad value for '{section}.{key}'" in message and "(got 'x')" in message
        assert f"in: {config}, [{section}]\n" in message


def test_errors_have_the_documented_exit_codes():
    codes = {"ConfigError": 2, "DataError": 2, "CheckpointError": 2, "EnvironmentProblem": 3}
    codes |= {"TrainingDiverged": 4, "Interrupted": 75}
    assert codes == {name: getattr(errors, name).exit_code for name in codes}


def test_diverged_training_ends_with_exit_code_4(run, tmp_path):
    copied = Path(shutil.copytree(run / "prep", tmp_path / "run" / "prep")).parent
    settings = "max_steps=50", "validate_every=1", "lr=1e30", "dev_bleu=false"
    options = " ".join(f"--set train.{setting}" for setting in settings)
    result = nmtkit(f"train --run {copied} {TINY} {BRIEF} {options}")
    assert result.exit_code == 4, result.stderr
    assert "not finite" in result.stderr
    assert "best so far" not in result.stderr.split("update skipped")[-1]


def test_translate_ends_quietly_when_the_reader_of_stdout_leaves(run):
    command = f"nmtkit translate {run}/prep/text/test.src --run {run} --system toy --jobs 1"
    done = shell(f"{command} | head -n 1", env={**os.environ, "NMTKIT_RUN": ""})
    assert done.stdout.count("\n") == 1
    assert "Traceback" not in done.stderr and "BrokenPipe" not in done.stderr


@pytest.mark.parametrize(
    "arguments",
    ["--help", "prep --help", "--version", "datasets", "settings train", "settings train --json"],
)
def test_command_ends_quietly_when_stdout_is_already_closed_by_its_reader(arguments):
    reader, writer = os.pipe()
    os.close(reader)
    written = {"capture_output": False, "stdout": writer, "stderr": subprocess.PIPE}
    done = python("-m", "nmtkit", *arguments.split(), **written)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


def test_help_ends_quietly_when_the_reader_leaves_in_the_middle():
    code = """
        import sys
        from nmtkit.cli import program
        def gone(*_):
            raise BrokenPipeError
        program.Help.parse_args = gone
        sys.argv = ["nmtkit", "--help"]
        program.main()
    """
    done = python("-c", textwrap.dedent(code))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("option", "variable"), [("--debug", ""), ("", "1")])
def test_debug_shows_the_traceback_without_escape_sequences(tmp_path, option, variable):
    environment = {**os.environ, "NMTKIT_DEBUG": variable}
    done = shell(f"nmtkit score --run '{tmp_path}/nope\x1b[31m' {option}", env=environment)
    assert done.returncode == 2
    assert "Traceback" in done.stderr and "\nnmtkit: no run at" in done.stderr
    assert "\x1b" not in done.stderr and "nope\\u001b[31m" in done.stderr


@pytest.mark.parametrize("stream", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_commands_work_with_closed_standard_streams(stream):
    done = shell(f"nmtkit settings train {stream}")
    assert done.returncode == 0 and "error" not in done.stderr
    assert bool(done.stdout) == (">&-" not in stream.split())


@pytest.mark.parametrize("name", ["SIGHUP", "SIGINT"])
def test_stopped_command_ends_with_130_and_a_message(name):
    code = f"""
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell ignore it
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # a test under nohup ignores it
import nmtkit
class Version:
    def __format__(self, spec):
        os.kill(os.getpid(), signal.{name})
        return "not stopped"
nmtkit.__version__ = Version()
from nmtkit.cli import main
main()
"""
    done = python("-c", code, "--version")
    assert (done.returncode, done.stdout, done.stderr) == (
        130,
        "",
        "nmtkit: stopped; what was finished before is kept\n",
    )


@pytest.mark.parametrize(("name", "code"), [("SIGINT", -2), ("SIGTERM", -15)])
def test_signal_during_interpreter_shutdown_prints_nothing(name, code):
    program = f"""
import atexit, os, signal
signal.signal(signal.{name}, signal.SIG_DFL)  # background jobs of a shell ignore SIGINT
atexit.register(lambda: os.kill(os.getpid(), signal.{name}))
from nmtkit.__main__ import main
main()
"""
    done = python("-c", program, "--version")
    assert (done.returncode, done.stderr) == (code, "") and done.stdout.startswith("nmtkit ")


def test_ignored_signal_stays_ignored():
    """As nohup ignores SIGHUP."""
    code = (
        "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "from nmtkit.cli import program; of = signal.getsignal\n"
        "program.app = lambda: print(of(1) == signal.SIG_IGN, of(15) == program._stop)\n"
        "program.main()"
    )
    assert python("-c", code).stdout == "True True\n"


def test_second_signal_does_not_interrupt_the_cleanup():
    before = signal.getsignal(signal.SIGUSR1)
    try:
        with pytest.raises(KeyboardInterrupt):
            program._stop(signal.SIGUSR1, None)
        assert signal.getsignal(signal.SIGUSR1) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_ctrl_c_before_parsing_prints_one_line():
    stopped = "def prepare(): raise KeyboardInterrupt"
    program = "environment.prepare = prepare; from nmtkit.__main__ import main; main()"
    done = python("-c", f"from nmtkit import environment\n{stopped}\n{program}", "--version")
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == "nmtkit: stopped\n"


@pytest.mark.parametrize("stream", ["", "2>&-", pytest.param("2>/dev/full", marks=needs_dev_full)])
def test_ctrl_c_during_imports_prints_one_line(tmp_path, stream):
    code = """
import sys
class Stopped:
    def find_spec(self, name, path, target=None):
        if name == "nmtkit.cli":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Stopped())
from nmtkit.__main__ import main
main()
"""
    (tmp_path / "stopped.py").write_text(code, "utf-8")
    done = shell(f"{sys.executable} {tmp_path}/stopped.py {stream}")
    assert (done.returncode, done.stdout, done.stderr) == (
        130,
        "",
        "" if stream else "nmtkit: stopped\n",
    )


@needs_dev_full
@pytest.mark.parametrize(
    "arguments",
    [
        *("settings train", "datasets", "prep --help", "--help", "--version"),
        "translate - --system toy --jobs 1 -q <<< 'A dog.'",
    ],
)
def test_full_disk_behind_stdout_is_an_environment_error(run, arguments):
    done = shell(f"nmtkit {arguments} > /dev/full", env={**os.environ, "NMTKIT_RUN": str(run)})
    assert done.stderr.splitlines()[:2] == [
        "nmtkit: No space left on device",
        "  in: stdout, or a file that was being written",
    ]
    assert not re.search("Traceback|fault of nmtkit|Exception ignored", done.stderr)
    assert done.returncode == 3


COMMANDS = get_command(app).commands


def test_nmtkit_without_arguments_prints_its_help():
    result = nmtkit("")
    assert (result.exit_code, result.stderr) == (2, "")
    assert result.stdout.strip() == ok("--help").stdout.strip()


def test_help_lists_the_stages_in_order():
    group = get_command(app)
    names = group.list_commands(typer.Context(group))
    assert names[:6] == ["prep", "train", "translate", "score", "analyze", "report"]
    shown = ok("--help").stdout
    assert all(f" {name} " in shown for name in COMMANDS)
    zero = "[default: 0]"  # shown where the text does not say what 0 means
    assert zero in ok("prep --help").stdout and zero not in ok("analyze importance --help").stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_help_explains_every_option(name):
    result = CliRunner().invoke(app, [name, "--help"], terminal_width=200)
    assert result.exit_code == 0
    for parameter in COMMANDS[name].params:
        assert parameter.help.endswith("."), parameter.name
        assert parameter.metavar is not None or parameter.is_flag, parameter.name
        if parameter.opts[0].startswith("-"):
            assert max(parameter.opts, key=len) in result.stdout
    assert not re.search("<bool>|<int|<float", result.stdout)


MEASURING = """
import sys
import torch
from nmtkit import environment
environment.PRODUCTS = 16  # instead of 128: each takes a while to compile
from nmtkit.analyze import cost
from nmtkit.__main__ import main

def products(*_):  # of 9 shapes, twice; oneDNN makes a few of its own for each
    weight = torch.randn(16, 16).to_mkldnn()
    for _ in range(2):
        print("ROUND", flush=True)
        for rows in range(1, 10):
            torch.nn.functional.linear(torch.randn(rows, 16).to_mkldnn(), weight)
    sys.exit(0)

cost.measure_speed = products
main()
"""


@pytest.mark.parametrize(("limit", "compiled"), [(None, 0), ("16", 18)])
def test_measuring_two_systems_doubles_the_onednn_cache(run, limit, compiled):
    """Two systems need a cache of twice the size, unless the user sets its size.

    oneDNN reports each matrix product that it compiles.
    """
    environment = {key: value for key, value in os.environ.items() if not key.startswith("ONEDNN")}
    environment |= {"ONEDNN_VERBOSE": "profile_create"}
    environment |= {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": limit} if limit else {}
    command = ["analyze", "cost", "--measure", "--run", str(run)]
    done = python("-c", MEASURING, *command, env=environment)
    assert done.returncode == 0, done.stderr
    again = done.stdout.split("ROUND\n")[2]
    assert again.count("create:cache_miss") == compiled and again.count("create:cache_") == 18


def test_users_analysis_is_found_in_the_current_folder(tmp_path, monkeypatch):
    """A variant is found there too, although `nmtkit` does not have this folder on sys.path."""
    source = Path(__file__).with_name("toy_analysis.py").read_text("utf-8")
    (tmp_path / "analysis_here.py").write_text(source, "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder])
    assert "--ignore-case" in ok("analyze analysis_here:FrequentWords --help").stdout


def test_translate_refuses_closed_stdin(run):
    done = shell(f"nmtkit translate - --run {run} --system toy --jobs 1 <&-")
    assert (done.returncode, done.stdout) == (2, "")
    assert "stdin is closed" in done.stderr and "name a file" in done.stderr
