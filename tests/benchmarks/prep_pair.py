"""Measure the processor time of each step of prep for a sentence pair, on real text, in one shard
and one process.

python tests/benchmarks/prep_pair.py SRC TGT [--languages de en] [--rounds 3]

The first round fills the caches of words, like the first shard of a worker. Later rounds are like
its later shards.
"""

from __future__ import annotations

import argparse
import gzip
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from arguments import parser

from nmtkit.prep import tasks
from nmtkit.prep.check import inspect
from nmtkit.prep.clean import clean_shard
from nmtkit.prep.encode import encode_shard
from nmtkit.prep.lookup import learn_models
from nmtkit.prep.repeats import survey_shard
from nmtkit.prep.shards import cut, unpack
from nmtkit.prep.word_table import merge_words
from nmtkit.records import TextRecipe
from nmtkit.settings import PrepSettings
from nmtkit.text.side import RULES


def options() -> argparse.Namespace:
    options = parser(__doc__, rounds=3)
    options.add_argument("files", nargs=2, type=Path, metavar="FILE", help="plain text")
    options.add_argument("--languages", nargs=2, default=["de", "en"])
    return options.parse_args()


def main() -> None:
    args = options()
    settings, languages = PrepSettings(), (args.languages[0], args.languages[1])
    start = time.process_time()
    texts = [inspect(path, strict=True) for path in args.files]
    pairs = texts[0].lines
    checked = (time.process_time() - start) / pairs
    (shard,) = cut([[text] for text in texts], pairs)
    with tempfile.TemporaryDirectory(prefix="nmtkit-benchmark-") as name:
        work = Path(name)
        (work / tasks.WORK_RECORD).write_text("{}", "utf-8")
        src, tgt = languages
        recipe = TextRecipe(src=src, tgt=tgt, settings=settings, tools=RULES)
        (work / "out").mkdir()
        (work / "given").mkdir()
        recipe.write(work / "out" / "manifest.json")
        steps: list[tuple[str, Callable[..., Any], tuple[Any, ...]]] = [
            ("survey", survey_shard, (shard, ("src", "ref"), languages)),
            ("clean", clean_shard, (shard, languages, settings)),
            ("merge", merge_words, ("merge", 1, 1)),
            ("learn", learn_models, ("merge", 1, languages, settings, 1)),
            ("encode", encode_shard, (shard, 1 << 14, settings.max_subwords)),
        ]
        print(
            f"{pairs:,} pairs; processor microseconds a pair; read and check: {checked * 1e6:.2f}"
        )
        packed = work / "packed.gz"
        packed.write_bytes(gzip.compress(args.files[0].read_bytes()))
        start = time.process_time()
        unpack(work, 0, packed)
        lines_a_second = pairs / (time.process_time() - start)
        print(f"unpack .gz: {lines_a_second:,.0f} lines a second and file")
        for path in (packed, work / "plain" / "00000.txt"):
            path.unlink()
        totals, learning = [0.0] * args.rounds, 0.0
        for step, function, arguments in steps:
            spent = []
            for _ in range(1 if step == "learn" else args.rounds):
                start = time.process_time()
                tasks.perform(work, tasks.Task(step, 0, pairs, function, arguments))
                spent.append((time.process_time() - start) / pairs * 1e6)
            print(f"{step}: {', '.join(f'{value:.1f}' for value in spent)}", flush=True)
            if step == "learn":
                learning = spent[0]
            else:
                totals = [total + value for total, value in zip(totals, spent, strict=True)]
        print(f"all but learn: {', '.join(f'{total:.1f}' for total in totals)}")
        words = tasks.read_fact(work, "learn", 0).value["counts"]
        types = words["src_types"] + words["tgt_types"]
        learnt = learning * pairs / types
        kept = sum(path.stat().st_size for path in work.rglob("*") if path.is_file())
        print(f"learn: {learnt:.1f} a word type ({types:,}); work folder: {kept / pairs:.0f} bytes")


if __name__ == "__main__":
    main()
