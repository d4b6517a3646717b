"""Check the queue of trainings: nothing is trained twice, whatever is killed; results; status."""

import contextlib
import functools
import io
import json
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
from tests.recipes.recipe_calls import (
    ROOT,
    environment,
    in_this_process,
    install,
    note_installed,
    run_recipe,
)
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


ONE_SEED = TWO.replace("seeds 1 2", "seeds 1")
ONLY_B = ONE_SEED.replace("system a\n", "")
NAMES = ["a-s1", "b-s1", "a-s2", "b-s2"]


def new_queue(folder, systems=TWO):
    """Write a list, and a program that stands for nmtkit, into a folder; return the folder."""
    install(folder, f"#!{sys.executable}\n" + STUB.read_text("utf-8"))
    (folder / "list.sh").write_text(systems)
    return folder


@pytest.fixture
def make_queue(tmp_path):
    """Return a function (list) -> the folder of a queue that has not begun."""
    return functools.partial(new_queue, tmp_path)


@pytest.fixture(scope="module")
def ended_queue(tmp_path_factory):
    queue = new_queue(tmp_path_factory.mktemp("queue"))
    call(queue)
    return queue


@pytest.fixture
def done(ended_queue, tmp_path):
    """Return a copy of a queue in which everything is trained."""
    copy = shutil.copytree(ended_queue, tmp_path / "queue")
    note_installed(copy)
    return copy


def variables(queue, **more):
    """Return the environment of a call."""
    mine = {"NMTKIT_VENV": queue, "LIST": queue / "list.sh", "NMTKIT_VERDICT": queue / "state"}
    mine |= {"RESULTS": queue / "results", "UPDATES": queue / "updates"}
    return environment("JOBS", "DEVICE", **{**mine, **more})


def call(queue, *arguments, **more):
    """Call verdict.sh to its end; return what it printed."""
    command, env = ["bash", str(SCRIPT), *arguments], variables(queue, **more)
    process = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    return process.stdout + process.stderr


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
            exit_code = main() or 0
        except SystemExit as end:
            exit_code = end.code
    assert exit_code == code, text.getvalue()
    return text.getvalue()


def begin(queue, **more):
    """Start verdict.sh; its output goes to queue/out."""
    with open(queue / "out", "a", encoding="utf-8") as out:
        env = variables(queue, **more)
        return subprocess.Popen(["bash", str(SCRIPT)], env=env, stdout=out, stderr=out)


def updates(queue):
    """Return the updates so far, each as "SYSTEM RATE STEP"."""
    path = queue / "updates"
    return path.read_text().splitlines() if path.exists() else []


def trained(queue):
    """Return the systems that have updates, in order."""
    return list(dict.fromkeys(line.split()[0] for line in updates(queue)))


def wait_for(condition):
    limit = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.02)


def family(pid):
    """Return a process and all that it has started, directly or not."""
    pids = [pid]
    for parent in pids:
        with contextlib.suppress(OSError):
            children = Path(f"/proc/{parent}/task/{parent}/children").read_text(encoding="utf-8")
            pids += map(int, children.split())
    return pids


def states(queue):
    """Return {system: state} in the order of the list."""
    folders = Folders(queue / "state", queue / "results")
    listed = status.states(read_list(queue / "list.sh"), folders)
    return {state.item.name: state.word for state in listed}


ALL_UPDATES = {
    *(f"a-s1 0.25 {step}" for step in (1, 2)),
    *(f"{name} 0.5 {step}" for name in ("a-s1", "a-s2") for step in (1, 2, 3, 4)),
    *(f"{name} 0.25 {step}" for name in ("b-s1", "b-s2") for step in (1, 2, 3, 4)),
}
"""Two updates with 0.25, and 4 diverges; the trial with 0.5 goes on as the training."""


def check_all_done(queue, names=NAMES):
    """Assert that every update was made, and none twice."""
    made = updates(queue)
    assert sorted(made) == sorted(line for line in ALL_UPDATES if line.split()[0] in names)
    assert states(queue) == dict.fromkeys(names, "done")
    for name in names:
        folder = queue / "state" / "results" / "demo" / name
        assert read_json(folder / "scores" / "test.json") == {"of": name}
    assert not any(is_held(path) for path in (queue / "state").rglob("*.lock"))


