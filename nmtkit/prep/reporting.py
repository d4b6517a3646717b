"""Print the result of prep."""

from __future__ import annotations

import itertools

from nmtkit import console
from nmtkit.errors import counted
from nmtkit.prep.parse_spans import PARSED
from nmtkit.records import Cleaning, Manifest, Repeats, TextSet
from nmtkit.run import Run
from nmtkit.text.scripts import scripts
from nmtkit.text.tokenizer import SIDE_NAMES

MANY_UNKNOWN, MANY_FOREIGN, MANY_IDENTICAL = 0.05, 0.01, 0.5
"""Shares from which prep warns: unknown subwords of a dev or test set, lines in another script, and
pairs whose sides are identical.
"""
FEW_PAIRS = 10
"""Identical sides in a set of fewer pairs are no reason to warn."""


def report(run: Run, manifest: Manifest) -> None:
    """Print what was kept, dropped and changed."""
    _report_cleaning(manifest.cleaning)
    vocabulary, (train, *held_out) = manifest.vocabulary, manifest.sets
    target = " (shared)" if vocabulary.shared else f" + {vocabulary.tgt:,}"
    console.say(
        f"{train.src_tokens:,} + {train.tgt_tokens:,} subwords, vocabulary"
        f" {vocabulary.src:,}{target}"
    )
    not_learnt = "given" in manifest.source
    for text in manifest.sets if not_learnt else held_out:
        _report_set(run, text, not_learnt)
    if manifest.repeats:
        _report_repeats(manifest.repeats)
    _report_lines(manifest)
    _report_documents(manifest.sets)
    gaps = sum(count["pairs"] for count in manifest.cleaning.dropped.values())
    if gaps and train.documents is not None:
        console.warn(
            f"{counted(gaps, 'pair')} dropped from the documents of train: a sentence"
            " after a dropped one has an earlier sentence of its document as context"
        )
    for text in manifest.sets:
        if text.parses is not None:
            reasons = ", ".join(
                f"{text.parses[reason]:,} {reason} (first: line {line:,})"
                for reason, line in (text.parses_first or {}).items()
            )
            console.say(
                f"  parses of {text.name}: {counted(text.parses[PARSED], 'sentence')}; as"
                f" n-grams: {reasons or 'none'}"
            )


def _report_cleaning(cleaning: Cleaning) -> None:
    share = cleaning.pairs_kept / cleaning.pairs_in
    console.say(
        f"training pairs: {cleaning.pairs_in:,} in, {cleaning.pairs_kept:,} kept ({share:.2%})"
    )
    width = max(map(len, itertools.chain(cleaning.dropped, *cleaning.changed.values())), default=0)
    for reason, count in cleaning.dropped.items():
        blame = f"(source {count['src']:,}, target {count['tgt']:,})"
        sides = blame if count["src"] or count["tgt"] else ""
        console.say(f"  dropped: {reason:<{width}} {count['pairs']:>9,}  {sides}".rstrip())
    for side, name in SIDE_NAMES.items():
        for kind, number in cleaning.changed[side].items():
            console.say(f"  changed: {kind:<{width}} {number:>9,}  in the {name}")


def _report_repeats(repeats: Repeats) -> None:
    console.say(
        f"  repeated training pairs: duplicates {repeats.duplicates:,}, source = target"
        f" {repeats.identical:,}"
    )
    for text in repeats.overlap:
        if text.normalised:
            console.say(
                f"  pairs of {text.name} that training has too: {text.exact:,} exactly,"
                f" {text.normalised:,} without case and punctuation"
            )


def _report_lines(manifest: Manifest) -> None:
    """Warn of identical sides, of lines in another script, and of a joint vocabulary for two
    scripts.
    """
    for text in manifest.sets:
        lines = manifest.cleaning.pairs_in if text.split == "train" else text.lines
        for side, count in text.identical.items():
            if lines >= FEW_PAIRS and count >= MANY_IDENTICAL * lines:
                other = "target" if side == "ref" else side
                console.warn(
                    f"source and {other} of {text.name} are the same in {count / lines:.1%}"
                    f" of the pairs ({count:,} of {lines:,}): is one file given for both sides, or"
                    " a file of the wrong language?"
                )
        for side, count in text.foreign.items():
            if count >= MANY_FOREIGN * lines:
                name, lang = ("source", manifest.src) if side == "src" else ("target", manifest.tgt)
                console.warn(
                    f"{count / lines:.1%} of the lines of the {name} of {text.name} ('{lang}') have"
                    f" no {' or '.join(scripts(lang))} letters, but letters of another script"
                    f" ({count:,} of {lines:,})"
                )
    src, tgt = scripts(manifest.src), scripts(manifest.tgt)
    if manifest.settings.joint_vocab and src and tgt and not {*src} & {*tgt}:
        console.warn(
            f"'{manifest.src}' and '{manifest.tgt}' share no script, so they share few subwords:"
            " --set prep.joint_vocab=false learns a vocabulary for each side"
        )


def _report_set(run: Run, text: TextSet, not_learnt: bool) -> None:
    src = text.src_unknown / max(text.src_tokens, 1)
    tgt = text.tgt_unknown / max(text.tgt_tokens, 1)
    references = f" {text.references} references," * (text.references > 1)
    console.say(
        f"  {text.split:<5} {text.name}: {counted(text.lines, 'line')},{references} unknown"
        f" subwords source {src:.2%}, target {tgt:.2%}"
    )
    for share, name in zip((src, tgt), SIDE_NAMES.values(), strict=True):
        if share >= MANY_UNKNOWN:
            console.warn(
                f"{share:.1%} of the subwords of {text.name} are unknown in the {name}: is the"
                f" {'text of the vocabulary' if not_learnt else 'training text'} of the same"
                " language and preprocessing?"
            )
    for side, name in SIDE_NAMES.items():
        for kind, count in (text.changed or {}).get(side, {}).items():
            console.say(f"  changed in {text.name}: {kind} {count:,}  in the {name}")
    _warn_of_blank_lines(run, text)


def _warn_of_blank_lines(run: Run, text: TextSet) -> None:
    if not text.blank:
        return
    counts = ", ".join(f"{count:,} of .{stream}" for stream, count in text.blank.items())
    # Lines that are blank on only some sides do not separate documents.
    on_all_sides = len(text.blank) > text.references and len({*text.blank.values()}) == 1
    separate = f"; if they separate documents, say --docs {text.name}=blank"
    console.warn(
        f"{text.name} has blank lines ({counts}; {counted(text.lines, 'line')} each): they are"
        " kept, a blank source line is translated as a blank line, and all count in the scores:"
        f" {run.prep / 'text' / text.name}.*" + separate * (on_all_sides and text.documents is None)
    )


def _report_documents(sets: list[TextSet]) -> None:
    if all(text.documents is None for text in sets):
        console.say(
            "  documents: no document starts are given, so each sentence is its own document"
        )
        return
    for text in sets:
        if text.documents is not None:
            length = text.lines / max(text.documents, 1)
            console.say(f"  documents of {text.name}: {text.documents:,}, of {length:.1f} lines")
            if text.documents == text.lines > 1:
                console.warn(
                    f"every line of {text.name} is a document of its own, so none has a context: is"
                    f" --docs {text.name} the right file?"
                )
    for text in sets:
        if text.documents is None and text.lines > 1:
            console.warn(
                f"no document starts are given for {text.name}, so each of its sentences is its own"
                f" document, without a context (--docs {text.name}=FILE)"
            )
