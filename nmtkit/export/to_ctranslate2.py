"""CTranslate2: a Transformer's weights under CTranslate2's names. Its package is imported to write
a folder and to run one.

Names are paths in CTranslate2's TransformerSpec (revision 7, CTranslate2 4):
encoder/layer_0/self_attention/linear_0/weight. In self-attention, linear_0 stacks queries, keys and
values, as `nmtkit.nn.attention` does. In attention to the source, linear_0 is the queries, and
linear_1 stacks keys and values. The last linear layer is the output projection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from nmtkit.arrays import Array
from nmtkit.export.engine import Engine, Sentences, Translate
from nmtkit.nn.embeddings import sinusoids
from nmtkit.text.vocabulary import SPECIALS

if TYPE_CHECKING:  # this file can be used without the packages that settings need
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from nmtkit.models.base import Model
    from nmtkit.records import ExportedSystem
    from nmtkit.text.vocabulary import Vocabulary

Variables = dict[str, NDArray[np.float32]]
SIDES = ("encoder", "decoder")
EPSILON = torch.nn.LayerNorm(1).eps
"""Added to the variance in every layer norm."""
LAYER = {
    "attention.qkv": "self_attention/linear_0",
    "attention.out": "self_attention/linear_1",
    "attention_residual.norm": "self_attention/layer_norm",
    "cross.query": "attention/linear_0",
    "cross.kv": "attention/linear_1",
    "cross.out": "attention/linear_2",
    "cross_residual.norm": "attention/layer_norm",
    "feed_forward.inner": "ffn/linear_0",
    "feed_forward.outer": "ffn/linear_1",
    "feed_forward_residual.norm": "ffn/layer_norm",
}
"""Path of a module in a layer -> CTranslate2's name."""


def variables(model: Model, positions: int) -> Variables:
    """Return the weights of a model whose `beyond_transformer` is None.

    Args:
        model: with the modules of `nmtkit.models.transformer`.
        positions: length of the table of positions, which CTranslate2 stores as a weight. No
            sentence may be longer.
    Returns: CTranslate2's name -> weight; tied weights under each of their names.
    """
    table = sinusoids(positions, model.width)
    tensors = {f"{side}/position_encodings/encodings": table for side in SIDES}
    for name, module in _modules(model):
        is_norm = isinstance(module, torch.nn.LayerNorm)
        for attribute, theirs in (("weight", "gamma"), ("bias", "beta")):
            tensor = getattr(module, attribute, None)
            if tensor is not None:
                tensors[f"{name}/{theirs if is_norm else attribute}"] = tensor
    return {name: tensor.detach().float().cpu().numpy().copy() for name, tensor in tensors.items()}


def _modules(model: Model) -> Iterator[tuple[str, torch.nn.Module]]:
    """Yield CTranslate2's name of each module that may have weights, and the module."""
    for side, embedder, embeddings in (
        ("encoder", "src_embedder", "embeddings_0"),
        ("decoder", "tgt_embedder", "embeddings"),
    ):
        yield f"{side}/{embeddings}", model.get_submodule(f"{embedder}.table")
        yield f"{side}/layer_norm", model.get_submodule(f"{side}_norm")
        for number, layer in model.get_submodule(side).named_children():
            for path, module in layer.named_modules():
                if path in LAYER:
                    yield f"{side}/layer_{number}/{LAYER[path]}", module
    yield "decoder/projection", model.get_submodule("output")


def specification(weights: Mapping[str, Array], settings: Any) -> Any:
    """Return CTranslate2's TransformerSpec with these weights, without vocabularies.

    Args:
        weights: from `variables`; settings: of the model.
    """
    from ctranslate2.specs import model_spec, transformer_spec

    layers = settings.encoder_layers, settings.decoder_layers
    spec = transformer_spec.TransformerSpec.from_config(
        layers, settings.heads, pre_norm=settings.norm == "pre"
    )
    for name, value in weights.items():
        owner, _, attribute = name.rpartition("/")
        setattr(model_spec.index_spec(spec, owner), attribute, value)
    for stack in (spec.encoder, spec.decoder):
        stack.scale_embeddings = True  # by the root of their width
    config = spec.config
    _, config.bos_token, config.eos_token, config.unk_token = SPECIALS
    config.decoder_start_token = config.bos_token
    config.add_source_bos, config.add_source_eos = False, True
    config.layer_norm_epsilon = EPSILON
    return spec


class CTranslate2(Engine):
    """A fast engine for translation, <https://github.com/OpenNMT/CTranslate2>."""

    title = "CTranslate2"
    package = "ctranslate2"
    extra = "export"
    quantizations = (
        "float32",
        "float16",
        "bfloat16",
        "int16",
        "int8",
        "int8_float32",
        "int8_float16",
        "int8_bfloat16",
    )

    def refusal(self, model: Model) -> str | None:
        reason = super().refusal(model)
        if not reason and not model.settings.model_dump().get("encoder_layers"):
            return "its encoder has no layers"
        return reason

    def save(
        self,
        model: Model,
        vocabularies: tuple[Vocabulary, Vocabulary],
        about: ExportedSystem,
        folder: Path,
    ) -> None:
        weights = variables(model, about.positions)
        spec = specification(weights, model.settings)
        spec.register_source_vocabulary(list(vocabularies[0]))
        spec.register_target_vocabulary(list(vocabularies[1]))
        spec.validate()
        spec.optimize(quantization=about.quantization)
        spec.save(str(folder))

    def load(self, folder: Path) -> tuple[str, Translate]:
        import ctranslate2

        translator = ctranslate2.Translator(
            str(folder), device="cpu", compute_type="default", inter_threads=1, intra_threads=1
        )

        def translate(sources: Sentences, beam: int, limit: int, rows: int) -> Sentences:
            # CTranslate2 reads text that spells a special symbol as the symbol.
            texts = [["<unk>" if word in SPECIALS else word for word in line] for line in sources]
            results = translator.translate_batch(
                texts,
                beam_size=beam,
                max_batch_size=rows,
                length_penalty=0,
                max_decoding_length=limit,
                max_input_length=0,
                min_decoding_length=0,  # as in nmtkit's search, a translation may be empty
            )
            return [list(result.hypotheses[0]) for result in results]

        return f"CTranslate2, {translator.compute_type}", translate
