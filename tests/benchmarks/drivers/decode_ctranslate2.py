"""Translate with CTranslate2, holding nmtkit's weights. Usage: decode_ctranslate2.py
SETTING.json
"""

import sys
from pathlib import Path
from types import SimpleNamespace

import ctranslate2
from rounds import Rounds, read_vocabulary, settings
from safetensors.numpy import load_file

sys.path.append(str(Path(__file__).resolve().parents[3]))
from nmtkit.export.to_ctranslate2 import specification  # noqa: E402


def main():
    s = settings()
    ids = read_vocabulary(Path(s["corpus"], "vocab.txt"))
    src = [
        [*line.split(), "</s>"]
        for line in Path(s["corpus"], "test.src").read_text("utf-8").split("\n")[:-1]
    ][: s["sentences"]]
    rounds = Rounds()
    sizes = SimpleNamespace(
        encoder_layers=s["layers"], decoder_layers=s["layers"], heads=s["heads"], norm="post"
    )
    spec = specification(load_file(s["variables"]), sizes)
    spec.register_source_vocabulary([*ids])
    spec.register_target_vocabulary([*ids])
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
    rounds.serve(
        lambda beam: translator.translate_batch(
            src, beam_size=beam, max_batch_size=s["rows"], **limits
        ),
        lambda found: [[ids[t] for t in r.hypotheses[0]] for r in found],
    )


if __name__ == "__main__":
    main()
