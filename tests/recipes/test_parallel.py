"""Train the systems of a recipe side by side, with PARALLEL=K."""

import io
import itertools
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
from recipes.trainings import Training, Trainings, main, read
from tests.recipes.recipe_calls import ROOT, environment, install

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
    """Return a function (**variables) that starts the recipe."""
    # Under nohup SIGHUP is ignored, and the recipe would inherit that.
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    install(tmp_path, f"#!{sys.executable}\n{STUB}")
    paths = {"NMTKIT_VENV": tmp_path, "TMPDIR": tmp_path}
    paths |= {"NOTES": tmp_path / "notes", "RUN": tmp_path / "run"}

    def begin(**variables):
        values = {**paths, "SCALE": "smoke", "PACE": "0.3", **variables}
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        options |= {"env": environment("OMP_NUM_THREADS", **values), "cwd": tmp_path}
        return subprocess.Popen(["bash", str(RECIPE)], **options)

    yield begin
    signal.signal(signal.SIGHUP, before)


def end_of(process, code=0):
    """Wait for the recipe; return what it wrote on stderr."""
    out, err = process.communicate(timeout=120)
    assert process.returncode == code, out + err
    return err


def notes(folder):
    """Return what the calls of nmtkit noted, as lists of words."""
    return [line.split() for line in (folder / "notes").read_text().splitlines()]


def most_at_once(noted):
    """Return the largest number of trainings between their beginning and their end."""
    changes = ({"begin": 1, "end": -1, "stop": -1}.get(word, 0) for word, *_ in noted)
    return max(itertools.accumulate(changes))


@pytest.mark.parametrize(("at_once", "seeds"), [(1, "1"), (2, "1 2")])
def test_k_trainings_run_at_once_and_all_end_before_translation(at_once, seeds, begin, tmp_path):
    end_of(begin(PARALLEL=at_once, SEEDS=seeds))
    noted = notes(tmp_path)
    expected = sorted(f"{name}-s{seed}" for name in NAMES for seed in seeds.split())
    for word in ("begin", "end"):
        assert sorted(line[1] for line in noted if line[0] == word) == expected
    assert most_at_once(noted) == at_once
    stages = [line[0] for line in noted]
    last_end = len(stages) - 1 - stages[::-1].index("end")
    assert stages.index("translate") > last_end
    if at_once > 1:
        threads = {line[2] for line in noted if line[0] == "begin"}
        assert threads == {str(max(1, cores() // at_once))}
        order = [tuple(line[:2]) for line in noted]
        for seed in seeds.split():
            matched = order.index(("begin", f"transformer-matched-s{seed}"))
            assert order.index(("end", f"enc-dc-s{seed}")) < matched


def test_parallel_trainings_share_the_cores_and_end_with_a_table(begin, tmp_path):
    err = end_of(begin(PARALLEL=4))
    noted = notes(tmp_path)
    assert most_at_once(noted) == 4
    order = [tuple(line[:2]) for line in noted]
    # The matched baseline reads the size of enc-dc.
    matched = order.index(("begin", "transformer-matched-s1"))
    assert order.index(("end", "enc-dc-s1")) < matched
    assert f"({len(NAMES)} of {len(NAMES)} done)" in err
    (row,) = [line for line in err.splitlines() if " attention-rep-s1 " in line]
    assert [cell.strip() for cell in row.strip("│ ").split("│")] == [
        *("attention-rep-s1", "done", "7", "3.21", "4,567", "12.34", "7")
    ]
    threads = {line[2] for line in noted if line[0] == "begin"}
    assert threads == {str(max(1, cores() // 4))}


def test_failed_training_stops_the_others_and_is_named(begin, tmp_path):
    err = end_of(begin(PARALLEL=2, BAD="transformer-s1", PACE="5"), code=4)
    assert "transformer-s1: cannot train this" in " ".join(err.split("\n"))
    assert "enc-dc-s1: stopped (0 of 6 done)" in err
    words = [line[0] for line in notes(tmp_path)]
    assert words.count("begin") <= 2 and "translate" not in words


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
@pytest.mark.parametrize(
    ("number", "killed"),
    [(signal.SIGTERM, "queue"), (signal.SIGHUP, "queue"), (signal.SIGKILL, "recipe")],
)
def test_signal_stops_all_trainings(number, killed, begin, tmp_path):
    process = begin(PARALLEL=3, PACE="60")
    end = time.monotonic() + 60
    while not (tmp_path / "notes").exists() or len(notes(tmp_path)) < 1 + 3:
        assert time.monotonic() < end
        time.sleep(0.05)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text("ascii")
    (child,) = map(int, children.split())
    os.kill(child if killed == "queue" else process.pid, number)
    end_of(process, code=75 if killed == "queue" else -number)
    words = [line[0] for line in notes(tmp_path)]
    assert words.count("stop") == 3 and "translate" not in words
    assert not list(tmp_path.glob("tmp.*"))  # the file of the queue


def test_live_table_has_unfinished_trainings_and_reads_their_measurements_once(
    tmp_path, monkeypatch
):
    names, original = [], Path.read_text
    monkeypatch.setattr(
        Path, "read_text", lambda path, *args: names.append(path.name) or original(path, *args)
    )
    metrics = Run(tmp_path).system("a").metrics
    metrics.parent.mkdir(parents=True)
    metrics.write_text('{"step": 7, "kind": "train", "nll": 3.21}\n')
    states = {"a": "running", "b": "waiting", "c": "done"}
    trainings = [Training(["--system", name], state) for name, state in states.items()]
    table = Trainings(trainings, Run(tmp_path), 1).table(live=True)
    assert [list(column.cells) for column in table.columns][2:4] == [["7"], ["3.21"]]
    assert table.title == "1 of 3 done"
    assert names.count("metrics.jsonl") == 1


def test_queue_has_each_system_once_in_the_order_of_the_recipe():
    queue = b"".join(b"3\0--system\0%s\0--force\0" % name for name in (b"a", b"b", b"a"))
    assert [training.arguments for training in read(queue)] == [
        ["--system", name, "--force"] for name in ("a", "b")
    ]


def test_second_recipe_of_a_run_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["trainings", "2", str(tmp_path)])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(), encoding="utf-8"))
    with locked(tmp_path / "recipes" / "logs", "recipe"), pytest.raises(SystemExit, match="2"):
        main()
    assert "is in use by 'recipe'" in capsys.readouterr().err


def test_parallel_that_is_not_a_number_is_refused(begin):
    assert "PARALLEL is a number" in end_of(begin(PARALLEL="many"), code=2)
