"""The queue of trainings: nothing is trained twice, whatever is killed; what a system leaves; the
table of what is done.
"""

import contextlib
import io
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from nmtkit import files
from nmtkit.errors import ConfigError, EnvironmentProblem
from nmtkit.models import checkpoints
from nmtkit.run import Run
from recipes.verdict import leavings, status
from recipes.verdict.__main__ import main
from recipes.verdict.folders import Folders, held, is_held
from recipes.verdict.listing import HERE, read_list, why_unknown
from recipes.verdict.tables import tables
from tests.manifests import read_json
from tests.recipes.recipe_calls import ASKED, ROOT, in_this_process, note_installed, run_recipe
from tests.refused import refused

SCRIPT = ROOT / "recipes" / "verdict.sh"
STUB = Path(__file__).with_name("queue_stub.py")
TWO = """part one
seeds 1 2
rates 2 0.25 0.5 4
corpus demo tiny
settings --set train.max_steps=4
system a
rates 2 0.25
system b --variant enc-dc
"""


def new_queue(tmp_path):
    """A folder with a list of two systems of two seeds, and a program that stands for nmtkit."""
    note_installed(tmp_path)
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "nmtkit"
    program.write_text(f"#!{sys.executable}\n" + STUB.read_text("utf-8"))
    program.chmod(0o755)
    (tmp_path / "list.sh").write_text(TWO)
    return tmp_path


@pytest.fixture
def queue(tmp_path):
    """Nothing is trained yet."""
    return new_queue(tmp_path)


@pytest.fixture(scope="module")
def worked_off(tmp_path_factory):
    """A list that was worked off."""
    queue = new_queue(tmp_path_factory.mktemp("queue"))
    call(queue)
    return queue


@pytest.fixture
def done(worked_off, tmp_path):
    """Everything is trained."""
    copy = shutil.copytree(worked_off, tmp_path / "queue")
    note_installed(copy)
    return copy


def variables(queue, **more):
    """The environment of a call."""
    asked = {*ASKED, "JOBS", "DEVICE"}
    kept = {key: value for key, value in os.environ.items() if key not in asked}
    mine = {"NMTKIT_VENV": queue, "LIST": queue / "list.sh", "NMTKIT_VERDICT": queue / "state"}
    mine |= {"RESULTS": queue / "results", "UPDATES": queue / "updates"}
    return kept | {key: str(value) for key, value in {**mine, **more}.items()}


def call(queue, *arguments, code=0, **more):
    """Call verdict.sh to its end; return what it printed."""
    command, env = ["bash", str(SCRIPT), *arguments], variables(queue, **more)
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def answer(queue, *arguments, code=0, **more):
    """Call the command behind verdict.sh in this process; return what it printed."""
    text = io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(text),
        contextlib.redirect_stderr(text),
    ):
        patch.setattr(os, "environ", variables(queue, **more))
        patch.setattr(sys, "argv", ["verdict.sh", *arguments])
        try:
            ended = main() or 0
        except SystemExit as end:
            ended = end.code
    assert ended == code, text.getvalue()
    return text.getvalue()


def begin(queue, **more):
    """Start to work the list off."""
    with open(queue / "out", "a", encoding="utf-8") as out:
        env = variables(queue, **more)
        return subprocess.Popen(["bash", str(SCRIPT)], env=env, stdout=out, stderr=out)


def updates(queue):
    path = queue / "updates"
    return path.read_text().splitlines() if path.exists() else []


def wait_for(condition):
    limit = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.02)


def family(pid):
    """A process with all that it has started, directly or not."""
    found = [pid]
    for parent in found:
        with contextlib.suppress(OSError):
            children = Path(f"/proc/{parent}/task/{parent}/children").read_text(encoding="utf-8")
            found += map(int, children.split())
    return found


def words(queue):
    """The state of each training in the list's order."""
    folders = Folders(queue / "state", queue / "results")
    return [(s.item.name, s.word) for s in status.states(read_list(queue / "list.sh"), folders)]


