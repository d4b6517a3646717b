"""Train JoeyNMT's recurrent encoder-decoder with its own trainer and data loading; only its step
is watched. Usage: train_joey.py SETTING.json
"""

import torch
from rounds import Rounds, settings, write_words

NEVER = 1_000_000_000


def configuration(s, folder):
    """JoeyNMT's configuration for the setting: a bidirectional GRU, a GRU with additive
    attention and a bridge between them.
    """
    corpus = s["corpus"]
    embeddings = {"embedding_dim": s["width"], "scale": False, "dropout": s["dropout"]}
    common = {
        "type": "recurrent",
        "rnn_type": "gru",
        "embeddings": embeddings,
        "hidden_size": s["hidden"],
        "num_layers": 1,
    }
    return {
        "name": "benchmark",
        "joeynmt_version": "2.3.0",
        "model_dir": str(folder / "model"),
        "use_cuda": False,
        "fp16": False,
        "random_seed": 1,
        "data": {
            "train": f"{corpus}/train",
            "dev": f"{corpus}/dev",
            "dataset_type": "plain",
            "src": {
                "lang": "src",
                "level": "word",
                "max_length": -1,
                "voc_file": f"{folder}/vocab.txt",
            },
            "trg": {
                "lang": "tgt",
                "level": "word",
                "max_length": -1,
                "voc_file": f"{folder}/vocab.txt",
            },
        },
        "testing": {"beam_size": 1},
        "training": {
            "optimizer": "adam",
            "adam_betas": [0.9, 0.98],
            "learning_rate": 3e-4,
            "learning_rate_min": 0.0,
            "scheduling": (
                "exponential"
                # it insists on a schedule, and its plateau does not know this torch; once an epoch, by
                # a factor of one
            ),
            "decrease_factor": 1.0,
            "normalization": "tokens",
            "label_smoothing": s["smoothing"],
            "batch_size": s["batch"],
            "batch_type": "token",
            "epochs": NEVER,
            "updates": NEVER,
            "validation_freq": NEVER,
            "logging_freq": NEVER,
            "shuffle": True,
        },
        "model": {
            "initializer": "xavier_uniform",
            "tied_embeddings": True,
            "tied_softmax": s["width"] == s["hidden"],
            "encoder": {**common, "bidirectional": True},
            "decoder": {
                **common,
                "hidden_dropout": s["dropout"],
                "init_hidden": "bridge",
                "input_feeding": True,
                "attention": "bahdanau",
            },
        },
    }


def main():
    s = settings()
    torch.set_num_threads(s["threads"])
    folder = write_words(s)
    folder.joinpath("model").mkdir()
    rounds = Rounds()
    from joeynmt import training

    original = training.TrainManager._train_step

    def watched(self, batch):
        rounds.before_step()
        result = original(self, batch)
        rounds.after_step(
            batch.src_length.sum(), batch.src.numel(), batch.ntokens, batch.trg.numel()
        )
        return result

    training.TrainManager._train_step = watched
    training.train(rank=0, world_size=None, cfg=configuration(s, folder), skip_test=True)


if __name__ == "__main__":
    main()