def test_queue_trains_each_system_once_in_the_order_of_the_list(done):
    check_all_done(done)
    assert trained(done) == NAMES
    rates = read_json(done / "state/results/demo/rates/a.json")
    assert rates["chosen"] == "0.5" and rates["commits"] == ["0" * 7]
    assert [trial["dev_loss"] for trial in rates["trials"]] == [0.75, 0.5, None]
    assert [trial["updates"] for trial in rates["trials"]] == [2, 2, 0]
    assert "nothing is left" in call(done)
    check_all_done(done)


def test_killed_queue_continues_where_it_was_killed(make_queue):
    queue = make_queue(ONE_SEED)
    process = begin(queue, PACE=0.05)
    wait_for(lambda: len(updates(queue)) >= 5)
    assert states(queue)["a-s1"] == "running"
    for pid in family(process.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()
    wait_for(lambda: states(queue)["a-s1"] == "waiting")  # all its processes have ended
    table = answer(queue, "--status")
    assert "demo/a-s1" in table and "0 running" in table
    call(queue)
    made = updates(queue)
    assert set(made) == {line for line in ALL_UPDATES if "-s1 " in line}
    assert len(made) <= len(set(made)) + 1  # the update during the kill may be repeated


def test_stopped_queue_exits_with_75_and_the_same_command_continues(make_queue):
    queue = make_queue(ONE_SEED)
    process = begin(queue, PACE=0.05)
    wait_for(lambda: len(updates(queue)) >= 3)
    process.terminate()
    assert process.wait() == 75
    assert states(queue)["a-s1"] == "waiting"
    assert "a-s1: stopped; the same command continues" in (queue / "out").read_text()
    call(queue)
    check_all_done(queue, NAMES[:2])


def test_stopped_queue_ends_the_preparation_of_a_corpus(make_queue):
    queue = make_queue(ONLY_B)
    preparing = queue / "preparing"
    process = begin(queue, PREPARING=preparing)
    wait_for(lambda: preparing.exists() and preparing.read_text())
    process.terminate()
    assert process.wait() == 75
    with pytest.raises(ProcessLookupError):
        os.kill(int(preparing.read_text()), 0)
    assert "stopped while a corpus was prepared" in (queue / "out").read_text()
    call(queue)
    check_all_done(queue, ["b-s1"])


def test_two_workers_never_take_the_same_system(make_queue):
    queue = make_queue(TWO.replace("seeds 1 2", "seeds 1 2 3"))
    processes = [begin(queue, PACE=0.05, JOBS=2) for _ in range(2)]
    assert [process.wait() for process in processes] == [0, 0]
    made = updates(queue)
    assert len(made) == len(set(made)) == len(ALL_UPDATES) + 8
    assert set(states(queue).values()) == {"done"}
    systems = [line.split()[0] for line in made]
    in_turn = sorted(systems, key=list(states(queue)).index)
    assert systems != in_turn  # some were trained at the same time


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
def test_training_whose_worker_was_killed_is_running_until_it_ends(make_queue):
    """The training holds the lock, too."""
    queue = make_queue(ONE_SEED)
    process = begin(queue, PACE=2)  # slow, because a busy machine may look late
    wait_for(lambda: updates(queue))
    *above, training = family(process.pid)
    for pid in above:
        os.kill(pid, signal.SIGKILL)
    process.wait()
    assert states(queue)["a-s1"] == "running"
    wait_for(lambda: states(queue)["a-s1"] == "waiting")
    stat = Path(f"/proc/{training}/stat")
    assert not stat.exists() or "Z" in stat.read_text(encoding="utf-8")
    call(queue)
    check_all_done(queue, NAMES[:2])


def test_failed_system_has_a_reason_and_is_trained_again_only_after_retry(make_queue):
    queue = make_queue(ONE_SEED.replace("system a\n", "system bad\n"))
    assert "demo/bad-s1: failed: cannot train this" in call(queue)
    assert states(queue) == {"bad-s1": "failed", "b-s1": "done"}
    assert "cannot train this" in answer(queue, "--status")
    assert "bad-s1" not in call(queue)
    assert "demo/bad-s1 is tried again" in answer(queue, "--retry", "demo/bad-s1")
    assert states(queue)["bad-s1"] == "waiting"
    assert "failed: cannot train this" in call(queue)
    answer(queue, "--retry")
    assert states(queue)["bad-s1"] == "waiting"


def test_system_fails_if_every_learning_rate_diverges(make_queue):
    diverging, _, _ = TWO.replace("0.25 0.5 4", "4 5").rpartition("rates 2 0.25\nsystem b")
    queue = make_queue(diverging)
    assert "diverges with every learning rate" in call(queue)
    assert states(queue) == {"a-s1": "failed", "a-s2": "waits"}


def test_systems_wait_if_their_corpus_cannot_be_prepared(make_queue):
    queue = make_queue(ONLY_B + "corpus nowhere tiny\nsystem c\n")
    assert "corpus nowhere cannot be prepared: no files" in call(queue)
    assert states(queue) == {"b-s1": "done", "c-s1": "waits"}
    assert "for its corpus: no files" in answer(queue, "--status")


def test_signal_ends_a_queue_that_waits_for_another_process_to_prepare_a_corpus(make_queue):
    queue = make_queue(
        ONLY_B.replace("corpus demo", "corpus nowhere") + "corpus demo tiny\nsystem c\n"
    )
    with held(queue / "state" / "locks" / "demo.lock"):
        process = begin(queue)
        wait_for(lambda: "nowhere cannot be prepared" in (queue / "out").read_text())
        time.sleep(0.2)
        process.terminate()
        assert process.wait(20) == 75
    assert updates(queue) == []


def test_collected_results_are_not_trained_again_on_another_machine(done):
    new = call(done, "--collect").splitlines()
    assert new == ["demo/a-s1", "demo/a-s2", "demo/b-s1", "demo/b-s2", "demo/rates/a.json"]
    assert answer(done, "--collect").strip() == ""
    folder = done / "results/demo/a-s1"
    assert {path.relative_to(folder).as_posix() for path in folder.rglob("*.*")} == {
        *("config.toml", "metrics.jsonl", "best.json", "history.jsonl", "summary.json"),
        *("translate/test/hyp.txt", "translate/test/meta.json", "scores/test.json"),
    }
    (done / "updates").unlink()
    call(done, NMTKIT_VERDICT=done / "elsewhere")
    assert not updates(done)


def test_finished_system_has_only_its_best_weights_and_a_summary(done):
    (path,) = (done / "state/runs/demo/systems/a-s1/checkpoints").iterdir()
    names = {"manifest.json", "model.safetensors", "state.json"}
    assert {file.name for file in path.iterdir()} == names
    system = Run(done / "state" / "runs" / "demo").system("a-s1")
    assert checkpoints.find_checkpoints(system) == [path]
    summary = read_json(done / "state/results/demo/a-s1/summary.json")
    assert summary["parameters"] == 6 and summary["commits"] == ["0" * 7]
    assert summary["seconds"] == {"training": 4 * 36.0, "validation": 0, "translation": 2.0}


def test_history_of_a_result_has_the_calls_of_the_system_and_its_trials(done):
    lines = (done / "state/results/demo/a-s1/history.jsonl").read_text().splitlines()
    calls = [(call["stage"], call.get("system")) for call in map(json.loads, lines)]
    trainings = [("train", f"a-s1{trial}") for trial in ("-rate-0.25", "-rate-0.5", "")]
    assert calls == [*trainings, ("translate", None)]


def test_status_marks_results_of_other_code_or_other_options(done):
    folders = Folders(done / "state", done / "results")
    item = read_list(done / "list.sh")[0]
    result = folders.result(item)
    changed = "trained by 0000000; the training code has changed since"
    assert status.remark(item, result) == changed
    head = subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=ROOT, text=True).strip()
    summary = read_json(result / "summary.json")
    files.write_json(result / "summary.json", summary | {"commits": [head], "options": ["--new"]})
    assert status.remark(item, result) == f"trained by {head}; the list has other options now"


