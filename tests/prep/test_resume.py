"""Stopped prep: the same command completes the same bytes without doing finished tasks again, and
damaged or foreign files in the work folder are noticed.
"""

import functools
import importlib.metadata
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from nmtkit.errors import ConfigError, DataError, EnvironmentProblem
from nmtkit.files import check_place
from nmtkit.locks import locked
from nmtkit.prep import steps, tasks
from nmtkit.prep.clean import clean_shard
from nmtkit.prep.plan import Plan
from nmtkit.prep.tasks import read_fact
from nmtkit.prep.work import WORK_RECORD, work_folder
from nmtkit.run import Run
from tests import ROOT
from tests.manifests import read_json
from tests.prep.conftest import make_shards_small, replace_cleaning
from tests.prep.corpora import own_files, pairs, prepare, write
from tests.refused import refused

RECIPES = ROOT / "recipes"
SETTINGS = ["merges=40", "deduplicate=true", "joint_vocab=false"]


def contents(run):
    """Return the files of a prepared corpus, and the manifest without what depends on time."""
    files = {p.relative_to(run.prep).as_posix(): p for p in run.prep.rglob("*") if p.is_file()}
    manifest = read_json(files.pop("manifest.json"))
    for key in ("speed", "jobs"):
        del manifest[key]
    return {name: path.read_bytes() for name, path in files.items()}, manifest


def facts(work):
    """Return when each task was finished, by its fact file."""
    return {path: path.stat().st_mtime_ns for path in work.glob("*/0*.json")}


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return own_files(tmp_path_factory.mktemp("text"), pairs(600, 4))


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory, text):
    with make_shards_small():
        return contents(prepare(tmp_path_factory.mktemp("whole"), text, "run", SETTINGS))


@pytest.fixture
def expected(uninterrupted, small_shards):
    """The contents of a corpus prepared without a stop."""
    return uninterrupted


@pytest.fixture
def prepare_run(tmp_path, text):
    """Return a function that prepares `text` in the folder "run" and returns the run."""
    return functools.partial(prepare, tmp_path, text, "run", SETTINGS)


def is_killed(count, before_fact, *arguments, **options):
    """Prepare in a process group that the process which finishes task number `count` kills; return
    True if it was killed.

    Args:
        before_fact: True to kill when the files of the last task are written and its fact is not.
        arguments, options: of `prepare`.
    """

    def target():
        os.setsid()
        write, left = tasks.Fact.write, [count]

        def write_and_kill(fact, path):
            left[0] -= 1
            if left[0] or not before_fact:
                write(fact, path)
            if not left[0]:
                os.killpg(0, signal.SIGKILL)

        tasks.Fact.write = write_and_kill
        prepare(*arguments, **options)

    process = multiprocessing.get_context("fork").Process(target=target)
    process.start()
    process.join()
    return process.exitcode != 0


def test_prep_killed_many_times_gives_the_same_corpus(prepare_run, tmp_path, text, expected):
    """Finished tasks are not done again, and there is no corpus before the last call."""
    draw, run, kills = random.Random(1), tmp_path / "run", 0
    for _ in range(30):
        before = facts(run / "prep-work")
        count, early, jobs = draw.randint(1, 4), draw.random() < 0.5, draw.choice([1, 2])
        if not is_killed(count, early, tmp_path, text, "run", SETTINGS, jobs=jobs):
            break
        assert not (run / "prep").exists()
        assert before.items() <= facts(run / "prep-work").items()
        kills += 1
    assert contents(prepare_run(force=True)) == expected
    assert kills >= 15
    assert not (run / "prep-work").exists()


def test_prep_goes_on_after_a_full_disk(prepare_run, tmp_path, stderr, expected, monkeypatch):
    write_fact, begun = tasks.Fact.write, []

    def write_or_fail(fact, path):
        begun.append(path)
        if len(begun) == 30:
            raise EnvironmentProblem("cannot write: No space left on device")
        write_fact(fact, path)

    monkeypatch.setattr(tasks.Fact, "write", write_or_fail)
    refused(EnvironmentProblem, "No space", prepare_run)
    assert len(facts(tmp_path / "run" / "prep-work")) == 29
    stderr()
    assert contents(prepare_run()) == expected
    printed = stderr()
    assert "going on in" in printed and "shards are done already" in printed


