"""Size and equations of the recurrent toy, stated as any model outside the package would."""

from tests.models.slow import affine, dropped, plus, sigmoid, tanh, times

BASELINE = None


def count(s, v):
    d = s.d_model
    gru = lambda d_in: 3 * d * (d_in + d) + 2 * 3 * d  # noqa: E731
    return 2 * v * d + gru(d) + gru(2 * d) + d * v + v


def gru_step(w, name, x, h):
    """Cho et al. 2014, in the form of cuDNN: the reset gate acts on W h + b."""
    d = len(h)
    from_x = affine(x, w[f"{name}.weight_ih_l0"], w[f"{name}.bias_ih_l0"])
    from_h = affine(h, w[f"{name}.weight_hh_l0"], w[f"{name}.bias_hh_l0"])
    reset = sigmoid(plus(from_x[:d], from_h[:d]))
    update = sigmoid(plus(from_x[d : 2 * d], from_h[d : 2 * d]))
    new = tanh(plus(from_x[2 * d :], times(reset, from_h[2 * d :])))
    return [(1 - z) * n + z * a for z, n, a in zip(update, new, h, strict=True)]


def slow_logits(w, s, src, tgt_in):
    states, h = [], [0.0] * s.d_model
    for i in src:
        h = gru_step(w, "reader", dropped(w["src_embedding.weight"][i], s.dropout), h)
        states.append(h)
    summary = [sum(column) / len(states) for column in zip(*states, strict=True)]
    h, out = summary, []
    for i in tgt_in:
        word = dropped(w["tgt_embedding.weight"][i], s.dropout)
        h = gru_step(w, "writer", word + summary, h)
        out.append(affine(h, w["output.weight"], w["output.bias"]))
    return out
