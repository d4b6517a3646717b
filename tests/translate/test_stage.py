"""The stage `translate`: which systems and checkpoints translate, which files they write, and when
these are up to date.
"""

from collections import Counter

import pytest
import torch
from toy_run import LINES, lines_of, read_json_lines, save_system, set_stdin, translated

from nmtkit.data.store import write_spans
from nmtkit.errors import ConfigError
from nmtkit.models import checkpoints, loading
from nmtkit.nn import hardware
from nmtkit.nn.hardware import Hardware
from nmtkit.parallel import Workers
from nmtkit.records import SearchSpeed
from nmtkit.translate import output, stage, translator
from nmtkit.translate.stage import translate
from nmtkit.translate.systems import choose
from tests.manifests import read_json, write_best, write_json
from tests.systems import workers_only


def test_every_system_translates_every_set_into_its_folder(run, capsys):
    translate(run, jobs=1)
    for name in ("one", "two"):
        folder = run.system(name).translation("test")
        hyp = lines_of(folder / "hyp.txt")
        assert len(hyp) == len(lines_of(folder / "hyp.subwords.txt")) == len(LINES)
        assert hyp[1] == hyp[3] == "" != hyp[0]
        assert not (folder / "nbest.jsonl").exists()
        meta = read_json(folder / "meta.json")
        assert (meta["counts"]["lines"], meta["counts"]["empty"]) == (len(LINES), 2)
        assert meta["checkpoints"][0]["name"] == "step-00000010"
        assert meta["settings"]["beam"] == 3
        assert meta["speed"]["sentences_per_second"] > 0
        assert len(lines_of(run.system(name).translation("other") / "hyp.txt")) == 3
    printed = capsys.readouterr()
    assert printed.out == "" and "sentences/s" in printed.err
    call = read_json_lines((run.path / "history.jsonl").read_text())[-1]
    assert (call["stage"], call["systems"]) == ("translate", ["one", "two"])


@pytest.fixture
def precisions(monkeypatch):
    """The precisions asked of hardware that prefers bfloat16, and those that models are packed
    for.
    """
    asked, packed = [], []

    def choose_bfloat16(device, precision, width):
        asked.append(precision)
        chosen = "float32" if precision == "float32" else "bfloat16"
        return Hardware("cpu", "test", 1, chosen, "highest", False)

    monkeypatch.setattr("nmtkit.nn.hardware.choose", choose_bfloat16)
    monkeypatch.setattr(
        "nmtkit.models.loading.pack", lambda model, precision: packed.append(precision)
    )
    return asked, packed


def test_system_without_layers_to_round_searches_in_float32(run, precisions, stderr):
    meta = read_json(translated(run) / "meta.json")
    assert meta["hardware"]["precision"] == "float32"
    printed = stderr()
    assert "float32" in printed and "bfloat16" not in printed
    assert "no layer" not in printed  # the user has not set a precision
    translated(run, assignments=["search.precision=int8"])
    assert "'one' has no layer that bfloat16 rounds" in stderr()


def test_models_are_packed_for_the_precision_and_forced_scoring_uses_float32(
    run, precisions, monkeypatch
):
    monkeypatch.setattr("nmtkit.translate.stage.rounds", lambda models, precision: True)
    meta = read_json(translated(run) / "meta.json")
    assert meta["hardware"]["precision"] == "bfloat16"
    for precision in ("int8", "float32"):
        translated(run, assignments=[f"search.precision={precision}"])
    translated(run, force_target=run.source("test"))
    asked, packed = precisions
    assert asked == ["auto", "int8", "float32", "float32"]
    assert packed == ["bfloat16", "bfloat16", "float32", "float32"]


PRECISIONS = {
    "cpu": {"float32", "bfloat16", "int8"},
    "cuda": {"float32", "bfloat16", "float16"},
    "mps": {"float32"},
}


@pytest.mark.parametrize("device", PRECISIONS)
def test_devices_search_in_their_precisions_only(run, monkeypatch, device):
    monkeypatch.setattr(hardware, "choose", lambda device, precision, width: precision)
    place = torch.device(device)
    for precision in ("auto", "float32", "bfloat16", "float16", "int8"):
        (group,) = choose(run, ["one"], False, {"precision": precision}, single=True)
        if precision in {"auto", *PRECISIONS[device]}:
            plain = precision == "auto" and device != "cpu"
            assert group.hardware(place) == ("float32" if plain else precision)
            assert group.hardware(place, forced=True) == "float32"
        else:
            with pytest.raises(ConfigError, match=f"does not search in {precision}") as error:
                group.hardware(place)
            assert "float32" in error.value.hint


