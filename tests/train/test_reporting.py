"""Reports of a training: metrics.jsonl, TensorBoard, and lines or a progress bar on stderr."""

import contextlib
import re
import sys
import threading
from types import SimpleNamespace

import pytest

from nmtkit import console
from nmtkit.run import System
from nmtkit.settings import TrainSettings
from nmtkit.train.loggers import TensorBoard
from nmtkit.train.ranks import Ranks
from nmtkit.train.reporting import Reporter
from nmtkit.train.state import TrainState, Window
from nmtkit.train.stop import seconds_left
from nmtkit.train.validation import Validator
from tests.faults.trainings import interfere
from tests.full_disk import full_disk
from tests.terminal import terminal
from tests.train.tiny import lines_of, options, trainer

MEASURED = {
    "dev_loss": 1.5,
    "dev_bleu": None,
    "dev_perplexity": float("inf"),
    "signature": "nrefs:1",
}


@pytest.fixture
def system(tmp_path):
    return System(tmp_path / "a")


def reporter_of(system, step=0, **settings):
    return Reporter(system, TrainState(step), Ranks(), TrainSettings(**settings))


def test_tensorboard_gets_every_finite_number(system, monkeypatch):
    calls = []

    class SummaryWriter:
        def __init__(self, folder, purge_step):
            calls.append((folder, purge_step))

        def add_scalar(self, name, value, step):
            calls.append((name, value, step))

        def close(self):
            calls.append("closed")

    monkeypatch.setitem(
        sys.modules, "torch.utils.tensorboard", SimpleNamespace(SummaryWriter=SummaryWriter)
    )
    reporter = reporter_of(system, 4)
    reporter.record("dev", 5, MEASURED)
    reporter.close()
    assert calls == [(str(system.path / "tensorboard"), 5), ("dev/dev_loss", 1.5, 5), "closed"]


def test_metrics_are_written_without_tensorboard(system, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)  # an import of it fails
    reporter = reporter_of(system)
    reporter.record("dev", 5, MEASURED)
    reporter.close()
    expected = {"step": 5, "kind": "dev", **MEASURED, "dev_perplexity": None}
    assert lines_of(system.metrics) == [expected]
    assert not (system.path / "tensorboard").exists()


@pytest.mark.parametrize("when", ["begin", "later"])
def test_tensorboard_on_a_full_disk_is_one_warning(system, stderr, when):
    """The training goes on, and TensorBoard's thread prints no traceback."""
    pytest.importorskip("tensorboard")
    hook = threading.excepthook
    with contextlib.ExitStack() as full:
        if when == "begin":
            full.enter_context(full_disk())
        board = TensorBoard(system, 0)
        if when == "later":
            full.enter_context(full_disk())
        for step in range(100):
            board.numbers("dev", step, {"dev_loss": 1.5})
    board.close()
    log = stderr()
    assert log.count("TensorBoard gets no further curves") == 1 and "Traceback" not in log
    assert threading.excepthook == hook


def test_log_has_the_perplexity_of_the_loss_without_smoothing(system, stderr):
    reporter = reporter_of(system)
    sizes = {"tokens": 10, "positions": 40, "padding": 10, "seconds": 1.0}
    for step, smoothed, nll in ((2, 77.42, 75.39), (4, 10.0, 10.0)):
        window = Window(steps=2, smoothed=smoothed, nll=nll, **sizes)
        reporter.progress(TrainState(step, log=window), 0.5, 0.1, at_the_end=True)
    reporter.close()
    first, second = stderr().splitlines()
    assert "loss 7.539 (7.742 label-smoothed), perplexity 1,880, " in first  # exp(7.539) = 1,880
    assert "loss 1.000, perplexity 2.718, " in second and " 25.0% padding, " in second
    assert not first.endswith(" left")  # the training ends here


@pytest.mark.parametrize(("max_minutes", "seconds"), [(0, 200), (2, 70), (5, 200)])
def test_time_left_is_that_of_the_steps_or_of_the_minutes(max_minutes, seconds):
    settings = TrainSettings(max_steps=110, max_minutes=max_minutes)
    window = Window(steps=5, seconds=10.0)
    assert seconds_left(TrainState(step=10, seconds=50.0), settings, window) == seconds


# On a terminal

