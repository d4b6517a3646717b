"""The recipe for Slurm, run as a job would run it, with srun and scontrol put in their places by
scripts that do what matters here.
"""

import os
import subprocess
import sys

import pytest

from tests import ROOT
from tests.recipes.recipe_calls import note_installed
from tests.train.tiny import last, make_run, options

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
    """A function that runs the recipe with a `python` of the given text and arguments, and gives
    the process and what scontrol was told.
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
        slurm = {
            "SLURM_SUBMIT_DIR": str(ROOT),
            "SLURM_JOB_NODELIST": "localhost",
            "SLURM_JOB_ID": str(number),
            "SLURM_CPUS_PER_TASK": "1",
        }
        environment = {
            **os.environ,
            **slurm,
            "NMTKIT_VENV": str(tmp_path),
            "LOGS": str(tmp_path),
            "NMTKIT_RANK_TIMEOUT": "120",
        }
        command = ["bash", str(RECIPE), *arguments]
        done = subprocess.run(
            command,
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        told = tmp_path / "scontrol"
        return done, number, told.read_text() if told.exists() else ""

    return run


def test_it_is_bash():
    assert subprocess.run(["bash", "-n", str(RECIPE)], check=False).returncode == 0


@pytest.mark.parametrize("code", [0, 2, 3, 75, 130, 143])
def test_only_a_stopped_training_goes_back_to_the_queue(job, code):
    python = (
        '#!/usr/bin/env bash\necho "rank $RANK of $WORLD_SIZE, local $LOCAL_RANK, at $MASTER_ADDR:'
        f' $*" >&2\nexit {code}\n'
    )
    done, number, told = job(python, "--system", "two words")
    assert done.returncode == code, done.stderr
    for rank in (0, 1):
        assert (
            f"rank {rank} of 2, local {rank}, at localhost: -m nmtkit train --system two words\n"
            in done.stderr
        )
    assert told == (f"requeue {number}\n" if code in {75, 130, 143} else "")


def test_the_ranks_train_together(job, tmp_path):
    run = make_run(tmp_path / "run", pairs=30, dev=0)
    settings = [part for value in options("train.max_steps=2") for part in ("--set", value)]
    done, _, told = job(
        f'#!/usr/bin/env bash\nexec {sys.executable} "$@"\n', "--run", str(run.path), *settings
    )
    assert done.returncode == 0, done.stderr
    assert ": 2 processes\n" in done.stderr
    assert told == ""
    assert last(run).name == "step-00000002"
