"""Prep that was stopped goes on: equal bytes, nothing done twice, and every damaged or foreign file
in the work folder is noticed.
"""

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
from nmtkit.prep import tasks
from nmtkit.prep.clean import clean_shard
from nmtkit.prep.plan import Plan
from nmtkit.prep.tasks import Damaged, read_fact
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
    """Every file of a prepared corpus; of the manifest what does not depend on time."""
    files = {p.relative_to(run.prep).as_posix(): p for p in run.prep.rglob("*") if p.is_file()}
    manifest = read_json(files.pop("manifest.json"))
    for key in ("speed", "jobs"):
        del manifest[key]
    return {name: path.read_bytes() for name, path in files.items()}, manifest


def facts(work):
    return {path: path.stat().st_mtime_ns for path in work.glob("*/0*.json")}


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return own_files(tmp_path_factory.mktemp("text"), pairs(600, 4))


@pytest.fixture(scope="module")
def whole(tmp_path_factory, text):
    """What a prep leaves that is never stopped."""
    with make_shards_small():
        return contents(prepare(tmp_path_factory.mktemp("whole"), text, "run", SETTINGS))


@pytest.fixture
def expected(whole, small_shards):
    return whole


def is_killed(count, before, *arguments, **options):
    """Prepare in processes of their own; True if they got SIGKILL.

    Args:
        count: the process that finishes so many tasks kills all of them.
        before: True to kill when the files of the last task are there, and its fact is not.
        arguments, options: of `prepare`.
    """

    def target():
        os.setsid()
        write, left = tasks.Fact.write, [count]

        def write_and_kill(fact, path):
            left[0] -= 1
            if left[0] or not before:
                write(fact, path)
            if not left[0]:
                os.killpg(0, signal.SIGKILL)

        tasks.Fact.write = write_and_kill
        prepare(*arguments, **options)

    process = multiprocessing.get_context("fork").Process(target=target)
    process.start()
    process.join()
    return process.exitcode != 0


def test_killed_up_to_thirty_times(tmp_path, text, expected):
    draw, work, kills = random.Random(1), tmp_path / "run" / "prep-work", 0
    for _ in range(30):
        before = facts(work)
        count, early, jobs = draw.randint(1, 4), draw.random() < 0.5, draw.choice([1, 2])
        if not is_killed(count, early, tmp_path, text, "run", SETTINGS, jobs=jobs):
            break
        kills += 1
        assert before.items() <= facts(work).items()  # what was finished is not done again
    run = prepare(tmp_path, text, "run", SETTINGS, force=True)
    assert contents(run) == expected and kills >= 15
    assert not work.exists()


def test_a_full_disk_ends_prep_and_the_same_command_goes_on(tmp_path, text, stderr, expected):
    write_fact, begun = tasks.Fact.write, []

    def full(fact, path):
        begun.append(path)
        if len(begun) == 30:
            raise EnvironmentProblem("cannot write: No space left on device")
        write_fact(fact, path)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(EnvironmentProblem, match="No space"):
        patch.setattr(tasks.Fact, "write", full)
        prepare(tmp_path, text, "run", SETTINGS)
    done = facts(tmp_path / "run" / "prep-work")
    assert len(done) == 29
    stderr()
    assert contents(prepare(tmp_path, text, "run", SETTINGS)) == expected
    printed = stderr()
    assert "going on in" in printed and "shards are done already" in printed


@pytest.fixture(scope="module")
def stopped(tmp_path_factory, text):
    """Return a function that copies the work folder of a prep which was stopped when a step began."""
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


@pytest.mark.parametrize(
    ("step", "victim"),
    [
        ("encode", "clean/00003.src.text.npy"),
        ("merge", "clean/00002.tgt.txt"),
        ("clean", "survey/00001.hashes.npy"),
        ("encode", "clean/00000.json"),
        ("encode", "out/codes.src.bpe"),
        ("encode", "out/vocab.tgt.txt"),
        ("encode", "lookup/src.ids.npy"),
        ("encode", "learn/00000.json"),
        ("sets", "encode/00001.kept.npy"),
        ("sets", "out/train/00002.bin"),
    ],
)
@pytest.mark.parametrize("how", ["changed", "gone"])
def test_a_damaged_shard_is_named_and_made_again(
    tmp_path, text, stopped, stderr, step, victim, how, expected
):
    path = stopped(tmp_path, step) / victim
    if how == "gone":
        path.unlink()
    else:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1 if victim.endswith("npy") else 255
        path.write_bytes(data)
    stderr()
    assert contents(prepare(tmp_path, text, "run", SETTINGS)) == expected
    if how == "changed" or not victim.endswith("json"):
        assert f"{path.name if victim.endswith('json') else victim} is damaged" in (stderr())


