"""Damage the records of a finished run at random and give a command: the command must name the file
that is damaged, say that it does without the file, or give the same numbers.

python -m tests.soak.mutations [--tries 2000] [--seed 1] [--only N]

A try copies the run, changes one JSON or TOML file that the command reads, and gives the command in
a process of its own. Each try that breaks the promise is printed; `--only` repeats one.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import fnmatch
import functools
import importlib
import json
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
import traceback
from pathlib import Path

import torch

from nmtkit.demo import generate
from nmtkit.settings import to_toml, toml_value

TINY = (
    "--preset tiny --set train.checkpoint_every=2 --set train.validate_every=2"
    " --set train.log_every=1 --set train.dev_sentences=4 --set train.log_to=none"
    " --set model.d_model=16 --set model.d_ff=24 --set search.beam=2"
    " --set search.max_length_b=6 --set search.max_length_a=0.5 --set train.max_steps="
)
SCORE = "score --resamples 10 --trials 10 --by-length --buckets 9"
PREP = "prep mine --train train.en train.de --dev dev.en dev.de --test test.en,test.de --jobs 1"
PREP += " --set prep.merges=60"
TRAIN, EXPORT = f"train --system one {TINY}4", "export --system one --to huggingface"
ATTENTION = "report --attention one --sentences 3"
TRANSLATE = "translate --jobs 1"
MAKING = (
    *(PREP, TRAIN, f"train --system two --set train.seed=2 {TINY}4", TRANSLATE, SCORE),
    *("analyze lengths", "analyze cost", ATTENTION, EXPORT),
)
COMMANDS = (
    *("status --json", "status", PREP, TRAIN, f"train --system one {TINY}6"),
    *(f"train --system three --init-from one {TINY}2", TRANSLATE, f"{TRANSLATE} --force", SCORE),
    *(f"{SCORE} --force", "analyze lengths", "analyze cost", "analyze cost --force", EXPORT),
    *("report --force", f"{ATTENTION} --force", "load"),
)
MODULES = (
    *("nmtkit.prep.stage", "nmtkit.train.stage", "nmtkit.translate.stage", "nmtkit.score.stage"),
    *("nmtkit.analyze.stage", "nmtkit.report.stage", "nmtkit.export.stage", "nmtkit.cli"),
    *("nmtkit.export.to_huggingface", "nmtkit.api", "matplotlib.backends.backend_svg"),
)
"""Imported once, not in every process."""
FOREIGN = {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"}
"""Files of an exported folder that other programs read, not nmtkit."""
SOURCES: dict[str, tuple[str, ...]] = {}
"""Values that only their file knows: a plausible change of them cannot be noticed."""
BROKEN = {"internal", "silent", "error without the file", "error without advice"}
WITH_NUMBERS = (".txt", ".csv", ".safetensors", ".tsv", ".bin", "best.json")
OF_THE_CALL = r'nmtkit-digest" content="\w+|made \d{4}[^<]*'
"""What differs between two pages of the same numbers."""
LOGGED = ("step", "kind", "nll", "dev_loss", "dev_bleu")
PAGE = "report/index.html"
SECONDS = 60
"""Processor seconds after which a command is taken to hang."""
DEEP, AGAIN = "a place for deep nesting", "\x00"
"""AGAIN ends a key that is to stand in the file twice."""
VALUES = (
    *(None, True, "", "text", "../../x", "\x1b[31m", "\ud800", [], {}, [[]], {"a": {}}),
    *(0, -1, 10**12, 10**30, 10**400, 0.5, -0.5, 1e308, 1e-308),
    *(float("nan"), float("inf"), -float("inf"), DEEP),
)
WHOLE = (b"", b"\n", b"null", b"[]", b"{}", b"1", b"[" * 100_000, b'{"a":' * 100_000, b"\x00" * 9)
WHOLE_TOML = (b"", b"\n", b"a = 1\n", b"x = " + b"[" * 100_000, b"[model]\n", b"\x00" * 9)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What came of a command: its exit code, what it printed, the numbers in its files, and which
    files of the run it read.
    """

    code: int
    out: str
    err: str
    numbers: dict[str, object]
    read: frozenset[str]


def places(value, way=()):
    """All places of a JSON value, the value itself left out."""
    inside = value if isinstance(value, dict) else {}
    for key, part in dict(enumerate(value) if isinstance(value, list) else inside).items():
        yield (*way, key)
        yield from places(part, (*way, key))