go = trainer(options("train.max_steps=8", "train.validate_every=4"))
CODES = re.compile(r"\x1b\[(\??[\d;]*)([A-Za-z])|([\r\n])|([^\x1b\r\n]+)")


def screen(data):
    """Return the lines that a terminal shows after these characters."""
    lines, row, column = [""], 0, 0
    for number, code, end, text in CODES.findall(data):
        if end:
            row, column = row + (end == "\n"), 0
            lines += [""] * (row + 1 - len(lines))
        elif code == "A":
            row -= int(number or 1)
        elif code == "K":
            lines[row] = ""
        elif text:
            lines[row] = lines[row][:column].ljust(column) + text + lines[row][column + len(text) :]
            column += len(text)
    return [line.rstrip() for line in lines]


VALIDATED = r"nmtkit: step %d: dev loss [\d.]+, dev BLEU [\d.]+(, the best so far)?"
END = re.escape("nmtkit: at step 8 of 8; raise train.max_steps to go on")
WARNING = "a warning in between"


def test_terminal_shows_a_bar_and_keeps_one_line_per_validation(run, monkeypatch):
    interfere(monkeypatch, Validator, "validate", {1, 2}, lambda: console.warn(WARNING))
    with terminal(monkeypatch) as sent:
        go(run)
    (data,) = sent
    lines = [line for line in screen(data) if line]
    assert any("step 0 of 8: starting" in line for line in lines)
    shown = [line for line in lines if WARNING not in line][-3:]
    for pattern, line in zip([VALIDATED % 4, VALIDATED % 8, END], shown, strict=True):
        assert re.fullmatch(pattern, line)
    assert sum(WARNING in line for line in lines) == 2
    assert not any("learning rate" in line or "/8" in line or "source " in line for line in lines)
    assert set(re.findall(r"step (\d)/8 ", data)) <= set("012345678") != set()
    log = (run.system("transformer").path / "train.log").read_text()
    assert "step 4/8, epoch" in log and "  translation " in log and WARNING in log


def test_bar_shows_loss_and_speed_of_the_last_line_of_the_log(run, monkeypatch):
    bars, moved = [], console.Bar.move
    monkeypatch.setattr(console.Bar, "move", lambda bar, *of: (bars.append(of), moved(bar, *of)))
    with terminal(monkeypatch):
        go(run, "train.log_every=4", "train.validate_every=2")
    texts = {step: text for step, text in bars if text != "validating"}
    assert texts[1] == texts[2] == texts[3] == "" and texts[4].startswith("loss ")
    speeds = {step: texts[step].split(", ")[1] for step in (4, 5, 6, 7)}
    assert len(set(speeds.values())) == 1


def test_bar_has_loss_speed_and_the_time_left(system, monkeypatch):
    state, sums = TrainState(1), {"steps": 1, "seconds": 1.8634}
    with terminal(monkeypatch) as sent:
        reporter = reporter_of(system, max_steps=2_000)
        for tokens in (0, 10):  # the first update was left out
            state.log = Window(nll=2.0 * tokens, tokens=tokens, **sums)
            reporter.progress(state, 0.1, 0.1)
            reporter.move_bar(state)
        reporter._bar._live.refresh()
        reporter.say("a line that stays")
        reporter.close()
    (data,) = sent
    drawn = [line for line in re.split(r"[\r\n]", CODES.sub(r"\3\4", data)) if "1/2,000" in line]
    assert drawn and max(map(len, drawn)) == 80
    assert drawn[0].rstrip().endswith("━ loss 2.000, 5 target tokens/s, 1h 02m left")
    assert [line for line in screen(data) if line] == ["nmtkit: a line that stays"]


def test_pipes_dumb_terminals_and_quiet_have_no_bar(run, monkeypatch, stderr):
    go(run)
    log = stderr()
    assert "\x1b" not in log and "step 4/8, epoch" in log and "  translation " in log
    for quiet, kind in ((True, "xterm"), (False, "dumb")):
        with terminal(monkeypatch) as sent:
            monkeypatch.setenv("TERM", kind)
            monkeypatch.setattr(console, "_quiet", quiet)
            go(run, force=True)
        lines = [line for line in sent[0].splitlines() if "step" in line]
        assert "\x1b" not in sent[0] and bool(lines) != quiet
        assert any("step 4/8, epoch" in line for line in lines) != quiet
        monkeypatch.undo()
