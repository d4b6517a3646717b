"""The weights of a trained nmtkit transformer (post-norm, all embeddings tied, biases) under Marian's names, as one safetensors file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from nmtkit.models import loading
from nmtkit.nn.positions import sinusoids
from nmtkit.run import Run


def _linear(out: dict[str, Tensor], weights: dict[str, Tensor], source: str, *names: str) -> None:
    """One matrix of stacked projections as separate ones."""
    for kind in ("weight", "bias"):
        for name, block in zip(names, weights[f"{source}.{kind}"].chunk(len(names)), strict=True):
            out[f"{name}.{kind}"] = block.clone()


def _norm(out: dict[str, Tensor], weights: dict[str, Tensor], source: str, name: str) -> None:
    for kind in ("weight", "bias"):
        out[f"{name}.{kind}"] = weights[f"{source}.norm.{kind}"].clone()


def export(run: Run, system: str, path: Path, positions: int = 512) -> dict[str, Any]:
    """Write the best checkpoint of a system for the peers.

    Args:
        run: its run.
        system: its name.
        path: the file to write.
        positions: length of the table of positions.
    Returns: the model's settings.
    Raises: ValueError if the peers have no such model.
    """
    model = loading.load_system(run, run.find_system(system), "cpu")
    settings = model.settings.model_dump()
    if settings.get("norm") != "post" or settings.get("tie") != "all" or not settings.get("attn_bias"):
        raise ValueError("the peers can hold a transformer with norm = post, tie = all and attention biases only")
    weights = {name: tensor.float() for name, tensor in model.state_dict().items()}
    out: dict[str, Tensor] = {"model.shared.weight": weights["src_embedder.table.weight"].clone()}
    for side, layers in (("encoder", settings["encoder_layers"]), ("decoder", settings["decoder_layers"])):
        out[f"model.{side}.embed_positions.weight"] = sinusoids(positions, settings["d_model"]).to(torch.float32)
        for i in range(layers):
            here, there = f"{side}.{i}", f"model.{side}.layers.{i}"
            _linear(out, weights, f"{here}.attention.qkv", *(f"{there}.self_attn.{p}_proj" for p in "qkv"))
            _linear(out, weights, f"{here}.attention.out", f"{there}.self_attn.out_proj")
            _norm(out, weights, f"{here}.attention_residual", f"{there}.self_attn_layer_norm")
            if side == "decoder":
                _linear(out, weights, f"{here}.cross.query", f"{there}.encoder_attn.q_proj")
                _linear(out, weights, f"{here}.cross.kv", *(f"{there}.encoder_attn.{p}_proj" for p in "kv"))
                _linear(out, weights, f"{here}.cross.out", f"{there}.encoder_attn.out_proj")
                _norm(out, weights, f"{here}.cross_residual", f"{there}.encoder_attn_layer_norm")
            _linear(out, weights, f"{here}.feed_forward.inner", f"{there}.fc1")
            _linear(out, weights, f"{here}.feed_forward.outer", f"{there}.fc2")
            _norm(out, weights, f"{here}.feed_forward_residual", f"{there}.final_layer_norm")
    if "output.bias" in weights:
        out["final_logits_bias"] = weights["output.bias"][None].clone()
    save_file(out, path)
    return settings
