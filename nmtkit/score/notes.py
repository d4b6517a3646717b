"""The notes under the tables of scores: signatures, tests and warnings."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from nmtkit.errors import counted
from nmtkit.score.metrics import header
from nmtkit.score.resampling import few_note
from nmtkit.score.seeds import FEWEST_FREEDOM, smallest_p
from nmtkit.score.significance import FEW_DIFFERENT, LEVEL, chance_of, header_of_test
from nmtkit.score.stored_scores import GroupScore, LengthScore, Scores, SeedResult


def main_notes(result: Scores) -> list[str]:
    """Return the notes of the main table."""
    draws = result.resampling
    notes = _signatures(result)
    notes.append(
        f"[95%]: percentile interval, {draws.resamples} resamples of the test set, seed"
        f" {draws.seed}; other intervals: --format json"
    )
    notes += few_note(result.sentences)
    if result.compared:
        note = f"Δ, p: BLEU against {result.baseline}; {_test(result, result.test)}"
        notes.append(note + _by_chance(result.test, result.p_of_bleu))
        notes += _few_different(result, [result.test])
    else:
        notes.append("one system: nothing to compare with")
    empty = [f"{s.name} {s.empty_hypotheses}" for s in result.systems if s.empty_hypotheses]
    if empty:
        notes.append("empty hypotheses: " + ", ".join(empty))
    if result.empty_references:
        notes.append(f"empty references: {result.empty_references}")
    return [*notes, *result.remarks, _version(result)]


def significance_notes(result: Scores, metrics: Sequence[str]) -> list[str]:
    """Return the notes on the significance tests of some metrics."""
    compared = [system for system in result.systems if system.tests]
    notes = [*few_note(result.sentences), *result.remarks]
    for test in result.tests:
        note = f"{header_of_test(test)}: {_test(result, test)}"
        settings = {system.tests[test]["bleu"].setting for system in compared} - {FEW_DIFFERENT}
        note += f" ({settings.pop()})" if len(settings) == 1 else ""
        if test == result.test:
            p = (system.tests[test][key].p for system in compared for key in metrics)
            note += _by_chance(test, p)
        notes.append(note)
    notes += _few_different(result, result.tests)
    notes.append(
        "compare a p only with a p of the same test; no p accounts for the training "
        "seed (--group-by seed)"
    )
    return notes


def length_notes(result: Scores, key: str, groups: Sequence[LengthScore | GroupScore]) -> list[str]:
    """Return the notes on the scores of a metric in groups of lengths."""
    draws = result.resampling
    notes = [
        f"{header(key)}: {result.signatures[key]}",
        (
            f"[95%]: percentile interval over {draws.resamples} resamples inside the group, "
            f"seed {draws.seed}; small groups have wide intervals"
        ),
        *few_note(*(score.sentences for score in groups)),
        *result.remarks,
    ]
    if result.compared:
        note = f"Δ, p: against {result.baseline} inside the group, {_test(result, result.test)}"
        notes.append(note + _by_chance(result.test, [score.p for score in groups]))
        notes += [FEW_DIFFERENT] * result.test.startswith("sacrebleu_")
    return notes


def seed_notes(result: Scores, seeds: SeedResult) -> list[str]:
    """Return the notes on groups of training seeds."""
    resamples = result.resampling.resamples
    notes = [*_signatures(result), *few_note(result.sentences), *result.remarks, _version(result)]
    notes.append(
        "half-range: (max - min) / 2; deviation: sample standard deviation (n - 1); "
        "the other columns: means over the seeds"
    )
    for group in seeds.groups:
        if len(group.systems) > 1:
            members = zip(group.systems, group.seeds, strict=True)
            listed = ", ".join(f"{name} (seed {seed})" for name, seed in members)
            unequal = f"; they also differ in {', '.join(group.unequal)}" if group.unequal else ""
            notes.append(f"{group.name}: {listed}{unequal}")
    compared = [group.against["bleu"] for group in seeds.groups if group.against]
    tested = sum(against.p is not None for against in compared)
    if compared:
        notes.append(
            f"better, p<{LEVEL:g}: number of pairs with equal seeds whose BLEU is higher "
            f"with p < {LEVEL:g} ({seeds.test}); a test within one seed does not account "
            "for the seed"
        )
        notes.append(
            "[95%], p: over other seeds and other sentences (hierarchical bootstrap); a row or a "
            "baseline with one seed is assumed to vary like all rows with several seeds (no p "
            f"below {FEWEST_FREEDOM} degrees of freedom); p (Holm): corrected for "
            f"{counted(tested, 'comparison')} with a p"
        )
    smallest = smallest_p(resamples) * tested
    if smallest >= LEVEL:
        enough = math.ceil(10 * smallest / LEVEL) * resamples  # for a tenth of LEVEL
        notes.append(
            f"with {resamples:,} resamples no p (Holm) can be below {min(1, smallest):.2g}; use "
            f"--resamples {enough}"
        )
    for group in seeds.groups:
        known = [seed for seed in group.seeds if seed is not None]
        if len(set(known)) < len(known):
            notes.append(f"{group.name}: a seed occurs twice, so its spread is too small")
    if not seeds.several:
        hint = " (--group-by name groups by name alone)" if seeds.grouping == "seed" else ""
        notes.append(
            "no system has several seeds, so every row is one system: a row joins systems that"
            f" differ only in the seed{hint}"
        )
    return notes


def _signatures(result: Scores) -> list[str]:
    return [f"{header(key)}: {signature}" for key, signature in result.signatures.items()]


def _version(result: Scores) -> str:
    return f"nmtkit {result.version}" + (f", commit {result.commit}" if result.commit else "")


def _test(result: Scores, test: str) -> str:
    return f"{result.tests[test].name}: {result.tests[test].reading}"


def _by_chance(test: str, p_values: Iterable[float | None]) -> str:
    """Return the end of a note: how many of several p are small by chance."""
    count = sum(p is not None for p in p_values)
    chance = count * chance_of(test)
    return f"; about {chance:.1f} of {count} such p are below {LEVEL:g} by chance" * (count > 1)


def _few_different(result: Scores, tests: Iterable[str]) -> list[str]:
    """Return the note on comparisons without p, if some systems hardly differ."""
    compared = (system.tests[test] for system in result.systems if system.tests for test in tests)
    settings = {comparison.setting for of_test in compared for comparison in of_test.values()}
    return [FEW_DIFFERENT] * (FEW_DIFFERENT in settings)
