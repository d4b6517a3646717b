"""Prepare a demo run and add systems with random weights, for tests that need no training."""

import torch

from nmtkit.models import checkpoints, loading
from nmtkit.models.variants import build_model, load_variant
from nmtkit.text.vocabulary import BOS, EOS, PAD
from nmtkit.toml import write_toml

SIZES = {"d_model": 16, "d_ff": 24, "heads": 2, "encoder_layers": 1, "decoder_layers": 2}
SEARCH = {
    "beam": 3,
    "length_penalty": 0.6,
    "max_length_a": 0.5,
    "max_length_b": 6,
    "max_source": 20,
}


def add_system(run, name, variant, seed=1, sharp=3.0, eos=0.0, search=(), train=(), **model):
    """Add a small system to a run; return its model.

    Args:
        sharp: factor of the weights. With large weights the most probable token wins by a margin
            and depends on the source.
        eos: added to the output bias of </s>, if there is a bias; <pad> and <s> then get
            probabilities near 0.
    """
    system = run.system(name)
    system.path.mkdir(parents=True)
    values = {**load_variant(variant).adapt({**SIZES, "dropout": 0.1, "tie": "all"}), **model}
    write_toml(
        system.config,
        {
            "variant": variant,
            "model": values,
            "train": {"seed": seed, **dict(train)},
            "search": {**SEARCH, **dict(search)},
        },
    )
    torch.manual_seed(seed)
    built = build_model(variant, values, loading.vocabulary_sizes(run)).eval()
    with torch.no_grad():
        for parameter in built.parameters():
            (
                parameter.mul_(sharp)
                if parameter.dim() > 1
                else parameter.add_(torch.randn_like(parameter) * 0.1)
            )
        if eos:
            built.output.bias[EOS] += eos
            built.output.bias[[PAD, BOS]] = -50.0
    about = {"variant": variant, "vocabulary": loading.vocabulary_hashes(run)}
    checkpoints.save(system.checkpoints, 1, loading.weights_of(built), {}, {}, about)
    return built


def prepare(folder, size=60, **prep):
    """Prepare the demo corpus in a folder; return the run."""
    from nmtkit.prep.stage import prep as prepare_run

    assignments = [f"prep.{key}={value}" for key, value in {"merges": 60, **prep}.items()]
    return prepare_run("demo", size=size, run_dir=folder, jobs=1, assignments=assignments)