def test_translation_without_settings_of_later_versions_is_up_to_date(run, stderr):
    meta = translated(run) / "meta.json"
    values = read_json(meta)
    for key in ("sample", "temperature", "top_k", "top_p", "seed", "mbr", "diversity"):
        del values["settings"][key]
    write_json(meta, values)
    translated(run)
    assert "up to date" in stderr()
    assert read_json(meta) == values
    translated(run, sample=True)
    assert read_json(meta)["settings"]["sample"] is True


def test_translation_is_repeated_only_by_force_or_with_other_settings(run, stderr):
    hyp = translated(run) / "hyp.txt"
    written = hyp.stat().st_mtime_ns
    translated(run)
    assert hyp.stat().st_mtime_ns == written and "up to date" in stderr()
    changes = {"force": True}, {"beam": 2}, {"assignments": ["search.max_length_b=2"]}
    for change in (*changes, {"average": 2}):
        translated(run, **change)
        assert hyp.stat().st_mtime_ns > written
        written = hyp.stat().st_mtime_ns
    stderr()
    translated(run)
    assert "replaces a translation with search.average=2" in stderr()


def test_edited_translation_is_repeated(run):
    hyp = translated(run) / "hyp.txt"
    hyp.write_text("edited\n")
    translated(run)
    assert len(lines_of(hyp)) == len(LINES)


def test_best_checkpoint_or_the_mean_of_the_last_ones_translates(run):
    system = run.system("one")
    translated(run)
    write_best(system.path, "step-00000030")
    for options, steps in (({}, [30]), ({"average": 2}, [20, 30])):
        used = read_json(translated(run, **options) / "meta.json")["checkpoints"]
        assert [c["name"] for c in used] == [f"step-{step:08d}" for step in steps]
    manifest = checkpoints.read_manifest(system.checkpoints / "step-00000030")
    assert used[1]["sha256"] == manifest.files["model.safetensors"].sha256


@pytest.mark.parametrize(
    ("search", "expected"),
    [({}, ["one 10", "two 10", "two 20"]), ({"average": 1}, ["one 10", "two 10"])],
)
def test_each_system_of_an_ensemble_is_averaged_by_its_own_settings(run, search, expected):
    two = run.system("two")
    # [search] is the last section.
    config = two.config.read_text("utf-8").replace("beam = 3", "beam = 7")
    two.config.write_text(config + "average = 2\n", "utf-8")
    weights = checkpoints.load_weights(two.checkpoints / "step-00000010")
    checkpoints.save(two.checkpoints, 20, weights, {}, {}, {})
    (group,) = choose(run, ["one", "two"], ensemble=True, search=search, single=True)
    used = [f"{checkpoint.system} {int(checkpoint.name[5:])}" for checkpoint in group.checkpoints()]
    assert used == expected
    assert group.settings.beam == 3 != two.searching().beam  # of the first system


def test_recorded_checkpoint_is_the_loaded_one_if_training_finds_a_better_one(run):
    system = run.system("one")
    (group,) = choose(run, ["one"], ensemble=False, search={}, single=True)
    (recorded,) = group.checkpoints()
    write_best(system.path, "step-00000030")
    (model,) = group.load(torch.device("cpu"))
    assert recorded.name == "step-00000010"
    stored = checkpoints.load_weights(system.checkpoints / "step-00000010")
    weights = loading.weights_of(model)
    assert all(torch.equal(tensor, stored[name]) for name, tensor in weights.items())


def best_texts(nbest_lines):
    return [line["nbest"][0]["text"] if line["nbest"] else "" for line in nbest_lines]


def test_nbest_file_has_the_candidates_of_every_line_and_goes_with_nbest(run):
    folder = translated(run, nbest=3)
    lines = read_json_lines((folder / "nbest.jsonl").read_text("utf-8"))
    assert [line["line"] for line in lines] == list(range(1, len(LINES) + 1))
    assert lines[1]["nbest"] == [] and len(lines[0]["nbest"]) == 3
    assert best_texts(lines) == lines_of(folder / "hyp.txt")
    translated(run)
    assert not (folder / "nbest.jsonl").exists()


def test_translation_of_a_set_does_not_depend_on_jobs(run):
    options = {"force": True, "assignments": ["search.batch_size=2"]}
    one, two = ((translated(run, jobs=n, **options) / "hyp.txt").read_bytes() for n in (1, 2))
    assert one == two


def test_ensemble_writes_into_a_folder_of_its_own_that_is_no_system(run):
    translate(run, systems=["one", "two"], set_names=["test"], ensemble=True, jobs=1)
    folder = run.path / "systems" / "ensemble-one+two" / "translate" / "test"
    assert len(lines_of(folder / "hyp.txt")) == len(LINES)
    used = read_json(folder / "meta.json")["checkpoints"]
    assert [checkpoint["system"] for checkpoint in used] == ["one", "two"]
    assert [system.name for system in run.systems()] == ["one", "two"]
    translated(run, systems=["one", "one"])
    with pytest.raises(ConfigError, match="two systems or more"):
        translate(run, systems=["one", "one"], ensemble=True)