ALL_UPDATES = {
    *(f"a-s1 0.25 {step}" for step in (1, 2)),
    *(f"{name} 0.5 {step}" for name in ("a-s1", "a-s2") for step in (1, 2, 3, 4)),
    *(f"{name} 0.25 {step}" for name in ("b-s1", "b-s2") for step in (1, 2, 3, 4)),
}
"""Two updates with 0.25, and 4 diverges; the trial with 0.5 goes on as the training."""
NAMES = ["a-s1", "b-s1", "a-s2", "b-s2"]


ONE_SEED = TWO.replace("seeds 1 2", "seeds 1")


def check_all_done(queue, names=NAMES):
    """Assert that every update was made, and none twice."""
    made = updates(queue)
    assert sorted(made) == sorted(line for line in ALL_UPDATES if line.split()[0] in names)
    assert words(queue) == [(name, "done") for name in names]
    for name in names:
        folder = queue / "state" / "results" / "demo" / name
        assert read_json(folder / "scores" / "test.json") == {"of": name}
    assert not any(is_held(path) for path in (queue / "state").rglob("*.lock"))


def test_the_list_is_worked_off_in_its_order_and_once(done):
    check_all_done(done)
    order = [line.split()[0] for line in updates(done)]
    assert list(dict.fromkeys(order)) == NAMES
    rates = read_json(done / "state/results/demo/rates/a.json")
    assert rates["chosen"] == "0.5"
    assert [trial["dev_loss"] for trial in rates["trials"]] == [0.75, 0.5, None]
    assert [trial["updates"] for trial in rates["trials"]] == [2, 2, 0]
    assert "nothing is left" in call(done)
    check_all_done(done)