@pytest.fixture(scope="module")
def stopped(tmp_path_factory, text):
    """Return a function: copy the work folder of a prep that stopped where this step begins."""
    run, folders = tasks.Runner.run, {}

    def work_of(folder, step):
        def stop(runner, label, of_step):
            if of_step and of_step[0].step.startswith(step):
                raise EnvironmentProblem("stopped")
            return run(runner, label, of_step)

        if step not in folders:
            original = tmp_path_factory.mktemp(step)
            with pytest.MonkeyPatch.context() as patch, pytest.raises(EnvironmentProblem):
                patch.setattr(tasks.Runner, "run", stop)
                prepare(original, text, "run", SETTINGS)
            folders[step] = original
        shutil.copytree(folders[step] / "run", folder / "run")
        return folder / "run" / "prep-work"

    return work_of


VICTIMS = [
    ("encode", "clean/00003.src.text.npy"),
    ("encode", "clean/00000.json"),
    ("encode", "out/codes.src.bpe"),
    ("sets", "out/train/00002.bin"),
    ("merge", "clean/00002.tgt.words.npy"),
    ("clean", "survey/00001.hashes.npy"),
    ("encode", "out/vocab.tgt.txt"),
    ("encode", "lookup/src.ids.npy"),
    ("encode", "learn/00000.json"),
    ("sets", "encode/00001.kept.npy"),
]
"""The step before which prep stops, and the file that is damaged then."""


@pytest.mark.parametrize(
    ("step", "victim", "how"),
    [(*row, "changed") for row in VICTIMS] + [(*row, "gone") for row in VICTIMS[:4]],
)
def test_damaged_file_is_named_and_made_again(
    prepare_run, tmp_path, stopped, stderr, step, victim, how, expected
):
    path = stopped(tmp_path, step) / victim
    if how == "gone":
        path.unlink()
    else:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1 if victim.endswith("npy") else 255
        path.write_bytes(data)
    stderr()
    assert contents(prepare_run()) == expected
    if how == "changed" or not victim.endswith("json"):
        assert f"{path.name if victim.endswith('json') else victim} is damaged" in stderr()


def test_file_damaged_while_prep_works_is_made_again(prepare_run, stderr, expected, monkeypatch):
    """The task that reads the file notices; the task that wrote it runs again."""
    run = tasks.Runner.run

    def damage_and_run(runner, label, of_step):
        if of_step and of_step[0].step == "encode":
            (runner.work / "clean" / "00002.tgt.text.npy").write_bytes(b"damaged")
        return run(runner, label, of_step)

    monkeypatch.setattr(tasks.Runner, "run", damage_and_run)
    assert contents(prepare_run()) == expected
    warning = "clean/00002.tgt.text.npy is damaged; shard 2 of step clean is made again"
    assert warning in stderr()


def test_input_replaced_while_prep_works_is_an_error(tmp_path, monkeypatch):
    files = own_files(tmp_path, pairs(60))
    run = Plan.run

    def replace_and_run(plan, finish):
        write(tmp_path / "in", "train", pairs(60, 5))
        return run(plan, finish)

    monkeypatch.setattr(Plan, "run", replace_and_run)
    message = "train.en changed while prep read it"
    assert "run prep again" in refused(DataError, message, prepare, tmp_path, files).hint
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "other", [[*SETTINGS[1:], "merges=30"], SETTINGS], ids=["settings", "tools"]
)
def test_work_of_other_settings_or_tool_versions_is_not_continued(
    tmp_path, text, stopped, small_shards, stderr, other, monkeypatch
):
    stopped(tmp_path, "encode")
    stderr()
    if other == SETTINGS:
        monkeypatch.setattr(importlib.metadata, "version", lambda name: f"new {name}")
    assert contents(prepare(tmp_path, text, "run", other)) == contents(
        prepare(tmp_path, text, "whole", other)
    )
    assert "removing what another call of prep left" in stderr()


def test_work_folder_elsewhere_gives_the_same_corpus(prepare_run, tmp_path, expected):
    work = tmp_path / "elsewhere"
    assert contents(prepare_run(work=work)) == expected
    assert not work.exists()


def test_work_folder_with_foreign_files_only_is_refused(prepare_run, tmp_path):
    work = tmp_path / "elsewhere"
    work.mkdir()
    (work / "notes.txt").write_text("mine")
    message = "not empty, and no work folder"
    refused(ConfigError, message, prepare_run, work=work)
    assert [path.name for path in work.iterdir()] == ["notes.txt"]
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("work", ["run", "run/prep", "run/prep/work"])
def test_run_or_its_prep_folder_as_work_folder_is_refused(tmp_path, text, work):
    message = f"{work} is the run, or in its prep folder"
    refused(ConfigError, message, prepare, tmp_path, text, work=tmp_path / work)
    assert not (tmp_path / "run").exists()


