"""The languages of Moses' rules, by any code: en for en-US, eng and eng_Latn."""

from __future__ import annotations

import functools
import re

_CODES = (
    "asm:as bel:be ben:bn cat:ca ces:cs cze:cs deu:de ger:de ell:el gre:el eng:en spa:es est:et"
    " fin:fi fra:fr fre:fr gle:ga guj:gu hin:hi hun:hu isl:is ice:is ita:it kan:kn kor:ko lit:lt"
    " lav:lv mal:ml mar:mr nld:nl dut:nl ori:or ory:or pan:pa pol:pl por:pt ron:ro rum:ro rus:ru"
    " slk:sk slo:sk slv:sl som:so swe:sv tam:ta tel:te tet:tdt tur:tr ukr:uk zho:zh chi:zh cmn:zh"
)
_TWO_LETTERS: dict[str, str] = dict(re.findall(r"(\w+):(\w+)", _CODES))
"""The codes of Moses' rules by the codes of ISO 639-2 and 639-3."""


@functools.cache
def languages() -> frozenset[str]:
    """Return the codes of the languages with abbreviations; others get those of English."""
    from sacremoses.corpus import NonbreakingPrefixes

    return frozenset(NonbreakingPrefixes().available_langs.values())


def language_code(code: str) -> str:
    """Return the code of Moses' rules for a language: en for en-US, eng and eng_Latn."""
    code = re.split("[-_]", code.lower())[0]
    return _TWO_LETTERS.get(code, code)
