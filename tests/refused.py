"""Assert that a call is refused, and return its error."""

import pytest


def refused(error, message, call, /, *arguments, **options):
    """Return the error of this kind that a call raises, with this message (a pattern)."""
    with pytest.raises(error, match=message) as caught:
        call(*arguments, **options)
    return caught.value
