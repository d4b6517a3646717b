#!/usr/bin/env python3
"""Stand for nmtkit in tests of the queue of trainings.

Updates take PACE seconds; UPDATES is the file that notes each of them. The corpus `nowhere` has no
files. The first preparation of another corpus hangs if PREPARING names a file for its process id.
"""

import fcntl
import hashlib
import json
import os
import signal
import struct
import sys
import time
from pathlib import Path

command, *words = sys.argv[1:]
options = dict(zip(words, words[1:], strict=False))
settings = dict(
    text.split("=") for key, text in zip(words, words[1:], strict=False) if key == "--set"
)
run = Path(options["--run"])
signals = []


def note(text):
    with open(os.environ["UPDATES"], "a", encoding="utf-8") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        stream.write(text + "\n")


def history(**values):
    with open(run / "history.jsonl", "a", encoding="utf-8") as stream:
        call = {"stage": command, "argv": sys.argv[1:], "commit": "0" * 7, **values}
        stream.write(json.dumps(call) + "\n")


def train():
    name, rate = options["--system"], settings["train.lr"]
    if name.startswith("bad"):
        print("nmtkit: cannot train this\n  in: here\n  try: something else", file=sys.stderr)
        return 2
    if float(rate) > 1:
        print("nmtkit: diverged", file=sys.stderr)
        return 4
    system = run / "systems" / name
    system.mkdir(parents=True, exist_ok=True)
    (system / "config.toml").write_text('variant = "transformer"\n')
    (system / "system.json").write_text('{"format": 1, "made": 1, "parameters": 6}')
    signal.signal(signal.SIGTERM, lambda number, frame: signals.append(number))
    steps = [int(path.name.removeprefix("step-")) for path in system.glob("checkpoints/step-*")]
    for step in range(max(steps, default=0) + 1, int(settings["train.max_steps"]) + 1):
        time.sleep(float(os.environ.get("PACE", "0")))
        note(f"{name.partition('-rate-')[0]} {rate} {step}")
        update(system, step, abs(float(rate) - 0.5) + 1 / step)
        if signals:
            history(system=name)
            return 75
    history(system=name)
    return 0


def update(system, step, loss):
    """Write the measurements and the checkpoint of an update."""
    scores = {"dev_loss": loss, "dev_bleu": 10 - loss}
    lines = [
        {"step": step, "kind": "train", "cpu_seconds": 36.0},
        {"step": step, "kind": "dev", **scores},
    ]
    with open(system / "metrics.jsonl", "a", encoding="utf-8") as stream:
        stream.writelines(json.dumps(line) + "\n" for line in lines)
    best = {"step": step, "checkpoint": f"step-{step:08d}", "metric": "dev_bleu", **scores}
    (system / "best.json").write_text(json.dumps({"format": 1, **best}))
    save(system / "checkpoints" / best["checkpoint"], step)


def save(path, step):
    """Write a checkpoint of one parameter of 2 x 3 numbers."""
    temporary = path.with_name(f".tmp-{path.name}")
    temporary.mkdir(parents=True, exist_ok=True)
    header = json.dumps({"w": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}).encode()
    parts = {
        "model.safetensors": struct.pack("<Q", len(header)) + header + bytes(24),
        "optimizer.safetensors": bytes(48),
        "state.json": b"{}",
    }
    facts = {}
    for name, content in parts.items():
        (temporary / name).write_bytes(content)
        facts[name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    manifest = {"format": 1, "step": step, "files": facts}
    (temporary / "manifest.json").write_text(json.dumps(manifest))
    if not path.exists():
        temporary.rename(path)


def prep():
    if words[0] == "nowhere":
        sys.exit("nmtkit: no files")
    preparing = os.environ.get("PREPARING")
    if preparing and not os.path.exists(preparing):
        Path(preparing).write_text(str(os.getpid()), "utf-8")
        time.sleep(20)
    fields = {"dataset": "demo", "src": "en", "tgt": "de", "preset": "tiny", "source": {}}
    counts = ("lines", "references", "src_tokens", "src_unknown", "tgt_tokens", "tgt_unknown")
    sets = [{"name": "dev", "split": "dev", **dict.fromkeys(counts, 1)}]
    fields |= {"settings": {}, "sets": sets, "files": {}, "inputs": {}, "tools": {}, "speed": []}
    fields |= {"vocabulary": {"shared": True, "src": 1, "tgt": 1}, "corpus": {}, "jobs": 1}
    fields["cleaning"] = {"pairs_in": 1, "pairs_kept": 1, "dropped": {}, "changed": {}}
    (run / "prep").mkdir(parents=True, exist_ok=True)
    manifest = {"format": 1, **fields, "fingerprint": "f" * 12}
    (run / "prep" / "manifest.json").write_text(json.dumps(manifest))
    return 0


def translate():
    folder = run / "systems" / options["--system"] / "translate" / "test"
    folder.mkdir(parents=True)
    (folder / "hyp.txt").write_text("Ein Satz.\n")
    (folder / "meta.json").write_text(json.dumps({"format": 1, "speed": {"seconds": 2.0}}))
    history(systems=[options["--system"]])
    return 0


def score():
    (run / "score" / "test").mkdir(parents=True, exist_ok=True)
    (run / "score" / "test" / "scores.json").write_text(json.dumps({"of": options["--system"]}))
    return 0


sys.exit({"prep": prep, "train": train, "translate": translate, "score": score}[command]())