def test_hours_left_are_estimated_from_the_updates_of_the_corpus(make_queue):
    """An update takes 36 s, which is 0.01 hours."""
    queue = make_queue()
    folders = Folders(queue / "state", queue / "results")
    items = read_list(queue / "list.sh")
    assert status.Estimates(items, folders).hours_left(items[0], 0) is None
    process = begin(queue, PACE=0.05)
    wait_for(lambda: len(updates(queue)) >= 7)  # in the first system
    process.terminate()
    process.wait()
    done = len([line for line in updates(queue) if line.startswith("a-s1 0.5")])
    (a, b, a2, _), estimates = items, status.Estimates(items, folders)
    assert estimates.hours_left(a, done) == pytest.approx((4 - done) * 0.01)
    assert estimates.hours_left(b, 0) == estimates.hours_left(a2, 0) == pytest.approx(0.04)
    assert f"left: {(4 - done + 12) * 0.01:.1f} core hours" in answer(queue, "--status")


def test_hours_left_include_the_trials_of_all_learning_rates(done):
    """System a makes 2 updates with each of 3 learning rates, and continues one of the trials."""
    folders = Folders(done / "state", done / "results")
    systems = (folders.run("demo") / "systems").glob("a-*")
    for path in [*systems, *(folders.state / "results/demo").glob("[ar]*")]:
        shutil.rmtree(path)
    items = read_list(done / "list.sh")
    hours = status.Estimates(items, folders).hours_left(items[0], 0)
    assert hours == pytest.approx((4 + 2 * 2) * 0.01)


