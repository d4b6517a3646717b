"""Parts that several findings share: the option --sentence, and the note on intervals."""

from __future__ import annotations

from nmtkit.analyze.analysis import Options, option
from nmtkit.analyze.study import RESAMPLES, SEED
from nmtkit.errors import ConfigError
from nmtkit.score.resampling import FEW


class SentenceOptions(Options):
    """Options of an analysis that shows one sentence pair."""

    sentence: int = option(1, "N", ge=1)
    """The line number of the sentence pair to show."""

    def row(self, count: int) -> int:
        """Return the index of the sentence pair (from 0) in a set of `count` pairs.

        Raises: ConfigError if the set is too short.
        """
        if self.sentence > count:
            message = f"no line {self.sentence}: there are {count:,}"
            raise ConfigError(message, where="--sentence", hint=f"1 to {count}")
        return self.sentence - 1


def interval_note(resampled: str = "of the sentences") -> str:
    """Return the note that says how the intervals of a table are computed."""
    drawn = f"{RESAMPLES} resamples {resampled}, seed {SEED}"
    return f"[95%]: percentile interval over {drawn}; {FEW}"
