"""Measure memory and processor time of learning BPE merges by nmtkit and by subword-nmt.

Each learner runs in a new process. Its bytes are the peak of the resident memory without the
interpreter and the libraries; they include the words and their counts.

The words are made up of syllables, stems and endings that recur. Their letters are about as
frequent as in German and English text, and their counts follow Zipf's law (half of the words occur
once). `--words FILE` reads real words instead, one `word count` a line.

python tests/benchmarks/bpe_learning.py --types 500000 2000000 8000000
python tests/benchmarks/bpe_learning.py --types 200000 --peer --merges 4000
"""

from __future__ import annotations

import argparse
import hashlib
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from arguments import parser, write_json

LEARNERS = ["nmtkit", "subword-nmt"]
STEMS = 60_000
CHUNK = 200_000
ONSETS = [*"sdtbgmnhrlfwkpvzjc", "st", "sch", "fr", "tr", "gr", "br", "pr", "pl", "cl", "th", "ch"]
VOWELS = [*"eaiou", "ie", "ei", "au", "ea", "ou", "ä", "ü", "ö", "io", "y", "é"]
CODAS = ["", "n", "r", "t", "s", "l", "ng", "nd", "ch", "m", "st", "ck", "rt", "nt", "ll", "d"]
ENDINGS = ["", "en", "er", "s", "e", "ung", "ing", "ed", "es", "lich", "ly", "tion", "heit", "te"]


def options() -> argparse.Namespace:
    options = parser(__doc__, types=[500_000], merges=32_000, rounds=1, seed=1)
    options.add_argument("--words", type=Path, help="file of `word count` lines, not made-up words")
    options.add_argument("--peer", action="store_true", help="measure subword-nmt's learner too")
    options.add_argument("--json", type=Path, help="write all figures here")
    options.add_argument("--make", type=Path, help=argparse.SUPPRESS)
    options.add_argument("--learn", nargs=2, help=argparse.SUPPRESS)
    return options.parse_args()


def made_up_words(types: int, seed: int) -> tuple[list[str], np.ndarray]:
    """Return distinct words and their counts.

    Shorter words tend to be more frequent. The n-th word occurs `types / n` times, rounded down.
    """
    random = np.random.default_rng(seed)

    def draw(parts: list[str], size: int) -> np.ndarray:
        weights = 1 / np.arange(1, len(parts) + 1)
        return np.array(parts, object)[random.choice(len(parts), size, p=weights / weights.sum())]

    syllables = draw(ONSETS, 2 * STEMS) + draw(VOWELS, 2 * STEMS) + draw(CODAS, 2 * STEMS)
    stems = syllables[:STEMS] + np.where(random.random(STEMS) < 0.4, syllables[STEMS:], "")
    numbers = np.arange(STEMS)
    words: dict[str, None] = {}
    while len(words) < types:
        # a stem's frequency falls slowly with its number: rare stems make rare words
        first, second = numbers[(STEMS * random.random((2, CHUNK)) ** 2).astype(int)]
        compound = np.where(random.random(CHUNK) < 0.55, stems[second], "")
        words |= dict.fromkeys(stems[first] + compound + draw(ENDINGS, CHUNK))
    listed = list(words)[:types]
    lengths = np.fromiter(map(len, listed), float, types)
    order = np.argsort(lengths + random.gumbel(0, 2, types), kind="stable")
    return [listed[n] for n in order.tolist()], types // np.arange(1, types + 1)


def make(args: argparse.Namespace) -> None:
    """Write the bytes of all words, the start of each word, and the counts of the words."""
    if args.words:
        lines = [line.split(" ") for line in args.words.read_text("utf-8").splitlines()]
        words, counts = [line[0] for line in lines], np.array([int(line[1]) for line in lines])
    else:
        words, counts = made_up_words(args.types[0], args.seed)
    lengths = np.fromiter((len(word.encode()) for word in words), np.int64, len(words))
    data = np.frombuffer("".join(words).encode(), np.uint8)
    np.savez(args.make, data=data, offsets=np.cumsum([0, *lengths]), counts=counts)


def learn_here(args: argparse.Namespace) -> None:
    """Learn merges in this process, and print the figures as JSON."""
    import subword_nmt.learn_bpe as peer

    from nmtkit.text.bpe import learn_bpe
    from nmtkit.text.words import Words

    learner, path = args.learn
    start = peak_bytes()
    with np.load(path) as stored, tempfile.TemporaryDirectory() as folder:
        words, counts = Words(stored["data"], stored["offsets"]), stored["counts"]
        codes = Path(folder) / "codes"
        seconds = time.process_time()
        if learner == "nmtkit":
            learn_bpe(words, counts, args.merges, codes)
        else:
            lines = (f"{word} {n}" for word, n in zip(words, counts, strict=True))
            with codes.open("w", encoding="utf-8") as out:
                peer.learn_bpe(lines, out, args.merges, is_dict=True)
        seconds = time.process_time() - seconds
        learnt = codes.read_bytes()
    figures = {"learner": learner, "types": len(words), "merges": learnt.count(b"\n") - 1}
    figures |= {"seconds": seconds, "bytes": peak_bytes() - start}
    print(json.dumps(figures | {"sha256": hashlib.sha256(learnt).hexdigest()}))


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def child(*options: object) -> str:
    """Run this script in a process of its own, and return what it prints."""
    command = [sys.executable, __file__, *map(str, options)]
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode:
        raise SystemExit(run.stderr)
    return run.stdout


def show(result: dict[str, Any]) -> None:
    types, merges = result["types"], result["merges"]
    print(
        f"{result['learner']:11} {types:10,} types {merges:7,} merges"
        f" {result['bytes'] / types:7,.0f} bytes a type {result['seconds']:8.2f} s"
        f" {types / result['seconds']:9,.0f} types/s  codes {result['sha256'][:12]}",
        flush=True,
    )


def main() -> None:
    args = options()
    if args.make or args.learn:
        make(args) if args.make else learn_here(args)
        return
    results = []
    with tempfile.TemporaryDirectory(prefix="nmtkit-benchmark-") as folder:
        for types in [0] if args.words else args.types:
            path = Path(folder) / f"{types}.npz"
            source = ["--words", args.words] if args.words else ["--types", types]
            child("--make", path, "--seed", args.seed, *source)
            limits = ["--merges", args.merges]
            for _ in range(args.rounds):
                for learner in LEARNERS[: 1 + args.peer]:
                    results.append(json.loads(child("--learn", learner, path, *limits)))
                    show(results[-1])
    write_json(args.json, results)


if __name__ == "__main__":
    main()
