"""The stage: what is written where, what is up to date, what is refused."""

import functools
import io
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from toy_run import LINES, save_system

from nmtkit import settings
from nmtkit.data.store import spans_writer
from nmtkit.errors import ConfigError, DataError, EnvironmentProblem, NmtkitError
from nmtkit.locks import locked
from nmtkit.models import checkpoints, loading
from nmtkit.nn import hardware
from nmtkit.nn.hardware import Hardware
from nmtkit.parallel import Workers
from nmtkit.run import Run
from nmtkit.translate import output, stage, translator
from nmtkit.translate.options import TranslateOptions
from nmtkit.translate.stage import translate
from nmtkit.translate.systems import choose, search_overrides
from nmtkit.translate.windows import file_windows
from tests.manifests import read_json, write_best, write_json
from tests.refused import refused

HERE = Path(__file__).parent


def read(path):
    return path.read_text("utf-8").split("\n")[:-1]


def translated(run, **options):
    """Translate the test set with the system `one`; return the folder."""
    translate(run, **{"systems": ["one"], "set_names": ["test"], "jobs": 1} | options)
    return run.system("one").translation("test")


def read_json_lines(text):
    return [json.loads(line) for line in text.split("\n")[:-1]]


def test_every_set_with_every_system(run, capsys):
    translate(run, jobs=1)
    for name in ("one", "two"):
        folder = run.system(name).translation("test")
        hyp, subwords = read(folder / "hyp.txt"), read(folder / "hyp.subwords.txt")
        assert len(hyp) == len(subwords) == len(LINES)
        assert [bool(line) for line in hyp] == [bool(line.strip()) for line in LINES] or not all(
            hyp
        )
        assert hyp[1] == hyp[3] == ""
        assert not (folder / "nbest.jsonl").exists()
        meta = read_json(folder / "meta.json")
        assert meta["counts"]["lines"] == len(LINES)
        assert meta["counts"]["empty"] == 2
        assert meta["checkpoints"][0]["name"] == "step-00000010"
        assert meta["settings"]["beam"] == 3
        assert meta["speed"]["sentences_per_second"] > 0
        assert len(read(run.system(name).translation("other") / "hyp.txt")) == 3
    seen = capsys.readouterr()
    assert seen.out == ""  # results are in the files
    assert "sentences/s" in seen.err
    history = [json.loads(line) for line in read(run.path / "history.jsonl")]
    assert history[-1]["stage"] == "translate"
    assert history[-1]["systems"] == ["one", "two"]


def test_products_are_of_the_precision_asked_for_and_given_targets_are_scored_in_float32(
    run, monkeypatch, tmp_path, capsys
):
    asked, packed = [], []

    def choose_bfloat16(device, precision, width):
        asked.append(precision)
        return Hardware(
            "cpu", "test", 1, "float32" if precision == "float32" else "bfloat16", "highest", False
        )

    monkeypatch.setattr("nmtkit.nn.hardware.choose", choose_bfloat16)
    monkeypatch.setattr(
        "nmtkit.models.loading.pack", lambda model, precision: packed.append(precision)
    )
    meta = read_json(translated(run) / "meta.json")
    assert meta["hardware"]["precision"] == "float32"  # the model has nn.Linear
    printed = capsys.readouterr().err
    assert "float32" in printed and "bfloat16" not in printed
    assert "no layer" not in printed  # nobody asked for another precision
    translated(run, assignments=["search.precision=int8"])
    assert "'one' has no layer that bfloat16 rounds" in capsys.readouterr().err
    monkeypatch.setattr("nmtkit.translate.stage.rounds", lambda models, precision: True)
    meta = read_json(translated(run, force=True) / "meta.json")
    assert meta["hardware"]["precision"] == "bfloat16"
    translated(run, assignments=["search.precision=float32"])
    target = tmp_path / "target.txt"
    target.write_text("a\n" * len(LINES))
    translated(run, force_target=target)
    assert asked == ["auto", "int8", "auto", "float32", "float32"]
    assert packed == ["bfloat16", "bfloat16", "bfloat16", "float32", "float32"]


SEARCHES = {
    "cpu": ["auto", "float32", "bfloat16", "int8"],
    "cuda": ["auto", "float32", "bfloat16", "float16"],
    "mps": ["auto", "float32"],
}


