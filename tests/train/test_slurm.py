"""The recipe for Slurm, run as a job runs it, with stand-ins for srun and scontrol."""

import os
import subprocess
import sys

import pytest

from tests import ROOT
from tests.recipes.recipe_calls import note_installed
from tests.train.tiny import as_arguments, last, make_run, options

RECIPE = ROOT / "recipes" / "slurm" / "train.sbatch"

# Runs the command once for each of two tasks and ends with the highest exit code, as srun does;
# options must come as srun takes them.
SRUN = """#!/usr/bin/env bash
while [[ $1 == --* ]]; do [[ $1 == --*=* ]] || exit 64; echo "$1" >> "$LOGS/srun"; shift; done
SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NTASKS=2 "$@" & first=$!
SLURM_PROCID=1 SLURM_LOCALID=1 SLURM_NTASKS=2 "$@" & second=$!
wait $first; a=$?; wait $second; b=$?
exit $((a > b ? a : b))
"""
SCONTROL = """#!/usr/bin/env bash
if [ "$1 $2" = "show hostnames" ]; then echo localhost; echo never-reached; else echo "$@" >> "$LOGS/scontrol"; fi
"""


@pytest.fixture
def job(tmp_path):
    """A function: run the recipe with this text as `python` and with these arguments; return the
    process, the job's number and the arguments that scontrol got.
    """

    def script(name, text):
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def run(python, *arguments):
        script("srun", SRUN)
        script("scontrol", SCONTROL)
        script("python", python)
        note_installed(tmp_path)
        number = os.getpid()  # of which the recipe makes a port
        environment = {
            **os.environ,
            "SLURM_SUBMIT_DIR": str(ROOT),
            "SLURM_JOB_NODELIST": "localhost",
            "SLURM_JOB_ID": str(number),
            "SLURM_CPUS_PER_TASK": "1",
            "NMTKIT_VENV": str(tmp_path),
            "LOGS": str(tmp_path),
            "NMTKIT_RANK_TIMEOUT": "120",
        }
        command = ["bash", str(RECIPE), *arguments]
        options = {"capture_output": True, "text": True, "timeout": 300, "check": False}
        done = subprocess.run(command, env=environment, cwd=tmp_path, **options)
        calls = tmp_path / "scontrol"
        return done, number, calls.read_text() if calls.exists() else ""

    return run


@pytest.mark.parametrize("code", [0, 2, 3, 75, 130, 143])
def test_only_a_stopped_training_is_requeued(job, code):
    python = (
        '#!/usr/bin/env bash\necho "rank $RANK of $WORLD_SIZE, local $LOCAL_RANK, at $MASTER_ADDR:'
        f' $*" >&2\nexit {code}\n'
    )
    done, number, requeued = job(python, "--system", "two words")
    assert done.returncode == code, done.stderr
    for rank in (0, 1):
        assert (
            f"rank {rank} of 2, local {rank}, at localhost: -m nmtkit train --system two words\n"
            in done.stderr
        )
    assert requeued == (f"requeue {number}\n" if code in {75, 130, 143} else "")


def test_tasks_of_a_job_train_as_ranks(job, tmp_path):
    run = make_run(tmp_path / "run", pairs=30, dev=0)
    settings = as_arguments(options("train.max_steps=2"))
    done, _, requeued = job(
        f'#!/usr/bin/env bash\nexec {sys.executable} "$@"\n', "--run", str(run.path), *settings
    )
    assert done.returncode == 0, done.stderr
    assert ": 2 processes\n" in done.stderr
    assert requeued == ""
    assert last(run).name == "step-00000002"
