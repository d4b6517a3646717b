"""The command line: the whole chain on the demo corpus by its printed commands, and the answer to
what a user types wrong.
"""

import json
import os
import re
import shlex
import shutil
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
from nmtkit.cli import app
from nmtkit.cli.command import Command, without_effect
from nmtkit.errors import DataError
from nmtkit.files import cache_folder
from nmtkit.settings import STAGES, TrainSettings, build, load_config, load_preset
from tests.manifests import edit, read_json, write_json
from tests.processes import python
from tests.refused import refused
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
    """A demo corpus of 200 pairs, two systems of six steps, translated."""
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
    """A copy of the run that a test may spoil."""
    return Path(shutil.copytree(run, tmp_path / "run"))


# The chain


def test_both_systems_are_translated_and_stand_side_by_side(run):
    result = ok(f"score --run {run} --by-length --buckets 10")
    assert "transformer" in result.stdout and "toy" in result.stdout and "version:" in result.stdout
    scores = read_json(run / "score/test/scores.json")
    assert json.dumps(scores).count("signature") >= 2


def test_stdout_carries_the_result_only(run):
    result = ok(
        f"translate - --run {run} --system transformer --jobs 1",
        stdin="The cat sleeps.\n\n \nA dog.\n",
    )
    lines = result.stdout.split("\n")
    assert len(lines) == 5 and lines[1] == lines[2] == lines[4] == ""
    as_json = ok(f"score --run {run} --format json")
    assert json.loads(as_json.stdout)


def test_a_file_and_the_test_set_translate_alike(run):
    printed = ok(
        f"translate {run / 'prep/text/test.src'} --run {run} --system toy --jobs 1 {SHORT}",
    ).stdout
    assert printed == (run / "systems/toy/translate/test/hyp.txt").read_text()


def test_translations_go_to_a_file_while_the_terminal_shows_a_bar(run, tmp_path, monkeypatch):
    source, printed = run / "prep/text/test.src", tmp_path / "out"
    command = f"translate {source} --run {run} --system toy --jobs 1"
    with printed.open("w") as out, terminal(monkeypatch) as sent, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", out)
        app(shlex.split(command), standalone_mode=False)
    assert printed.read_text() == ok(command).stdout
    assert "100%" in sent[0]


def test_analyses_and_lists(run):
    assert "lengths" in ok("analyze").stdout
    ok(f"analyze lengths --run {run}")
    assert read_json(run / "analyze/lengths/finding.json")
    ok(f"analyze cost --run {run}")
    variants = json.loads(ok("variants --json --preset dc-wmt --vocab-size 33432").stdout)
    assert {v["name"]: v["parameters"] for v in variants}["transformer"] == 61_255_680
    assert "multi30k-ende" in {d["name"] for d in json.loads(ok("datasets --json").stdout)}


def test_the_same_command_again_says_that_it_is_done(run):
    assert "up to date" in ok(f"prep demo --size 200 --run {run} --jobs 1").stderr
    assert "already at step 6 of 6" in ok(f"train --run {run} {TINY} {BRIEF}").stderr
    assert "up to date" in ok(f"translate --run {run} --jobs 1 {SHORT}").stderr


# What a person types wrong: exit code 2, one line what, where, what to do; nothing on stdout;
# nothing half-written


def wrong(line):
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
    ("line", "said"),
    [
        ("prep dmo", "did you mean 'demo'"),
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
        ("prep demo --test nope.en,nope.de", "no such file: nope.en\n  in: --test\n"),
        ("prep demo --parses train=nope.txt", "no such file: nope.txt\n  in: --parses\n"),
        ("score --hyp nope.txt --ref nope.ref", "no such file: nope.txt\n  in: HYP\n"),
    ],
)
def test_wrong_words_before_there_is_a_run(tmp_path, monkeypatch, line, said):
    monkeypatch.chdir(tmp_path)
    assert said in wrong(line)
    assert files_of(tmp_path) == set()


