"""Training curves: read from logs with each update once, and the BLEU levels that they reach."""

import functools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmtkit import curves
from nmtkit.analyze.convergence import (
    FIRST,
    INTERPOLATED,
    NEVER,
    default_levels,
    parse_levels,
    reach,
)
from nmtkit.errors import ConfigError, DataError
from nmtkit.run import System
from nmtkit.settings import TrainSettings
from nmtkit.toml import write_toml
from nmtkit.train.ranks import Ranks
from nmtkit.train.reporting import Reporter
from nmtkit.train.state import TrainState, Window
from tests.refused import refused
from tests.score.conftest import write

# A process that has chosen its hardware treats subnormal numbers as zero.
floats = functools.partial(st.floats, allow_subnormal=False)
SIGNATURE = "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0"


def train(step, seconds=60.0, updates=50, **more):
    return {
        "step": step,
        "kind": "train",
        "epoch": step / 100,
        "nll": 5.0 - step / 100,
        "loss": 6.0,
        "updates": updates,
        "tgt_tokens": 10 * updates,
        "seconds": seconds,
        "cpu_seconds": seconds / 2,
        **more,
    }


def dev(step, bleu, loss=2.0, **values):
    line = {"step": step, "kind": "dev", "dev_loss": loss, "dev_bleu": bleu}
    return line | {"signature": SIGNATURE} | values


def log(path, records):
    write(path, [record if isinstance(record, str) else json.dumps(record) for record in records])
    return path


def read(folder, records):
    return curves.read(log(folder / "m", records))


def stretches(curve):
    return [(curves.begin(s), s.step, s.seconds) for s in curve.train]


def at(curve, axis, steps):
    return [curve.at(step, axis) for step in steps]


# Reading logs


def test_log_gives_losses_dev_bleu_minutes_and_epochs(tmp_path):
    records = [train(50), train(100, 30.0), dev(100, 7.5), train(150)]
    curve = read(tmp_path, records)
    assert stretches(curve) == [(0, 50, 60.0), (50, 100, 30.0), (100, 150, 60.0)]
    assert [s.nll for s in curve.train] == [4.5, 4.0, 3.5]
    assert curve.measured == [(100, 7.5)]
    assert (curve.dev[0].dev_loss, curve.dev[0].signature) == (2.0, SIGNATURE)
    minutes = at(curve, "minutes", [0, 25, 50, 75, 100, 150, 151])
    assert minutes == pytest.approx([0, 0.5, 1.0, 1.25, 1.5, 2.5, None])
    assert at(curve, "epochs", [0, 50, 125, 151]) == pytest.approx([0, 0.5, 1.25, None])
    assert (curve.last, curve.unlogged) == (150, 0)


def test_updates_logged_again_after_a_resume_count_once(tmp_path):
    """A training that stops logs its last updates; the resumed training logs them again."""
    lines = [(50, 60.0, 50), (87, 44.4, 37), (100, 61.0, 50), (150, 59.0, 50)]
    records = [train(*line) for line in lines]
    curve = read(tmp_path, records)
    assert stretches(curve) == [(0, 50, 60.0), (50, 100, 61.0), (100, 150, 59.0)]
    unfinished = read(tmp_path, records[:2])
    assert stretches(unfinished) == [(0, 50, 60.0), (50, 87, 44.4)]


@pytest.mark.parametrize(
    "odd",
    [
        "",
        "no",
        "[]",
        '{"step": "5", "kind": "dev"}',
        '{"step": true, "kind": "dev"}',
        '{"step": 5, "kind": "other"}',
        '{"kind": "dev"}',
    ],
)
def test_damaged_log_line_is_refused_with_its_number(tmp_path, odd):
    path = log(tmp_path / "m", [dev(5, None), odd, dev(6, 3.0)])
    assert refused(DataError, "damaged: ", curves.read, path).where == f"{path}, line 2"


def test_missing_measurements_are_none(tmp_path):
    looks = [dev(5, None), dev(6, 3.0, loss=None)]
    lines = [train(7, updates=7, nll=None), train(8, updates=1, epoch=None)]
    curve = read(tmp_path, looks + lines)
    assert [(look.step, look.dev_loss, look.dev_bleu) for look in curve.dev] == [
        (5, 2.0, None),
        (6, None, 3.0),
    ]
    assert [(curves.begin(s), s.step, s.nll) for s in curve.train] == [(0, 7, None), (7, 8, 4.92)]
    assert at(curve, "epochs", [7, 8]) == [0.07, None]
    assert curves.read(tmp_path / "none").last == 0


