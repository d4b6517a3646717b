"""The embedded `demo` data set: a seeded English-German grammar that needs no network.

`generate` writes everything; `dictionary` and `separable_verbs` show the lexicon. How it is made: tables (`words`, `verbs`)
become a lexicon with all forms; `nominals`, `grammar` and `sentences` draw what is said, `pronouns` what "it" stands for;
`speak_en` and `speak_de` say it as trees; `corpus` makes documents of it, `pairs` and `probing` the evaluation sets.
"""

from nmtkit.demo.data_set import generate
from nmtkit.demo.glossary import dictionary, separable_expressions, separable_verbs

__all__ = ["dictionary", "generate", "separable_expressions", "separable_verbs"]
