"""Curves of trainings: read from the log with each update once, levels of BLEU found where a
slow search finds them.
"""

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

floats = functools.partial(
    st.floats, allow_subnormal=False
)  # a process that chose its hardware counts them as zero
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


def dev(step, bleu, loss=2.0, signature=SIGNATURE):
    return {"step": step, "kind": "dev", "dev_loss": loss, "dev_bleu": bleu, "signature": signature}


def log(path, records):
    write(path, [record if isinstance(record, str) else json.dumps(record) for record in records])
    return path


def read(folder, records):
    return curves.read(log(folder / "m", records))


def stretches(curve):
    return [(curves.begin(s), s.step, s.seconds) for s in curve.train]


def at(found, axis, steps):
    return [found.at(step, axis) for step in steps]


# What the log says


def test_a_plain_log(tmp_path):
    records = [train(50), train(100, 30.0), dev(100, 7.5), train(150)]
    found = read(tmp_path, records)
    assert stretches(found) == [(0, 50, 60.0), (50, 100, 30.0), (100, 150, 60.0)]
    assert [s.nll for s in found.train] == [4.5, 4.0, 3.5]
    assert found.measured == [(100, 7.5)]
    assert (found.dev[0].dev_loss, found.dev[0].signature) == (2.0, SIGNATURE)
    minutes = at(found, "minutes", [0, 25, 50, 75, 100, 150, 151])
    assert minutes == pytest.approx([0, 0.5, 1.0, 1.25, 1.5, 2.5, None])
    assert at(found, "epochs", [0, 50, 125, 151]) == pytest.approx([0, 0.5, 1.25, None])
    assert (found.last, found.unlogged) == (150, 0)


def test_the_closing_line_of_a_training_that_went_on_is_counted_once(tmp_path):
    """At its end a training tells of the updates since the last line; one that continues tells
    of them again.
    """
    lines = [(50, 60.0, 50), (87, 44.4, 37), (100, 61.0, 50), (150, 59.0, 50)]
    records = [train(*line) for line in lines]
    found = read(tmp_path, records)
    assert stretches(found) == [(0, 50, 60.0), (50, 100, 61.0), (100, 150, 59.0)]
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
def test_a_line_that_is_no_measurement_is_named(tmp_path, odd):
    path = log(tmp_path / "m", [dev(5, None), odd, dev(6, 3.0)])
    assert refused(DataError, "damaged: ", curves.read, path).where == f"{path}, line 2"


def test_what_was_not_measured_is_none(tmp_path):
    looks = [dev(5, None), dev(6, 3.0, loss=None)]
    lines = [train(7, updates=7, nll=None), train(8, updates=1, epoch=None)]
    found = read(tmp_path, looks + lines)
    assert [(look.step, look.dev_loss, look.dev_bleu) for look in found.dev] == [
        (5, 2.0, None),
        (6, None, 3.0),
    ]
    assert [(curves.begin(s), s.step, s.nll) for s in found.train] == [(0, 7, None), (7, 8, 4.92)]
    assert at(found, "epochs", [7, 8]) == [0.07, None]
    assert curves.read(tmp_path / "none").last == 0


def test_a_gap_in_the_log_is_counted(tmp_path):
    found = read(tmp_path, [train(50), train(150, updates=47)])
    assert found.unlogged == 53 and at(found, "minutes", [100]) == [1.0]


@given(st.lists(st.tuples(st.integers(1, 40), floats(0.1, 9)), max_size=20))
def test_each_update_has_one_line_and_time_never_runs_back(tmp_path_factory, moves):
    """Against the list of updates as they were made: a line every 7, a closing line or none."""
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
    found = read(tmp_path_factory.mktemp("log"), records)
    ends = [s.step for s in found.train]
    assert [curves.begin(s) for s in found.train] == [0, *ends[:-1]][: len(ends)]
    for end in ends:
        if end % 7 == 0 or end == ends[-1]:
            spent = sum(clock[s] for s in range(1, end + 1))
            assert found.at(end, "minutes") == pytest.approx(spent / 60)


