"""Small corpora for the tests of prep, and the slow obvious way to prepare one."""

import random
from collections import Counter

import numpy as np

from nmtkit.prep.clean import drop_reasons
from nmtkit.prep.stage import prep
from nmtkit.text.bpe import Bpe, learn_bpe
from nmtkit.text.side import TextSide
from nmtkit.text.tidy import tidy
from nmtkit.text.truecase import learn_truecaser
from nmtkit.text.vocabulary import Vocabulary
from tests.text.evidence import evidence

SUBJECTS = [
    ("The dog", "Der Hund"),
    ("A cat", "Eine Katze"),
    ("Mr. Miller", "Herr Müller"),
    ("Berlin", "Berlin"),
    ("The e-mail", "Die E-Mail"),
]
SUBJECTS += [('"The bus (our bus)"', '"Der Bus (unser Bus)"'), ("[The] dog", "[Der] Hund")]
VERBS = [("sees", "sieht"), ("loves", "liebt"), ("hears", "hört"), ("doesn't know", "kennt nicht")]
OBJECTS = [
    ("the house", "das Haus"),
    ("a tree", "einen Baum"),
    ("3,000 (three thousand) apples", "3.000 (dreitausend) Äpfel"),
]
OBJECTS += [("it", "es"), ("The Times", "Die Zeit")]
ENDS = [
    (".", "."),
    ("!", "!"),
    (": who? The dog.", ": wer? Der Hund."),
    (' "today".', " „heute“."),
    (" in the park.", " in die Stadt."),
]


def pairs(count, seed=0):
    """Pairs of short sentences with case, punctuation, numbers and hyphens in them."""
    draw = random.Random(seed)
    result = []
    for _ in range(count):
        parts = [draw.choice(kind) for kind in (SUBJECTS, VERBS, OBJECTS, ENDS)]
        result.append(tuple(f"{s} {v} {o}{e}" for s, v, o, e in zip(*parts, strict=True)))
    return result


def write(folder, name, lines, languages=("en", "de")):
    """Write pairs as folder/name.en and folder/name.de; returns both paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = tuple(folder / f"{name}.{language}" for language in languages)
    for side, path in enumerate(paths):
        path.write_bytes(
            b"".join(
                (line[side] if isinstance(line[side], bytes) else line[side].encode()) + b"\n"
                for line in lines
            )
        )
    return paths


def prepare(folder, files, name="run", settings=(), **options):
    """Prepare own files in folder/name, with settings such as "merges=20"; returns the run."""
    values = {"preset": "tiny", "jobs": 1, "run_dir": folder / name}
    values["assignments"] = [f"prep.{setting}" for setting in settings]
    return prep("mine", **values | files | options)


def own_files(folder, lines, dev=None):
    """Write train and dev files into folder/in; returns them by the options of prep."""
    sets = {"train": lines, "dev": dev or pairs(20, 7)}
    return {name: write(folder / "in", name, rows) for name, rows in sets.items()}


def drop_reason(words, giant, settings):
    """Why one pair is dropped ("": it is kept), and for each side True if it is to blame."""
    reasons = drop_reasons(np.array(words)[:, None], np.array(giant)[:, None], settings)
    found = ((reason, blame[:, 0].tolist()) for reason, blame in reasons.items() if blame.any())
    return next(found, ("", [False, False]))


def slow_reason(pair, settings):
    """Why a tokenized pair is dropped."""
    giant = [any(len(word) > 1000 for word in side) for side in pair]
    return drop_reason([len(side) for side in pair], giant, settings)[0]


def slow_prep(lines, settings, folder, languages=("en", "de")):
    """Prepare training pairs step by step over whole lists, as a person would with the Moses
    scripts and subword-nmt.

    Returns: ids (src, tgt) of the pairs kept, and the vocabularies.
    """
    sides = [TextSide(language, settings) for language in languages]
    tokenized = [
        tuple(side.tokens(tidy(line)) for side, line in zip(sides, pair, strict=True))
        for pair in lines
    ]
    tokenized = [pair for pair in tokenized if not slow_reason(pair, settings)]
    text = [[pair[side] for pair in tokenized] for side in (0, 1)]
    for side, name in enumerate(("src", "tgt")):
        if settings.lowercase or settings.truecase not in (name, "both"):
            continue
        counts = Counter(word for sentence in text[side] for word in evidence(sentence))
        caser = learn_truecaser(counts, folder / f"truecase.{side}")
        text[side] = [caser.truecase(sentence) for sentence in text[side]]
    if settings.subwords == "bpe":
        words = [Counter(word for sentence in one for word in sentence) for one in text]
        for side in (0, 1):
            counts = words[0] + words[1] if settings.joint_vocab else words[side]
            codes = folder / f"codes.{side}"
            learn_bpe([*counts], [*counts.values()], settings.merges, codes)
            segment = Bpe(codes).segment
            if settings.vocab_threshold:
                counts = Counter(piece for sentence in text[side] for piece in segment(sentence))
                allowed = {
                    piece for piece, count in counts.items() if count >= settings.vocab_threshold
                }
                segment = Bpe(codes, allowed).segment
            text[side] = [segment(sentence) for sentence in text[side]]
    counts = [Counter(token for sentence in one for token in sentence) for one in text]
    if settings.joint_vocab:
        counts = [counts[0] + counts[1]] * 2
    vocabularies = [Vocabulary.from_counts(one, settings.min_frequency) for one in counts]
    ids = [
        [vocabulary.encode(sentence) for sentence in one]
        for vocabulary, one in zip(vocabularies, text, strict=True)
    ]
    longest = settings.max_subwords + 1
    return [pair for pair in zip(*ids, strict=True) if max(map(len, pair)) <= longest], vocabularies
