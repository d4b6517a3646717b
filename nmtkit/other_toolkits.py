"""What people type in other toolkits, and what nmtkit has instead."""

from __future__ import annotations

import re
from collections.abc import Container

_HABITS = {
    "lr learning_rate": "--set train.lr=…",
    "batch batch_size max_tokens": "--set train.batch_size=… (of a search: search.batch_size)",
    "steps max_steps max_update": "--set train.max_steps=…",
    "epochs max_epoch": "--set train.max_steps=… (updates), or --set train.max_minutes=…",
    "warmup_steps": "--set train.warmup=…",
    "clip": "--set train.clip_norm=…",
    "exponential_smoothing": "--set train.ema=0.9999",
    "fp16": "--set train.precision=float16",
    "bf16": "--set train.precision=bfloat16",
    "bpe_dropout": "--set train.subword_dropout=…",
    "dropout": "--set model.dropout=…",
    "layers": "--set model.encoder_layers=… --set model.decoder_layers=…",
    "heads": "--set model.heads=…",
    "resume continue": "the same nmtkit train command again resumes",
    "gpu cuda use_gpu": "--device cuda",
    "cpu": "--device cpu",
    "output save_dir": "--run DIR",
    "arch model": "--variant NAME (nmtkit train), or --system NAME",
    "source_lang target_lang": "the ends of file names: nmtkit prep --train train.de train.en",
    "tokenizer": "--set prep.src_tokenizer=… --set prep.tgt_tokenizer=…",
    "vocab_size": "--set prep.merges=… (prep.vocab_size with prep.subwords=sentencepiece or none)",
    "beam_size": "--beam N (nmtkit translate), or --set search.beam=…",
}
HABITS = {key: meant for keys, meant in _HABITS.items() for key in keys.split()}
"""Options and settings of other toolkits, without dashes and section, with those of nmtkit."""


def habit_in(section: str, settings: Container[str], name: str) -> str:
    """Return what nmtkit has for a name, unless it names a setting that this section lacks."""
    meant = HABITS.get(name, "")
    return meant if all(key in settings for key in re.findall(rf"{section}\.(\w+)=", meant)) else ""