def test_what_the_reporter_writes_is_read(tmp_path, capsys):
    system = System(tmp_path / "a")
    for start, lines in ((0, {20: 20, 33: 13}), (33, {40: 20})):
        reporter = Reporter(system, start, Ranks(), TrainSettings())
        for step, steps in lines.items():
            counts = {"tokens": 4, "positions": 9, "seconds": steps, "cpu": 3.0 * steps}
            window = Window(steps=steps, smoothed=9.0, nll=8.0, **counts)
            reporter.progress(TrainState(step, log=window), step / 30, 0.1)
        reporter.close()
    found = curves.read(system.metrics)
    assert [(curves.begin(s), s.step, s.nll) for s in found.train] == [(0, 20, 2.0), (20, 40, 2.0)]
    assert at(found, "minutes", [40]) == pytest.approx([40 / 60])
    processor = at(found, "processor_minutes", [10, 40, 41])
    assert processor == pytest.approx([30 / 60, 120 / 60, None])


# When a level was reached


@given(st.lists(floats(0, 60), max_size=12), floats(0.1, 60))
def test_a_level_is_reached_where_a_slow_walk_finds_it(bleus, level):
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


def test_levels_as_a_person_gives_them():
    assert default_levels([36.33, 36.99]) == [18.4, 27.7, 33.2, 36.3]
    assert default_levels([2.33, 50.05]) == [2.3, 25.0, 37.5, 45.0]
    assert default_levels([]) == default_levels([0.0]) == []
    assert parse_levels("30, 20,20.5,30") == [20.0, 20.5, 30.0]
    for wrong in ("x", "20,", "0", "-1", "101", "nan", "inf"):
        assert refused(ConfigError, "not a level of BLEU", parse_levels, wrong).where == "--levels"


# The stage


@pytest.fixture
def trained(analysed):
    """Two trainings, the second as good in half the updates, and one without dev BLEU."""
    bleus = [4, 8, 16, 20]
    for name, every, own in (("base", 50, bleus), ("fast", 25, bleus), ("mute", 50, [None] * 4)):
        folder, records = analysed.add(name, 0.3, sets=[]), []
        settings = {"log_every": every, "dev_sentences": 0}
        write_toml(folder / "config.toml", {"variant": "toy", "train": settings})
        for i, bleu in enumerate(own, 1):
            records += [train(every * i, updates=every), dev(every * i, bleu, 5.0 - i)]
        log(folder / "metrics.jsonl", records)
    return analysed


@pytest.fixture
def analyze(trained):
    """Run the analysis; return its finding, with the rows by point, BLEU and system."""

    def run(*systems, **options):
        found = trained.analyze("convergence", systems=systems, **options)
        found["rows"] = {(r["point"], r["bleu"], r["system"]): r for r in found["table"]["rows"]}
        return found

    return run


def points(trained, system, kind, column):
    """A column of the curves' file."""
    rows = trained.csv_rows("convergence", "curves.csv")
    return [row[column] for row in rows if (row["system"], row["kind"]) == (system, kind)]


def values(row, *keys):
    return [row[key] for key in keys]


PLACE = ("updates", "epochs", "minutes", "ratio", "how")


def test_systems_side_by_side(trained, analyze, stdout):
    found = analyze("base", "fast", "mute", levels="12,20,21")
    rows, facts = found["rows"], found["facts"]
    assert list(rows) == [
        *(("level", level, name) for level in (12.0, 20.0, 21.0) for name in ("base", "fast")),
        *(("best", 20.0, "base"), ("best", 20.0, "fast"), ("best", None, "mute")),
    ]
    for key, expected in (
        (("level", 12.0, "base"), [125.0, 1.25, 2.5, 1.0, INTERPOLATED]),
        (("level", 12.0, "fast"), [62.5, 0.625, 2.5, 0.5, INTERPOLATED]),
        (("level", 21.0, "fast"), [None, None, None, None, NEVER]),
    ):
        assert values(rows[key], *PLACE) == expected
    assert values(rows["best", None, "mute"], "dev_loss", "updates") == [1.0, 200]
    assert facts["levels"] == [12.0, 20.0, 21.0]
    assert "without dev BLEU, so without levels: mute" in stdout()
    assert points(trained, "fast", "dev", "bleu") == ["4.0", "8.0", "16.0", "20.0"]
    assert points(trained, "base", "train", "minutes") == ["1.0", "2.0", "3.0", "4.0"]