def mutated_value(value, draw):
    """Change one place of a JSON value; return what was changed, and the value."""
    value = json.loads(json.dumps(value))
    way = draw.choice(list(places(value)))
    parent = functools.reduce(lambda part, key: part[key], way[:-1], value)
    old, new, kind = parent[way[-1]], draw.choice(VALUES), draw.random()
    key = way[-1]
    if kind < 0.2:
        del parent[key]
    elif kind < 0.3 and isinstance(parent, dict):
        parent[f"{key}{AGAIN}"] = new
    elif kind < 0.4:
        parent[key] = new = str(old) if not isinstance(old, str) else [old]
    elif kind < 0.5 and len(parent) > 1:  # swapped with a neighbour
        other = draw.choice(
            [k for k in (parent if isinstance(parent, dict) else range(len(parent)))]
        )
        parent[key], parent[other] = new, _ = parent[other], old
    else:
        parent[key] = new
    what = "gone" if kind < 0.2 else f"{new!r:.40}"
    return f"{'.'.join(map(str, way))}: {what}", value


def encoded(text, place):
    """Return a text as bytes, with deep nesting in a place, and with keys that stand there twice."""
    text = text.replace(place, "[" * 100_000 + "]" * 100_000)
    return text.replace(json.dumps(AGAIN)[1:-1], "").encode("utf-8", "surrogatepass")


def without_null(value):
    """Return a value as TOML can have it."""
    if isinstance(value, dict):
        return {key: without_null(part) for key, part in value.items() if part is not None}
    return value


def mutate(name, content, draw):
    """Return what was changed in the content of a file, and the changed content."""
    kind, is_toml = draw.random(), name.endswith(".toml")
    if kind < 0.06:
        return "whole file", draw.choice(WHOLE_TOML if is_toml else WHOLE)
    at = draw.randrange(len(content))
    if kind < 0.1:
        return f"cut off at byte {at}", content[:at]
    if kind < 0.14:
        return f"not UTF-8 at byte {at}", content[:at] + b"\xff\xc3" + content[at:]
    if is_toml:
        change, value = mutated_value(tomllib.loads(content.decode()), draw)
        return change, encoded(to_toml(without_null(value)), toml_value(DEEP))
    lines = content.splitlines(keepends=True) if name.endswith(".jsonl") else [content]
    number = draw.randrange(len(lines))
    change, value = mutated_value(json.loads(lines[number]), draw)
    lines[number] = encoded(json.dumps(value), json.dumps(DEEP)) + b"\n"
    return f"line {number + 1}, {change}" if len(lines) > 1 else change, b"".join(lines)


def forked(function, out, err):
    """Run a function in a process of its own, with its output in two files; return the exit code
    (negative: the signal that ended it).
    """
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
            signal.alarm(10 * SECONDS)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            for number, path in ((1, out), (2, err)):
                os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
            sys.stdin = open(0, encoding="utf-8", closefd=False)
            sys.stdout, sys.stderr = (open(n, "w", encoding="utf-8", closefd=False) for n in (1, 2))
            function()
            code = 0
        except SystemExit as ended:
            code = ended.code or 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def call(words):
    """Give a command, or load a system by the Python interface."""
    import nmtkit
    from nmtkit import cli
    from nmtkit.errors import NmtkitError

    if words[0] != "load":
        sys.argv = ["nmtkit", *words]
        cli.main()
        return
    try:
        system = nmtkit.load(words[2], system="one")
        lines = ["The dog sees a tree .", "A cat ."]
        print(*system.translate(lines), *system.score(lines, lines), sep="\n")
    except NmtkitError as error:
        print("nmtkit:", error, file=sys.stderr)
        raise SystemExit(error.exit_code) from None