def test_a_shard_that_is_damaged_while_prep_works(tmp_path, text, stderr, expected):
    """The task that reads the files notices; the task that wrote them runs again."""
    run = tasks.Runner.run

    def damage(runner, label, of_step):
        if of_step and of_step[0].step == "encode":
            (runner.work / "clean" / "00002.tgt.text.npy").write_bytes(b"damaged")
        return run(runner, label, of_step)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tasks.Runner, "run", damage)
        assert contents(prepare(tmp_path, text, "run", SETTINGS)) == expected
    warned = "clean/00002.tgt.text.npy is damaged; shard 2 of step clean is made again"
    assert warned in stderr()


def test_a_file_that_is_replaced_while_prep_works_is_an_error(tmp_path, monkeypatch):
    files = own_files(tmp_path, pairs(60))
    run = Plan.run

    def replace_and_run(plan, finish):
        write(tmp_path / "in", "train", pairs(60, 5))
        return run(plan, finish)

    monkeypatch.setattr(Plan, "run", replace_and_run)
    message = "train.en changed while prep read it"
    assert "run prep again" in refused(DataError, message, prepare, tmp_path, files).hint
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("other", [[*SETTINGS[1:], "merges=30"], SETTINGS], ids=["set", "tools"])
def test_another_command_does_not_go_on(
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


def test_a_work_folder_elsewhere(tmp_path, text, expected):
    work = tmp_path / "elsewhere"
    assert contents(prepare(tmp_path, text, "run", SETTINGS, work=work)) == expected
    assert not work.exists()
    work.mkdir()
    (work / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="not empty, and no work folder"):
        prepare(tmp_path, text, "other", SETTINGS, work=work)
    assert [path.name for path in work.iterdir()] == ["notes.txt"]
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("work", ["run", "run/prep", "run/prep/work"])
def test_the_run_and_its_prep_folder_are_no_work_folder(tmp_path, text, work):
    message = f"{work} is the run, or in its prep folder"
    refused(ConfigError, message, prepare, tmp_path, text, work=tmp_path / work)
    assert not (tmp_path / "run").exists()


def test_a_record_that_is_not_one_of_prep_is_refused(tmp_path, text):
    """A person's folder may have a file of this name; nothing in it is removed."""
    work = tmp_path / "mine"
    (work / "out").mkdir(parents=True)
    (work / "out" / "thesis.txt").write_text("mine")
    (work / WORK_RECORD).write_text('{"hours": 7}')
    refused(DataError, "damaged", prepare, tmp_path, text, "run", SETTINGS, work=work)
    assert (work / "out" / "thesis.txt").read_text() == "mine"


def test_jobs_of_an_array_with_other_options_are_refused(tmp_path, text):
    prepare(tmp_path, text, "run", ["merges=40", "shard_lines=100"], shards=2, shard=0)
    done = facts(tmp_path / "run" / "prep-work")
    with pytest.raises(ConfigError, match="the work of another call"):
        prepare(tmp_path, text, "run", ["merges=30", "shard_lines=100"], shards=2, shard=1)
    assert facts(tmp_path / "run" / "prep-work") == done


def test_paths_do_not_depend_on_the_folder_of_a_worker(tmp_path, monkeypatch):
    own_files(tmp_path, pairs(60, 4))
    monkeypatch.chdir(tmp_path)
    files = {
        n: tuple(Path("in") / f"{n}.{side}" for side in ("en", "de")) for n in ("train", "dev")
    }
    seen = []

    def watched(work, index, shard, *others):
        seen.append((work, *(lines.path for stream in shard.streams for lines in stream)))
        return clean_shard(work, index, shard, *others)

    replace_cleaning(monkeypatch, watched)
    prepare(Path(), files, "run", ["merges=20"])
    assert seen and all(path.is_absolute() for paths in seen for path in paths)


def test_two_preps_in_one_work_folder(tmp_path, text):
    work = tmp_path / "work"
    work.mkdir()
    with locked(work, "prep"), pytest.raises(DataError, match="in use"):
        prepare(tmp_path, text, "run", SETTINGS, work=work)


def test_only_files_of_prep_are_removed(tmp_path, text, stopped, small_shards):
    """A file that a person puts into the work folder stays."""
    work = stopped(tmp_path, "encode")
    (work / "notes.txt").write_text("mine")
    prepare(tmp_path, text, "run", SETTINGS)
    assert [path.name for path in work.iterdir()] == ["notes.txt"]


def test_a_fact_names_the_file_that_has_changed(tmp_path, stopped, small_shards):
    work = stopped(tmp_path, "encode")
    fact = read_fact(work, "clean", 1)
    assert fact.value["kept"] > 0
    (work / "clean" / "00001.kept.npy").unlink()
    caught = refused(Damaged, r"clean/00001.kept.npy is damaged", read_fact, work, "clean", 1)
    assert caught.where == "shard 1 of step clean"


def test_models_that_an_interrupted_call_left_are_not_taken_for_given_ones(
    tmp_path, text, stopped, expected
):
    work = stopped(tmp_path, "merge")
    for name in ("codes.src.bpe", "vocab.src.txt", "truecase.de"):
        (work / "out" / name).write_text("#version: 0.2\na b\n", "utf-8")
    assert contents(prepare(tmp_path, text, "run", SETTINGS)) == expected


def test_shards_that_other_models_encoded_are_encoded_again(tmp_path, text, stopped, expected):
    work = stopped(tmp_path, "sets")
    fact = read_fact(work, "encode", 0)
    other = fact.model_copy(update={"models": "of other models"})
    other.write(work / "encode" / "00000.json")
    perform, done = tasks.perform, []

    def watched(folder, task):
        done.append((task.step, task.index))
        return perform(folder, task)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tasks, "perform", watched)
        assert contents(prepare(tmp_path, text, "run", SETTINGS, jobs=1)) == expected
    assert ("encode", 0) in done and ("encode", 1) not in done and ("learn", 0) not in done