def test_file_and_stdin_get_the_translation_of_the_equal_set(run, tmp_path, stdout, monkeypatch):
    hyp = (translated(run) / "hyp.txt").read_text("utf-8")
    stdout()
    path = tmp_path / "input.txt"
    path.write_text("\n".join(LINES), "utf-8")  # no line feed at the end
    set_stdin(monkeypatch, path.read_bytes())
    for source in (str(path), "-"):
        translated(run, set_names=[], source=source)
        assert stdout() == hyp
    translated(run, set_names=[], source=str(path), nbest=2)
    assert best_texts(read_json_lines(stdout())) == hyp.split("\n")[:-1]


def test_newest_system_translates_a_file_if_none_is_named(run, tmp_path, stderr):
    (tmp_path / "x").write_text("a dog\n")
    save_system(run, "newest", seed=7)
    translate(run, source=str(tmp_path / "x"), jobs=1)
    assert "'newest'" in stderr()


def test_forced_scores_have_a_log_prob_for_each_token_of_each_line(run, stdout):
    target = run.path / "target.txt"
    target.write_text("\n".join(LINES), "utf-8")
    translated(run, force_target=target)
    lines = read_json_lines(stdout())
    assert [line["line"] for line in lines] == list(range(1, len(LINES) + 1))
    assert lines[0]["tokens"] == ["A", "dog", "runs", "over", "the", "meadow", ".", "</s>"]
    assert lines[1]["tokens"] == ["</s>"]
    for line in lines:
        assert len(line["log_probs"]) == len(line["tokens"])
        assert line["log_prob"] == pytest.approx(sum(line["log_probs"]))
        assert all(p < 0 for p in line["log_probs"])


def test_forced_scores_are_of_the_mean_of_checkpoints_with_average(run, stdout):
    scores = []
    for options in ({"average": 2, "assignments": ["search.batch_size=3"]}, {}):
        translated(run, force_target=run.source("test"), **options)
        scores.append(read_json_lines(stdout())[0]["log_prob"])
    assert scores[0] != scores[1]


def test_forced_scores_of_a_set_read_its_spans(run, monkeypatch):
    (run.prep / "test").mkdir()
    write_spans(run.prep / "test", 0, [[i + 1] for i in range(len(LINES))])
    spans, force = [], stage.Scorer.force
    monkeypatch.setattr("nmtkit.translate.windows.WINDOW", 3)
    monkeypatch.setattr(stage.Scorer, "force", lambda *of: spans.extend(of[4]) or force(*of))
    translated(run, force_target=run.source("test"))
    assert spans == [[i + 1] for i in range(len(LINES))]


@workers_only
def test_set_is_written_in_order_when_workers_are_ahead(run, monkeypatch):
    monkeypatch.setattr("nmtkit.translate.windows.WINDOW", 3)
    expected = (translated(run, nbest=2) / "nbest.jsonl").read_bytes()
    reading, begin, begun = stage.Scorer.reading, Workers.begin, []
    monkeypatch.setattr(stage.Scorer, "reading", lambda scorer, jobs: reading(scorer, 2))
    monkeypatch.setattr(translator, "MANY_LINES", 2)
    monkeypatch.setattr(Workers, "begin", lambda *of: begun.append(of) or begin(*of))
    folder = translated(run, nbest=2, force=True)
    assert (folder / "nbest.jsonl").read_bytes() == expected and len(begun) > 4


def test_summary_names_the_counts_that_are_not_zero():
    counts = Counter(lines=20, empty=2, over_long=1, pieces=3, unknown=4, no_spans=0, no_context=5)
    assert output.summary(counts, 2.0) == (
        "20 lines in 2s (10 sentences/s), 2 blank, kept blank, 1 over-long, in 3 pieces,"
        " 4 unknown source subwords, 5 without context"
    )
    scored = Counter(lines=3, over_long=1, unknown_target=1)
    assert output.summary(scored, 2.0) == (
        "3 lines in 2s (1.5 sentences/s), 1 over-long, not cut, 1 unknown target subwords"
    )
    assert output.speed(Counter(lines=30, tgt_tokens=90), 2.0) == SearchSpeed(2.0, 15.0, 45.0)
    assert output.speed(Counter(), 0.0) == SearchSpeed(0.0, 0.0, 0.0)


def test_system_without_context_copies_marks_of_documents(run, tmp_path, stdout):
    """So the same command serves all systems of a comparison."""
    text = tmp_path / "text"
    text.write_text("a dog runs\n")
    translated(run, set_names=[], source=str(text))
    translation = stdout()
    text.write_text("<d>\na dog runs\n")
    translated(run, set_names=[], source=str(text), docs="marker")
    assert stdout() == f"<d>\n{translation}"
