"""Linear algebra on lists of floats, one loop at a time: what the slow implementations in the
variants' test files are written with.
"""

import math


def affine(x, w, b=None):
    """W x + b for one vector; w is a list of rows."""
    return [
        sum(wi * xi for wi, xi in zip(row, x, strict=True)) + (b[i] if b else 0.0)
        for i, row in enumerate(w)
    ]


def plus(*vectors):
    return [math.fsum(parts) for parts in zip(*vectors, strict=True)]


def times(x, y):
    return [a * b for a, b in zip(x, y, strict=True)]


def softmax(scores):
    top = max(scores)
    exps = [math.exp(s - top) for s in scores]
    return [e / math.fsum(exps) for e in exps]


def sigmoid(x):
    return [1 / (1 + math.exp(-a)) for a in x]


def tanh(x):
    return [math.tanh(a) for a in x]


def layer_norm(x, gain, bias, epsilon=1e-5):
    mean = math.fsum(x) / len(x)
    variance = math.fsum((a - mean) ** 2 for a in x) / len(x)
    return [
        g * (a - mean) / math.sqrt(variance + epsilon) + b
        for a, g, b in zip(x, gain, bias, strict=True)
    ]


def position(pos, width):
    """Vaswani et al. 2017, section 3.5."""
    return [
        (math.cos if i % 2 else math.sin)(pos / 10000 ** ((i - i % 2) / width))
        for i in range(width)
    ]


def multi_head(queries, keys, values, heads, allowed):
    """Heads of width C side by side: for each query the weighted mean of the values at
    allowed(query, key) positions.
    """
    width = len(keys[0]) // heads
    out = []
    for t, q in enumerate(queries):
        seen = [s for s in range(len(keys)) if allowed(t, s)]
        row = []
        for h in range(heads):
            part = slice(h * width, (h + 1) * width)
            weights = softmax([sum(times(q[part], keys[s][part])) / math.sqrt(width) for s in seen])
            row += plus(
                *([w * a for a in values[s][part]] for w, s in zip(weights, seen, strict=True))
            )
        out.append(row)
    return out