def test_unlogged_updates_are_counted(tmp_path):
    curve = read(tmp_path, [train(50), train(150, updates=47)])
    assert curve.unlogged == 53 and at(curve, "minutes", [100]) == [1.0]


@given(st.lists(st.tuples(st.integers(1, 40), floats(0.1, 9)), max_size=20))
def test_minutes_of_interrupted_logs_equal_those_of_each_update(tmp_path_factory, moves):
    """Each training logs every 7 updates and where it stops, and resumes there."""
    step, window, records, clock = 0, 0, [], {}

    def line(step, window):
        spent = sum(clock[s] for s in range(step - window + 1, step + 1))
        return train(step, spent, window)

    for forward, pace in moves:
        for _ in range(forward):
            step, window = step + 1, window + 1
            clock[step] = pace
            if step % 7 == 0:
                records.append(line(step, window))
                window = 0
        if window:
            records.append(line(step, window))
    curve = read(tmp_path_factory.mktemp("log"), records)
    ends = [s.step for s in curve.train]
    assert [curves.begin(s) for s in curve.train] == [0, *ends[:-1]][: len(ends)]
    for end in ends:
        if end % 7 == 0 or end == ends[-1]:
            spent = sum(clock[s] for s in range(1, end + 1))
            assert curve.at(end, "minutes") == pytest.approx(spent / 60)


def test_log_of_the_reporter_is_read(tmp_path, capsys):
    system = System(tmp_path / "a")
    for start, lines in ((0, {20: 20, 33: 13}), (33, {40: 20})):
        reporter = Reporter(system, TrainState(start), Ranks(), TrainSettings())
        for step, steps in lines.items():
            counts = {"tokens": 4, "positions": 9, "seconds": steps, "cpu": 3.0 * steps}
            window = Window(steps=steps, smoothed=9.0, nll=8.0, **counts)
            reporter.progress(TrainState(step, log=window), step / 30, 0.1)
        reporter.close()
    curve = curves.read(system.metrics)
    assert [(curves.begin(s), s.step, s.nll) for s in curve.train] == [(0, 20, 2.0), (20, 40, 2.0)]
    assert at(curve, "minutes", [40]) == pytest.approx([40 / 60])
    processor = at(curve, "processor_minutes", [10, 40, 41])
    assert processor == pytest.approx([30 / 60, 120 / 60, None])


# Levels


@given(st.lists(floats(0, 60), max_size=12), floats(0.1, 60))
def test_level_is_reached_where_a_slow_walk_reaches_it(bleus, level):
    points = [(10 * (i + 1), bleu) for i, bleu in enumerate(bleus)]
    steps, how = reach(points, level)
    walked = next((step for step, bleu in points if bleu >= level), None)
    assert (how == NEVER) == (walked is None) == (steps is None)
    if how == FIRST:
        assert steps == walked == 10
    elif steps is not None:
        assert how == INTERPOLATED and walked - 10 <= steps <= walked
        below, there = dict(points)[walked - 10], dict(points)[walked]
        assert below + (there - below) * (steps - walked + 10) / 10 == pytest.approx(level)


def test_default_levels_are_shares_of_the_best_bleu_and_given_levels_are_parsed():
    assert default_levels([36.33, 36.99]) == [18.4, 27.7, 33.2, 36.3]
    assert default_levels([2.33, 50.05]) == [2.3, 25.0, 37.5, 45.0]
    assert default_levels([]) == default_levels([0.0]) == []
    assert parse_levels("30, 20,20.5,30") == [20.0, 20.5, 30.0]
    for wrong in ("x", "20,", "0", "-1", "101", "nan", "inf"):
        assert refused(ConfigError, "not a level of BLEU", parse_levels, wrong).where == "--levels"


# The analysis


@pytest.fixture
def trained(analysed):
    """Add two trainings, the second twice as fast, and one without dev BLEU."""
    bleus = [4, 8, 16, 20]
    for name, every, dev_bleus in (
        ("base", 50, bleus),
        ("fast", 25, bleus),
        ("mute", 50, [None] * 4),
    ):
        folder, records = analysed.add(name, 0.3, sets=[]), []
        settings = {"log_every": every, "dev_sentences": 0}
        write_toml(folder / "config.toml", {"variant": "toy", "train": settings})
        for i, bleu in enumerate(dev_bleus, 1):
            records += [train(every * i, updates=every), dev(every * i, bleu, 5.0 - i)]
        log(folder / "metrics.jsonl", records)
    return analysed