@pytest.mark.parametrize("precision", ["auto", "float32", "bfloat16", "float16", "int8"])
@pytest.mark.parametrize("device", SEARCHES)
def test_each_device_searches_in_its_precisions(run, monkeypatch, device, precision):
    monkeypatch.setattr(hardware, "choose", lambda device, precision, width: precision)
    group = choose(run, ["one"], False, {"precision": precision}, single=True)[0]
    if precision in SEARCHES[device]:
        plain = precision == "auto" and device != "cpu"
        assert group.hardware(torch.device(device)) == ("float32" if plain else precision)
        assert group.hardware(torch.device(device), forced=True) == "float32"
    else:
        with pytest.raises(ConfigError, match=f"does not search in {precision}") as error:
            group.hardware(torch.device(device))
        assert "float32" in error.value.hint


def test_a_translation_older_than_a_setting_is_up_to_date(run, capsys):
    meta = translated(run) / "meta.json"
    values = read_json(meta)
    for key in ("sample", "temperature", "top_k", "top_p", "seed", "mbr", "diversity"):
        del values["settings"][key]
    write_json(meta, values)
    translated(run)
    assert "up to date" in capsys.readouterr().err
    assert read_json(meta) == values
    translated(run, sample=True)
    assert read_json(meta)["settings"]["sample"] is True


def test_up_to_date_says_so_and_stops(run, capsys):
    hyp = translated(run) / "hyp.txt"
    before = hyp.stat().st_mtime_ns
    translated(run)
    assert hyp.stat().st_mtime_ns == before
    assert "up to date" in capsys.readouterr().err
    changes = {"force": True}, {"beam": 2}, {"assignments": ["search.max_length_b=2"]}
    for change in (*changes, {"average": 2}):
        before = hyp.stat().st_mtime_ns
        translated(run, **change)
        assert hyp.stat().st_mtime_ns > before
    capsys.readouterr()
    translated(run)
    assert "replaces a translation with search.average=2" in capsys.readouterr().err
    translated(run, average=2)
    hyp.write_text("edited\n")
    translated(run, average=2)
    assert len(read(hyp)) == len(LINES)


def test_the_new_best_checkpoint_or_the_mean_of_the_last_translates(run):
    translated(run)
    write_best(run.system("one").path, "step-00000030")
    for options, steps in (({}, [30]), ({"average": 2}, [20, 30])):
        used = read_json(translated(run, **options) / "meta.json")["checkpoints"]
        assert [c["name"] for c in used] == [f"step-{step:08d}" for step in steps]
    manifest = checkpoints.read_manifest(run.system("one").checkpoints / "step-00000030")
    assert used[1]["sha256"] == manifest.files["model.safetensors"].sha256


def test_each_system_of_an_ensemble_is_averaged_as_its_own_settings_say(run):
    config = run.system("two").config
    config.write_text(
        config.read_text("utf-8") + "average = 2\n", "utf-8"
    )  # [search] is the last section
    checkpoints.save(
        run.system("two").checkpoints,
        20,
        checkpoints.load_weights(run.system("two").checkpoints / "step-00000010"),
        {},
        {},
        {},
    )
    for search, read in (
        ({}, ["one 10", "two 10", "two 20"]),
        ({"average": 1}, ["one 10", "two 10"]),
    ):
        (group,) = choose(run, ["one", "two"], ensemble=True, search=search, single=True)
        assert [f"{found.system} {int(found.name[5:])}" for found in group.checkpoints()] == read


def test_what_is_written_down_as_loaded_is_what_is_loaded(run):
    """A training may find a new best one while a file is translated."""
    system = run.system("one")
    (group,) = choose(run, ["one"], ensemble=False, search={}, single=True)
    (described,) = group.checkpoints()
    write_best(system.path, "step-00000030")
    (model,) = group.load(torch.device("cpu"))
    assert described.name == "step-00000010"
    stored = checkpoints.load_weights(system.checkpoints / "step-00000010")
    assert all(
        torch.equal(tensor, stored[name]) for name, tensor in loading.weights_of(model).items()
    )


def test_nbest_file(run):
    folder = translated(run, nbest=3)
    lines = read_json_lines((folder / "nbest.jsonl").read_text("utf-8"))
    assert [line["line"] for line in lines] == list(range(1, len(LINES) + 1))
    assert lines[1]["nbest"] == []
    assert len(lines[0]["nbest"]) == 3
    assert [line["nbest"][0]["text"] if line["nbest"] else "" for line in lines] == read(
        folder / "hyp.txt"
    )
    translated(run)
    assert not (folder / "nbest.jsonl").exists()


