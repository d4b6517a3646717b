"""PARALLEL=K: K trainings of a recipe at once, and the same systems as one after the other."""

import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nmtkit.locks import locked
from nmtkit.parallel import cores
from nmtkit.run import Run
from recipes.trainings import Training, Trainings, main
from tests.recipes.recipe_calls import ASKED, ROOT, note_installed

STUB = """
import fcntl, json, os, signal, sys, time
from pathlib import Path

command, *words = sys.argv[1:]
options = dict(zip(words, words[1:]))
run = Path(options["--run"])

def note(text):
    with open(os.environ["NOTES"], "a") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        stream.write(text + "\\n")

if command == "train":
    name = options["--system"]
    note(f"begin {name} {os.environ.get('OMP_NUM_THREADS')}")
    if name in os.environ.get("BAD", "").split():
        print("nmtkit: cannot train this\\n  in: here", file=sys.stderr)
        sys.exit(4)
    system = run / "systems" / name
    system.mkdir(parents=True)
    stopped = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))
    end = time.monotonic() + float(os.environ["PACE"])
    while time.monotonic() < end and not stopped:
        time.sleep(0.02)
    line = {"step": 7, "kind": "dev", "dev_loss": 2.0, "dev_bleu": 12.34}
    train = {"step": 7, "kind": "train", "nll": 3.21, "tgt_tokens_per_s": 4567.0}
    (system / "metrics.jsonl").write_text(json.dumps(train) + "\\n" + json.dumps(line) + "\\n")
    note(f"{'stop' if stopped else 'end'} {name}")
    sys.exit(75 if stopped else 0)
note(f"{command} {' '.join(words)}")
for folder in ("score/test", "analyze/cost"):
    (run / folder).mkdir(parents=True, exist_ok=True)
    (run / folder / "table.md").touch()
"""
RECIPE = ROOT / "recipes" / "dual_context" / "controls.sh"
NAMES = ["transformer", "enc-dc", "transformer-matched", "enc-dc-no-conv"]
NAMES += ["transformer-cycle", "attention-rep"]


@pytest.fixture
def begin(tmp_path):
    """A function that starts the recipe. These tests may run under nohup, which ignores SIGHUP."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    note_installed(tmp_path)
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "nmtkit"
    program.write_text(f"#!{sys.executable}\n{STUB}")
    program.chmod(0o755)

    def started(**variables):
        asked = {*ASKED, "OMP_NUM_THREADS"}
        kept = {key: value for key, value in os.environ.items() if key not in asked}
        mine = {"NMTKIT_VENV": tmp_path, "NOTES": tmp_path / "notes", "RUN": tmp_path / "run"}
        mine["TMPDIR"] = tmp_path
        mine |= {"SCALE": "smoke", "PACE": "0.3", **variables}
        values = kept | {key: str(value) for key, value in mine.items()}
        options = {"env": values, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(["bash", str(RECIPE)], text=True, cwd=tmp_path, **options)

    yield started
    signal.signal(signal.SIGHUP, before)


def ended(process, code=0):
    """What a recipe wrote on stderr."""
    out, err = process.communicate(timeout=120)
    assert process.returncode == code, out + err
    return err


def notes(folder):
    return [line.split() for line in (folder / "notes").read_text().splitlines()]


def most_at_once(found):
    """The largest number of trainings between their beginning and their end."""
    running = most = 0
    for word, *_ in found:
        running += {"begin": 1, "end": -1, "stop": -1}.get(word, 0)
        most = max(most, running)
    return most


@pytest.mark.parametrize(("at_once", "seeds"), [(1, "1 2"), (2, "1 2"), (4, "1")])
def test_so_many_at_once_and_all_before_the_next_stage(at_once, seeds, begin, tmp_path):
    err = ended(begin(PARALLEL=at_once, SEEDS=seeds))
    found = notes(tmp_path)
    wanted = {f"{name}-s{seed}" for name in NAMES for seed in seeds.split()}
    for word in ("begin", "end"):
        names = [line[1] for line in found if line[0] == word]
        assert sorted(names) == sorted(wanted)
    assert most_at_once(found) == at_once
    stages = [line[0] for line in found]
    last_end = len(stages) - 1 - stages[::-1].index("end")
    assert stages.index("translate") > last_end
    if at_once > 1:
        # The matched baseline reads the size of enc-dc.
        order = [(line[0], line[1]) for line in found]
        first = order.index(("end", "enc-dc-s1"))
        assert first < order.index(("begin", "transformer-matched-s1"))
        assert f"({len(wanted)} of {len(wanted)} done)" in err
        (row,) = [line for line in err.splitlines() if " attention-rep-s1 " in line]
        assert [cell.strip() for cell in row.strip("│ ").split("│")] == [
            *("attention-rep-s1", "done", "7", "3.21", "4,567", "12.34", "7")
        ]
        threads = {line[2] for line in found if line[0] == "begin"}
        assert threads == {str(max(1, cores() // at_once))}


def test_a_failure_stops_the_others_and_is_named(begin, tmp_path):
    err = ended(begin(PARALLEL=2, BAD="transformer-s1", PACE="5"), code=4)
    assert "transformer-s1: cannot train this" in " ".join(err.split("\n"))
    found = notes(tmp_path)
    assert sum(line[0] == "begin" for line in found) <= 2
    assert "translate" not in [line[0] for line in found]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
@pytest.mark.parametrize(
    ("number", "killed"),
    [(signal.SIGTERM, "queue"), (signal.SIGHUP, "queue"), (signal.SIGKILL, "recipe")],
)
def test_a_signal_stops_all(number, killed, begin, tmp_path):
    process = begin(PARALLEL=3, PACE="60")
    end = time.monotonic() + 60
    while not (tmp_path / "notes").exists() or len(notes(tmp_path)) < 1 + 3:
        assert time.monotonic() < end
        time.sleep(0.05)
    children = f"/proc/{process.pid}/task/{process.pid}/children"
    (child,) = [int(pid) for pid in open(children, encoding="ascii").read().split()]
    os.kill(child if killed == "queue" else process.pid, number)
    ended(process, code=75 if killed == "queue" else -number)
    found = notes(tmp_path)
    assert [line[0] for line in found].count("stop") == 3
    assert not list(tmp_path.glob("tmp.*"))  # the queue
    assert "translate" not in [line[0] for line in found]


def test_a_drawing_reads_the_measurements_once(tmp_path, monkeypatch):
    read, original = [], Path.read_text
    monkeypatch.setattr(
        Path, "read_text", lambda path, *args: read.append(path.name) or original(path, *args)
    )
    metrics = Run(tmp_path).system("a").metrics
    metrics.parent.mkdir(parents=True)
    metrics.write_text('{"step": 7, "kind": "train", "nll": 3.21}\n')
    states = {"a": "running", "b": "waiting", "c": "done"}
    trainings = [Training(["--system", name], state) for name, state in states.items()]
    table = Trainings(trainings, Run(tmp_path), 1).table(live=True)
    assert [list(column.cells) for column in table.columns][2:4] == [["7"], ["3.21"]]
    assert table.title == "1 of 3 done"
    assert read.count("metrics.jsonl") == 1


def test_a_second_recipe_of_a_run_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["trainings", "2", str(tmp_path)])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(), encoding="utf-8"))
    with locked(tmp_path / "recipes" / "logs", "recipe"), pytest.raises(SystemExit, match="2"):
        main()
    assert "is in use by 'recipe'" in capsys.readouterr().err


def test_another_word_than_a_number_is_refused(begin):
    assert "PARALLEL is a number" in ended(begin(PARALLEL="many"), code=2)