class Trials:
    """A finished run, and a copy of it that is damaged."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.whole, self.run = self.folder / "whole", self.folder / "runs/mine"
        torch.set_num_threads(1)
        os.environ["XDG_CONFIG_HOME"] = str(self.folder / "settings")
        for name in MODULES:
            importlib.import_module(name)
        os.chdir(self.folder)
        generate(self.folder, 60, 6, 12)
        for command in MAKING:
            assert (outcome := self.outcome(command)).code == 0, (command, outcome.err)
        self.run.rename(self.whole)

    def outcome(self, command):
        """Give a command on the run as it is."""
        before = self._contents()
        out, err, read = (self.folder / name for name in ("out", "err", "read"))
        words = [*command.split(), "--run", "runs/mine"]
        code = forked(lambda: self._watched(words, read), out, err)
        texts = [path.read_text("utf-8", "replace") for path in (out, err)]
        opened = frozenset(read.read_text("utf-8", "replace").splitlines()) & set(before)
        text = without_sizes(command, texts[0])
        return Outcome(code, text, texts[1], numbers(before, self._contents()), opened)

    def _watched(self, words, read):
        """Give a command, and write down which files it opens."""
        record = os.open(read, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)

        def hook(event, arguments):
            if event == "open" and isinstance(arguments[0], (str, os.PathLike)):
                path = os.path.relpath(os.fspath(arguments[0]), self.run)
                os.write(record, os.fsencode(path) + b"\n")

        sys.addaudithook(hook)
        call(words)

    def _contents(self):
        paths = self.run.rglob("*") if self.run.is_dir() else ()
        return {p.relative_to(self.run).as_posix(): p.read_bytes() for p in paths if p.is_file()}

    def fresh(self):
        """Put an undamaged copy in the place of the run."""
        shutil.rmtree(self.run, ignore_errors=True)
        shutil.copytree(self.whole, self.run)

    @functools.cache  # noqa: B019  (one object)
    def undamaged(self, command):
        """Return what a command gives on the undamaged run, and the records that it reads."""
        self.fresh()
        outcome = self.outcome(command)
        assert outcome.code == 0, outcome.err
        names = sorted(name for name in outcome.read if name.endswith((".json", ".jsonl", ".toml")))
        return outcome, [name for name in names if Path(name).name not in FOREIGN]

    def attempt(self, number):
        """Damage one file and give one command; return what came of it, and the try in words."""
        draw = random.Random(number)
        command = draw.choice(COMMANDS)
        expected, records = self.undamaged(command)
        self.fresh()
        name = draw.choice(records)
        path = self.run / name
        times = path.stat()
        change, content = mutate(name, path.read_bytes(), draw)
        path.write_bytes(content)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        found = self.outcome(command)
        kind = judge(name, expected, found, path.is_file() and path.read_bytes() == content)
        if kind == "silent" and any(
            fnmatch.fnmatch(name, file) and fnmatch.fnmatch(change, place)
            for file, all_places in SOURCES.items()
            for place in all_places
        ):
            kind = "known to this file alone"
        words = f"{number}: {name}, {change}: {command.split(' --set')[0]}: {kind} ({found.code})"
        return kind, f"{words}\n{found.err[-1500:]}"


def without_sizes(command, out):
    """Return what a command printed, without the sizes of files."""
    if not command.startswith("status"):
        return out
    if not command.endswith("--json"):
        return "".join(re.sub(r"[\d.,]+ (bytes|[kMG]B)", "", out).split())
    runs = json.loads(out or "[]")
    for values in (*runs, *(system for run in runs for system in run.get("systems", ()))):
        values.pop("bytes", None)
    return json.dumps(runs)


def numbers(before, after):
    """Return the numbers in the files of a run; of a log those of its new lines."""
    found = {}
    for name, content in after.items():
        last = name.rpartition("/")[2]
        if last in {"scores.json", "finding.json"}:
            value = json.loads(content) if content[:1] == b"{" else {}
            found[name] = {key: value.get(key) for key in ("systems", "table")}
        elif last == "metrics.jsonl":
            new = set(content.splitlines()) - set(before.get(name, b"").splitlines())
            lines = [json.loads(line) for line in sorted(new) if line[:1] == b"{"]
            found[name] = [{key: line.get(key) for key in LOGGED} for line in lines]
        elif last == "index.html":
            found[name] = re.sub(OF_THE_CALL, "", content.decode()).splitlines()
        elif last.endswith(WITH_NUMBERS):
            found[name] = content
    return found


def judge(name, expected, found, is_kept):
    """Name what came of a command on a damaged run; is_kept: the damaged file is still there."""
    if found.code in {1, 4} or found.code < 0 or "internal error" in found.err:
        return "internal"
    folder, _, last = name.rpartition("/")
    page = set(found.numbers.get(PAGE, ())) - set(expected.numbers.get(PAGE, ()))
    text = "".join([found.err, found.out, *page])
    is_said = any(word in text for word in (name, f"{folder} cannot", last, f"{folder}:"))
    if found.code:
        named = "error" if "\n  try: " in found.err else "error without advice"
        return named if is_said else "error without the file"
    both = [
        {key: value for key, value in outcome.numbers.items() if key != name or not is_kept}
        for outcome in (expected, found)
    ]
    if found.out == expected.out and both[0] == both[1]:
        return "same"
    return "said" if is_said or '"error"' in found.out else "silent"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tries", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int)
    chosen = parser.parse_args()
    counts, start, first = collections.Counter(), time.time(), chosen.seed * 1_000_000
    tries = range(first, first + chosen.tries) if chosen.only is None else [chosen.only]
    with tempfile.TemporaryDirectory() as folder:
        trials = Trials(folder)
        for number in tries:
            kind, words = trials.attempt(number)
            counts[kind] += 1
            if kind in BROKEN or chosen.only is not None:
                print(words, flush=True)
    minutes = round((time.time() - start) / 60, 1)
    print(json.dumps({"tries": len(tries), "minutes": minutes, **counts}))
    assert not BROKEN & set(counts)


if __name__ == "__main__":
    main()
