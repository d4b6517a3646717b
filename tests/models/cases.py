"""The models that the contract is checked on: every variant of the table, some of their
settings, and one outside the package.
"""

from nmtkit.models.variants import VARIANTS
from tests.models.contract import Case

TOY = "tests.toy_recurrent:ToyRecurrent"
MORE = [
    Case("transformer", (("norm", "pre"), ("tie", "target"), ("softmax_bias", True))),
    Case("transformer", (("tie", "all"), ("attn_bias", False))),
    Case("full-dc", (("kernel_size", 3), ("norm", "pre"), ("layers", "2-2"))),
    Case("full-dc", (("kernel_size", 4), ("attn_bias", False), ("even_side", "right"))),
    Case("pr", (("glance", "mean"), ("attentive", False), ("transparent", False))),
    Case("pr", (("attentive", False), ("transparent", False), ("norm", "pre"))),
    Case("pr", (("transparent", False),)),
    Case("pr", (("segmentation", "parse"),)),
    Case(
        "pr",
        (
            ("glance", "mean"),
            ("generator", "sigmoid_residual"),
            ("combiner_residual", "x+o"),
            ("combiner_hidden", 20),
            ("embed_norm", True),
            ("ta_tokens", True),
        ),
    ),
    Case(
        "amn",
        (
            ("context_size", 2),
            ("context_join", "parallel"),
            ("context_encoder", "lstm"),
            ("share_first_attention", False),
            ("norm", "pre"),
        ),
    ),
    Case(
        "amn",
        (
            ("context_size", 2),
            ("context_join", "parallel"),
            ("query_from", "encoder"),
            ("context_encoder", "none"),
            ("attn_bias", False),
        ),
    ),
    Case(
        "amn",
        (
            ("context_size", 2),
            ("context_join", "parallel"),
            ("inter_attention", False),
            ("context_encoder", "bigru"),
        ),
    ),
    Case(
        "amn",
        (
            ("context_size", 2),
            ("inter_attention", False),
            ("context_encoder", "transformer"),
            ("norm", "pre"),
            ("tie", "all"),
        ),
    ),
    Case("amn", (("context_size", 2), ("context_residual", True), ("context_encoder", "bigru"))),
    Case(
        "context-aware",
        (("context_size", 2), ("norm", "pre"), ("tie", "target"), ("attn_bias", False)),
    ),
    Case("han", (("norm", "pre"), ("tie", "target"), ("attn_bias", False))),
    Case("han", (("side", "decoder"), ("norm", "pre"))),
    Case("han", (("side", "joint"), ("tie", "target"), ("context_gradients", False))),
    Case("concat", (("context_size", 2), ("norm", "pre"))),
    Case("rnnsearch", (("tie", "all"), ("d_alignment", 5), ("softmax_bias", False))),
    Case("caru", (("caatt", False), ("caembed", "off"), ("attention_norm", "softmax"))),
    Case(
        "caru",
        (
            ("caembed", "embed"),
            ("history", 3),
            ("caatt_first", "gated"),
            ("first_step", "linear"),
            ("cell", "gru"),
            ("tie", "none"),
        ),
    ),
    Case(
        "caru",
        (
            ("caembed", "replace"),
            ("history", 2),
            ("bidirectional", True),
            ("alignment_width", 5),
            ("cell", "lstm"),
        ),
    ),
    Case(
        "caru",
        (
            ("history", 3),
            ("bidirectional", True),
            ("cell", "lstm"),
            ("alignment", "bounded"),
            ("n_scale", "const"),
            ("n_constant", 3),
        ),
    ),
    Case(
        "caru",
        (
            ("cell", "mgu"),
            ("readout", "maxout"),
            ("tie", "all"),
            ("softmax_bias", False),
            ("caembed", "off"),
        ),
    ),
    Case("gru-inv", (("bidirectional", False), ("alignment_width", 5), ("cell", "mgu"))),
]
CASES = [*map(Case, VARIANTS), *MORE, Case(TOY)]
