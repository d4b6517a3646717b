"""A Transformer's weights under the names that CTranslate2 has for them: the one place where the
two meet. It imports nothing of CTranslate2 until a specification is made of them.

Names are paths in its TransformerSpec (revision 7, CTranslate2 4):
encoder/layer_0/self_attention/linear_0/weight. Its linear_0 of a self-attention is queries, keys
and values stacked, as in `nmtkit.nn.attention`; of an attention to the source, linear_0 is the
queries, linear_1 keys and values stacked; the last one is the output projection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from nmtkit.nn.embeddings import sinusoids

if TYPE_CHECKING:  # this file can be used without the packages that settings need
    from collections.abc import Mapping

    from nmtkit.models.base import Model

Variables = dict[str, NDArray[np.float32]]
SIDES = ("encoder", "decoder")
EPSILON = torch.nn.LayerNorm(1).eps
"""Added to the variance in every layer norm."""


def variables(model: Model, positions: int) -> Variables:
    """The weights of a model whose `beyond_transformer` is None.

    Args:
        model: with the modules of `nmtkit.models.transformer`.
        positions: length of the table of positions, which is a weight there: no sentence may be
            longer.
    Returns: by CTranslate2's name; tied ones under each of their names.
    """
    whole: Any = model
    tensors: dict[str, torch.Tensor | None] = {}

    def affine(name: str, module: Any) -> None:
        tensors[f"{name}/weight"], tensors[f"{name}/bias"] = module.weight, module.bias

    def norm(name: str, module: Any) -> None:
        if isinstance(module, torch.nn.LayerNorm):  # post-norm stacks end in none
            tensors[f"{name}/gamma"], tensors[f"{name}/beta"] = module.weight, module.bias

    table = sinusoids(positions, model.width)
    for side, embedder, embeddings in (
        ("encoder", whole.src_embedder, "embeddings_0"),
        ("decoder", whole.tgt_embedder, "embeddings"),
    ):
        tensors[f"{side}/{embeddings}/weight"] = embedder.table.weight
        tensors[f"{side}/position_encodings/encodings"] = table
        norm(f"{side}/layer_norm", getattr(whole, f"{side}_norm"))
        for number, layer in enumerate(getattr(whole, side)):
            prefix = f"{side}/layer_{number}"
            affine(f"{prefix}/self_attention/linear_0", layer.attention.qkv)
            affine(f"{prefix}/self_attention/linear_1", layer.attention.out)
            norm(f"{prefix}/self_attention/layer_norm", layer.attention_residual.norm)
            if side == "decoder":
                affine(f"{prefix}/attention/linear_0", layer.cross.query)
                affine(f"{prefix}/attention/linear_1", layer.cross.kv)
                affine(f"{prefix}/attention/linear_2", layer.cross.out)
                norm(f"{prefix}/attention/layer_norm", layer.cross_residual.norm)
            affine(f"{prefix}/ffn/linear_0", layer.feed_forward.inner)
            affine(f"{prefix}/ffn/linear_1", layer.feed_forward.outer)
            norm(f"{prefix}/ffn/layer_norm", layer.feed_forward_residual.norm)
    affine("decoder/projection", whole.output)
    return {
        name: tensor.detach().float().cpu().numpy().copy()
        for name, tensor in tensors.items()
        if tensor is not None
    }


def specification(weights: Mapping[str, NDArray[Any]], heads: int) -> Any:
    """CTranslate2's TransformerSpec with these weights; vocabularies and quantization are up to the
    caller.

    Args:
        weights: from `variables`; the layers, and where their norms stand, are seen from the names.
        heads: of every attention.
    """
    from ctranslate2.specs import model_spec, transformer_spec

    first = "/self_attention/linear_0/weight"
    layers = tuple(
        sum(name.startswith(side) and name.endswith(first) for name in weights) for side in SIDES
    )
    spec = transformer_spec.TransformerSpec.from_config(
        layers, heads, pre_norm="encoder/layer_norm/gamma" in weights
    )
    for name, value in weights.items():
        owner, _, attribute = name.rpartition("/")
        setattr(model_spec.index_spec(spec, owner), attribute, value)
    for stack in (spec.encoder, spec.decoder):
        stack.scale_embeddings = True  # by the root of their width
    config = spec.config
    config.bos_token, config.eos_token, config.unk_token, config.decoder_start_token = (
        "<s>",
        "</s>",
        "<unk>",
        "<s>",
    )
    config.add_source_bos, config.add_source_eos = False, True
    config.layer_norm_epsilon = EPSILON
    return spec