def test_jobs_change_nothing(run):
    options = {"force": True, "assignments": ["search.batch_size=2"]}
    one, two = ((translated(run, jobs=n, **options) / "hyp.txt").read_bytes() for n in (1, 2))
    assert one == two


def test_ensemble_has_a_folder_of_its_own(run):
    translate(run, systems=["one", "two"], set_names=["test"], ensemble=True, jobs=1)
    folder = run.path / "systems" / "ensemble-one+two" / "translate" / "test"
    assert len(read(folder / "hyp.txt")) == len(LINES)
    assert [c["system"] for c in read_json(folder / "meta.json")["checkpoints"]] == [
        "one",
        "two",
    ]
    assert [s.name for s in run.systems()] == ["one", "two"]
    translated(run, systems=["one", "one"])
    with pytest.raises(ConfigError, match="two systems or more"):
        translate(run, systems=["one", "one"], ensemble=True)


def test_file_and_stdin_and_test_set_give_the_same(run, tmp_path, capsys, monkeypatch):
    hyp = (translated(run) / "hyp.txt").read_text("utf-8")
    capsys.readouterr()
    path = tmp_path / "input.txt"
    path.write_text("\n".join(LINES), "utf-8")  # no line feed at the end
    translate(run, source=str(path), systems=["one"], jobs=1)
    assert capsys.readouterr().out == hyp
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(path.read_bytes())))
    translate(run, source="-", systems=["one"], jobs=1)
    assert capsys.readouterr().out == hyp
    translate(run, source=str(path), systems=["one"], nbest=2, jobs=1)
    lines = read_json_lines(capsys.readouterr().out)
    assert [line["nbest"][0]["text"] if line["nbest"] else "" for line in lines] == hyp.split("\n")[
        :-1
    ]


def test_a_tsv_file_is_refused(run, tmp_path):
    path = tmp_path / "test.de-en.tsv"
    path.write_text("ein Hund\ta dog\n", "utf-8")
    error = refused(DataError, "is a TSV file", translate, run, source=str(path))
    assert "cut -f1 FILE.tsv | nmtkit translate -" in error.hint


def test_without_a_name_the_system_trained_last(run, tmp_path, capsys):
    (tmp_path / "x").write_text("a dog\n")
    save_system(run, "newest", seed=7)
    translate(run, source=str(tmp_path / "x"), jobs=1)
    assert "'newest'" in capsys.readouterr().err


def test_forced_scores(run, capsys):
    target = run.path / "target.txt"
    target.write_text("\n".join(LINES), "utf-8")
    translated(run, force_target=target)
    lines = read_json_lines(capsys.readouterr().out)
    assert [line["line"] for line in lines] == list(range(1, len(LINES) + 1))
    assert lines[0]["tokens"] == ["A", "dog", "runs", "over", "the", "meadow", ".", "</s>"]
    assert lines[1]["tokens"] == ["</s>"]
    for line in lines:
        assert len(line["log_probs"]) == len(line["tokens"])
        assert line["log_prob"] == pytest.approx(sum(line["log_probs"]))
        assert all(p < 0 for p in line["log_probs"])


def test_forced_scores_of_a_set_read_its_parses(run, monkeypatch):
    (run.prep / "test").mkdir()
    with spans_writer(run.prep / "test", 0) as add_block:
        add_block(bytes(range(1, 1 + len(LINES))), np.ones(len(LINES), np.int64))
    given, force = [], stage.Scorer.force
    monkeypatch.setattr(output, "file_windows", functools.partial(file_windows, size=3))
    monkeypatch.setattr(stage.Scorer, "force", lambda *of: given.extend(of[4]) or force(*of))
    translated(run, force_target=run.source("test"))
    assert given == [[i + 1] for i in range(len(LINES))]


def test_forced_scores_need_as_many_lines(run, tmp_path):
    target = tmp_path / "target.txt"
    target.write_text("a\nb\n")
    with pytest.raises(DataError, match=f"2 lines but .* has {len(LINES)}") as caught:
        translated(run, force_target=target)
    assert (
        caught.value.where.startswith("first odd pair: line ")
        and "--force-target" in caught.value.hint
    )
    # Only a translation has lengths that tell where it stops agreeing with its source.
    caught = refused(DataError, "has 2 lines", translated, run, prefix=target)
    assert caught.where == "--prefix"
    with pytest.raises(ConfigError, match="which set"):
        translate(run, systems=["one"], force_target=target)
    with pytest.raises(ConfigError, match="read twice"):
        translate(run, systems=["one"], source="-", force_target=target)