def test_killed_and_started_again(queue):
    (queue / "list.sh").write_text(ONE_SEED)
    process = begin(queue, PACE=0.05)
    wait_for(lambda: len(updates(queue)) >= 5)
    assert words(queue)[0] == ("a-s1", "running")
    for pid in family(process.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()
    wait_for(lambda: words(queue)[0] == ("a-s1", "waiting"))  # all processes of it have ended
    table = answer(queue, "--status")
    assert "demo/a-s1" in table and "0 running" in table
    call(queue)
    made = updates(queue)
    # the update that was being made when it was killed may be made again
    assert set(made) == {line for line in ALL_UPDATES if "-s1 " in line}
    assert len(made) <= len(set(made)) + 1


def test_stopped_with_a_signal(queue):
    (queue / "list.sh").write_text(ONE_SEED)
    process = begin(queue, PACE=0.05)
    wait_for(lambda: len(updates(queue)) >= 3)
    process.terminate()
    assert process.wait() == 75
    assert words(queue)[0] == ("a-s1", "waiting")
    assert "a-s1: stopped; the same command continues" in (queue / "out").read_text()
    call(queue)
    check_all_done(queue, NAMES[:2])


def test_stopped_while_the_corpus_is_prepared(queue):
    (queue / "list.sh").write_text(ONE_SEED)
    stub, preparing = queue / "bin" / "nmtkit", queue / "preparing"
    slow = f"def prep():\n    Path({str(preparing)!r}).write_text(str(os.getpid()))\n"
    slow += "    time.sleep(float(os.environ.get('PREP', '0')))\n"
    stub.write_text(stub.read_text().replace("def prep():\n", slow))
    process = begin(queue, PREP=20)
    wait_for(lambda: preparing.exists() and preparing.read_text())
    process.terminate()
    assert process.wait() == 75
    with pytest.raises(ProcessLookupError):
        os.kill(int(preparing.read_text()), 0)
    assert "stopped while a corpus was prepared" in (queue / "out").read_text()
    call(queue)
    check_all_done(queue, NAMES[:2])


def test_two_workers_never_take_the_same_system(queue):
    (queue / "list.sh").write_text(TWO.replace("seeds 1 2", "seeds 1 2 3"))
    processes = [begin(queue, PACE=0.05, JOBS=2) for _ in range(2)]
    assert [process.wait() for process in processes] == [0, 0]
    made = updates(queue)
    assert len(made) == len(set(made)) == len(ALL_UPDATES) + 8
    assert all(word == "done" for _, word in words(queue))
    alone = [name for name, *_ in map(str.split, made)]
    assert alone != sorted(alone, key=[name for name, _ in words(queue)].index)  # at the same time


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
def test_a_training_whose_worker_was_killed_is_not_taken(queue):
    """nmtkit goes on then; the lock is its own, too."""
    (queue / "list.sh").write_text(ONE_SEED)
    process = begin(queue, PACE=2)  # so that a busy machine looks before the training ends
    wait_for(lambda: updates(queue))
    *above, training = family(process.pid)
    for pid in above:
        os.kill(pid, signal.SIGKILL)
    process.wait()
    assert words(queue)[0] == ("a-s1", "running")
    wait_for(lambda: words(queue)[0] == ("a-s1", "waiting"))  # it has ended
    assert not Path(f"/proc/{training}").exists() or "Z" in Path(
        f"/proc/{training}/stat"
    ).read_text(encoding="utf-8")
    call(queue)
    check_all_done(queue, NAMES[:2])


def test_a_failure_has_its_reason_and_stops_no_other(queue):
    (queue / "list.sh").write_text(ONE_SEED.replace("system b ", "system bad\nsystem b "))
    assert "demo/bad-s1: failed: cannot train this" in call(queue)
    assert dict(words(queue)) == {"a-s1": "done", "bad-s1": "failed", "b-s1": "done"}
    assert "cannot train this" in answer(queue, "--status")
    assert "bad-s1" not in call(queue)
    assert "demo/bad-s1 is tried again" in answer(queue, "--retry", "demo/bad-s1")
    assert dict(words(queue))["bad-s1"] == "waiting"
    assert "failed: cannot train this" in call(queue)
    answer(queue, "--retry")
    assert dict(words(queue))["bad-s1"] == "waiting"


def test_every_learning_rate_diverges(queue):
    (queue / "list.sh").write_text(TWO.replace("0.25 0.5 4", "4 5"))
    assert "diverges with every learning rate" in call(queue)
    assert words(queue)[0] == ("a-s1", "failed") and words(queue)[2] == ("a-s2", "waits")


def test_a_corpus_that_cannot_be_prepared_keeps_its_systems_waiting(queue):
    other = "corpus nowhere tiny\nsystem c\n"
    (queue / "list.sh").write_text(ONE_SEED + other)
    stub = queue / "bin" / "nmtkit"
    stub.write_text(
        stub.read_text().replace(
            "def prep():",
            "def prep():\n    if words[0] == 'nowhere':\n        sys.exit('nmtkit: no files')\n",
        )
    )
    assert "corpus nowhere cannot be prepared: no files" in call(queue)
    assert dict(words(queue)) == {"a-s1": "done", "b-s1": "done", "c-s1": "waits"}
    assert "for its corpus: no files" in answer(queue, "--status")


def test_a_signal_ends_a_worker_that_waits_after_a_corpus_has_failed(queue):
    (queue / "list.sh").write_text(ONE_SEED.replace("corpus demo", "corpus nowhere"))
    stub = queue / "bin" / "nmtkit"
    stub.write_text(stub.read_text().replace("def prep():", "def prep():\n    sys.exit('no')\n"))
    with open(queue / "list.sh", "a", encoding="utf-8") as more:
        more.write("corpus demo tiny\nsystem c\n")
    with held(queue / "state" / "locks" / "demo.lock"):
        process = begin(queue)
        wait_for(lambda: "nowhere cannot be prepared" in (queue / "out").read_text())
        time.sleep(0.2)
        process.terminate()
        assert process.wait(20) == 75
    assert updates(queue) == []


def test_results_of_another_checkout_are_not_trained_again(done):
    new = call(done, "--collect").splitlines()
    assert new == ["demo/a-s1", "demo/a-s2", "demo/b-s1", "demo/b-s2", "demo/rates/a.json"]
    assert answer(done, "--collect").strip() == ""
    names = {
        str(p.relative_to(done / "results/demo/a-s1"))
        for p in (done / "results/demo/a-s1").rglob("*.*")
    }
    assert names == {
        *("config.toml", "metrics.jsonl", "best.json", "history.jsonl", "summary.json"),
        *("translate/test/hyp.txt", "translate/test/meta.json", "scores/test.json"),
    }
    (done / "updates").unlink()
    call(done, NMTKIT_VERDICT=done / "elsewhere")
    assert not updates(done)


def test_of_the_weights_the_best_are_left(done):
    (path,) = (done / "state/runs/demo/systems/a-s1/checkpoints").iterdir()
    assert sorted(p.name for p in path.iterdir()) == [
        "manifest.json",
        "model.safetensors",
        "state.json",
    ]
    system = Run(done / "state" / "runs" / "demo").system("a-s1")
    assert checkpoints.find_checkpoints(system) == [path]
    left = read_json(done / "state/results/demo/a-s1/summary.json")
    assert left["parameters"] == 6 and left["commits"] == ["0" * 7]
    assert left["seconds"] == {"training": 4 * 36.0, "validation": 0, "translation": 2.0}


def test_what_differs_from_a_training_of_today_is_marked(done):
    folders = Folders(done / "state", done / "results")
    item = read_list(done / "list.sh")[0]
    kept = folders.result(item)
    assert status.remark(item, kept) == "trained by 0000000; the training code has changed since"
    head = subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=ROOT, text=True).strip()
    summary = read_json(kept / "summary.json")
    files.write_json(kept / "summary.json", summary | {"commits": [head], "options": ["--new"]})
    assert status.remark(item, kept) == f"trained by {head}; the list has other options now"


