"""Hugging Face's `transformers`: a Transformer as one of its models. The package is imported only
to run a folder.

A post-norm Transformer becomes a Marian model, a pre-norm one a Pegasus model; both have the
equations of `nmtkit.models.transformer`. In their position vectors all sines come before all
cosines; in nmtkit's they alternate. So every weight that reads or writes a vector between the
sublayers is permuted.

The tokenizer takes subwords separated by spaces. nmtkit turns text into subwords.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nmtkit import files
from nmtkit.export.engine import FULL, Engine, Sentences, Translate
from nmtkit.models.checkpoints import write_tensors
from nmtkit.nn.embeddings import sinusoids
from nmtkit.text.vocabulary import BOS, EOS, PAD, SPECIALS, Vocabulary

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from nmtkit.models.base import Model
    from nmtkit.records import ExportedSystem

TARGET = "target"
"""The folder of the target's tokenizer; the source's tokenizer is in the exported folder itself."""
NEVER = -1e9
"""Bias of an id that the target vocabulary lacks."""
LAYER = {
    "attention.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attention.out": ("self_attn.out_proj",),
    "attention_residual.norm": ("self_attn_layer_norm",),
    "feed_forward.inner": ("fc1",),
    "feed_forward.outer": ("fc2",),
    "feed_forward_residual.norm": ("final_layer_norm",),
    "cross.query": ("encoder_attn.q_proj",),
    "cross.kv": ("encoder_attn.k_proj", "encoder_attn.v_proj"),
    "cross.out": ("encoder_attn.out_proj",),
    "cross_residual.norm": ("encoder_attn_layer_norm",),
}
"""Path of a module in a layer -> Hugging Face's names of its equal parts."""
READERS = ("qkv", "query", "kv", "inner")
"""Modules that read the vectors between sublayers; all other modules write such vectors."""
IDS = {
    "pad_token_id": PAD,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
    "decoder_start_token_id": BOS,
    "forced_eos_token_id": None,
}


def config(model: Model, positions: int) -> files.JsonObject:
    """Return config.json of a model whose `beyond_transformer` is None.

    Args:
        model: with the modules of `nmtkit.models.transformer`.
        positions: the longest sentence.
    """
    s: Any = model.settings
    sizes = model.vocabularies
    values = {
        "dtype": "float32",
        "is_encoder_decoder": True,
        "activation_function": "relu",
        "scale_embedding": True,
        "d_model": s.d_model,
        "max_position_embeddings": positions,
        "dropout": s.dropout,
        "attention_dropout": s.attention_dropout,
        "activation_dropout": s.activation_dropout,
        "tie_word_embeddings": s.tie == "all",
        **IDS,
    }
    for side in ("encoder", "decoder"):
        values[f"{side}_layers"] = getattr(s, f"{side}_layers")
        values[f"{side}_attention_heads"] = s.heads
        values[f"{side}_ffn_dim"] = s.d_ff
    if s.norm == "pre":
        kind = {
            "architectures": ["PegasusForConditionalGeneration"],
            "model_type": "pegasus",
            "vocab_size": max(sizes.src, sizes.tgt),
        }
    else:
        kind = {
            "architectures": ["MarianMTModel"],
            "model_type": "marian",
            "vocab_size": sizes.src,
            "decoder_vocab_size": sizes.tgt,
            "share_encoder_decoder_embeddings": s.tie == "all",
        }
    return kind | values


def weights(model: Model, positions: int) -> dict[str, Tensor]:
    """Return the weights under Hugging Face's names, in the model's number type.

    Args:
        model, positions: as in `config`.
    """
    order = sines_first(model.width)
    tensors = _tables(model, order)
    for names, module, reads in _modules(model):
        weight: Tensor = module.get_parameter("weight")
        bias = _bias(module, weight)
        if reads:
            weight = weight[:, order]
        else:
            weight, bias = weight[order], bias[order]
        for name, w, b in zip(names, weight.chunk(len(names)), bias.chunk(len(names)), strict=True):
            tensors |= {f"{name}.weight": w, f"{name}.bias": b}
    if _is_pre_norm(model):  # Marian computes its positions, Pegasus loads them
        table = sinusoids(positions, model.width)[:, order].to(model.get_parameter("output.weight"))
        tensors |= {
            f"model.{side}.embed_positions.weight": table for side in ("encoder", "decoder")
        }
    whole = torch.contiguous_format
    return {k: v.detach().cpu().clone(memory_format=whole) for k, v in tensors.items()}


def sines_first(width: int) -> list[int]:
    """Return the elements of our position vectors in Hugging Face's order."""
    return [*range(0, width, 2), *range(1, width, 2)]


def _is_pre_norm(model: Model) -> bool:
    return bool(model.settings.model_dump()["norm"] == "pre")


def _modules(model: Model) -> Iterator[tuple[list[str], nn.Module, bool]]:
    """Yield each module with weights, except the vocabularies' tables.

    Yields: Hugging Face's names of its equal parts, the module, and True if it reads the vectors
        between sublayers.
    """
    for side in ("encoder", "decoder"):
        if _is_pre_norm(model):
            yield [f"model.{side}.layer_norm"], model.get_submodule(f"{side}_norm"), False
        for number, layer in model.get_submodule(side).named_children():
            for path, module in layer.named_modules():
                names = [f"model.{side}.layers.{number}.{part}" for part in LAYER.get(path, ())]
                if names:
                    yield names, module, path.endswith(READERS)


