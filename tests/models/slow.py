"""Linear algebra on lists of floats, one loop at a time, for the slow implementations in the
variants' test files.
"""

import math


def affine(x, w, b=None):
    """Return W x + b for one vector; w is a list of rows."""
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


def dropped(x, p):
    """Return a vector after the dropout of the fixture `bending_dropout`; p = 0 changes nothing."""
    return [a * (1 + p * a) for a in x]


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


def multi_head(queries, keys, values, heads, allowed, p=0.0):
    """Return for each query the weighted means of the values of its heads, side by side. A query
    reads the positions with allowed(query, key); p is the dropout on its weights.
    """
    width = len(keys[0]) // heads
    out = []
    for t, q in enumerate(queries):
        seen = [s for s in range(len(keys)) if allowed(t, s)]
        row = []
        for h in range(heads):
            part = slice(h * width, (h + 1) * width)
            scores = [sum(times(q[part], keys[s][part])) / math.sqrt(width) for s in seen]
            shares = zip(dropped(softmax(scores), p), seen, strict=True)
            row += plus(*([w * a for a in values[s][part]] for w, s in shares))
        out.append(row)
    return out


def block(matrix, i, of):
    """Return the i-th of `of` matrices (or vectors) of equal height, stored one below the other."""
    rows = len(matrix) // of
    return matrix[i * rows : (i + 1) * rows]


def mixed(gate, old, new):
    """Return (1 - gate) ⊙ old + gate ⊙ new."""
    return [(1 - g) * a + g * b for g, a, b in zip(gate, old, new, strict=True)]


# Recurrent cells. `w`: parameters by name; `cell`: the prefix of their names; `inputs`: pairs of
# the name of a matrix and a vector; `h`: the state, None at the first step.


def from_inputs(w, inputs, blocks):
    """Return for each block of the inputs' matrices the sum of its products."""
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
    """Zhou et al. 2016: a GRU whose gate f is both the reset and the update gate."""
    bias = w[f"{cell}.input.bias"]
    x = [plus(y, block(bias, i, 2)) for i, y in enumerate(from_inputs(w, inputs, 2))]
    h = h or [0.0] * len(x[0])
    gate = sigmoid(plus(x[0], affine(h, w[f"{cell}.forget.weight"])))
    return mixed(gate, h, tanh(plus(x[1], affine(times(gate, h), w[f"{cell}.candidate.weight"]))))


def lstm(w, cell, state, *inputs):
    """Hochreiter & Schmidhuber 1997 with a forget gate: the state is [h | c], gates are i, f, o."""
    bias, u = w[f"{cell}.input.bias"], w[f"{cell}.state.weight"]
    width = len(bias) // 4
    state = state or [0.0] * 2 * width
    h, c = state[:width], state[width:]
    sums = [
        plus(x, affine(h, block(u, i, 4)), block(bias, i, 4))
        for i, x in enumerate(from_inputs(w, inputs, 4))
    ]
    i, f, o = map(sigmoid, sums[:3])
    c = plus(times(f, c), times(i, tanh(sums[3])))
    return times(o, tanh(c)) + c


def caru(w, cell, h, *inputs, first_step="tanh"):
    """Chan, Ke & Im 2020, Eq. 4."""
    bias = w[f"{cell}.input.bias"]
    x, z = (plus(y, block(bias, i, 2)) for i, y in enumerate(from_inputs(w, inputs, 2)))
    if h is None:
        return tanh(x) if first_step == "tanh" else x
    new, gate = caru_parts(w, cell, h, x, z)
    return mixed(gate, h, new)


def caru_parts(w, cell, h, x, z):
    """Return n and the gate l of inputs x = W v + B and z = W_zv v + B_z."""
    u, b = w[f"{cell}.state.weight"], w[f"{cell}.state.bias"]
    of_h = [affine(h, block(u, i, 2), block(b, i, 2)) for i in range(2)]
    return tanh(plus(of_h[0], x)), times(sigmoid(x), sigmoid(plus(z, of_h[1])))


CELLS = {"gru": gru, "mgu": mgu, "lstm": lstm, "caru": caru}