def test_work_folder_with_a_foreign_record_is_refused_unchanged(prepare_run, tmp_path):
    """A user's folder may have a file of this name."""
    work = tmp_path / "mine"
    (work / "out").mkdir(parents=True)
    (work / "out" / "thesis.txt").write_text("mine")
    (work / WORK_RECORD).write_text('{"hours": 7}')
    refused(DataError, "damaged", prepare_run, work=work)
    assert (work / "out" / "thesis.txt").read_text() == "mine"


def test_array_job_with_other_settings_is_refused(tmp_path, text):
    prepare(tmp_path, text, "run", ["merges=40", "shard_lines=100"], shards=2, shard=0)
    done = facts(tmp_path / "run" / "prep-work")
    call = prepare, tmp_path, text, "run", ["merges=30", "shard_lines=100"]
    refused(ConfigError, "the work of another call", *call, shards=2, shard=1)
    assert facts(tmp_path / "run" / "prep-work") == done


def test_tasks_get_absolute_paths(tmp_path, monkeypatch):
    own_files(tmp_path, pairs(60, 4))
    monkeypatch.chdir(tmp_path)
    files = {name: (f"in/{name}.en", f"in/{name}.de") for name in ("train", "dev")}
    seen = []

    def record_and_clean(work, index, shard, *others):
        seen.extend([work, *(lines.path for stream in shard.streams for lines in stream)])
        return clean_shard(work, index, shard, *others)

    replace_cleaning(monkeypatch, record_and_clean)
    prepare(Path(), files, "run", ["merges=20"])
    assert seen and all(path.is_absolute() for path in seen)


def test_work_folder_in_use_is_refused(prepare_run, tmp_path):
    work = tmp_path / "work"
    work.mkdir()
    with locked(work, "prep"), pytest.raises(DataError, match="in use"):
        prepare_run(work=work)


def test_foreign_file_in_the_work_folder_is_kept(prepare_run, tmp_path, stopped, small_shards):
    work = stopped(tmp_path, "encode")
    (work / "notes.txt").write_text("mine")
    prepare_run()
    assert [path.name for path in work.iterdir()] == ["notes.txt"]


def test_models_of_an_interrupted_call_are_learnt_again(prepare_run, tmp_path, stopped, expected):
    work = stopped(tmp_path, "merge")
    for name in ("codes.src.bpe", "vocab.src.txt", "truecase.de"):
        (work / "out" / name).write_text("#version: 0.2\na b\n", "utf-8")
    (work / "out" / ".vocab.src.txt-abc").write_text("a file that was being written")
    assert contents(prepare_run()) == expected


def test_only_shards_encoded_with_other_models_are_encoded_again(
    prepare_run, tmp_path, stopped, expected, monkeypatch
):
    work = stopped(tmp_path, "sets")
    fact = read_fact(work, "encode", 0)
    other = fact.model_copy(update={"models": "of other models"})
    other.write(work / "encode" / "00000.json")
    perform, done = tasks.perform, []

    def record_and_perform(folder, task):
        done.append((task.step, task.index))
        return perform(folder, task)

    monkeypatch.setattr(tasks, "perform", record_and_perform)
    assert contents(prepare_run(jobs=1)) == expected
    assert ("encode", 0) in done and ("encode", 1) not in done and ("learn", 0) not in done


@pytest.mark.parametrize(
    ("error", "has_task", "is_kept"),
    [
        (EnvironmentProblem("x"), True, True),
        (KeyboardInterrupt(), True, True),
        (EnvironmentProblem("nothing is done yet"), False, False),
        (DataError("broken"), False, False),
        (DataError("broken"), True, False),
    ],
)
def test_work_folder_with_finished_tasks_is_kept_after_an_environment_error_or_interrupt(
    tmp_path, error, has_task, is_kept
):
    folder = tmp_path / "work"
    with pytest.raises(type(error)), work_folder(folder, "key", shared=False, raw=folder / "raw"):
        if has_task:
            (folder / "clean").mkdir(exist_ok=True)
            (folder / "clean" / "00000.json").write_text("a task that is done")
        raise error
    assert (folder / WORK_RECORD).exists() == folder.exists() == is_kept


# job arrays


def begin_job(work):
    """Begin a call of prep, as a job of an array does."""
    with work_folder(work, "key", shared=True, raw=work / "raw-node-1"):
        pass


