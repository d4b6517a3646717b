"""German inflection: nouns, determiners, adjectives, pronouns, verbs. Strings in, strings out.

Cases are n a d g; a gender-number cell is m f n (singular) or p (plural); an agreement index is 0 first person
singular, 1 third person singular, 2 plural (first and third person plural have one form in German).
Paradigms: any grammar of German, for example Duden, Die Grammatik, on noun, adjective and verb inflection.
"""

from __future__ import annotations

import re

CASES = "nadg"
CELLS = "mfnp"

# rows n a d g, columns m f n p
DEFINITE = {
    "n": ("der", "die", "das", "die"),
    "a": ("den", "die", "das", "die"),
    "d": ("dem", "der", "dem", "den"),
    "g": ("des", "der", "des", "der"),
}
RELATIVE = {**DEFINITE, "d": ("dem", "der", "dem", "denen")}
DER_ENDINGS = {"n": ("er", "e", "es", "e"), "a": ("en", "e", "es", "e"), "d": ("em", "er", "em", "en"), "g": ("es", "er", "es", "er")}
EIN_ENDINGS = {"n": ("", "e", "", "e"), "a": ("en", "e", "", "e"), "d": ("em", "er", "em", "en"), "g": ("es", "er", "es", "er")}
WEAK = {"n": ("e", "e", "e", "en"), "a": ("en", "e", "e", "en"), "d": ("en", "en", "en", "en"), "g": ("en", "en", "en", "en")}
MIXED = {"n": ("er", "e", "es", "en"), "a": ("en", "e", "es", "en"), "d": ("en", "en", "en", "en"), "g": ("en", "en", "en", "en")}
STRONG = {"n": ("er", "e", "es", "e"), "a": ("en", "e", "es", "e"), "d": ("em", "er", "em", "en"), "g": ("en", "er", "en", "er")}
ADJECTIVE_ENDINGS = {"weak": WEAK, "mixed": MIXED, "strong": STRONG}

# pronoun -> nominative, accusative, dative
PRONOUNS = {
    "I": ("ich", "mich", "mir"),
    "we": ("wir", "uns", "uns"),
    "he": ("er", "ihn", "ihm"),
    "she": ("sie", "sie", "ihr"),
    "they": ("sie", "sie", "ihnen"),
}
IT = {"m": ("er", "ihn"), "f": ("sie", "sie"), "n": ("es", "es")}
REFLEXIVES = {"I": "mich", "we": "uns"}

CONTRACTIONS = {
    ("in", "dem"): "im",
    ("an", "dem"): "am",
    ("zu", "dem"): "zum",
    ("zu", "der"): "zur",
    ("von", "dem"): "vom",
    ("bei", "dem"): "beim",
    ("in", "das"): "ins",
    ("an", "das"): "ans",
}

SEIN = (("bin", "ist", "sind"), ("war", "war", "waren"))
HABEN = (("habe", "hat", "haben"), ("hatte", "hatte", "hatten"))
WERDEN = (("werde", "wird", "werden"), ("wurde", "wurde", "wurden"))
MODALS = {
    "can": (("kann", "kann", "können"), ("konnte", "konnte", "konnten")),
    "must": (("muss", "muss", "müssen"), ("musste", "musste", "mussten")),
    "want": (("will", "will", "wollen"), ("wollte", "wollte", "wollten")),
}
WISSEN = (("weiß", "weiß", "wissen"), ("wusste", "wusste", "wussten"), "gewusst")
NO_GE = re.compile(r"^(be|er|ver|zer|ent|emp|ge|miss|wider|unter)|ieren$")
E_INSERTION = re.compile(r"([td]|ch[nm]|[^aeiouäöülrhmn][nm])$")


def noun_forms(singular: str, gender: str, plural: str, genitive: str, weak: str) -> dict[str, tuple[str, str]]:
    """All forms of a noun.

    Args:
        gender: m f n. genitive: the singular genitive, "" for the rule's. weak: "n" or "en" for a weak noun, else "".
    Returns: case -> (singular, plural).
    """
    oblique = singular + weak
    if not genitive:
        genitive = singular if gender == "f" else oblique if weak else singular + genitive_ending(singular)
    dative_plural = plural if plural[-1] in "ns" else plural + "n"
    return {"n": (singular, plural), "a": (oblique, plural), "d": (oblique, dative_plural), "g": (genitive, plural)}


def genitive_ending(noun: str) -> str:
    """-es after s sounds and for words of one syllable that end in a consonant, -s elsewhere."""
    if re.search(r"(s|ß|x|z|sch)$", noun):
        return "es"
    syllables = re.findall(r"[aeiouyäöü]+", noun.lower())
    return "es" if len(syllables) == 1 and noun[-1] not in "aeiouäöü" else "s"


def adjective_stem(positive: str) -> str:
    """The form that takes endings: hoch -> hoh, teuer -> teur, dunkel -> dunkl, müde -> müd."""
    if positive == "hoch":
        return "hoh"
    if positive.endswith("el"):
        return positive[:-2] + "l"
    if positive.endswith("euer"):
        return positive[:-2] + "r"
    return positive.removesuffix("e")


class VerbForms:
    """The forms of one German verb (without reflexive pronoun).

    Args:
        infinitive: "prefix|infinitive" for a separable verb.
        parts: third person singular, preterite and participle of a strong verb, () for a weak one; without their separable prefix.
        sein: True if the perfect takes sein.
    """

    __slots__ = ("infinitive", "participle", "prefix", "present", "preterite", "sein", "simple", "zu")

    def __init__(self, infinitive: str, parts: tuple[str, ...], sein: bool) -> None:
        prefix, _, simple = infinitive.rpartition("|")
        self.prefix, self.simple, self.sein = prefix, simple, sein
        self.infinitive = prefix + simple
        self.zu = f"{prefix}zu{simple}" if prefix else f"zu {simple}"
        if simple == "wissen":
            self.present, self.preterite, self.participle = WISSEN
            return
        stem = simple[:-1] if simple.endswith(("eln", "ern")) else simple[:-2]
        linked = stem + "e" if E_INSERTION.search(stem) else stem
        first = stem[:-2] + "le" if simple.endswith("eln") else stem + "e"
        if parts:
            third, past, participle = parts
            self.present = (first, third, simple)
            self.preterite = (past, past, past + ("n" if past.endswith("e") else "en"))
        else:
            participle = ("" if NO_GE.search(simple) else "ge") + linked + "t"
            self.present = (first, linked + "t", simple)
            self.preterite = (linked + "te", linked + "te", linked + "ten")
        if simple == "sein":
            self.present = SEIN[0]
        self.participle = prefix + participle
