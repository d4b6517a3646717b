"""Train with nmtkit's stage `train`, and time its updates. Usage: train_nmtkit.py SETTING.json"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from rounds import Rounds, settings


def main():
    s = settings()
    torch.set_num_threads(s["threads"])
    rounds = Rounds()
    if "checkout" in s:  # of an earlier commit
        sys.path.insert(0, s["checkout"])
    from nmtkit.run import Run
    from nmtkit.train.gradients import Gradients
    from nmtkit.train.loop import Trainer
    from nmtkit.train.stage import train

    run = Path(s["scratch"], "run")
    run.mkdir()
    (run / "prep").symlink_to(Path(s["corpus"], "run", "prep").resolve())
    original_update, original_compute = Trainer.update, Gradients.compute
    seen = []

    def compute(self, rows_of_batches, *rest):
        seen[:] = rows_of_batches
        return original_compute(self, rows_of_batches, *rest)

    def watched(self):
        rounds.before_step()
        original_update(self)
        batches = [self.store.lengths(rows) for rows in seen]
        real = [sum(int(batch[side].sum()) for batch in batches) for side in (0, 1)]
        held = [
            sum(len(batch[side]) * int(np.max(batch[side])) for batch in batches) for side in (0, 1)
        ]
        rounds.after_step(real[0], held[0], real[1], held[1])

    Trainer.update, Gradients.compute = watched, compute
    never = 10**9
    values = {
        **{f"model.{key}": value for key, value in s["model"].items()},
        **{
            "model.tie": '"all"',
            "model.dropout": s["dropout"],
            "train.label_smoothing": s["smoothing"],
        },
        **{
            "train.batch_size": s["batch"],
            "train.batch_unit": '"tgt_tokens"',
            "train.update_size": 0,
            "train.precision": json.dumps(s["precision"]),
        },
        **{
            "train.schedule": '"constant"',
            "train.lr": 3e-4,
            "train.warmup": 0,
            "train.max_steps": never,
            "train.log_every": 50,
        },
        **{"train.validate_every": never, "train.checkpoint_every": never},
    }
    train(
        Run(run),
        variant=s["variant"],
        preset="small",
        assignments=[f"{key}={value}" for key, value in values.items()] + s["set"],
    )


if __name__ == "__main__":
    main()
