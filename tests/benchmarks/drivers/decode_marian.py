"""Translate with Hugging Face `generate`, holding nmtkit's weights. Usage: decode_marian.py
SETTING.json
"""

import json
import sys
import time
from pathlib import Path

import torch
from rounds import Rounds, peak_bytes, read_ids, read_vocabulary
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
    s = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    torch.set_num_threads(s["threads"])
    ids = read_vocabulary(Path(s["corpus"], "vocab.txt"))
    src = read_ids(Path(s["corpus"], "test.src"), ids)[: s["sentences"]]
    rounds = Rounds()
    with torch.no_grad():
        model = load(s)
    order = sorted(range(len(src)), key=lambda i: -len(src[i]))
    while True:
        _, beam = rounds.wait()
        found = [[] for _ in src]
        options = {"num_beams": int(beam), "do_sample": False, "max_new_tokens": s["longest"]}
        options |= {"min_new_tokens": s["shortest"]} if s["shortest"] else {}
        options |= {"length_penalty": s["length_penalty"]} if int(beam) > 1 else {}
        start, cpu = time.perf_counter(), time.process_time()
        with torch.inference_mode():
            for first in range(0, len(order), s["rows"]):
                rows = order[first : first + s["rows"]]
                x = padded([src[i] for i in rows])
                out = model.generate(input_ids=x, attention_mask=x.ne(0), **options)
                for i, line in zip(rows, out[:, 1:].tolist(), strict=True):
                    found[i] = [t for t in line[: line.index(2) if 2 in line else None] if t]
        rounds.say(
            seconds=time.perf_counter() - start,
            cpu=time.process_time() - cpu,
            hypotheses=found,
            peak=peak_bytes(),
        )


if __name__ == "__main__":
    main()
