"""Translate with nmtkit's Translator: batching, search and worker processes, from subwords to
subwords. Usage: decode_nmtkit.py SETTING.json
"""

import contextlib
import sys
from pathlib import Path

import torch
from rounds import Rounds, settings


class Subwords:
    """Stand-in for a side of the text: lines are subwords already."""

    def __init__(self, splitter):
        self.splitter = splitter

    def encode(self, line):
        return line.split()

    def decode(self, subwords):
        return " ".join(subwords)


def never_ending(model):
    """Make </s> impossible, so that every translation has the greatest length."""
    logits = model.logits

    def without_end(hidden):
        scores = logits(hidden)
        scores[..., 2] = -torch.inf
        return scores

    model.logits = without_end


def main():
    s = settings()
    rounds = Rounds()
    if "checkout" in s:  # of an earlier commit
        sys.path.insert(0, s["checkout"])
    from nmtkit.models import loading
    from nmtkit.nn import hardware
    from nmtkit.run import Run
    from nmtkit.settings import SearchSettings, build
    from nmtkit.text.splitter import Splitter
    from nmtkit.text.vocabulary import load_vocabularies
    from nmtkit.translate import workers
    from nmtkit.translate.translator import Translator

    torch.set_num_threads(s["threads"])
    run = Run(Path(s["run"]))
    vocabularies = load_vocabularies(run.prep)
    precision = hardware.choose("cpu", s["search"].get("precision", "auto")).precision
    model = loading.load_system(run, run.find_system(s["system"]), "cpu", precision=precision)
    if s["shortest"]:
        never_ending(model)
    lines = Path(s["corpus"], "test.src").read_text("utf-8").split("\n")[:-1][: s["sentences"]]
    values = {
        "length_penalty": s["length_penalty"],
        "max_length_a": 0,
        "max_length_b": s["longest"],
        **s["search"],
    }
    side = Subwords(Splitter())

    def translate(beam):
        search = build(SearchSettings, {**values, "beam": beam, "nbest": 1}, "search")
        translator = Translator([model], side, side, *vocabularies, search, "cpu", s["jobs"])
        alone = s["jobs"] > 1 or s["threads"] == 1
        with workers.one_thread(torch.device("cpu")) if alone else contextlib.nullcontext():
            return translator.translate_window(lines)

    rounds.serve(
        translate,
        lambda translations: [vocabularies[1].encode(t.subwords)[:-1] for t in translations],
    )


if __name__ == "__main__":
    main()
