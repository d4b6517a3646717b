"""`--match-parameters`: the feed-forward width with which a system is as large as another."""

from __future__ import annotations

import torch

from nmtkit.errors import ConfigError
from nmtkit.models import loading
from nmtkit.models.base import Vocabularies
from nmtkit.models.variants import build_model, count_parameters, load_variant
from nmtkit.run import Run
from nmtkit.train.options import TrainOptions
from nmtkit.train.plan import Plan

OPTION = "--match-parameters"


def match_parameters(run: Run, plan: Plan, name: str, options: TrainOptions) -> tuple[Plan, str]:
    """Return a plan whose d_ff gives as many parameters as another system has, and what to say.

    Args:
        run: has that system and the vocabularies.
        plan: its d_ff does not matter.
        name: of the system that is to be trained.
        options: `match_parameters` names the other system.
    Raises: ConfigError if the variant has no d_ff, if there is no such system, or if no d_ff gives
        so few parameters.
    """
    other = options.match_parameters or ""
    if "d_ff" not in load_variant(plan.variant).Settings.model_fields:
        message = f"variant {plan.variant} has no model.d_ff to choose"
        raise ConfigError(message, where=OPTION, hint="give its sizes with --set")
    if other == name:
        message = f"'{name}' is the system that is to be trained"
        raise ConfigError(message, where=OPTION, hint="--system gives another name")
    with torch.device("meta"):
        wanted = count_parameters(loading.build_untrained(run, run.find_system(other)))
    sizes = loading.vocabulary_sizes(run)
    least, next_least = (_count(plan, sizes, d_ff) for d_ff in (1, 2))
    # Parameters are linear in d_ff.
    d_ff = 1 + round((wanted - least) / (next_least - least))
    if d_ff < 1:
        raise ConfigError(
            f"'{other}' has {wanted:,} parameters; with model.d_ff=1 this system has {least:,}",
            where=OPTION,
            hint="make this system smaller, for example with fewer layers",
        )
    matched = plan.model_copy(update={"model": {**plan.model, "d_ff": d_ff}})
    count = _count(plan, sizes, d_ff)
    return matched, f"model.d_ff = {d_ff}: {count:,} parameters; '{other}' has {wanted:,}"


def _count(plan: Plan, sizes: Vocabularies, d_ff: int) -> int:
    values = {**plan.model, "d_ff": d_ff}
    with torch.device("meta"):  # shapes alone, no memory
        return count_parameters(build_model(plan.variant, values, sizes))
