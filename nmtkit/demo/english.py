"""English inflection: plurals, verb forms, comparatives, a or an. Strings in, strings out."""

from __future__ import annotations

import re

BE = (("am", "is", "are"), ("was", "was", "were"))
HAVE = (("have", "has", "have"), ("had", "had", "had"))
DO = (("do", "does", "do"), ("did", "did", "did"))
MODALS = {"can": ("can", "could"), "must": ("must", "had to"), "want": ("want", "wanted")}
COMPARATIVES = {"clever": "cleverer", "quiet": "quieter", "simple": "simpler"}

# pronoun -> subject form, object form
PRONOUNS = {"I": ("I", "me"), "we": ("we", "us"), "he": ("he", "him"), "she": ("she", "her"), "they": ("they", "them"), "it": ("it", "it")}


def plural(noun: str) -> str:
    """The plural of a regular noun."""
    if re.search(r"(s|x|z|ch|sh|o)$", noun):
        return noun + "es"
    return noun[:-1] + "ies" if re.search(r"[^aeiou]y$", noun) else noun + "s"


def third_person(verb: str) -> str:
    """The third person singular of a verb's present."""
    return plural(verb)


def past(verb: str, doubles: bool) -> str:
    """The past form and participle of a regular verb."""
    if verb.endswith("e"):
        return verb + "d"
    if re.search(r"[^aeiou]y$", verb):
        return verb[:-1] + "ied"
    return verb + (verb[-1] if doubles else "") + "ed"


def progressive(verb: str, doubles: bool) -> str:
    """The -ing form."""
    if verb.endswith("ie"):
        return verb[:-2] + "ying"
    if verb.endswith("e") and not verb.endswith("ee"):
        return verb[:-1] + "ing"
    return verb + (verb[-1] if doubles else "") + "ing"


def comparative(adjective: str) -> str:
    """The comparative: a suffix for short words, "more" elsewhere."""
    if adjective in COMPARATIVES:
        return COMPARATIVES[adjective]
    if adjective.endswith("y"):
        return adjective[:-1] + "ier"
    if len(re.findall(r"[aeiou]+", adjective.removesuffix("e"))) > 1:
        return "more " + adjective
    if re.search(r"[^aeiou][aeiou][bdgt]$", adjective):
        return adjective + adjective[-1] + "er"
    return adjective.removesuffix("e") + "er"


def article(following: str) -> str:
    """ "a" or "an", by the sound that the next word begins with."""
    if re.match(r"(uni|use|one|eu)", following):
        return "a"
    return "an" if re.match(r"([aeiou]|hon|hour)", following) else "a"


class VerbForms:
    """The forms of one English verb, without its particle: base, present and past (by agreement index), participle, -ing."""

    __slots__ = ("base", "ing", "participle", "past", "present")

    def __init__(self, base: str, parts: list[str], doubles: bool) -> None:
        self.base = base
        regular = past(base, doubles)
        form, self.participle = parts if parts else (regular, regular)
        self.past = (form, form, form)
        self.present = (base, third_person(base), base)
        self.ing = progressive(base, doubles)
        if base == "be":
            self.present, self.past = BE
