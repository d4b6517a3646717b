"""The weights of a trained nmtkit transformer (post-norm, all embeddings tied, biases), under
CTranslate2's and under Marian's names.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from nmtkit.export import to_ctranslate2
from nmtkit.models import loading
from nmtkit.run import Run

CTRANSLATE2 = ".ctranslate2"
"""Ends the name of the second file."""
BLOCKS = {
    "self_attention/linear_0": [f"self_attn.{p}_proj" for p in "qkv"],
    "self_attention/linear_1": ["self_attn.out_proj"],
    "self_attention/layer_norm": ["self_attn_layer_norm"],
    "attention/linear_0": ["encoder_attn.q_proj"],
    "attention/linear_1": [f"encoder_attn.{p}_proj" for p in "kv"],
    "attention/linear_2": ["encoder_attn.out_proj"],
    "attention/layer_norm": ["encoder_attn_layer_norm"],
    "ffn/linear_0": ["fc1"],
    "ffn/linear_1": ["fc2"],
    "ffn/layer_norm": ["final_layer_norm"],
}
"""Parts of a layer by CTranslate2's name: by Marian's, of stacked projections each."""
KINDS = {"gamma": "weight", "beta": "bias"}


def marian(variables: to_ctranslate2.Variables) -> to_ctranslate2.Variables:
    """Marian's names for variables that have CTranslate2's."""
    found = {"model.shared.weight": variables["decoder/embeddings/weight"]}
    for name, value in variables.items():
        if in_layer := re.fullmatch(r"(encoder|decoder)/layer_(\d+)/(\w+/\w+)/(\w+)", name):
            side, number, block, kind = in_layer.groups()
            parts = BLOCKS[block]
            for part, own in zip(parts, np.split(value, len(parts)), strict=True):
                found[f"model.{side}.layers.{number}.{part}.{KINDS.get(kind, kind)}"] = (
                    np.ascontiguousarray(own)
                )
        elif name.endswith("/position_encodings/encodings"):
            found[f"model.{name.partition('/')[0]}.embed_positions.weight"] = value
    if "decoder/projection/bias" in variables:
        found["final_logits_bias"] = variables["decoder/projection/bias"][None]
    return found


def export(run: Run, system: str, path: Path, positions: int = 512) -> dict[str, Any]:
    """Write the best checkpoint of a system for the peers.

    Args:
        run: its run.
        system: its name.
        path: the file to write, with Marian's names; the other one is beside it.
        positions: length of the table of positions.
    Returns: the model's settings.
    Raises: ValueError if the peers have no such model.
    """
    model = loading.load_system(run, run.find_system(system), "cpu")
    settings = model.settings.model_dump()
    if (
        model.beyond_transformer
        or settings["norm"] != "post"
        or settings["tie"] != "all"
        or not settings["attn_bias"]
    ):
        raise ValueError(
            "the peers can hold a transformer with norm = post, tie = all and attention biases only"
        )
    variables = to_ctranslate2.variables(model, positions)
    save_file(variables, f"{path}{CTRANSLATE2}")
    save_file(marian(variables), path)
    return settings