@pytest.fixture
def analyze(trained):
    """Return a function that runs the analysis; `rows` are by point, BLEU and system."""

    def run(*systems, **options):
        rows = trained.rows_by("point bleu system", "convergence", systems=systems, **options)
        return trained.finding | {"rows": rows}

    return run


def points(trained, system, kind, column):
    """Return a column of the curves of a system."""
    rows = trained.csv_rows("convergence", "curves.csv")
    return [row[column] for row in rows if (row["system"], row["kind"]) == (system, kind)]


def values(row, *keys):
    return [row[key] for key in keys]


PLACE = ("updates", "epochs", "minutes", "ratio", "how")


def test_updates_epochs_and_minutes_to_each_level_are_compared(trained, analyze, stdout):
    finding = analyze("base", "fast", "mute", levels="3,12,20,21")
    rows, levels = finding["rows"], [3.0, 12.0, 20.0, 21.0]
    assert list(rows) == [
        *(("level", level, name) for level in levels for name in ("base", "fast")),
        *(("best", 20.0, "base"), ("best", 20.0, "fast"), ("best", None, "mute")),
    ]
    for key, expected in (
        # The first validation is only an upper bound, so it has no ratio.
        (("level", 3.0, "base"), [50.0, 0.5, 1.0, None, FIRST]),
        (("level", 3.0, "fast"), [25.0, 0.25, 1.0, None, FIRST]),
        (("level", 12.0, "base"), [125.0, 1.25, 2.5, 1.0, INTERPOLATED]),
        (("level", 12.0, "fast"), [62.5, 0.625, 2.5, 0.5, INTERPOLATED]),
        (("level", 21.0, "fast"), [None, None, None, None, NEVER]),
    ):
        assert values(rows[key], *PLACE) == expected
    assert values(rows["best", None, "mute"], "dev_loss", "updates") == [1.0, 200]
    assert finding["facts"]["levels"] == levels
    assert "without dev BLEU, so without levels: mute" in stdout()


def test_curves_of_each_system_are_stored(trained, analyze):
    analyze("base", "fast")
    assert points(trained, "fast", "dev", "bleu") == ["4.0", "8.0", "16.0", "20.0"]
    assert points(trained, "base", "train", "minutes") == ["1.0", "2.0", "3.0", "4.0"]


def test_processor_minutes_are_interpolated_beside_clock_minutes(trained, analyze):
    records = []
    for step, cpu in {25: 60.0, 50: 90.0, 75: 30.0, 100: 30.0}.items():
        records += [train(step, updates=25, cpu_seconds=cpu), dev(step, step * 20 / 100)]
    log(trained.run.system("fast").metrics, records)
    finding = analyze("base", "fast", levels="12")
    rows = finding["rows"]
    minutes = values(rows["level", 12.0, "fast"], "updates", "minutes", "processor_minutes")
    assert minutes == pytest.approx([60.0, 2.4, 2.5 + 0.5 * 10 / 25])
    assert any("times the number of processes" in note for note in finding["table"]["notes"])
    assert rows["best", 20.0, "fast"]["processor_minutes"] == 3.5
    assert rows["level", 12.0, "base"]["processor_minutes"] == 1.25
    assert points(trained, "fast", "dev", "processor_minutes") == ["1.0", "2.5", "3.0", "3.5"]


def test_default_levels_and_figure_cover_all_systems(trained, analyze):
    facts = analyze()["facts"]
    assert facts["levels"] == [10.0, 15.0, 18.0, 20.0]
    figure = trained.text("convergence")
    axes = ("updates", "dev BLEU", "loss (thin: training)")
    for text in (*axes, ">base<", ">fast<", ">mute<"):
        assert text in figure
    assert figure.count(">base<") == 1
    losses, bleu = trained.figure("convergence")["panels"]
    fast = [curve for curve in losses["curves"] if curve["name"] == "fast"]
    assert {curve["faint"]: (curve["x"], curve["y"]) for curve in fast} == {
        True: ([25, 50, 75, 100], [4.75, 4.5, 4.25, 4.0]),
        False: ([25, 50, 75, 100], [4.0, 3.0, 2.0, 1.0]),
    }
    assert [(curve["name"], curve["x"], curve["y"]) for curve in bleu["curves"]] == [
        ("base", [50, 100, 150, 200], [4, 8, 16, 20]),
        ("fast", [25, 50, 75, 100], [4, 8, 16, 20]),
    ]