def test_the_hours_left(queue):
    """36 s an update: 0.01 hours. Half way through the first system, the rest is reckoned."""
    folders = Folders(queue / "state", queue / "results")
    items = read_list(queue / "list.sh")
    nothing = status.Estimates(items, folders)
    assert nothing.hours_left(items[0], 0) is None
    process = begin(queue, PACE=0.05)
    wait_for(lambda: len(updates(queue)) >= 7)
    process.terminate()
    process.wait()
    done = len([line for line in updates(queue) if line.startswith("a-s1 0.5")])
    (a, b, a2, _), found = items, status.Estimates(items, folders)
    assert found.hours_left(a, done) == pytest.approx((4 - done) * 0.01)
    assert found.hours_left(b, 0) == found.hours_left(a2, 0) == pytest.approx(0.04)
    assert f"left: {(4 - done + 12) * 0.01:.1f} core hours" in answer(queue, "--status")


def test_the_results_have_a_limit(done, monkeypatch):
    monkeypatch.setattr(leavings, "MOST_BYTES", 1000)
    with pytest.raises(EnvironmentProblem, match="more than 0 MB"):
        leavings.collect(Folders(done / "state", done / "results"))
    assert not (done / "results").exists()


@pytest.mark.parametrize(
    ("arguments", "more", "message"),
    [
        (["--nothing"], {}, "unrecognized arguments: --nothing"),
        (["--retry", "demo/a-s3"], {}, "the list has no 'demo/a-s3'"),
        (["--collect"], {}, "no system is finished yet"),
        ([], {"JOBS": "0"}, "JOBS must be a number of systems, or all, not '0'"),
        ([], {"JOBS": "two"}, "not 'two'"),
        ([], {"LIST": "nowhere.sh"}, "no such file"),
    ],
)
def test_wrong_calls_are_refused(arguments, more, message, queue):
    assert message in answer(queue, *arguments, code=2, **more)
    assert not updates(queue)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("system a", "system a/b", "system 'a/b': use letters"),
        ("system a", "system b", "demo/b-s1 is listed twice"),
        ("system a", "sistem a", "sistem: command not found"),
        ("system a", "analysis cost\nsystem a", "system 'a': an analysis is a label, a name"),
        ("corpus demo tiny", "", "system 'a' has no corpus"),
        ("seeds 1 2", "", "system 'a' has no seeds"),
        ("seeds 1 2", "seeds one", "system 'a' has no seeds"),
        ("rates 2 0.25 0.5 4", "", "system 'a' has no learning rates"),
        ("rates 2 0.25 0.5 4", "rates 2 fast", "system 'a' has no learning rates"),
        ("rates 2 0.25 0.5 4", "rates two 0.25", "'two' is no number of updates"),
    ],
)
def test_a_wrong_list_is_refused(old, new, message, tmp_path):
    path = tmp_path / "list.sh"
    path.write_text(TWO.replace(old, new, 1))
    error = refused(ConfigError, None, read_list, path)
    assert message in error.message and error.where == str(path) and error.hint