def test_processor_minutes_stand_beside_those_of_the_clock(trained, analyze):
    records = []
    for step, cpu in {25: 60.0, 50: 90.0, 75: 30.0, 100: 30.0}.items():
        records += [train(step, updates=25, cpu_seconds=cpu), dev(step, step * 20 / 100)]
    log(trained.run.path / "systems" / "fast" / "metrics.jsonl", records)
    found = analyze("base", "fast", levels="12")
    rows = found["rows"]
    minutes = values(rows["level", 12.0, "fast"], "updates", "minutes", "processor_minutes")
    assert minutes == pytest.approx([60.0, 2.4, 2.5 + 0.5 * 10 / 25])
    assert any("times the number of processes" in note for note in found["table"]["notes"])
    assert rows["best", 20.0, "fast"]["processor_minutes"] == 3.5
    assert rows["level", 12.0, "base"]["processor_minutes"] == 1.25
    assert points(trained, "fast", "dev", "processor_minutes") == ["1.0", "2.5", "3.0", "3.5"]


def test_the_first_validation_is_a_bound_and_no_ratio_is_made_of_it(analyze):
    rows = analyze("base", "fast", levels="3")["rows"]
    for name, updates in (("base", 50.0), ("fast", 25.0)):
        row = rows["level", 3.0, name]
        assert values(row, "updates", "ratio", "how") == [updates, None, FIRST]


def test_levels_of_its_own_and_the_figure(trained, analyze):
    facts = analyze()["facts"]
    assert facts["levels"] == [10.0, 15.0, 18.0, 20.0]
    figure = trained.text("convergence")
    axes = ("updates", "dev BLEU", "loss (thin: training)")
    for text in (*axes, ">base<", ">fast<", ">mute<"):
        assert text in figure
    assert figure.count(">base<") == 1


def test_beyond_the_last_line_of_a_training_time_is_unknown(trained, analyze):
    path = trained.run.path / "systems" / "base" / "metrics.jsonl"
    log(path, [train(50), dev(50, 3.0), dev(60, 6.0)])
    rows = analyze("base", levels="3,6")["table"]["rows"]
    places = [[50.0, 0.5, 1.0], [60.0, None, None], [60.0, None, None]]
    assert [values(row, "updates", "epochs", "minutes") for row in rows] == places


def test_where_nobody_measured_bleu_losses_are_shown(trained, analyze, stdout):
    assert list(analyze("mute")["rows"]) == [("best", None, "mute")]
    assert "no training measured BLEU" in stdout()
    assert "dev BLEU" not in trained.text("convergence")


def test_bleu_measured_in_two_ways_is_said(trained, analyze, capsys):
    other, said = "nrefs:1|case:lc", "was measured in several ways"
    system = trained.run.path / "systems" / "fast"
    looks = [dev(50, 3.0, signature=other), dev(55, None, signature=None)]
    looks.append(dev(60, 3.0, signature=other))
    log(system / "metrics.jsonl", [train(50), *looks])
    found = analyze("base", "fast")
    out, err = capsys.readouterr()
    assert said in err and said in out
    assert found["facts"]["dev_bleu"]["fast"]["signatures"] == [other]
    values = {"variant": "toy", "train": {"log_every": 50, "dev_sentences": 100}}
    write_toml(system / "config.toml", values)
    log(system / "metrics.jsonl", [train(50), dev(50, 3.0), dev(60, 6.0)])
    analyze("base", "fast")
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("signatures", "note"),
    [
        ((SIGNATURE, SIGNATURE), f"greedy search, {SIGNATURE};"),
        ((SIGNATURE, "nrefs:1|case:lc"), "greedy search;"),
        ((None, None), "greedy search;"),
    ],
)
def test_a_note_has_the_signature_of_all_measurements_or_none(trained, analyze, signatures, note):
    looks = [dev(step, 3.0, signature=s) for step, s in zip((50, 60), signatures, strict=True)]
    log(trained.run.path / "systems" / "fast" / "metrics.jsonl", [train(50), *looks])
    notes = analyze("fast")["table"]["notes"]
    assert any(line.startswith(f"dev BLEU: {note}") for line in notes)


def test_a_system_that_has_not_begun_is_left_out(trained, analyze, stderr):
    (trained.run.path / "systems" / "fast" / "metrics.jsonl").unlink()
    found = analyze("fast", "base")
    assert "left out: fast: its log has no measurement yet" in stderr()
    assert {system for _, _, system in found["rows"]} == {"base"}
    words = "no training of this run has logged anything"
    trained.refused("convergence", DataError, words, systems=["fast"])