def test_results_above_the_size_limit_are_not_collected(done, monkeypatch):
    monkeypatch.setattr(leavings, "MOST_BYTES", 1000)
    folders = Folders(done / "state", done / "results")
    refused(EnvironmentProblem, "more than 0 MB", leavings.collect, folders)
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
def test_wrong_call_is_refused(arguments, more, message, make_queue):
    queue = make_queue()
    assert message in answer(queue, *arguments, code=2, **more)
    assert not updates(queue)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("system a", "system a/b", "system 'a/b': use letters"),
        ("system a", "system b", "demo/b-s1 is listed twice"),
        ("system a", "sistem a", "sistem: command not found"),
        ("system a", "analysis cost\nsystem a", "system 'a': an analysis is a label, a name"),
        ("system a", "after d system c\nsystem a", "c-s1 comes after demo/d-s1, which is not in"),
        ("corpus demo tiny", "", "system 'a' has no corpus"),
        ("seeds 1 2", "", "system 'a' has no seeds"),
        ("seeds 1 2", "seeds one", "system 'a' has no seeds"),
        ("rates 2 0.25 0.5 4", "", "system 'a' has no learning rates"),
        ("rates 2 0.25 0.5 4", "rates 2 fast", "system 'a' has no learning rates"),
        ("rates 2 0.25 0.5 4", "rates two 0.25", "'two' is no number of updates"),
    ],
)
def test_wrong_list_is_refused(old, new, message, tmp_path):
    path = tmp_path / "list.sh"
    path.write_text(TWO.replace(old, new, 1))
    error = refused(ConfigError, None, read_list, path)
    assert message in error.message and error.where == str(path) and error.hint


def test_lock_is_held_by_one_process_until_it_is_released(tmp_path):
    path = tmp_path / "x" / "lock"
    assert not is_held(path)
    with held(path) as lock:
        assert lock is not None and is_held(path)
        with held(path) as second:
            assert second is None
    assert not is_held(path)
    with held(path) as lock:
        assert lock is not None


def test_options_that_nmtkit_does_not_know_have_a_reason():
    assert why_unknown(["--variant", "enc-dc", "--set", "model.norm=post"]) is None
    assert "unknown variant 'nothing'" in why_unknown(["--variant", "nothing"])
    assert "no such option" in why_unknown(["--nothing", "x"]).lower()
    assert "nothing" in why_unknown(["--set", "model.nothing=1"])


def test_awaited_system_waits_until_nmtkit_knows_its_options(make_queue):
    awaiting = 'awaiting "a variant" system c --variant '
    queue = make_queue(TWO + f"{awaiting}nothing\n")
    folders = Folders(queue / "state", queue / "results")
    listed = status.states(read_list(queue / "list.sh"), folders)
    assert {s.item.row.name: s.reason for s in listed if s.word == "waits"} == {
        "a": "for the learning rate of seed 1",
        "c": "for a variant: unknown variant 'nothing'",
    }
    (queue / "list.sh").write_text(TWO + f"{awaiting}enc-dc\n")
    assert states(queue)["c-s1"] == "waiting"


def test_system_after_another_waits_for_it_and_gets_its_name(make_queue):
    """Seed 2 is put into the options."""
    after = 'after b system c --init-from "b-s{seed}"\nsystem a'
    queue = make_queue(TWO.replace("seeds 1 2", "seeds 2").replace("system a", after))
    assert states(queue)["c-s2"] == "waits"
    call(queue)
    assert trained(queue) == ["a-s2", "b-s2", "c-s2"]
    assert "--init-from b-s2" in (queue / "state" / "logs" / "demo" / "c-s2.log").read_text()