def test_a_lock_is_the_kernels(tmp_path):
    path = tmp_path / "x" / "lock"
    assert not is_held(path)
    with held(path) as lock:
        assert lock is not None and is_held(path)
        with held(path) as second:
            assert second is None
    assert not is_held(path)
    with held(path) as lock:
        assert lock is not None


def test_options_that_nmtkit_does_not_know_yet():
    assert why_unknown(["--variant", "enc-dc", "--set", "model.norm=post"]) is None
    assert "unknown variant 'nothing'" in why_unknown(["--variant", "nothing"])
    assert "no such option" in why_unknown(["--nothing", "x"]).lower()
    assert "nothing" in why_unknown(["--set", "model.nothing=1"])


def test_an_awaited_system_waits_until_it_is_known(queue):
    (queue / "list.sh").write_text(TWO + 'awaiting "a variant" system c --variant nothing\n')
    reasons = status.states(
        read_list(queue / "list.sh"), Folders(queue / "state", queue / "results")
    )
    assert {s.item.row.name: s.reason for s in reasons if s.word == "waits"} == {
        "a": "for the learning rate of seed 1",
        "c": "for a variant: unknown variant 'nothing'",
    }
    (queue / "list.sh").write_text(TWO + 'awaiting "a variant" system c --variant enc-dc\n')
    assert ("c-s1", "waiting") in words(queue)


def test_a_system_after_one_that_was_trained_on_another_machine(queue):
    """Its settings are in the results, its weights are not here."""
    (queue / "list.sh").write_text(
        TWO.replace("system a", 'after b system c --match-parameters "b-s{seed}"\nsystem a')
        + 'after b system d --init-from "b-s{seed}"\n'
    )
    for seed in (1, 2):
        kept = queue / "results" / "demo" / f"b-s{seed}"
        kept.mkdir(parents=True)
        (kept / "summary.json").write_text("{}")
        (kept / "config.toml").write_text('variant = "enc-dc"\n')
    states = dict(words(queue))
    assert (states["b-s1"], states["c-s1"], states["d-s1"]) == ("done", "waiting", "waits")
    call(queue)
    assert {line.split()[0] for line in updates(queue)} == {"a-s1", "c-s1", "a-s2", "c-s2"}
    config = queue / "state" / "runs" / "demo" / "systems" / "b-s1" / "config.toml"
    assert config.read_text() == 'variant = "enc-dc"\n'


def test_a_system_that_comes_after_another_one(queue):
    (queue / "list.sh").write_text(
        TWO.replace("system a", 'after b system c --init-from "b-s{seed}"\nsystem a')
    )
    assert dict(words(queue))["c-s1"] == "waits"
    call(queue)
    order = list(dict.fromkeys(line.split()[0] for line in updates(queue)))
    assert order == ["a-s1", "b-s1", "c-s1", "a-s2", "b-s2", "c-s2"]
    log = (queue / "state" / "logs" / "demo" / "c-s2.log").read_text("utf-8")
    assert "--init-from b-s2" in log
    (queue / "list.sh").write_text(TWO.replace("system a", "after d system c\nsystem a"))
    with pytest.raises(ConfigError, match="c-s1 comes after demo/d-s1, which is not in the list"):
        read_list(queue / "list.sh")


