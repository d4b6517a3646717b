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


def block(matrix, i, of):
    """The i-th of `of` matrices (or vectors) of equal height that are stored on top of each other."""
    rows = len(matrix) // of
    return matrix[i * rows : (i + 1) * rows]


def mixed(gate, old, new):
    """(1 - gate) ⊙ old + gate ⊙ new."""
    return [(1 - g) * a + g * b for g, a, b in zip(gate, old, new, strict=True)]


# Recurrent cells. `w`: parameters by name; `cell`: what their names begin with; `inputs`: each the
# name of its matrix, and a vector; `h`: the state, None where there is no history.


def from_inputs(w, inputs, blocks):
    """Sums of the inputs' products with each of their matrices' blocks."""
    return [
        plus(*(affine(v, block(w[name], i, blocks)) for name, v in inputs)) for i in range(blocks)
    ]


def gru(w, cell, h, *inputs):
    """Cho et al. 2014: r = σ(W_r x + U_r h), u = σ(W_u x + U_u h), h̃ = tanh(W x + U(r⊙h) + b),
    h' = (1-u)⊙h + u⊙h̃.
    """
    x, bias, u = from_inputs(w, inputs, 3), w[f"{cell}.bias"], w[f"{cell}.gates.weight"]
    h = h or [0.0] * len(bias)
    reset, update = (sigmoid(plus(x[i], affine(h, block(u, i, 2)))) for i in range(2))
    new = tanh(plus(x[2], affine(times(reset, h), w[f"{cell}.candidate.weight"]), bias))
    return mixed(update, h, new)


def mgu(w, cell, h, *inputs):
    """Zhou et al. 2016: a GRU whose reset and update gates are one."""
    bias = w[f"{cell}.input.bias"]
    x = [plus(of, block(bias, i, 2)) for i, of in enumerate(from_inputs(w, inputs, 2))]
    h = h or [0.0] * len(x[0])
    gate = sigmoid(plus(x[0], affine(h, w[f"{cell}.forget.weight"])))
    return mixed(gate, h, tanh(plus(x[1], affine(times(gate, h), w[f"{cell}.candidate.weight"]))))


def lstm(w, cell, state, *inputs):
    """The state is [h | c]; gates are in the order i, f, o."""
    bias, u = w[f"{cell}.input.bias"], w[f"{cell}.state.weight"]
    width = len(bias) // 4
    state = state or [0.0] * 2 * width
    h, c = state[:width], state[width:]
    of = [
        plus(x, affine(h, block(u, i, 4)), block(bias, i, 4))
        for i, x in enumerate(from_inputs(w, inputs, 4))
    ]
    i, f, o = (sigmoid(x) for x in of[:3])
    c = plus(times(f, c), times(i, tanh(of[3])))
    return times(o, tanh(c)) + c


def caru(w, cell, h, *inputs, first_step="tanh"):
    """Chan, Ke & Im 2020, Eq. 4."""
    bias = w[f"{cell}.input.bias"]
    x, of_z = (plus(of, block(bias, i, 2)) for i, of in enumerate(from_inputs(w, inputs, 2)))
    if h is None:
        return tanh(x) if first_step == "tanh" else x
    u, b = w[f"{cell}.state.weight"], w[f"{cell}.state.bias"]
    of_h = [affine(h, block(u, i, 2), block(b, i, 2)) for i in range(2)]
    gate = times(sigmoid(x), sigmoid(plus(of_z, of_h[1])))
    return mixed(gate, h, tanh(plus(of_h[0], x)))


CELLS = {"gru": gru, "mgu": mgu, "lstm": lstm, "caru": caru}
