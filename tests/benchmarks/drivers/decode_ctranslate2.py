"""Translate with CTranslate2, holding nmtkit's weights. Usage: decode_ctranslate2.py SETTING.json"""

import json
import sys
import time
from pathlib import Path

import ctranslate2
import numpy as np
from ctranslate2.specs import common_spec, transformer_spec
from rounds import Rounds, peak_bytes
from safetensors.numpy import load_file


def specification(s, weights):
    """nmtkit's Transformer in CTranslate2's terms."""
    relu = common_spec.Activation.RELU
    spec = transformer_spec.TransformerSpec.from_config((s["layers"], s["layers"]), s["heads"], pre_norm=False, activation=relu)

    def linear(target, *names):
        target.weight = np.concatenate([weights[f"{name}.weight"] for name in names])
        target.bias = np.concatenate([weights[f"{name}.bias"] for name in names])

    def norm(target, name):
        target.gamma, target.beta = weights[f"{name}.weight"], weights[f"{name}.bias"]

    for side in ("encoder", "decoder"):
        stack = getattr(spec, side)
        stack.scale_embeddings = True
        embeddings = stack.embeddings[0] if isinstance(stack.embeddings, list) else stack.embeddings
        embeddings.weight = weights["model.shared.weight"]
        stack.position_encodings.encodings = weights[f"model.{side}.embed_positions.weight"]
        for i, layer in enumerate(stack.layer):
            own = f"model.{side}.layers.{i}"
            linear(layer.self_attention.linear[0], *(f"{own}.self_attn.{p}_proj" for p in "qkv"))
            linear(layer.self_attention.linear[1], f"{own}.self_attn.out_proj")
            norm(layer.self_attention.layer_norm, f"{own}.self_attn_layer_norm")
            if side == "decoder":
                linear(layer.attention.linear[0], f"{own}.encoder_attn.q_proj")
                linear(layer.attention.linear[1], *(f"{own}.encoder_attn.{p}_proj" for p in "kv"))
                linear(layer.attention.linear[2], f"{own}.encoder_attn.out_proj")
                norm(layer.attention.layer_norm, f"{own}.encoder_attn_layer_norm")
            linear(layer.ffn.linear_0, f"{own}.fc1")
            linear(layer.ffn.linear_1, f"{own}.fc2")
            norm(layer.ffn.layer_norm, f"{own}.final_layer_norm")
    spec.decoder.projection.weight = weights["model.shared.weight"]
    if "final_logits_bias" in weights:
        spec.decoder.projection.bias = weights["final_logits_bias"][0]
    return spec


def main():
    s = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    vocabulary = Path(s["corpus"], "vocab.txt").read_text("utf-8").split("\n")[:-1]
    ids = {token: i for i, token in enumerate(vocabulary)}
    src = [[*line.split(), "</s>"] for line in Path(s["corpus"], "test.src").read_text("utf-8").split("\n")[:-1]][: s["sentences"]]
    rounds = Rounds()
    spec = specification(s, load_file(s["weights"]))
    spec.register_source_vocabulary(vocabulary)
    spec.register_target_vocabulary(vocabulary)
    spec.config.bos_token, spec.config.eos_token, spec.config.unk_token, spec.config.decoder_start_token = "<s>", "</s>", "<unk>", "<s>"
    spec.config.add_source_eos = False
    spec.validate()
    folder = Path(s["scratch"], "model")
    folder.mkdir()
    spec.save(str(folder))
    translator = ctranslate2.Translator(
        str(folder), device="cpu", compute_type=s["compute"], inter_threads=s["threads"] // s["intra"], intra_threads=s["intra"]
    )
    limits = {"length_penalty": s["length_penalty"], "min_decoding_length": max(1, s["shortest"]), "max_decoding_length": s["longest"]}
    while True:
        _, beam = rounds.wait()
        start, cpu = time.perf_counter(), time.process_time()
        found = translator.translate_batch(src, beam_size=int(beam), max_batch_size=s["rows"], **limits)
        seconds, used = time.perf_counter() - start, time.process_time() - cpu
        rounds.say(seconds=seconds, cpu=used, hypotheses=[[ids[t] for t in r.hypotheses[0]] for r in found], peak=peak_bytes())


if __name__ == "__main__":
    main()