# The list of the verdict


def test_the_verdicts_list_is_known_to_nmtkit():
    items = read_list(HERE / "systems.sh")
    rows = list(dict.fromkeys(item.row for item in items))
    assert [row.name for row in rows if not row.awaits and why_unknown(row.options)] == []
    captions = [item for item in items if item.row.part == "captions"]
    assert [item.seed for item in captions] == sorted(item.seed for item in captions)
    assert captions[0].name == "transformer-s1"
    rungs = {row.name for row in rows if row.part == "captions" and len(row.rates) == 1}
    assert rungs == {"caatt", "caembed", "caru"}
    chosen = read_json(HERE / "results/multi30k-ende/rates/plain.json")["chosen"]
    assert {row.rates for row in rows if row.name in rungs and row.part == "captions"} == {
        (chosen,)
    }
    assert {row.updates for row in rows} == {1000}


# With nmtkit itself


DEMO = """part one
seeds 1
rates 2 1e-3 2e-2
corpus demo tiny --size 300
analysis size cost
analysis levels layers
settings --set train.max_steps=4 --set train.validate_every=2 --set train.checkpoint_every=2 --set train.batch_size=500 \\
  --set train.log_every=1 --set train.samples=0 --set train.dev_sentences=20 --set train.warmup=1 --set train.schedule=plateau --set train.precision=float32 \\
  --set search.beam=1 --set search.max_length_a=0 --set search.max_length_b=5
system transformer
rates 2 1e-3
system enc-dc --variant enc-dc
"""


def test_two_tiny_systems_of_the_demo_corpus(tmp_path):
    """What is left of them is text without a machine's paths, and the system whose trial went on
    has the weights of one that was trained at once.
    """
    (tmp_path / "list.sh").write_text(DEMO)
    state = tmp_path / "state"
    given = {"LIST": tmp_path / "list.sh", "NMTKIT_VERDICT": state, "RESULTS": tmp_path / "results"}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)

    def in_the_state(arguments):
        quick = ["--resamples", "50"] if arguments[0] == "score" else []
        with contextlib.chdir(state):
            return in_this_process([*arguments, *quick])

    try:
        done = run_recipe(SCRIPT, tmp_path, in_the_state, **given)
        assert done.code == 0, done.stderr
        again = run_recipe(SCRIPT, tmp_path, in_the_state, **given)
        assert (again.code, again.calls) == (0, [])
        assert len(done.options("train", "--system")) == 4  # two trials, two trainings
        results = state / "results" / "demo"
        for name in ("transformer-s1", "enc-dc-s1"):
            scores = read_json(results / name / "scores" / "test.json")
            assert [row["name"] for row in scores["systems"]] == [name]
            assert len((results / name / "translate/test/hyp.txt").read_text().splitlines()) == 60
            assert [path.name for path in (results / name / "analyze").iterdir()] == ["size.json"]
        size = tables(read_list(tmp_path / "list.sh"), Folders(state, tmp_path))[-1]
        assert [row[0] for row in size.rows] == ["transformer-s1", "enc-dc-s1"]
        for path in (path for path in results.rglob("*") if path.is_file()):
            assert str(tmp_path) not in path.read_text("utf-8")
        chosen = read_json(results / "rates" / "transformer.json")["chosen"]
        train, *_ = (c for c in done.calls if c[0] == "train" and "transformer-s1" in c)
        assert f"train.lr={chosen}" in train
        whole = [*train]
        whole[train.index("transformer-s1")] = "whole"
        assert in_the_state(whole)[0] == 0
        system = Run(state / "runs" / "demo").system("whole")
        summary = read_json(results / "transformer-s1" / "summary.json")
        best = read_json(system.path / "best.json")
        assert summary["best"]["step"] == best["step"] and summary["updates"] == 4
        assert checkpoints.current(system)[best["checkpoint"]] == summary["weights"]
    finally:
        torch.set_num_threads(threads)
