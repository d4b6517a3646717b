"""The models that the contract checks: every variant, some of their settings, and two models
outside the package.
"""

from nmtkit import trust
from nmtkit.models.variants import VARIANTS
from tests.models.contract import Case

TOY, LOCAL = "tests.toy_recurrent:ToyRecurrent", "tests.toy_local:LocalTransformer"


def case(variant, **values):
    return Case(variant, tuple(values.items()))


SHARED = {"encoder_layers": 3, "decoder_layers": 3, "distinct_layers": 2}
"""Settings with layers that share parameters: each stack uses distinct layers 1, 1, 2."""
# By default a model has as many heads as a head has numbers: cases with 2 heads tell them apart.
MORE = [
    case("transformer", norm="pre", tie="target", softmax_bias=True),
    case("transformer", tie="all", attn_bias=False, heads=2),
    case("transformer", encoder_layers=4, decoder_layers=5, distinct_layers=2, share="sequence"),
    case("transformer-cycle", encoder_layers=3, decoder_layers=6, share="cycle", norm="pre"),
    case("full-dc", kernel_size=3, norm="pre", layers="2-2", heads=2),
    case("full-dc", kernel_size=4, attn_bias=False, even_side="right"),
    case("full-dc", **SHARED),
    case("csan", window=3, local_layers=2),
    case("csan", window=5, head_window=1, local_layers=2, norm="pre", attn_bias=False, heads=2),
    case("csan", **SHARED, window=3, head_window=5),
    case("full-dc", local="none"),
    case("enc-dc", local="none", norm="pre", attn_bias=False, tie="all"),
    case("pr", glance="mean", attentive=False, transparent=False),
    case("pr", attentive=False, transparent=False, combiner_residual="x+o", norm="pre"),
    case("pr", transparent=False, heads=2),
    case("pr", segmentation="parse", norm="pre"),
    case("pr", **SHARED, ta_tokens=True),
    case(
        "pr",
        glance="mean",
        generator="sigmoid_residual",
        combiner_residual="x+o",
        combiner_hidden=20,
        embed_norm=True,
        ta_tokens=True,
    ),
    case(
        "amn",
        context_size=2,
        context_join="parallel",
        context_encoder="lstm",
        share_first_attention=False,
        norm="pre",
        heads=2,
    ),
    case(
        "amn",
        context_size=2,
        context_join="parallel",
        query_from="encoder",
        context_encoder="none",
        attn_bias=False,
    ),
    case(
        "amn",
        context_size=2,
        context_join="parallel",
        inter_attention=False,
        context_encoder="bigru",
    ),
    case(
        "amn",
        context_size=2,
        inter_attention=False,
        context_encoder="transformer",
        norm="pre",
        tie="all",
    ),
    case("amn", **SHARED, inter_attention=False, context_encoder="transformer"),
    case("amn", context_size=2, context_residual=True, context_encoder="bigru"),
    case("context-aware", context_size=2, norm="pre", tie="target", attn_bias=False, heads=2),
    case("context-aware", **SHARED),
    case("han", **SHARED, side="joint"),
    case("han", norm="pre", tie="target", attn_bias=False, heads=2),
    case("han", side="decoder", norm="pre"),
    case("han", side="joint", tie="target", context_gradients=False),
    case("concat", context_size=2, norm="pre"),
    case("rnnsearch", tie="all", d_alignment=5, softmax_bias=False),
    case("caru", caatt=False, caembed="off", attention_norm="softmax", cell="lstm"),
    case(
        "caru",
        caembed="embed",
        n_scale="length",
        history=3,
        first_step="linear",
        cell="gru",
        tie="none",
        bidirectional=False,
        unit_embeddings=False,
    ),
    case("caru", caembed="replace", history=2, alignment_width=5, cell="lstm", readout="linear"),
    case(
        "caru",
        history=3,
        bidirectional=False,
        readout="linear",
        caatt_first="linear",
        cell="lstm",
        alignment="bounded",
        n_constant=3,
    ),
    case("caru", cell="mgu", tie="all", softmax_bias=False, caembed="off"),
    case("gru-inv", bidirectional=False, alignment_width=5, cell="mgu"),
]
SAME = {"enc-dc", "dec-dc", "gru-inv"}
"""Variants whose code full-dc and gatt run, too."""
DISTINCT = [name for name in VARIANTS if name not in SAME]
CASES = [*map(Case, VARIANTS), *MORE, Case(TOY), Case(LOCAL)]
trust.allow(case.variant for case in CASES if ":" in case.variant)