def test_an_error_of_the_machine_keeps_the_folder(tmp_path):
    for error in (EnvironmentProblem("x"), KeyboardInterrupt()):
        with (
            pytest.raises(type(error)),
            work_folder(tmp_path / "w", "key", shared=False, raw=tmp_path / "raw"),
        ):
            (tmp_path / "w" / "clean").mkdir(exist_ok=True)
            (tmp_path / "w" / "clean" / "00000.json").write_text("a task that is done")
            raise error
        assert (tmp_path / "w" / WORK_RECORD).exists()
    with (
        pytest.raises(EnvironmentProblem),
        work_folder(tmp_path / "x", "key", shared=False, raw=tmp_path / "raw"),
    ):
        raise EnvironmentProblem("nothing is done yet")
    assert not (tmp_path / "x").exists()
    with (
        pytest.raises(DataError),
        work_folder(tmp_path / "new", "key", shared=False, raw=tmp_path / "raw"),
    ):
        raise DataError("broken")
    assert not (tmp_path / "new" / WORK_RECORD).exists()


# job arrays


def begin(work, share=True):
    """Begin a call of prep, as a job of an array."""
    with work_folder(work, "key", shared=share, raw=work / "raw-node-1"):
        pass


def test_jobs_of_an_array_that_start_together(tmp_path, monkeypatch):
    """Each may see a record that another job writes, and text that another job removes."""
    half = tmp_path / "half"
    half.mkdir()
    (half / ".nmtkit-work.json-abc").touch()  # a record that another job is writing
    begin(half)
    exists, other = Path.exists, tmp_path / "other"
    other.mkdir()

    def exists_and_write(path):
        """Another job writes the record after this one has seen that there is none."""
        seen = exists(path)
        if path == other / WORK_RECORD and not seen:
            shutil.copy(half / WORK_RECORD, path)
        return seen

    with monkeypatch.context() as patch:
        patch.setattr(Path, "exists", exists_and_write)
        begin(other)
    (other / "raw-node-2" / "text").mkdir(parents=True)

    def check_and_remove(path):
        check_place(path)
        if path.name == "text":
            shutil.rmtree(path.parent)

    monkeypatch.setattr("nmtkit.files.check_place", check_and_remove)
    begin(other)


def test_jobs_of_an_array(tmp_path, small_shards, capsys):
    text = own_files(tmp_path, pairs(600, 4))
    settings = SETTINGS[::2]
    expected = contents(prepare(tmp_path, text, "whole", settings))
    for job in (2, 0):
        prepare(tmp_path, text, "run", settings, shards=3, shard=job)
    with pytest.raises(DataError, match=r"6 of 17 shards are not cleaned; the first is 1"):
        prepare(tmp_path, text, "run", settings, finish=True)
    done = facts(tmp_path / "run" / "prep-work")
    prepare(tmp_path, text, "run", settings, shards=3, shard=1)
    assert done.items() <= facts(tmp_path / "run" / "prep-work").items()
    assert not (tmp_path / "run" / "prep").exists()
    assert contents(prepare(tmp_path, text, "run", settings, finish=True)) == expected


def test_text_of_a_job_that_failed_or_was_killed_is_removed(tmp_path, text, monkeypatch):
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


def test_an_array_that_drops_repeated_pairs_runs_twice(tmp_path, small_shards, stderr):
    text = own_files(tmp_path, pairs(150, 4))
    expected = contents(prepare(tmp_path, text, "whole", SETTINGS))
    for job, once_more in ((0, True), (1, False), (0, False)):
        stderr()
        prepare(tmp_path, text, "run", SETTINGS, shards=2, shard=job)
        assert ("run the array once more" in stderr()) == once_more
    assert contents(prepare(tmp_path, text, "run", SETTINGS, finish=True)) == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shard": 1}, "--shards"),
        ({"shards": 2, "shard": 2}, "below"),
    ],
)
def test_options_of_an_array_that_do_not_fit(tmp_path, options, message):
    files = {"train": write(tmp_path, "a", pairs(9)), "dev": write(tmp_path, "b", pairs(9))}
    refused(ConfigError, message, prepare, tmp_path, files, **options)


def test_the_recipe_for_slurm(tmp_path):
    """A job array and the job after it, as Slurm starts them."""
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