def test_search_settings_from_weakest_to_strongest(tmp_path):
    config = tmp_path / "mine.toml"
    config.write_text(
        "[train]\nmax_steps = 3\n[search]\nbeam = 7\nlength_penalty = 0.25\nmax_length_b = 9\n"
    )
    named = settings.load_preset("tiny")["search"]
    of_preset = (
        settings.SearchSettings().model_dump() | named
    )  # those it does not name have their defaults, as `nmtkit settings` shows
    assert (
        len(named) < len(of_preset)
        and search_overrides(TranslateOptions(preset="tiny")) == of_preset
    )
    assert search_overrides(TranslateOptions(preset="tiny", config=config)) == of_preset | {
        "beam": 7,
        "length_penalty": 0.25,
        "max_length_b": 9,
    }
    assignments = ["search.max_length_b=8", "search.beam=6"]
    found = search_overrides(TranslateOptions(assignments=assignments, config=config, beam=5))
    assert found == {"beam": 5, "length_penalty": 0.25, "max_length_b": 8}


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"systems": ["onne"]}, ConfigError, "has no system 'onne'"),
        ({"set_names": ["tst"]}, ConfigError, "has no set 'tst'"),
        ({"set_names": ["train"]}, ConfigError, "keeps no text of the set 'train'"),
        ({"source": "missing.txt"}, DataError, "no such file"),
        ({"source": "."}, DataError, "is a directory"),
        ({"source": "ok.txt", "systems": ["one", "two"]}, ConfigError, "2 systems are named"),
        ({"beam": 2, "nbest": 3}, ConfigError, "search.nbest = 3 is more than search.beam = 2"),
        ({"assignments": ["train.seed=3"]}, ConfigError, "cannot be changed at translation"),
        ({"assignments": ["search.bean=3"]}, ConfigError, "unknown setting 'search.bean'"),
        ({"assignments": ["search.beam=x"]}, ConfigError, "bad value for 'search.beam'"),
        ({"preset": "smal"}, ConfigError, "unknown preset 'smal'"),
        ({"config": Path("missing.toml")}, ConfigError, "cannot read the settings file"),
        ({"config": Path("other.toml")}, ConfigError, "the file has no search settings"),
        ({"device": "gpu"}, ConfigError, "unknown device"),
        ({"force_target": Path("missing.txt"), "set_names": ["test"]}, DataError, "no such file"),
    ],
)
def test_bad_input(run, tmp_path, monkeypatch, options, error, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ok.txt").write_text("a\n")
    (tmp_path / "other.toml").write_text("[train]\nmax_steps = 3\n")
    with pytest.raises(error, match=message):
        translate(run, jobs=1, **options)
    assert not list(run.path.glob("systems/*/translate/*/*"))


@pytest.mark.parametrize(
    ("piped", "options"),
    [
        ("source", {}),
        ("source", {"docs": "blank"}),
        ("source", {"docs": "ok.txt"}),
        ("source", {"force_target": Path("ok.txt")}),
        ("force_target", {"source": "ok.txt"}),
        ("docs", {"source": "ok.txt"}),
    ],
)
def test_a_pipe_for_a_file_is_refused_before_anything_is_read(
    run, tmp_path, monkeypatch, capsys, pipe, piped, options
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ok.txt").write_text("a\n")
    path = pipe("b\n")
    with pytest.raises(DataError, match=f"is a pipe, not a file, .*: {path}") as caught:
        translate(
            run,
            systems=["one"],
            jobs=1,
            **{piped: path if piped == "force_target" else str(path)},
            **options,
        )
    assert "write it to a file first" in caught.value.hint
    assert ("pipe it to -" in caught.value.hint) == (piped == "source")
    assert path.read_text() == "b\n"
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("locked_before", [True, False])
def test_a_run_on_a_read_only_disk_translates_to_stdout(
    run, tmp_path, monkeypatch, capsys, read_only, locked_before
):
    path = tmp_path / "input.txt"
    path.write_text("a dog\n", "utf-8")
    calls = [{"source": str(path)}, {"source": "-"}, {"source": str(path), "force_target": path}]

    def printed(options):
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(path.read_bytes())))
        translate(run, systems=["one"], jobs=1, **options)
        return capsys.readouterr().out

    translate(run, systems=["one"], jobs=1)
    written = [printed(options) for options in calls]
    if not locked_before:
        (run.path / ".lock").unlink()
    before = {p: p.read_bytes() for p in run.path.rglob("*") if p.is_file()}
    read_only(run.path)
    assert [printed(options) for options in calls] == written and all(written)
    translate(run, systems=["one"], jobs=1)  # it is up to date
    with pytest.raises(EnvironmentProblem, match=r"cannot write .*systems/one: Permission"):
        translate(run, systems=["one"], jobs=1, force=True)
    assert {p: p.read_bytes() for p in run.path.rglob("*") if p.is_file()} == before