def test_results_of_another_machine_serve_for_matched_parameters_but_not_for_init_from(make_queue):
    """They have settings and no weights."""
    systems = ONE_SEED.replace("system a\n", 'after b system c --match-parameters "b-s{seed}"\n')
    queue = make_queue(systems + 'after b system d --init-from "b-s{seed}"\n')
    result = queue / "results" / "demo" / "b-s1"
    result.mkdir(parents=True)
    (result / "summary.json").write_text("{}")
    (result / "config.toml").write_text('variant = "enc-dc"\n')
    assert states(queue) == {"c-s1": "waiting", "b-s1": "done", "d-s1": "waits"}
    call(queue)
    assert trained(queue) == ["c-s1"]
    config = queue / "state" / "runs" / "demo" / "systems" / "b-s1" / "config.toml"
    assert config.read_text() == 'variant = "enc-dc"\n'


def test_published_list_has_known_options_and_seeds_in_order():
    items = read_list(HERE / "systems.sh")
    rows = list(dict.fromkeys(item.row for item in items))
    assert [row.name for row in rows if not row.awaits and why_unknown(row.options)] == []
    captions = [item for item in items if item.row.part == "captions"]
    assert [item.seed for item in captions] == sorted(item.seed for item in captions)
    assert captions[0].name == "transformer-s1"
    assert {row.updates for row in rows} == {1000}


def test_gated_systems_of_the_published_list_have_the_learning_rate_chosen_for_plain():
    rows = {item.row for item in read_list(HERE / "systems.sh") if item.row.part == "captions"}
    rates = {row.name: row.rates for row in rows if len(row.rates) == 1}
    plain = read_json(HERE / "results/multi30k-ende/rates/plain.json")["chosen"]
    assert rates == dict.fromkeys(["caatt", "caembed", "caru"], (plain,))


# two tiny systems, trained by nmtkit


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


@pytest.fixture(scope="module")
def demo_queue(tmp_path_factory):
    """Return the folder of a finished queue, its calls, and a function that runs nmtkit there."""
    folder = tmp_path_factory.mktemp("demo")
    (folder / "list.sh").write_text(DEMO)
    state = folder / "state"

    def in_the_state(arguments):
        quick = ["--resamples", "50"] if arguments[0] == "score" else []
        with contextlib.chdir(state):
            return in_this_process([*arguments, *quick])

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    paths = {"LIST": folder / "list.sh", "NMTKIT_VERDICT": state, "RESULTS": folder / "results"}
    run = functools.partial(run_recipe, SCRIPT, folder, in_the_state, **paths)
    done = run()
    assert done.code == 0, done.stderr
    again = run()
    assert (again.code, again.calls) == (0, [])
    yield folder, done, in_the_state
    torch.set_num_threads(threads)


def test_results_have_scores_translations_and_findings_without_paths_of_the_machine(demo_queue):
    folder, done, _ = demo_queue
    assert len(done.options("train", "--system")) == 4  # two trials, two trainings
    results = folder / "state" / "results" / "demo"
    for name in ("transformer-s1", "enc-dc-s1"):
        scores = read_json(results / name / "scores" / "test.json")
        assert [row["name"] for row in scores["systems"]] == [name]
        assert len((results / name / "translate/test/hyp.txt").read_text().splitlines()) == 60
        assert [path.name for path in (results / name / "analyze").iterdir()] == ["size.json"]
    size = tables(read_list(folder / "list.sh"), Folders(folder / "state", folder))[-1]
    assert [row[0] for row in size.rows] == ["transformer-s1", "enc-dc-s1"]
    for path in (path for path in results.rglob("*") if path.is_file()):
        assert str(folder) not in path.read_text("utf-8")


def test_training_that_continues_a_trial_has_the_weights_of_an_uninterrupted_one(demo_queue):
    folder, done, in_the_state = demo_queue
    results = folder / "state" / "results" / "demo"
    chosen = read_json(results / "rates" / "transformer.json")["chosen"]
    train = next(c for c in done.calls if c[0] == "train" and "transformer-s1" in c)
    assert f"train.lr={chosen}" in train
    assert in_the_state(["whole" if part == "transformer-s1" else part for part in train])[0] == 0
    system = Run(folder / "state" / "runs" / "demo").system("whole")
    summary = read_json(results / "transformer-s1" / "summary.json")
    best = read_json(system.path / "best.json")
    assert summary["best"]["step"] == best["step"] and summary["updates"] == 4
    assert checkpoints.current(system)[best["checkpoint"]] == summary["weights"]