def test_job_begins_while_another_job_writes_the_work_record(tmp_path, monkeypatch):
    half, other = tmp_path / "half", tmp_path / "other"
    half.mkdir()
    other.mkdir()
    (half / ".nmtkit-work.json-abc").touch()  # a record that another job is writing
    begin_job(half)
    exists = Path.exists

    def exists_and_write(path):
        """Let another job write the record after this job has seen that there is none."""
        seen = exists(path)
        if path == other / WORK_RECORD and not seen:
            shutil.copy(half / WORK_RECORD, path)
        return seen

    monkeypatch.setattr(Path, "exists", exists_and_write)
    begin_job(other)


def test_job_begins_while_another_job_removes_its_text(tmp_path, monkeypatch):
    work = tmp_path / "work"
    begin_job(work)
    (work / "raw-node-2" / "text").mkdir(parents=True)

    def check_and_remove(path):
        check_place(path)
        if path.name == "text":
            shutil.rmtree(path.parent)

    monkeypatch.setattr("nmtkit.files.check_place", check_and_remove)
    begin_job(work)
    assert not (work / "raw-node-2").exists()


def test_jobs_of_an_array_give_the_same_corpus(tmp_path, text, small_shards):
    settings = SETTINGS[::2]
    prepare_array = functools.partial(prepare, tmp_path, text, "run", settings)
    for job in (2, 0):
        prepare_array(shards=3, shard=job)
    message = "6 of 17 shards are not cleaned; the first is 1"
    refused(DataError, message, prepare_array, finish=True)
    done = facts(tmp_path / "run" / "prep-work")
    prepare_array(shards=3, shard=1)
    assert done.items() <= facts(tmp_path / "run" / "prep-work").items()
    assert not (tmp_path / "run" / "prep").exists()
    whole = prepare(tmp_path, text, "whole", settings)
    assert contents(prepare_array(finish=True)) == contents(whole)


def test_text_of_failed_and_killed_jobs_is_removed(tmp_path, text, monkeypatch):
    array = {"size": 100, "shards": 2, "shard": 0}
    replace_cleaning(monkeypatch, lambda *arguments: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        prepare(tmp_path, text, "run", SETTINGS[:1], **array)
    work = tmp_path / "run" / "prep-work"
    assert not [*work.glob("raw*")] and (work / WORK_RECORD).exists()
    monkeypatch.undo()
    (work / "raw-node7-123" / "first").mkdir(parents=True)  # of a job that was killed
    for _ in range(2):
        prepare(tmp_path, text, "run", SETTINGS[:1], force=True)
        assert not work.exists()


def test_array_that_drops_duplicates_runs_twice(prepare_run, expected, stderr, monkeypatch):
    """Every job compares all pairs, here in two parts."""
    monkeypatch.setattr(steps, "PART_BYTES", 4000)
    for job, once_more in ((0, True), (1, False), (0, False)):
        stderr()
        prepare_run(shards=2, shard=job)
        assert ("run the array once more" in stderr()) == once_more
    assert contents(prepare_run(finish=True)) == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [({"shard": 1}, "--shards"), ({"shards": 2, "shard": 2}, "below")],
)
def test_wrong_options_of_an_array_are_refused(tmp_path, text, options, message):
    refused(ConfigError, message, prepare, tmp_path, text, **options)


def test_slurm_recipe_gives_the_same_corpus(tmp_path):
    """Slurm starts a job array and then a last job."""
    text = own_files(tmp_path, pairs(150, 4))
    expected = contents(prepare(tmp_path, text, "whole", ["merges=40", "shard_lines=40"]))
    script = (RECIPES / "slurm" / "prep.sbatch").read_text("utf-8")
    assert "source recipes/environment.sh" in script
    (tmp_path / "prep.sbatch").write_text(script.replace("source recipes/environment.sh", "true"))
    sets = ["--train", *text["train"], "--dev", *text["dev"]]
    arguments = [*map(str, sets), "--run", str(tmp_path / "run"), "--preset", "tiny"]
    arguments += ["--set", "prep.merges=40", "--set", "prep.shard_lines=40"]
    command = ["bash", str(tmp_path / "prep.sbatch"), "mine", *arguments]
    slurm = {"SLURM_SUBMIT_DIR": str(tmp_path), "SLURM_CPUS_PER_TASK": "1"}
    for task in ("1", "0", None):
        array = {"SLURM_ARRAY_TASK_ID": task, "SLURM_ARRAY_TASK_COUNT": "2"} if task else {}
        if task == "0":  # alone, after a failure
            array |= {"SLURM_ARRAY_TASK_COUNT": "1", "SHARDS": "2"}
        environment = os.environ | slurm | array | {"PYTHONPATH": str(RECIPES.parent)}
        subprocess.run(command, env=environment, check=True, capture_output=True)
    assert contents(Run(tmp_path / "run"))[0] == expected[0]