def test_scoring_given_targets_reads_the_settings_that_it_uses(run, tmp_path, capsys):
    (tmp_path / "ok.txt").write_text("a\n")
    options = {
        "source": str(tmp_path / "ok.txt"),
        "force_target": tmp_path / "ok.txt",
        "systems": ["one"],
        "jobs": 1,
    }
    translate(run, **options, average=2, assignments=["search.batch_size=3"])
    averaged = json.loads(capsys.readouterr().out)
    translate(run, **options)
    assert json.loads(capsys.readouterr().out)["log_prob"] != averaged["log_prob"]


def test_stdin_closed_by_the_shell(run):
    arguments = [
        sys.executable,
        "-m",
        "nmtkit",
        "translate",
        "-",
        "--run",
        str(run.path),
        "--system",
        "one",
        "--jobs",
        "1",
    ]
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" <&-', "sh", *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert "stdin is closed" in done.stderr
    assert "name a file" in done.stderr


def test_unprepared_and_untrained(run, tmp_path):
    with pytest.raises(DataError, match="not prepared"):
        translate(Run(tmp_path))
    for system in run.systems():
        shutil.rmtree(system.checkpoints)
    with pytest.raises(DataError, match="'one' was trained, but its checkpoints are gone"):
        translate(run)
    (run.system("one").path / "best.json").unlink()
    with pytest.raises(DataError, match="no system has a checkpoint yet") as caught:
        translate(run)
    assert caught.value.hint == f"nmtkit train --system one --run {run.path}"
    for system in run.systems():
        system.config.unlink()
    with pytest.raises(DataError, match="has been trained"):
        translate(run)


def test_bytes_that_are_not_utf8_stop_before_any_output(run, tmp_path, capsys):
    path = tmp_path / "x.txt"
    path.write_bytes(b"fine\nnot \xff fine\n")
    with pytest.raises(DataError, match="not UTF-8") as caught:
        translate(run, source=str(path), systems=["one"], jobs=1)
    assert (
        caught.value.where.startswith(f"{path}, line 2, byte 9 ")
        and "iconv" in caught.value.hint
        and "prep." not in caught.value.hint
    )
    assert capsys.readouterr().out == ""


def test_a_set_is_written_in_order_when_workers_are_ahead(run, monkeypatch):
    monkeypatch.setattr(stage, "file_windows", functools.partial(file_windows, size=3))
    alone = (translated(run, nbest=2) / "nbest.jsonl").read_bytes()
    read_by = stage.Scorer.reading
    monkeypatch.setattr(stage.Scorer, "reading", lambda scorer, jobs: read_by(scorer, 2))
    monkeypatch.setattr(translator, "MANY_LINES", 2)
    begun, begin = [], Workers.begin
    monkeypatch.setattr(Workers, "begin", lambda *of: begun.append(of) or begin(*of))
    folder = translated(run, nbest=2, force=True)
    assert (folder / "nbest.jsonl").read_bytes() == alone and len(begun) > 4


def test_a_failure_in_the_middle_leaves_nothing_half_written(run, monkeypatch):
    folder = translated(run)
    before = (folder / "hyp.txt").read_bytes()
    monkeypatch.setattr(
        stage.Scorer,
        "translate_windows",
        lambda self, windows: (_ for _ in ()).throw(RuntimeError("broke")),
    )
    with pytest.raises(RuntimeError):
        translated(run, beam=2)
    assert (folder / "hyp.txt").read_bytes() == before
    assert sorted(p.name for p in folder.iterdir()) == ["hyp.subwords.txt", "hyp.txt", "meta.json"]
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_a_system_in_training_is_skipped_unless_it_is_named(run, capsys):
    with locked(run.system("two").path, "train"):
        translate(run, set_names=["test"], jobs=1)
        assert "skipping 'two'" in capsys.readouterr().err
        assert (run.system("one").translation("test") / "hyp.txt").exists()
        with pytest.raises(DataError, match="in use by 'train'"):
            translate(run, systems=["two"], jobs=1)


