"""Train Hugging Face's Marian classes in a plain loop over length-bucketed batches. Usage:
train_marian.py SETTING.json
"""

import random
from pathlib import Path

import torch
from rounds import Rounds, read_ids, read_vocabulary, settings
from torch.nn import functional as F
from transformers import MarianConfig, MarianMTModel


def batches(src, tgt, size):
    """Pairs of about equal length, shuffled batches of `size` target positions."""
    order = sorted(range(len(src)), key=lambda i: (len(tgt[i]), len(src[i]), i))
    result, batch = [], []
    for i in order:
        if batch and (len(batch) + 1) * len(tgt[i]) > size:
            result.append(batch)
            batch = []
        batch.append(i)
    random.Random(1).shuffle(result)
    return [*result, batch]


def padded(rows):
    width = max(map(len, rows))
    return torch.tensor([row + [0] * (width - len(row)) for row in rows])


def build(s):
    """Marian: post-norm, ReLU, sinusoidal positions, one matrix for both embeddings and the
    output.
    """
    config = MarianConfig(
        vocab_size=s["vocabulary"],
        d_model=s["width"],
        encoder_layers=s["layers"],
        decoder_layers=s["layers"],
        encoder_attention_heads=s["heads"],
        decoder_attention_heads=s["heads"],
        encoder_ffn_dim=s["inner"],
        decoder_ffn_dim=s["inner"],
        dropout=s["dropout"],
        attention_dropout=0.0,
        activation_dropout=0.0,
        activation_function="relu",
        scale_embedding=True,
        share_encoder_decoder_embeddings=True,
        tie_word_embeddings=True,
        pad_token_id=0,
        decoder_start_token_id=1,
        eos_token_id=2,
        forced_eos_token_id=None,
        max_position_embeddings=512,
    )
    torch.manual_seed(1)
    return MarianMTModel(config).train()


def main():
    s = settings()
    torch.set_num_threads(s["threads"])
    ids = read_vocabulary(Path(s["corpus"], "vocab.txt"))
    src, tgt = (read_ids(Path(s["corpus"], f"train.{side}"), ids) for side in ("src", "tgt"))
    rounds = Rounds()
    model = build(s)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=3e-4, betas=(0.9, 0.98), eps=1e-9, weight_decay=0.0
    )
    while True:
        for batch in batches(src, tgt, s["batch"]):
            rounds.before_step()
            x, y = padded([src[i] for i in batch]), padded([tgt[i] for i in batch])
            y_in = torch.cat((torch.ones(len(batch), 1, dtype=torch.long), y[:, :-1]), 1)
            logits = model(
                input_ids=x, attention_mask=x.ne(0), decoder_input_ids=y_in, use_cache=False
            ).logits
            loss = F.cross_entropy(
                logits.flatten(0, 1), y.flatten(), ignore_index=0, label_smoothing=s["smoothing"]
            )
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            rounds.after_step(x.ne(0).sum(), x.numel(), y.ne(0).sum(), y.numel())


if __name__ == "__main__":
    main()
