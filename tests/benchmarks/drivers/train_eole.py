"""Train with eole's own trainer and data loading; only its step is watched. Usage: train_eole.py
SETTING.json
"""

import json
import sys

import torch
from rounds import Rounds, settings, write_words


def configuration(s, folder):
    """eole's configuration file for the setting."""
    corpus = s["corpus"]
    return {
        "data": {
            "corpus_1": {"path_src": f"{corpus}/train.src", "path_tgt": f"{corpus}/train.tgt"}
        },
        "src_vocab": f"{folder}/vocab.txt",
        "tgt_vocab": f"{folder}/vocab.txt",
        "share_vocab": True,
        "src_vocab_size": s["vocabulary"],
        "tgt_vocab_size": s["vocabulary"],
        "vocab_size_multiple": 1,
        "save_data": str(folder),
        "overwrite": True,
        "seed": 1,
        "report_every": 1_000_000,
        "transforms": [],
        "training": {
            "model_path": f"{folder}/model",
            "log_attention_entropy": s["attention_entropy"],
            "world_size": 1,
            "gpu_ranks": [],
            "num_workers": 1,
            "prefetch_factor": 200,
            "compute_dtype": "fp32",
            "train_steps": 10_000_000,
            "valid_steps": 100_000_000,
            "save_checkpoint_steps": 100_000_000,
            "batch_type": "tokens",
            "batch_size": s["batch"],
            "normalization": "tokens",
            "bucket_size": 262144,
            "optim": "adam",
            "adam_beta2": 0.98,
            "adam_eps": 1e-9,
            "learning_rate": 3e-4,
            "decay_method": "none",
            "max_grad_norm": 0,
            "dropout": [s["dropout"]],
            "attention_dropout": [0.0],
            "dropout_steps": [0],
            "label_smoothing": s["smoothing"],
            "param_init_method": "xavier_uniform",
        },
        "model": {
            "architecture": "transformer",
            "hidden_size": s["width"],
            "heads": s["heads"],
            "transformer_ff": s["inner"],
            "layers": s["layers"],
            "add_qkvbias": True,
            "add_ffnbias": True,
            "share_embeddings": True,
            "share_decoder_embeddings": True,
            "embeddings": {
                "position_encoding_type": "SinusoidalInterleaved",
                "word_vec_size": s["width"],
            },
        },
    }


def main():
    s = settings()
    torch.set_num_threads(s["threads"])
    folder = write_words(s, "\t1")
    folder.joinpath("eole.json").write_text(
        json.dumps(configuration(s, folder)), "utf-8"
    )  # JSON is YAML
    rounds = Rounds()
    from eole.bin.main import main as eole_main
    from eole.trainer import Trainer

    original = Trainer._train_step

    def watched(self, batches, *args, **kwargs):
        rounds.before_step()
        result = original(self, batches, *args, **kwargs)
        pad = getattr(self.train_loss, "padding_idx", None)
        src_real = sum(int(b["srclen"].sum()) for b in batches)
        src_all = sum(b["src"].numel() for b in batches)
        tgt_all = sum(b["tgt"][:, 1:].numel() for b in batches)
        tgt_real = sum(int((b["tgt"][:, 1:] != pad).sum()) for b in batches)
        rounds.after_step(src_real, src_all, tgt_real, tgt_all)
        return result

    Trainer._train_step = watched
    sys.argv = ["eole", "train", "--config", str(folder / "eole.json")]
    eole_main()


if __name__ == "__main__":
    main()
