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
    ('"The bus (our bus)"', '"Der Bus (unser Bus)"'),
    ("[The] dog", "[Der] Hund"),
]
VERBS = [("sees", "sieht"), ("loves", "liebt"), ("hears", "hört"), ("doesn't know", "kennt nicht")]
OBJECTS = [
    ("the house", "das Haus"),
    ("a tree", "einen Baum"),
    ("3,000 (three thousand) apples", "3.000 (dreitausend) Äpfel"),
    ("it", "es"),
    ("The Times", "Die Zeit"),
]
ENDS = [
    (".", "."),
    ("!", "!"),
    (": who? The dog.", ": wer? Der Hund."),
    (' "today".', " „heute“."),
    (" in the park.", " in die Stadt."),
]


def pairs(count, seed=0):
    """Return pairs of short sentences with different case, punctuation, numbers and hyphens."""
    draw = random.Random(seed)
    result = []
    for _ in range(count):
        parts = [draw.choice(kind) for kind in (SUBJECTS, VERBS, OBJECTS, ENDS)]
        result.append(tuple(f"{s} {v} {o}{e}" for s, v, o, e in zip(*parts, strict=True)))
    return result


def write(folder, name, rows, languages=("en", "de")):
    """Write a column of text or bytes for each language as folder/name.en …; return the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = tuple(folder / f"{name}.{language}" for language in languages)
    for side, path in enumerate(paths):
        lines = (row[side] if isinstance(row[side], bytes) else row[side].encode() for row in rows)
        path.write_bytes(b"".join(line + b"\n" for line in lines))
    return paths


def prepare(folder, files, name="run", settings=(), **options):
    """Prepare own files in folder/name, with settings such as "merges=20"; return the run."""
    values = {"preset": "tiny", "jobs": 1, "run_dir": folder / name}
    values["assignments"] = [f"prep.{setting}" for setting in settings]
    return prep("mine", **values | files | options)


def own_files(folder, lines, dev=None):
    """Write train and dev files into folder/in; return them as options of prep."""
    sets = {"train": lines, "dev": dev or pairs(20, 7)}
    return {name: write(folder / "in", name, rows) for name, rows in sets.items()}


def drop_reason(words, giant, settings):
    """Return why a pair is dropped ("" if it is kept), and which sides are to blame.

    Args:
        words: the number of words of each side.
        giant: True for each side with a word that is too long.
    """
    reasons = drop_reasons(np.array(words)[:, None], np.array(giant)[:, None], settings)
    found = ((reason, blame[:, 0].tolist()) for reason, blame in reasons.items() if blame.any())
    return next(found, ("", [False, False]))


def slow_prep(lines, settings, folder, languages=("en", "de")):
    """Prepare training pairs step by step over whole lists, as a person does with the Moses
    scripts and subword-nmt.

    Returns: ids (src, tgt) of the pairs kept, and the vocabularies.
    """
    sides = [TextSide(language, settings) for language in languages]
    tokenized = []
    for pair in lines:
        tokens = [side.tokens(tidy(line)) for side, line in zip(sides, pair, strict=True)]
        giant = [any(len(word) > 1000 for word in side) for side in tokens]
        if not drop_reason([*map(len, tokens)], giant, settings)[0]:
            tokenized.append(tokens)
    text = [[pair[side] for pair in tokenized] for side in (0, 1)]
    for side, name in enumerate(("src", "tgt")):
        if not settings.lowercase and settings.truecase in (name, "both"):
            counts = Counter(word for sentence in text[side] for word in evidence(sentence))
            caser = learn_truecaser(counts, folder / f"truecase.{side}")
            text[side] = [caser.truecase(sentence) for sentence in text[side]]
    if settings.subwords == "bpe":
        words = both_or_each([count_tokens(side) for side in text], settings)
        text = [
            slow_bpe(*side, settings, folder / "codes") for side in zip(text, words, strict=True)
        ]
    counts = both_or_each([count_tokens(side) for side in text], settings)
    vocabularies = [Vocabulary.from_counts(side, settings.min_frequency) for side in counts]
    ids = [
        [vocabulary.encode(sentence) for sentence in side]
        for vocabulary, side in zip(vocabularies, text, strict=True)
    ]
    longest = settings.max_subwords + 1
    return [pair for pair in zip(*ids, strict=True) if max(map(len, pair)) <= longest], vocabularies


def count_tokens(sentences):
    return Counter(token for sentence in sentences for token in sentence)


def both_or_each(counts, settings):
    """Return the counts from which the model of each side is learnt."""
    return [counts[0] + counts[1]] * 2 if settings.joint_vocab else counts


def slow_bpe(sentences, counts, settings, codes):
    """Learn merges, and segment the sentences of a side with them and with prep.vocab_threshold."""
    learn_bpe([*counts], [*counts.values()], settings.merges, codes)
    segmented = [*map(Bpe(codes).segment, sentences)]
    if not settings.vocab_threshold:
        return segmented
    pieces = count_tokens(segmented)
    frequent = {piece for piece in pieces if pieces[piece] >= settings.vocab_threshold}
    return [*map(Bpe(codes, frequent).segment, sentences)]