def test_time_after_the_last_logged_update_is_unknown(trained, analyze):
    log(trained.run.system("base").metrics, [train(50), dev(50, 3.0), dev(60, 6.0)])
    rows = analyze("base", levels="3,6")["table"]["rows"]
    places = [[50.0, 0.5, 1.0], [60.0, None, None], [60.0, None, None]]
    assert [values(row, "updates", "epochs", "minutes") for row in rows] == places


def test_run_without_dev_bleu_shows_losses(trained, analyze, stdout):
    assert list(analyze("mute")["rows"]) == [("best", None, "mute")]
    assert "no training measured BLEU" in stdout()
    assert "dev BLEU" not in trained.text("convergence")


def test_dev_bleu_with_different_signatures_is_noted_and_warned_of(trained, analyze, capsys):
    signature, message = "nrefs:1|case:lc", "was measured in several ways"
    looks = [dev(50, 3.0, signature=signature), dev(55, None, signature=None)]
    looks.append(dev(60, 3.0, signature=signature))
    log(trained.run.system("fast").metrics, [train(50), *looks])
    finding = analyze("base", "fast")
    out, err = capsys.readouterr()
    assert message in err and message in out
    assert finding["facts"]["dev_bleu"]["fast"]["signatures"] == [signature]


def test_dev_bleu_of_different_numbers_of_sentences_is_warned_of(trained, analyze, stderr):
    config = {"variant": "toy", "train": {"log_every": 50, "dev_sentences": 100}}
    write_toml(trained.run.system("fast").config, config)
    analyze("base", "fast")
    assert "was measured in several ways" in stderr()


@pytest.mark.parametrize(
    ("first", "resumed", "warned"),
    [("a", "b", True), ("a", "a", False), ("b", "b", True), ("", "a", True)],
)
def test_dev_bleu_of_other_sentences_before_a_resume_is_warned_of(
    trained, analyze, stderr, first, resumed, warned
):
    """The settings have only the number of sentences of the last call."""
    for name, dev_sets in (("base", "aa"), ("fast", [first, resumed])):
        lines = [dev(50 * i, 3.0, dev_set=of) for i, of in enumerate(dev_sets, 1)]
        log(trained.run.system(name).metrics, [train(50), *lines])
    analyze("base", "fast")
    assert ("was measured in several ways" in stderr()) == warned


@pytest.mark.parametrize(
    ("signatures", "note"),
    [
        ((SIGNATURE, SIGNATURE), f"greedy search, {SIGNATURE};"),
        ((SIGNATURE, "nrefs:1|case:lc"), "greedy search;"),
        ((None, None), "greedy search;"),
    ],
)
def test_note_has_the_signature_only_if_all_measurements_share_it(
    trained, analyze, signatures, note
):
    looks = [dev(step, 3.0, signature=s) for step, s in zip((50, 60), signatures, strict=True)]
    log(trained.run.system("fast").metrics, [train(50), *looks])
    notes = analyze("fast")["table"]["notes"]
    assert any(line.startswith(f"dev BLEU: {note}") for line in notes)


def test_trainings_with_different_settings_but_not_lengths_are_noted(trained, analyze):
    def notes():
        return [n for n in analyze("base", "fast")["table"]["notes"] if "not trained alike" in n]

    assert not notes()  # 200 and 100 updates
    config = {"variant": "toy", "train": {"dev_sentences": 0, "batch_size": 7}}
    write_toml(trained.run.system("fast").config, config)
    (note,) = notes()
    assert "train.batch_size" in note and "updates (" not in note


def test_log_of_a_training_that_diverged_at_once_has_no_figure(trained, analyze):
    log(trained.run.system("fast").metrics, [train(50, nll=None), dev(50, None, loss=None)])
    (row,) = analyze("fast")["table"]["rows"]
    assert (row["updates"], row["dev_loss"]) == (50, None)
    assert not (trained.folder("convergence") / "figure.svg").exists()


def test_system_without_a_log_is_left_out(trained, analyze, stderr):
    trained.run.system("fast").metrics.unlink()
    rows = analyze("fast", "base")["rows"]
    assert "left out: fast: its log has no measurement yet" in stderr()
    assert {system for _, _, system in rows} == {"base"}
    message = "no training of this run has logged anything"
    trained.refused("convergence", DataError, message, systems=["fast"])
