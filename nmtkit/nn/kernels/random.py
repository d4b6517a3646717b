"""Dropout inside a kernel: which elements it keeps depends on a seed and on their place alone."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def dropout_factors(seed, rows, first, width, p, COLUMNS: tl.constexpr):
    """Return 1/(1-p) where an element is kept, else 0, (rows, COLUMNS).

    Args:
        seed: of this matrix.
        rows: of the elements.
        first: column of the elements, a multiple of 4.
        width: columns of the whole matrix.
        p: the probability of dropping an element.
    """
    # One draw makes four numbers.
    fours = first // 4 + tl.arange(0, COLUMNS // 4)
    a, b, c, d = tl.randint4x(seed, rows[:, None] * ((width + 3) // 4) + fours[None, :])
    numbers = tl.join(tl.join(a, c), tl.join(b, d)).reshape(rows.shape[0], COLUMNS)
    return tl.where(tl.uint_to_uniform_float(numbers) >= p, 1 / (1 - p), 0.0)