def test_a_metric_that_fails_ends_the_translation_with_its_first_system(run, capsys):
    """It is no fault of a system, so no other system is searched."""
    with pytest.raises(ConfigError, match="exit code 3"):
        translate(run, set_names=["test"], jobs=1, mbr=2, beam=2, metric="mine=exit 3")
    assert capsys.readouterr().err.count("loaded ") == 1


def test_a_system_whose_class_is_gone_is_skipped_unless_it_is_named(run, capsys):
    config = run.system("two").path / "config.toml"
    config.write_text(
        re.sub(r"(?m)^variant = .*$", 'variant = "nowhere.to_be:Found"', config.read_text("utf-8")),
        "utf-8",
    )
    translate(run, set_names=["test"], jobs=1)
    assert "skipping 'two': " in (err := capsys.readouterr().err) and "nowhere" in err
    assert (run.system("one").translation("test") / "hyp.txt").exists()
    with pytest.raises(DataError, match="nowhere"):
        translate(run, systems=["two"], jobs=1)


def damage_checkpoints(system):
    for path in system.checkpoints.glob("*/manifest.json"):
        text = path.read_text("utf-8")
        path.write_text(re.sub(r'"[0-9a-f]{64}"', f'"{64 * "0"}"', text), "utf-8")


def diverge(system):
    weights = checkpoints.load_weights(system.checkpoints / "step-00000010")
    weights = {name: torch.full_like(tensor, torch.nan) for name, tensor in weights.items()}
    about = {"vocabulary": loading.vocabulary_hashes(Run(system.path.parents[1]))}
    checkpoints.save(system.checkpoints, 40, weights, {}, {}, about)
    write_best(system.path, "step-00000040")


def edit_config(more):
    return lambda system: system.config.write_text(system.config.read_text("utf-8") + more, "utf-8")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (damage_checkpoints, "no valid checkpoint"),
        (diverge, "the model's probabilities are not finite"),
        (edit_config("x = 1 ="), "the file is damaged"),
        (edit_config("depth = 1"), "unknown setting 'search.depth'"),
    ],
)
def test_a_system_that_cannot_translate_is_skipped_unless_it_is_named(run, capsys, damage, message):
    system = run.system("one")
    damage(system)
    translate(run, set_names=["test"], jobs=1)
    assert f"skipping 'one': {message}" in capsys.readouterr().err
    assert (run.system("two").translation("test") / "hyp.txt").exists()
    assert not list(system.path.glob("translate/*"))
    with pytest.raises(NmtkitError, match=message):
        translate(run, systems=["one"], jobs=1)
    with pytest.raises(NmtkitError):
        translate(run, systems=["one"], source=str(run.source("test")), jobs=1)


def test_a_system_without_context_copies_the_lines_that_mark_documents(run, tmp_path, capsys):
    """So the same command serves all systems of a comparison."""
    text = tmp_path / "text"
    text.write_text("a dog runs\n")
    translate(run, systems=["one"], source=str(text), jobs=1)
    translation = capsys.readouterr().out
    text.write_text("<d>\na dog runs\n")
    translate(run, systems=["one"], source=str(text), docs="marker", jobs=1)
    assert capsys.readouterr().out == f"<d>\n{translation}"
    with pytest.raises(ConfigError, match="the documents of prepared sets are known"):
        translate(run, systems=["one"], docs="marker", jobs=1)


def test_a_closed_pipe_ends_quietly(run, tmp_path):
    (tmp_path / "many.txt").write_text("a dog runs\n" * 30_000)
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\nfrom pathlib import Path; from toy_run import"
        " cheap_choice; from nmtkit.nn import hardware; hardware.choose = cheap_choice\nfrom"
        " nmtkit.run import Run; from nmtkit.translate.stage import translate\nshort ="
        " ['search.max_length_a=0', 'search.max_length_b=2']\ntry:\n"
        " translate(Run(Path(sys.argv[2])), source=sys.argv[3], systems=['one'], beam=1,"
        " assignments=short)\nexcept BrokenPipeError:\n sys.stderr.write('broken pipe');"
        " sys.stderr.flush(); import os; os._exit(0)\n"
    )
    command = [sys.executable, "-c", code, str(HERE), str(run.path), str(tmp_path / "many.txt")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        said = process.stderr.read()
        assert process.wait(60) == 0, said
    assert said.endswith(b"broken pipe"), said
