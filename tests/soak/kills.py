"""Kill a training with SIGKILL at random times and repeat its command until it ends: the weights
must be those of an uninterrupted training, bit for bit.

python -m tests.soak.kills [--kills 30] [--seed 1]
"""

import argparse
import json
import random
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from nmtkit import console
from nmtkit.models import checkpoints
from nmtkit.train.stage import train
from tests import ROOT
from tests.train.test_resume import SETTINGS, outcome
from tests.train.tiny import make_run

STEPS = 80
"""Updates for each kill, so that the last kill strikes before the end."""
LONG = (
    "train.checkpoint_every=7",  # every few milliseconds, so that kills strike during a checkpoint
    "train.validate_every=250",
    "train.samples=0",
    "train.log_every=100",
    "train.schedule=constant",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    settings = [setting for setting in SETTINGS if not re.search("plateau|min_lr", setting)]
    settings += [*LONG, f"train.max_steps={STEPS * chosen.kills}"]
    torch.set_num_threads(1)
    console.set_quiet(True)
    with tempfile.TemporaryDirectory() as folder:
        whole, killed = make_run(Path(folder) / "whole"), make_run(Path(folder) / "killed")
        figures = kill(killed, settings, chosen.kills, random.Random(chosen.seed))
        train(whole, assignments=settings)
        expected, actual = outcome(whole), outcome(killed)
        equal = {key: expected[key] == actual[key] for key in expected}
        leftovers = [p.name for p in killed.system("transformer").checkpoints.glob(".*")]
    print(json.dumps(figures | {"equal": equal, "leftovers": leftovers}))
    assert figures["kills"] == chosen.kills, (
        "the training ended before the last kill: make it longer"
    )
    assert not leftovers
    assert all(equal.values())


def kill(run, settings, kills, draw):
    """Start the training until it ends; kill the first `kills` starts after 0.05 to 2.5 seconds of
    processor time.

    Returns: the number of kills, the number of kills that left a half-written checkpoint, and the
        number of starts that gained no step.
    """
    system = run.system("transformer")
    done = half_written = in_vain = newest = 0
    command = [sys.executable, "-m", "tests.train.killed", str(run.path), *settings]
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, cwd=ROOT, text=True, **streams) as server:
        while True:
            server.stdin.write(f"cpu {draw.uniform(0.05, 2.5)}\n" if done < kills else "86400\n")
            server.stdin.flush()
            code = int(server.stdout.readline())
            step = max(map(checkpoints.step_of, checkpoints.find_checkpoints(system)), default=0)
            assert step >= newest, f"the newest checkpoint went back from step {newest} to {step}"
            if code == 0:
                break
            assert code == -signal.SIGKILL, f"a start ended with {code}"
            done += 1
            half_written += any(
                path.name.startswith((".nmtkit-tmp-", ".nmtkit-old-"))
                for path in system.checkpoints.glob(".*")
            )
            in_vain += step == newest
            newest = step
        server.stdin.close()
    return {
        "kills": done,
        "left_a_half_written_checkpoint": half_written,
        "gained_no_step": in_vain,
        "step_at_the_last_kill": newest,
    }


if __name__ == "__main__":
    main()
