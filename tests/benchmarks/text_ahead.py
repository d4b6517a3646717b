"""Measure lines a second of a translation in three forms: text workers encode and decode between
the searches of windows; the same with fewer garbage collections; and text workers run during the
searches.

A pause stands in for the search of a GPU. Unlike a search, a pause needs no processor, so the gain
of the third form is an upper bound. The forms take turns in one process.

python tests/benchmarks/text_ahead.py --run RUN [--on SET] [--lines 60000] [--microseconds 158]
    [--readers 4] [--rounds 3]
"""

from __future__ import annotations

import gc
import itertools
import statistics
import time
from pathlib import Path
from types import SimpleNamespace

import arguments

from nmtkit import files
from nmtkit.run import Run
from nmtkit.settings import SearchSettings
from nmtkit.translate.hypotheses import Hypothesis, NBest
from nmtkit.translate.searcher import Piece
from nmtkit.translate.translator import Translator, Window
from nmtkit.translate.windows import windowed

NO_MODEL = SimpleNamespace(reads_spans=False, reads_batch_length=False, context_rule=None)


class Pausing(Translator):
    """Pauses for the time of a search; a translation has the ids of its source.

    seconds: the pause for a sentence.
    """

    seconds: float

    def _search_pieces(self, pieces: list[Piece], *_: object) -> list[NBest]:
        time.sleep(self.seconds * len(pieces))
        last = len(self.tgt_vocab) - 1
        translations = [[min(token, last) for token in piece.ids[:-1]] for piece in pieces]
        return [[Hypothesis(ids, 0.0, 0.0, True)] for ids in translations]


def main() -> None:
    parser = arguments.parser(__doc__, lines=60_000, microseconds=158, readers=4, rounds=3)
    parser.add_argument("--run", required=True)
    parser.add_argument("--on", default="test")
    a = parser.parse_args()
    run = Run(Path(a.run))
    test = run.text_set(a.on)
    text = itertools.cycle(files.text_lines(run.source(test.name)))
    lines = list(itertools.islice(text, a.lines))
    translator = Pausing.for_corpus(run.prep, [NO_MODEL], SearchSettings())
    translator.seconds = a.microseconds / 1e6
    default = gc.get_threshold()
    with translator.reading(a.readers):
        rare = gc.get_threshold()
        forms = {
            "between": (False, default),
            "fewer collections": (False, rare),
            "ahead": (True, rare),
        }
        taken: dict[str, list[float]] = {form: [] for form in forms}
        for _, (form, (ahead, threshold)) in itertools.product(range(a.rounds + 1), forms.items()):
            gc.set_threshold(*threshold)
            start = time.perf_counter()
            for _window in translator.translate_windows(map(Window, windowed(lines)), ahead):
                pass
            taken[form].append(time.perf_counter() - start)
    for form, seconds in taken.items():
        print(f"{form:17} {a.lines / statistics.median(seconds[1:]):,.0f} lines/s")


if __name__ == "__main__":
    main()
