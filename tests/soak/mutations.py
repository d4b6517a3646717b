"""Damage the records of a finished run at random and give a command. The command must name the
damaged file and give advice, report that it does without the file, or give the same numbers.

python -m tests.soak.mutations [--tries 2000] [--seed 1] [--only N]

A try copies the run, changes one JSON or TOML file that the command reads, and gives the command in
a process of its own. Tries that break the promise are printed; `--only` repeats one of them.
"""

from __future__ import annotations

import argparse
import collections
import functools
import importlib
import json
import multiprocessing
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import tomllib
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

import torch

from nmtkit import cli
from nmtkit.demo import generate
from nmtkit.toml import to_toml, toml_value
from tests.manifests import parts_with_paths

TINY = (
    "--preset tiny --set train.checkpoint_every=2 --set train.validate_every=2"
    " --set train.log_every=1 --set train.dev_sentences=4 --set train.log_to=none"
    " --set model.d_model=16 --set model.d_ff=24 --set search.beam=2"
    " --set search.max_length_b=6 --set search.max_length_a=0.5 --set train.max_steps="
)
PREP = "prep mine --train train.en train.de --dev dev.en dev.de --test test.en,test.de --jobs 1"
PREP += " --set prep.merges=60"
TRAIN, TRANSLATE = f"train --system one {TINY}4", "translate --jobs 1"
SCORE = "score --resamples 10 --trials 10 --by-length --buckets 9"
EXPORT = "export --system one --to huggingface"
ATTENTION = "analyze attention --system one --sentences 3"
MAKING = (
    *(PREP, TRAIN, f"train --system two --set train.seed=2 {TINY}4", TRANSLATE, SCORE),
    *("analyze lengths", "analyze cost", ATTENTION, "report", EXPORT),
)
COMMANDS = (
    *("status --json", "status", PREP, TRAIN, f"train --system one {TINY}6", EXPORT),
    *(f"train --system three --init-from one {TINY}2", TRANSLATE, f"{TRANSLATE} --force", SCORE),
    *(f"{SCORE} --force", "analyze lengths", "analyze cost", "analyze cost --force"),
    *("report --force", f"{ATTENTION} --force", "translate test.en --system one --jobs 1"),
)
MODULES = (
    *(f"nmtkit.{name}.stage" for name in ("prep", "train", "translate", "score", "analyze")),
    *("nmtkit.report.stage", "nmtkit.export.to_huggingface", "matplotlib.backends.backend_svg"),
)
"""Imported before the processes of the tries are forked."""
FOREIGN = {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"}
"""Files of an exported folder that nmtkit does not read."""
ALONE = {
    "a setting that the user chose": (
        *("*/config.toml model.*", "*/config.toml train.*", "*/config.toml search.*"),
        *("*/config.toml preset*", "*/config.toml init_from*"),
    ),
    "measured in a training": ("*/metrics.jsonl *", "*/best.json dev_*", "*/best.json metric*"),
    "measured in a translation": (
        "*/meta.json *speed*",
        "*/meta.json settings*",
        "*/meta.json *hardware*",
    ),
    "a result that no other file has": (
        *("*/scores.json *", "*/finding.json *", "analyze/attention/*.json *"),
    ),
    "the history of the run": ("history.jsonl *",),
    "what prep counted": ("prep/manifest.json sets.*", "prep/manifest.json cleaning*"),
    "when a system was made": ("*/system.json *",),
}
"""Reasons why no command can notice another plausible value (of the right type, finite, consistent
with the rest of the file): patterns of files and places whose value is in no other file."""
BROKEN = {"internal", "unnoticed", "error without the file", "error without advice"}
LOGGED = ("step", "kind", "nll", "dev_loss", "dev_bleu")
PAGE = "report/index.html"
OF_THE_CALL = r'nmtkit-digest" content="\w+|made \d{4}[^<]*'
"""The parts that differ between two pages of the same numbers."""
SECONDS = 60
"""The limit of processor seconds: a command that needs more hangs."""
DEEP, AGAIN = "a place for deep nesting", "\x00"
"""AGAIN ends a key that the file shall have twice."""
VALUES = (
    *(None, True, "", "text", "../../x", "\x1b[31m", "\ud800", [], {}, [[]], {"a": {}}),
    *(0, -1, 10**12, 10**30, 10**400, 0.5, -0.5, 1e308, 1e-308),
    *(float("nan"), float("inf"), -float("inf"), DEEP),
)
WHOLE = (
    *(b"", b"\n", b"null", b"[]", b"{}", b"1", b"a = 1\n", b"[model]\n", b"\x00" * 9),
    *(b"[" * 100_000, b'{"a":' * 100_000, b"x = " + b"[" * 100_000),
)


class Outcome(NamedTuple):
    """The exit code and the output of a command, the numbers in its files, and the records of the
    run that it read.
    """

    code: int
    out: str
    err: str
    numbers: dict[str, object]
    read: list[str]


def change_value(value, draw):
    """Change one place of a JSON value, and return what was changed."""
    way, old = draw.choice(list(parts_with_paths(value)))
    *parents, key = way
    parent = functools.reduce(lambda part, step: part[step], parents, value)
    new, kind = draw.choice(VALUES), draw.random()
    if kind < 0.2:
        new = "gone"
        del parent[key]
    elif kind < 0.3 and isinstance(parent, dict):
        parent[f"{key}{AGAIN}"] = new
    elif kind < 0.4:
        parent[key] = new = str(old) if not isinstance(old, str) else [old]
    elif kind < 0.5:  # swapped with a neighbour
        other = draw.choice(list(parent) if isinstance(parent, dict) else range(len(parent)))
        parent[key], parent[other] = new, _ = parent[other], old
    else:
        parent[key] = new
    return f"{'.'.join(map(str, way))}: {new!r:.40}"


def encoded(text, place):
    """Return a text as bytes, with deep nesting in a place, and with repeated keys."""
    text = text.replace(place, "[" * 100_000 + "]" * 100_000)
    return text.replace(json.dumps(AGAIN)[1:-1], "").encode("utf-8", "surrogatepass")


def mutate(name, content, draw):
    """Return what was changed in the content of a file, and the changed content."""
    kind, at = draw.random(), draw.randrange(len(content))
    if kind < 0.06:
        return "whole file", draw.choice(WHOLE)
    if kind < 0.1:
        return f"cut off at byte {at}", content[:at]
    if kind < 0.14:
        return f"not UTF-8 at byte {at}", content[:at] + b"\xff\xc3" + content[at:]
    if name.endswith(".toml"):
        change = change_value(values := tomllib.loads(content.decode()), draw)
        return change, encoded(to_toml(values), toml_value(DEEP))
    lines = content.splitlines(keepends=True) if name.endswith(".jsonl") else [content]
    number = draw.randrange(len(lines))
    change = change_value(value := json.loads(lines[number]), draw)
    lines[number] = encoded(json.dumps(value), json.dumps(DEEP)) + b"\n"
    return change, b"".join(lines)


def give(words, folder, run):
    """Give a command; write its output, and the names of the run's files that it opens."""
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    signal.alarm(10 * SECONDS)
    out, err, read = (
        os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for name in ("out", "err", "read")
    )
    os.dup2(out, 1)
    os.dup2(err, 2)

    def note(event, arguments):
        if event == "open" and isinstance(arguments[0], (str, os.PathLike)):
            os.write(read, os.fsencode(os.path.relpath(arguments[0], run)) + b"\n")

    sys.addaudithook(note)
    sys.stdin, sys.stdout, sys.stderr = (
        open(number, mode, encoding="utf-8", closefd=False) for number, mode in enumerate("rww")
    )
    sys.argv = ["nmtkit", *words]
    cli.main()


class Trials:
    """A finished run, and a copy of it that is damaged."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.whole, self.run = self.folder / "whole", self.folder / "runs/mine"
        torch.set_num_threads(1)
        os.environ["XDG_CONFIG_HOME"] = str(self.folder / "settings")
        os.environ["GIT_DIR"] = os.devnull  # a commit of the checkout would change the results
        for name in MODULES:
            importlib.import_module(name)
        os.chdir(self.folder)
        generate(self.folder, 60, 6, 12)
        for command in MAKING:
            assert (outcome := self.outcome(command)).code == 0, (command, outcome.err)
        self.run.rename(self.whole)

    def outcome(self, command):
        """Give a command on the run as it is; return its outcome."""
        before, words = self._contents(), [*command.split(), "--run", "runs/mine"]
        arguments = words, self.folder, self.run
        process = multiprocessing.get_context("fork").Process(target=give, args=arguments)
        process.start()
        process.join()
        out, err, opened = (
            (self.folder / name).read_text("utf-8", "replace") for name in ("out", "err", "read")
        )
        if command.startswith("status"):  # without the sizes of files
            out = re.sub(r'"bytes": \d+|[\d.,]+ (bytes|[kMG]B)|\s', "", out)
        records = [
            name
            for name in sorted({*opened.splitlines()} & before.keys())
            if name.endswith((".json", ".jsonl", ".toml")) and Path(name).name not in FOREIGN
        ]
        return Outcome(process.exitcode, out, err, numbers(before, self._contents()), records)

    def _contents(self):
        paths = self.run.rglob("*") if self.run.is_dir() else ()
        return {p.relative_to(self.run).as_posix(): p.read_bytes() for p in paths if p.is_file()}

    def fresh(self):
        """Put an undamaged copy in the place of the run."""
        shutil.rmtree(self.run, ignore_errors=True)
        shutil.copytree(self.whole, self.run)

    @functools.cache  # noqa: B019  (one object)
    def undamaged(self, command):
        """Return the outcome of a command on the undamaged run."""
        self.fresh()
        assert (outcome := self.outcome(command)).code == 0, outcome.err
        return outcome

    def attempt(self, number):
        """Damage one file and give one command; return its judgement, and the try in words."""
        draw = random.Random(number)
        command = draw.choice(COMMANDS)
        expected = self.undamaged(command)
        self.fresh()
        name = draw.choice(expected.read)
        path = self.run / name
        times = path.stat()
        change, content = mutate(name, path.read_bytes(), draw)
        path.write_bytes(content)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        found = self.outcome(command)
        kind = judge(name, expected, found, path.is_file() and path.read_bytes() == content)
        if kind == "unnoticed":
            place = f"{name} {change}"
            for reason, patterns in ALONE.items():
                if any(fnmatchcase(place, pattern) for pattern in patterns):
                    kind = f"known to this file alone: {reason}"
        words = f"{number}: {name}, {change}: {command.split(' --set')[0]}: {kind} ({found.code})"
        return kind, f"{words}\n{found.err[-1500:]}"


def plain(content, keys):
    """Return some values of a JSON object; None if the content is not a JSON object."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return {key: value.get(key) for key in keys} if isinstance(value, dict) else None


def numbers(before, after):
    """Return the numbers in the files of a run, and in the new lines of logs."""
    found = {}
    for name, content in after.items():
        last = name.rpartition("/")[2]
        if last in {"scores.json", "finding.json"}:
            found[name] = plain(content, ("systems", "table"))
        elif last == "metrics.jsonl":
            new = {*content.splitlines()} - {*before.get(name, b"").splitlines()}
            found[name] = [plain(line, LOGGED) for line in sorted(new)]
        elif name == PAGE:
            found[name] = re.sub(OF_THE_CALL, "", content.decode()).splitlines()
        elif last.endswith((".txt", ".csv", ".safetensors", ".tsv", ".bin", "best.json")):
            found[name] = content
    return found


def judge(name, expected, actual, is_kept):
    """Judge the outcome of a command on a damaged run.

    Args:
        is_kept: True if the damaged file is still there.
    """
    if actual.code in {1, 4} or actual.code < 0 or "internal error" in actual.err:
        return "internal"
    folder, _, last = name.rpartition("/")
    page = {*actual.numbers.get(PAGE, ())} - {*expected.numbers.get(PAGE, ())}
    text = "".join([actual.err, actual.out, *page])
    names = [name, last, f"{folder} cannot", f"{folder}:"]
    if "/checkpoints/" in name:  # the report names the weights
        names.append(f"the weights of {name.split('/')[1]}")
    is_named = any(word in text for word in names)
    if actual.code:
        advised = "error" if "\n  try: " in actual.err else "error without advice"
        return advised if is_named else "error without the file"
    mine = {name} if is_kept else {}  # not written by the command
    both = [{k: v for k, v in of.numbers.items() if k not in mine} for of in (expected, actual)]
    if actual.out == expected.out and both[0] == both[1]:
        return "same"
    return "reported" if is_named or '"error"' in actual.out else "unnoticed"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tries", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int)
    chosen = parser.parse_args()
    counts, start, first = collections.Counter(), time.time(), chosen.seed * 1_000_000
    tries = range(first, first + chosen.tries) if chosen.only is None else [chosen.only]
    try:
        with tempfile.TemporaryDirectory() as folder:
            trials = Trials(folder)
            for number in tries:
                kind, words = trials.attempt(number)
                counts[kind] += 1
                if kind in BROKEN or chosen.only is not None:
                    print(words, flush=True)
    finally:  # an interrupted run says what it has
        minutes = round((time.time() - start) / 60, 1)
        print(json.dumps({"tries": counts.total(), "minutes": minutes, **counts}), flush=True)
    assert not BROKEN & set(counts)


if __name__ == "__main__":
    main()
