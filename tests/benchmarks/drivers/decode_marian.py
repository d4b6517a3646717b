"""Translate with Hugging Face `generate`, holding nmtkit's weights. Usage: decode_marian.py
SETTING.json
"""

from pathlib import Path

import torch
from rounds import Rounds, read_ids, read_vocabulary, settings
from safetensors.torch import load_file
from train_marian import build, padded


def load(s):
    """A MarianMTModel with the exported weights; no weight may be missing."""
    model = build(s)
    weights = load_file(s["weights"])
    own = model.state_dict()
    for name in list(own):
        tied = (
            "model.shared.weight"
            if name.endswith(("embed_tokens.weight", "lm_head.weight"))
            else name
        )
        own[name].copy_(
            weights.get(tied, torch.zeros(())) if name == "final_logits_bias" else weights[tied]
        )
    return model.eval()


def main():
    s = settings()
    torch.set_num_threads(s["threads"])
    ids = read_vocabulary(Path(s["corpus"], "vocab.txt"))
    src = read_ids(Path(s["corpus"], "test.src"), ids)[: s["sentences"]]
    rounds = Rounds()
    with torch.no_grad():
        model = load(s)
    order = sorted(range(len(src)), key=lambda i: -len(src[i]))

    def translate(beam):
        found = [[] for _ in src]
        options = {"num_beams": beam, "do_sample": False, "max_new_tokens": s["longest"]}
        options |= {"min_new_tokens": s["shortest"]} if s["shortest"] else {}
        options |= {"length_penalty": s["length_penalty"]} if beam > 1 else {}
        with torch.inference_mode():
            for first in range(0, len(order), s["rows"]):
                rows = order[first : first + s["rows"]]
                x = padded([src[i] for i in rows])
                out = model.generate(input_ids=x, attention_mask=x.ne(0), **options)
                for i, line in zip(rows, out[:, 1:].tolist(), strict=True):
                    found[i] = [t for t in line[: line.index(2) if 2 in line else None] if t]
        return found

    rounds.serve(translate)


if __name__ == "__main__":
    main()
