"""Export the weights of a transformer of nmtkit (post-norm, all embeddings tied, biases) under the
names of CTranslate2 and of Marian.
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
"""Suffix of the file with CTranslate2's names."""
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
"""CTranslate2's name of a part of a layer -> Marian's names of the projections stacked in it."""
KINDS = {"gamma": "weight", "beta": "bias"}


def marian(variables: to_ctranslate2.Variables) -> to_ctranslate2.Variables:
    """Rename variables from CTranslate2's names to Marian's."""
    renamed = {"model.shared.weight": variables["decoder/embeddings/weight"]}
    for name, value in variables.items():
        if in_layer := re.fullmatch(r"(encoder|decoder)/layer_(\d+)/(\w+/\w+)/(\w+)", name):
            side, number, block, kind = in_layer.groups()
            parts = BLOCKS[block]
            for part, projection in zip(parts, np.split(value, len(parts)), strict=True):
                renamed[f"model.{side}.layers.{number}.{part}.{KINDS.get(kind, kind)}"] = (
                    np.ascontiguousarray(projection)
                )
        elif name.endswith("/position_encodings/encodings"):
            renamed[f"model.{name.partition('/')[0]}.embed_positions.weight"] = value
    if "decoder/projection/bias" in variables:
        renamed["final_logits_bias"] = variables["decoder/projection/bias"][None]
    return renamed


def export(run: Run, system: str, path: Path, positions: int = 512) -> dict[str, Any]:
    """Write the best checkpoint of a system for the peers.

    Args:
        run: run of the system.
        system: name of the system.
        path: file to write with Marian's names; CTRANSLATE2 is added for the other file.
        positions: number of positions in the table of positions.
    Returns: the model's settings.
    Raises: ValueError if the other toolkits have no such model.
    """
    model = loading.load_system(run, run.find_system(system), "cpu")
    settings = model.settings.model_dump()
    if (
        model.beyond_transformer
        or settings["norm"] != "post"
        or settings["tie"] != "all"
        or not settings["attn_bias"]
    ):
        raise ValueError("the other toolkits need norm = post, tie = all and attention biases")
    variables = to_ctranslate2.variables(model, positions)
    save_file(variables, f"{path}{CTRANSLATE2}")
    save_file(marian(variables), path)
    return settings