def _tables(model: Model, order: list[int]) -> dict[str, Tensor]:
    """Return the embeddings and the output layer. Pegasus has one vocabulary for both sides."""
    source, target, output = (
        model.get_parameter(f"{name}.weight")[:, order]
        for name in ("src_embedder.table", "tgt_embedder.table", "output")
    )
    bias = _bias(model.get_submodule("output"), output)
    tables = {
        "model.encoder.embed_tokens.weight": source,
        "model.decoder.embed_tokens.weight": target,
        "lm_head.weight": output,
    }
    if model.settings.model_dump()["tie"] == "all":
        tables = {"model.shared.weight": source}
    elif _is_pre_norm(model):
        tables["model.shared.weight"] = source
        rows = max(len(source), len(target))
        tables = {key: F.pad(table, (0, 0, 0, rows - len(table))) for key, table in tables.items()}
        bias = F.pad(bias, (0, rows - len(bias)), value=NEVER)
    return tables | {"final_logits_bias": bias[None]}


def _bias(module: nn.Module, weight: Tensor) -> Tensor:
    """Return the bias of a module; zeros if it has none."""
    bias: Tensor | None = getattr(module, "bias", None)
    return weight.new_zeros(len(weight)) if bias is None else bias


def tokenizer(vocabulary: Vocabulary, positions: int) -> dict[str, files.JsonObject]:
    """Return the files of the tokenizer of subwords separated by spaces."""
    pad, bos, eos, unk = SPECIALS
    space = {"type": "Split", "pattern": {"String": " "}, "behavior": "Removed", "invert": False}
    end = {
        "type": "TemplateProcessing",
        "single": [
            {"Sequence": {"id": "A", "type_id": 0}},
            {"SpecialToken": {"id": eos, "type_id": 0}},
        ],
        "pair": [],
        "special_tokens": {eos: {"id": eos, "ids": [EOS], "tokens": [eos]}},
    }
    return {
        "tokenizer.json": {
            "version": "1.0",
            "added_tokens": [],
            "normalizer": {
                "type": "Replace",
                "pattern": {"Regex": rf"(?<![^ ])({pad}|{bos}|{eos})(?![^ ])"},
                "content": unk,
            },
            "pre_tokenizer": space,
            "post_processor": end,
            "decoder": None,
            "model": {
                "type": "WordLevel",
                "vocab": {token: i for i, token in enumerate(vocabulary)},
                "unk_token": unk,
            },
        },
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "pad_token": pad,
            "bos_token": bos,
            "eos_token": eos,
            "split_special_tokens": True,
            "clean_up_tokenization_spaces": False,
            "model_input_names": ["input_ids", "attention_mask"],
            "model_max_length": positions,
        },
    }


def generation_config(search: Mapping[str, Any]) -> files.JsonObject:
    """Return generation_config.json: nmtkit's search settings as far as `generate` has them."""
    longest = search["max_length_a"] * (search["max_source"] + 1) + search["max_length_b"]
    return IDS | {
        "num_beams": search["beam"],
        "length_penalty": search["length_penalty"],
        "max_new_tokens": max(1, int(longest)),
        "suppress_tokens": [PAD, BOS],
    }


class HuggingFace(Engine):
    """The library `transformers`, <https://huggingface.co/docs/transformers>."""

    title = "Hugging Face"
    package = "transformers"
    extra = "huggingface"
    writes_alone = True
    same_search = False

    def save(
        self,
        model: Model,
        vocabularies: tuple[Vocabulary, Vocabulary],
        about: ExportedSystem,
        folder: Path,
    ) -> None:
        (folder / TARGET).mkdir()
        configs = {
            "config.json": config(model, about.positions),
            "generation_config.json": generation_config(about.search),
        }
        source, target = (tokenizer(vocabulary, about.positions) for vocabulary in vocabularies)
        for place, values in ((folder, configs | source), (folder / TARGET, target)):
            for name, value in values.items():
                text = json.dumps(value, ensure_ascii=False, indent=2)
                files.write_text(place / name, text + "\n")
        path = folder / "model.safetensors"
        try:
            write_tensors(path, weights(model, about.positions))
        except OSError as error:
            raise files.unwritable(path, error, FULL) from error

    def load(self, folder: Path) -> tuple[str, Translate]:
        from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
        from transformers.utils import logging

        logging.disable_progress_bar()
        model = AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
        source = AutoTokenizer.from_pretrained(folder)
        target = AutoTokenizer.from_pretrained(folder / TARGET)

        def translate(sources: Sentences, beam: int, limit: int, rows: int) -> Sentences:
            results: Sentences = []
            options: dict[str, Any] = {"num_beams": beam, "max_new_tokens": limit}
            if beam > 1:
                options |= {"length_penalty": 0.0, "early_stopping": "never"}
            texts = [" ".join(subwords) for subwords in sources]
            for start in range(0, len(texts), rows):
                inputs = source(texts[start : start + rows], padding=True, return_tensors="pt")
                ids = model.generate(**inputs, **options)
                outputs = target.batch_decode(ids, skip_special_tokens=True)
                results += [output.split() for output in outputs]
            return results

        return "transformers, float32", translate
