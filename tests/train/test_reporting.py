"""What a training writes down of itself: on a terminal, in a pipe, TensorBoard there and not
there.
"""

import contextlib
import json
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
from nmtkit.train.validation import Validator
from tests.full_disk import full_disk
from tests.terminal import terminal
from tests.train.tiny import options, trainer

MEASURED = {
    "dev_loss": 1.5,
    "dev_bleu": None,
    "dev_perplexity": float("inf"),
    "signature": "nrefs:1",
}


def test_tensorboard_gets_every_finite_number_where_it_is_installed(tmp_path, monkeypatch):
    told = []

    class SummaryWriter:
        def __init__(self, folder, purge_step):
            told.append((folder, purge_step))

        def add_scalar(self, name, value, step):
            told.append((name, value, step))

        def close(self):
            told.append("closed")

    monkeypatch.setitem(
        sys.modules, "torch.utils.tensorboard", SimpleNamespace(SummaryWriter=SummaryWriter)
    )
    system = System(tmp_path / "a")
    reporter = Reporter(system, 4, Ranks(), TrainSettings())
    reporter.record("dev", 5, MEASURED)
    reporter.close()
    assert told == [(str(system.path / "tensorboard"), 5), ("dev/dev_loss", 1.5, 5), "closed"]


def test_metrics_are_written_without_tensorboard(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)  # an import of it fails
    system = System(tmp_path / "a")
    reporter = Reporter(system, 0, Ranks(), TrainSettings())
    reporter.record("dev", 5, MEASURED)
    reporter.close()
    wanted = {"step": 5, "kind": "dev", **MEASURED, "dev_perplexity": None}
    assert [json.loads(line) for line in system.metrics.read_text().splitlines()] == [wanted]
    assert not (system.path / "tensorboard").exists()


@pytest.mark.parametrize("when", ["begin", "later"])
def test_tensorboard_on_a_full_disk_is_one_warning(tmp_path, stderr, when):
    """No traceback of its thread, and no end of the training."""
    pytest.importorskip("tensorboard")
    hook = threading.excepthook
    with contextlib.ExitStack() as full:
        if when == "begin":
            full.enter_context(full_disk())
        board = TensorBoard(System(tmp_path), 0)
        if when == "later":
            full.enter_context(full_disk())
        for step in range(100):
            board.numbers("dev", step, {"dev_loss": 1.5})
    board.close()
    said = stderr()
    assert said.count("TensorBoard gets no further curves") == 1 and "Traceback" not in said
    assert threading.excepthook == hook


def test_the_perplexity_stands_beside_the_loss_that_it_is_of(tmp_path, stderr):
    reporter = Reporter(System(tmp_path / "a"), 0, Ranks(), TrainSettings())
    sizes = {"tokens": 10, "positions": 40, "padding": 10, "seconds": 1.0}
    for step, smoothed, nll in ((2, 77.42, 75.39), (4, 10.0, 10.0)):
        window = Window(steps=2, smoothed=smoothed, nll=nll, **sizes)
        reporter.progress(TrainState(step, log=window), 0.5, 0.1, at_the_end=True)
    reporter.close()
    first, second = stderr().splitlines()
    assert "loss 7.539 (7.742 label-smoothed), perplexity 1,880, " in first  # exp(7.539) = 1,880
    assert "loss 1.000, perplexity 2.718, " in second and " 25.0% padding, " in second


# On a terminal

go = trainer(options("train.max_steps=8", "train.validate_every=4"))
CODES = re.compile(r"\x1b\[(\??[\d;]*)([A-Za-z])|([\r\n])|([^\x1b\r\n]+)")


def screen(data):
    """The lines that a terminal shows after these characters."""
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


def test_a_terminal_shows_a_bar_and_keeps_one_line_a_validation(run, monkeypatch):
    original = Validator.validate

    def warned(self, *args):
        console.warn("a word in between")
        return original(self, *args)

    monkeypatch.setattr(Validator, "validate", warned)
    with terminal(monkeypatch) as sent:
        go(run)
    (data,) = sent
    lasting = [line for line in screen(data) if line]
    begin = next(i for i, line in enumerate(lasting) if "step 0 of 8: starting" in line)
    line = r"nmtkit: step %d: dev loss [\d.]+, dev BLEU [\d.]+(, the best so far)?"
    end = "nmtkit: at step 8 of 8; raise train.max_steps to go on"
    patterns = [line % 4, line % 8, re.escape(end)]
    shown = [line for line in lasting[begin + 1 :] if "a word in between" not in line]
    # The starting line names the run's folder and may be wrapped.
    shown = shown[-3:]
    assert [bool(re.fullmatch(*pair)) for pair in zip(patterns, shown, strict=True)] == [True] * 3
    assert sum("a word in between" in line for line in lasting) == 2
    assert not any("learning rate" in line or "/8" in line or "source " in line for line in lasting)
    bars = re.findall(r"step (\d)/8 .*?(loss [\d.]+, [\d,]+ target tokens/s, \d+s left)?", data)
    assert bars and {step for step, _ in bars} <= set("012345678")
    log = (run.system("transformer").path / "train.log").read_text()
    assert "step 4/8, epoch" in log and "  translation " in log and "a word in between" in log


def test_the_bar_shows_the_last_line_of_the_log(run, monkeypatch):
    """Not a speed of words that were read some updates ago in the time until now."""
    bars, moved = [], console.Bar.move
    monkeypatch.setattr(console.Bar, "move", lambda bar, *of: (bars.append(of), moved(bar, *of)))
    with terminal(monkeypatch):
        go(run, "train.log_every=4", "train.validate_every=2")
    texts = {step: text for step, text in bars if text != "validating"}
    assert texts[1] == texts[2] == texts[3] == "" and texts[4].startswith("loss ")
    speeds = {step: texts[step].split(", ")[1] for step in (4, 5, 6, 7)}
    assert len(set(speeds.values())) == 1


def test_the_bar_has_loss_and_speed(tmp_path, monkeypatch):
    state, sums = TrainState(1), {"steps": 1, "seconds": 1.8634}
    with terminal(monkeypatch) as sent:
        reporter = Reporter(System(tmp_path / "a"), 0, Ranks(), TrainSettings(max_steps=2_000))
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


def test_pipes_quiet_and_dumb_terminals_have_no_bar(run, monkeypatch, stderr):
    go(run)
    said = stderr()
    assert "\x1b" not in said and "step 4/8, epoch" in said and "  translation " in said
    for quiet, kind in ((True, "xterm"), (False, "dumb")):
        with terminal(monkeypatch) as sent:
            monkeypatch.setenv("TERM", kind)
            monkeypatch.setattr(console, "_quiet", quiet)
            go(run, force=True)
        lines = [line for line in sent[0].splitlines() if "step" in line]
        assert "\x1b" not in sent[0] and bool(lines) != quiet
        assert any("step 4/8, epoch" in line for line in lines) != quiet
        monkeypatch.undo()
