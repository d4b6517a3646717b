"""Translate with CTranslate2, holding nmtkit's weights. Usage: decode_ctranslate2.py
SETTING.json
"""

import json
import sys
import time
from pathlib import Path

import ctranslate2
from rounds import Rounds, peak_bytes
from safetensors.numpy import load_file

sys.path.append(str(Path(__file__).resolve().parents[3]))
from nmtkit.export.to_ctranslate2 import specification  # noqa: E402


def main():
    s = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    vocabulary = Path(s["corpus"], "vocab.txt").read_text("utf-8").split("\n")[:-1]
    ids = {token: i for i, token in enumerate(vocabulary)}
    src = [
        [*line.split(), "</s>"]
        for line in Path(s["corpus"], "test.src").read_text("utf-8").split("\n")[:-1]
    ][: s["sentences"]]
    rounds = Rounds()
    spec = specification(load_file(s["variables"]), s["heads"])
    spec.register_source_vocabulary(vocabulary)
    spec.register_target_vocabulary(vocabulary)
    spec.config.add_source_eos = False
    spec.validate()
    folder = Path(s["scratch"], "model")
    folder.mkdir()
    spec.save(str(folder))
    translator = ctranslate2.Translator(
        str(folder),
        device="cpu",
        compute_type=s["compute"],
        inter_threads=s["threads"] // s["intra"],
        intra_threads=s["intra"],
    )
    limits = {
        "length_penalty": s["length_penalty"],
        "min_decoding_length": max(1, s["shortest"]),
        "max_decoding_length": s["longest"],
    }
    while True:
        _, beam = rounds.wait()
        start, cpu = time.perf_counter(), time.process_time()
        found = translator.translate_batch(
            src, beam_size=int(beam), max_batch_size=s["rows"], **limits
        )
        seconds, used = time.perf_counter() - start, time.process_time() - cpu
        rounds.say(
            seconds=seconds,
            cpu=used,
            hypotheses=[[ids[t] for t in r.hypotheses[0]] for r in found],
            peak=peak_bytes(),
        )


if __name__ == "__main__":
    main()
