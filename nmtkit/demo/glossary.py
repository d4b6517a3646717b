"""What the lexicon knows, for others: a word-by-word dictionary and the separable verbs."""

from __future__ import annotations

from collections import Counter, defaultdict
from functools import cache
from typing import Any

from nmtkit.demo.corpus import Writer
from nmtkit.demo.draw import Draw
from nmtkit.demo.lexicon import lexicon
from nmtkit.demo.tree import Leaf


@cache
def dictionary() -> dict[str, str]:
    """Each English word form with its most frequent German form.

    Counted over 3,000 sentence pairs of the grammar, whose words are aligned by the lexicon entry they come from (the k-th with the k-th).
    A baseline for translation: word by word it is wrong about order, agreement and separable verbs.

    Returns: English form (lower case, as inside a sentence; names as written) -> German form; ties go to the form that was seen first.
    """
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    writer = Writer(Draw(1, 99))
    for document in writer.documents(3000):
        for pair in document:
            german = _by_entry(pair.de_leaves)
            for entry, words in _by_entry(pair.en_leaves).items():
                for english, other in zip(words, german.get(entry, []), strict=False):
                    parts = english.form.split(" ")
                    counts[parts[0]][other.form] += 1
                    for part in parts[1:]:
                        counts[part][""] += 1
    return {form: found.most_common(1)[0][0] for form, found in counts.items()}


def _by_entry(words: list[Leaf]) -> dict[Any, list[Leaf]]:
    found: dict[Any, list[Leaf]] = {}
    for leaf in words:
        if leaf.lex is not None:
            found.setdefault(leaf.lex if isinstance(leaf.lex, str) else id(leaf.lex), []).append(leaf)
    return found


def separable_verbs() -> list[tuple[str, str]]:
    """The separable verbs: English phrasal form ("look up") and German infinitive ("nachschlagen"), in the lexicon's order."""
    words = lexicon()
    found = []
    for verb in [*words.verbs, *words.clause_verbs, *words.copulas.values()]:
        if verb.de.prefix:
            preposition = next((c.en for c in verb.complements if c.role == "pp"), "")
            found.append((f"{verb.english_name} {preposition}".strip(), verb.de.infinitive))
    return list(dict.fromkeys(found))


def separable_expressions() -> list[tuple[str, list[str], str]]:
    """The separable verbs in running text, for `nmtkit analyze phrases`.

    An English form goes with all German forms that the grammar may put for it: finite ones apart ("schlägt ... nach", the prefix at the
    end of its clause) and together ("nachschlägt"), infinitive and participle.

    Returns: English phrase ("looked up", "looked ...10 up" round an object), its German phrases, and the verb's name ("look up = nachschlagen").
    """
    words = lexicon()
    found: dict[str, tuple[list[str], str]] = {}
    for verb in [*words.verbs, *words.clause_verbs]:  # the copula "look" is one word, and that of "look for" too
        prefix, en, de = verb.de.prefix, verb.en, verb.de
        if not prefix:
            continue
        preposition = next((c.en for c in verb.complements if c.role == "pp"), "")
        present, past = ([german for form in dict.fromkeys(forms) for german in _finite(form, prefix)] for forms in (de.present, de.preterite))
        bare = [de.infinitive, de.zu]
        forms = [(form, present) for form in en.present] + [(form, [*past, de.participle]) for form in (*en.past, en.participle)]
        forms += [(en.base, [*bare, *present, *past]), (en.ing, [*present, *past])]  # "did not look up": schlug ... nach
        shifts = verb.particle and not verb.fixed and any(c.role == "acc" for c in verb.complements)
        for form, german in forms:
            for gap in [" ", " ...10 "] if shifts else [" "]:
                phrase = f"{form}{gap}{verb.particle}".strip() + (f" {preposition}" if preposition else "")
                accepted, _ = found.setdefault(phrase, ([], f"{verb.english_name} {preposition}".strip() + f" = {de.infinitive}"))
                accepted += [one for one in german if one not in accepted]
    return [(phrase, accepted, name) for phrase, (accepted, name) in found.items()]


def _finite(form: str, prefix: str) -> list[str]:
    """A finite form and its prefix: apart in a main clause, whose end may be seen by the clause that follows, and together in others."""
    return [f"{form} ... {prefix} $", f"{form} ... {prefix} und", prefix + form]