@pytest.mark.parametrize(
    ("line", "said"),
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
def test_wrong_words_about_a_run(run, line, said):
    before = files_of(run)
    assert said in wrong(f"{line} --run {run}")
    assert files_of(run) == before


def test_a_tilde_that_the_shell_leaves_is_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for command in ("report --run=~/x", "status ~/x", "score --hyp ~/x --ref ~/x"):
        assert f"{tmp_path}/x" in wrong(command)
    monkeypatch.setenv("NMTKIT_RUN", "~/x")
    assert f"no run at {tmp_path}/x" in wrong("report")
    refused(DataError, f"{tmp_path}/x", load, "~/x")
    monkeypatch.setenv("NMTKIT_CACHE", "~/x")
    assert cache_folder() == tmp_path / "x"


def test_the_version_has_a_short_name():
    assert ok("-V").stdout == ok("--version").stdout == f"nmtkit {__version__}\n"


def test_the_shell_completes_commands_and_options():
    words = {"COMP_WORDS": "nmtkit tra", "COMP_CWORD": "1"}
    code = "import sys; sys.argv[0] = 'nmtkit'; from nmtkit.__main__ import main; main()"
    environment = {**os.environ, **words, "_NMTKIT_COMPLETE": "complete_bash"}
    done = python("-c", code, env=environment)
    assert done.stdout.split() == ["train", "translate"], done.stderr


def test_a_platform_without_file_locks_is_told_what_is_supported():
    code = "import sys; sys.modules['fcntl'] = None; from nmtkit.__main__ import main; main()"
    done = python("-c", code)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (3, "", 1)
    assert "POSIX" in done.stderr and "Traceback" not in done.stderr


def test_a_beginning_of_data_sets_suggests_all_that_begin_so():
    assert "these begin so: wmt14-ende, wmt14-deen, wmt14-enfr, wmt14-fren (" in wrong("prep wmt14")


@pytest.mark.parametrize(
    ("words", "meant"),
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
def test_what_other_toolkits_call_it_is_answered_with_the_setting(run, words, meant):
    said = wrong(f"train --run {run} {words}").replace("the same nmtkit ", "")
    assert f"  try: {meant}" in said and "Possible options" not in said


def test_a_system_is_trained_again_by_its_own_settings(copy):
    system = copy / "systems/toy"
    before = tomllib.loads((system / "config.toml").read_text())
    variant = "--variant tests.toy_recurrent:ToyRecurrent"
    ok(f"train --run {copy} {variant} --system again --config {system / 'config.toml'}")
    assert tomllib.loads((copy / "systems/again/config.toml").read_text()) == before
    said = wrong(f"train --run {copy} --system third --config {system / 'config.toml'}")
    assert f"the settings of '{variant.partition(' ')[2]}'" in said


def test_the_settings_of_a_preset_are_a_file_to_edit(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(ok("settings --preset small --variant csan --toml").stdout)
    again = load_config(path, "csan")
    for section, values in load_preset("small").items():
        assert {key: again[section][key] for key in values} == values
    assert build(TrainSettings, again["train"], "train").max_steps


def test_the_terminal_shows_device_and_precision_and_the_log_the_rest(copy):
    said = ok(f"train --run {copy} {TINY} {BRIEF} --system brief").stderr
    assert re.search(r"^nmtkit: device cpu \(.*\), b?float(16|32)$", said, re.MULTILINE)
    log = (copy / "systems/brief/train.log").read_text()
    assert "float32 products" in log and "float32 products" not in said


WAYS = ("sample", "temperature", "top_k", "top_p", "seed", "mbr", "diverse_groups", "diversity")
UNUSED = [  # a command, options that mean nothing there, why
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
            *(f"--set search.{key}=1" for key in WAYS),
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
        for key in ("beam", "length_penalty", "nbest", "average", *WAYS)
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
    """The option as messages name it: --beam of "--beam 5", --set search.beam of "--set
    search.beam=1".
    """
    return option.partition("=")[0] if option.startswith("--set ") else option.split()[0]


@pytest.mark.parametrize(
    ("command", "option", "why"),
    [(command, option, why) for command, options, why in UNUSED for option in options],
)
def test_an_option_without_effect_is_refused(run, tmp_path, monkeypatch, command, option, why):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NMTKIT_RUN", str(run))  # which is no option that was given
    (tmp_path / "text.txt").write_text("A dog.\n")
    before = files_of(run)
    what, where, hint = wrong(f"{command} {option}").splitlines()
    assert what == f"nmtkit: {why}: {long_name(option)} has no effect"
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
def test_an_option_that_is_no_value_is_refused(command, option, value, tmp_path, monkeypatch):
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
def test_a_second_file_does_not_replace_the_first(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "is given twice" in wrong(command) and not list(tmp_path.iterdir())


def test_every_case_of_the_table_is_tried():
    """And names options that its command has."""
    tried = {
        (command.split()[0], long_name(option))
        for command, options, _ in UNUSED
        for option in options
    }
    assert tried == {
        (name, option)
        for name, cases in [*without_effect().items(), ("settings", [{"options": ["--variant"]}])]
        for case in cases
        for option in case["options"]
    }
    for name, option in tried:
        assert isinstance(COMMANDS[name], Command)
        if not option.startswith("--set "):
            assert option in {
                spelled for parameter in COMMANDS[name].params for spelled in parameter.opts
            }
        else:
            section, _, key = option.removeprefix("--set ").partition(".")
            assert key in STAGES[section].model_fields


def test_the_name_of_an_analysis_comes_before_its_options():
    for option in ("--system toy", "--buckets dc", "--force", "--run x cost"):
        assert "the name of the analysis must come before its options" in wrong(f"analyze {option}")


def test_the_environment_and_what_an_option_implies(run, tmp_path, monkeypatch):
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


def test_only_training_runs_under_torchrun(monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    ok("settings train")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "leave out torchrun" in wrong("settings train")


def test_a_run_not_prepared_and_nothing_to_score(run, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "not prepared" in wrong(f"train --run {empty}")
    assert "no run at" in wrong(f"score --run {tmp_path / 'nope'}")
    ok(f"prep demo --size 50 --run {empty} --jobs 1")
    assert "nmtkit train" in wrong(f"translate --run {empty}")
    assert "nmtkit t" in wrong(f"score --run {empty}")


def test_line_counts_are_checked_before_scoring(run, tmp_path):
    (tmp_path / "hyp.de").write_text("a\nb\nc\n")
    (tmp_path / "ref.de").write_text("a\nb\n")
    said = wrong(f"score --hyp {tmp_path / 'hyp.de'} --ref {tmp_path / 'ref.de'}")
    assert "3" in said and "2" in said


@pytest.mark.parametrize("damage", ["truncated", "flipped"])
def test_a_damaged_checkpoint_is_named(copy, damage):
    for weights in (copy / "systems/toy/checkpoints").glob("*/model.safetensors"):
        data = bytearray(weights.read_bytes())
        data = (
            data[:-100]
            if damage == "truncated"
            else data[:-100] + bytes([data[-100] ^ 1]) + data[-99:]
        )
        weights.write_bytes(data)
    said = wrong(f"translate --run {copy} --system toy --force --jobs 1")
    assert "toy" in said and "checkpoint" in said.lower()


@pytest.mark.parametrize(
    "command", ["translate --force --jobs 1 --system toy", "analyze cost", "analyze layers"]
)
def test_a_system_whose_class_is_not_found_is_named_with_a_way_on(copy, command):
    config = copy / "systems/toy/config.toml"
    edit(config, "tests.toy_recurrent:", "elsewhere.toy_recurrent:")
    what, where, hint = wrong(f"{command} --run {copy}").splitlines()[-3:]
    assert "system 'toy': cannot import variant 'elsewhere.toy_recurrent:ToyRecurrent'" in what
    assert where.strip() == f"in: {copy / 'systems/toy/config.toml'}"
    assert "PYTHONPATH" in hint and "--system transformer" in hint


def test_the_newest_sound_checkpoint_is_taken_when_the_best_is_damaged(copy):
    folder = copy / "systems/toy"
    steps = sorted(p.name for p in (folder / "checkpoints").glob("step-*"))
    assert len(steps) == 2
    best = {"step": int(steps[0].removeprefix("step-")), "checkpoint": steps[0]}
    write_json(folder / "best.json", read_json(folder / "best.json") | best)
    weights = folder / "checkpoints" / steps[0] / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    assert (
        f"taking the newest, {steps[1]}"
        in ok(f"translate --run {copy} --system toy --force --jobs 1 {SHORT}").stderr
    )
    assert steps[1] in (folder / "translate/test/meta.json").read_text()


@pytest.mark.parametrize("damaged", ['{"a', "{}"])
def test_a_damaged_file_of_the_best_checkpoint_is_named(copy, damaged):
    best = copy / "systems/toy/best.json"
    best.write_text(damaged)
    what, where, hint = wrong(
        f"translate --run {copy} --system toy --force --jobs 1 {SHORT}"
    ).splitlines()[-3:]
    assert "the file is damaged" in what and where.strip() == f"in: {best}"
    assert "nmtkit train" in hint
    best.unlink()
    ok(f"translate --run {copy} --system toy --force --jobs 1 {SHORT}")


@pytest.mark.parametrize(
    ("section", "value"),
    [("train", 'lr = "x"'), ("model", 'd_ff = "x"'), ("search", 'beam = "x"')],
)
def test_a_bad_value_in_the_settings_of_a_system_is_named_with_its_file(copy, section, value):
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


def test_each_error_has_its_exit_code():
    codes = {"ConfigError": 2, "DataError": 2, "CheckpointError": 2, "EnvironmentProblem": 3}
    codes |= {"TrainingDiverged": 4, "Interrupted": 75}
    assert codes == {name: getattr(errors, name).exit_code for name in codes}


def test_a_training_that_loses_its_numbers_ends_with_exit_code_4(run, tmp_path):
    copied = Path(shutil.copytree(run / "prep", tmp_path / "run" / "prep")).parent
    steps = "--set train.max_steps=50 --set train.validate_every=1 --set train.lr=1e30 --set train.dev_bleu=false"
    result = nmtkit(f"train --run {copied} {TINY} {BRIEF} {steps}")
    assert result.exit_code == 4, result.stderr
    assert (
        "not finite" in result.stderr
        and "best so far" not in result.stderr.split("update skipped")[-1]
    )


def test_a_pickle_is_never_read(copy):
    for folder in (copy / "systems/toy/checkpoints").iterdir():
        shutil.rmtree(folder) if folder.is_dir() else folder.unlink()
    (copy / "systems/toy/checkpoints/model.pt").write_bytes(b"\x80\x04.")
    assert "toy" in wrong(f"translate --run {copy} --system toy --force --jobs 1")


def test_a_checkpoint_of_another_vocabulary_is_refused(copy, tmp_path):
    other = tmp_path / "other"
    ok(
        f"prep demo --size 100 --seed 2 --run {other} --jobs 1 --set prep.merges=50",
    )
    shutil.copytree(copy / "systems", other / "systems")
    assert "of another vocabulary: vocab.txt differs" in wrong(
        f"translate --run {other} --system toy --force --jobs 1"
    )


def test_the_reader_of_stdout_may_leave(run):
    command = f"nmtkit translate {run}/prep/text/test.src --run {run} --system toy --jobs 1"
    done = shell(f"{command} | head -n 1", env={**os.environ, "NMTKIT_RUN": ""})
    assert done.stdout.count("\n") == 1
    assert "Traceback" not in done.stderr and "BrokenPipe" not in done.stderr


@pytest.mark.parametrize(
    "arguments",
    ["--help", "prep --help", "--version", "datasets", "settings train", "settings train --json"],
)
def test_the_reader_may_have_left_before_anything_is_printed(arguments):
    reader, writer = os.pipe()
    os.close(reader)
    written = {"capture_output": False, "stdout": writer, "stderr": subprocess.PIPE}
    done = python("-m", "nmtkit", *arguments.split(), **written)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_reader_may_leave_between_the_help_and_its_last_line():
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
def test_the_traceback_of_an_error_is_shown_on_request(tmp_path, option, variable):
    environment = {**os.environ, "NMTKIT_DEBUG": variable}
    done = shell(f"nmtkit score --run '{tmp_path}/nope\x1b[31m' {option}", env=environment)
    assert done.returncode == 2
    assert "Traceback" in done.stderr and "\nnmtkit: no run at" in done.stderr
    assert "\x1b" not in done.stderr and "nope\\u001b[31m" in done.stderr


@pytest.mark.parametrize("stream", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_a_stream_that_is_closed_is_nothing_to_complain_of(stream):
    done = shell(f"nmtkit settings train {stream}")
    assert (
        done.returncode == 0
        and "error" not in done.stderr
        and bool(done.stdout) == (">&-" not in stream.split())
    )


@pytest.mark.parametrize("name", ["SIGHUP", "SIGINT"])
def test_who_stops_a_command_is_told_what_becomes_of_it(name):
    code = f"""
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs do not hear it
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nor under nohup this
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
def test_a_signal_while_python_ends_is_quiet(name, code):
    at_exit = f"atexit.register(lambda: os.kill(os.getpid(), signal.{name}))"
    heard = (
        f"signal.signal(signal.{name}, signal.SIG_DFL)"  # a program in the background ignores it
    )
    program = f"{heard}; {at_exit}; from nmtkit.__main__ import main; main()"
    done = python("-c", f"import atexit, os, signal; {program}", "--version")
    assert (done.returncode, done.stderr) == (code, "") and done.stdout.startswith("nmtkit ")


def test_ctrl_c_before_the_command_line_is_read_is_quiet():
    stopped = "def prepare(): raise KeyboardInterrupt"
    program = "environment.prepare = prepare; from nmtkit.__main__ import main; main()"
    done = python("-c", f"from nmtkit import environment\n{stopped}\n{program}", "--version")
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == "nmtkit: stopped\n"


@pytest.mark.parametrize("stream", ["", "2>&-", "2>/dev/full"])
def test_ctrl_c_while_the_program_loads_is_as_quiet_as_later(tmp_path, stream):
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


@pytest.mark.parametrize(
    "arguments",
    ["settings train", "datasets", "prep --help", "--help", "--version"],
)
def test_a_full_disk_behind_stdout_is_the_machines_fault(arguments):
    done = shell(f"nmtkit {arguments} > /dev/full")
    assert done.stderr.splitlines()[:2] == [
        "nmtkit: No space left on device",
        "  in: stdout, or a file that was being written",
    ]
    assert (
        "Traceback" not in done.stderr
        and "fault of nmtkit" not in done.stderr
        and "Exception ignored" not in done.stderr
    )
    assert done.returncode == 3


def test_translations_into_a_full_disk(run):
    command = f"nmtkit translate - --run {run} --system toy --jobs 1 -q"
    done = shell(f"echo A dog. | {command} > /dev/full")
    assert (done.returncode, done.stderr.splitlines()[:2]) == (
        3,
        ["nmtkit: No space left on device", "  in: stdout, or a file that was being written"],
    )


COMMANDS = get_command(app).commands


def test_the_program_alone_prints_its_help():
    alone = nmtkit("")
    assert (
        alone.exit_code == 2
        and alone.stdout.strip() == ok("--help").stdout.strip()
        and not alone.stderr
    )


def test_the_help_lists_the_stages_in_their_order():
    group = get_command(app)
    names = group.list_commands(typer.Context(group))
    assert names[:6] == ["prep", "train", "translate", "score", "analyze", "report"]
    shown = ok("--help").stdout
    assert all(f" {name} " in shown for name in COMMANDS)
    zero = "[default: 0]"  # shown where the text does not say what 0 means
    assert zero in ok("prep --help").stdout and zero not in ok("analyze importance --help").stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_explains_every_option(name):
    command = COMMANDS[name]
    for parameter in command.params:
        assert parameter.help.endswith("."), (
            f"{name}: say what {parameter.name} does, in a sentence"
        )
        assert parameter.metavar is not None or parameter.is_flag, (
            f"{name}: say what {parameter.name} takes, with a metavar"
        )
    result = CliRunner().invoke(app, [name, "--help"], terminal_width=200)
    assert result.exit_code == 0
    assert all(
        max(parameter.opts, key=len) in result.stdout
        for parameter in command.params
        if parameter.opts[0].startswith("-")
    )
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
def test_measured_systems_keep_their_products_as_each_would_alone(run, limit, compiled):
    """For two systems twice as many products, unless the user has another limit; oneDNN counts."""
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith("ONEDNN")
    } | {"ONEDNN_VERBOSE": "profile_create"}
    environment |= {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": limit} if limit else {}
    command = ["analyze", "cost", "--measure", "--run", str(run)]
    done = python("-c", MEASURING, *command, env=environment)
    assert done.returncode == 0, done.stderr
    again = done.stdout.split("ROUND\n")[2]
    assert again.count("create:cache_miss") == compiled and again.count("create:cache_") == 18


def test_an_analysis_of_your_own_is_found_in_the_current_folder(tmp_path, monkeypatch):
    """As a variant is; `nmtkit` itself does not look there."""
    source = Path(__file__).with_name("toy_analysis.py").read_text("utf-8")
    (tmp_path / "analysis_here.py").write_text(source, "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder])
    assert "--ignore-case" in ok("analyze analysis_here:FrequentWords --help").stdout
