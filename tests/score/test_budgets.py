"""Warnings about systems that were not trained alike: updates, data, settings, initial weights."""

import json

import pytest

from nmtkit.score.budgets import NOT_COMPARED, read_budget, unequal
from nmtkit.score.stored_scores import Budget, SeedGroup

from .conftest import write


def train(fake, name, updates, tokens, preset="small", corpus="first"):
    """Add a system, named by variant and seed, whose training logged every 10 updates."""
    variant, seed = name.split("-")
    folder = fake.add(name, 0.3, seed=int(seed), variant=variant, preset=preset, corpus=corpus)
    line = {"kind": "train", "updates": 10, "tgt_tokens": tokens}
    steps = range(10, updates + 1, 10)
    write(folder / "metrics.jsonl", [json.dumps({"step": step, **line}) for step in steps])


def remarks(fake):
    fake.score(by_length=True, metrics="bleu")
    return fake.result()["remarks"]


def test_two_percent_more_tokens_are_no_difference(fake):
    train(fake, "a-1", 20, 5000)
    train(fake, "b-1", 20, 5100)
    assert remarks(fake) == []


def test_unequal_budgets_are_stored_and_noted_under_every_table(fake_run):
    fake = fake_run(count=60)
    train(fake, "a-1", 20, 5000)
    for name in ("b-1", "b-2"):
        train(fake, name, 40, 5100, "base", "another")
    fake.add("elsewhere", 0.3, trained=False)
    note = (
        "The systems were not trained alike: updates (a-1 20, b-1 40, b-2 40); seeds (a-1 1, b 2);"
        " target tokens seen (a-1 10,000, b-1 20,400, b-2 20,400); presets (a-1 small, b-1 base,"
        " b-2 base); preparations of the corpus (a-1 first, b-1 another, b-2 another)."
    )
    assert remarks(fake) == [note]
    for stem in ("table", "significance", "seeds", "lengths"):
        assert note in fake.read(f"{stem}.md"), stem
    budget = fake.result()["made_from"]["budgets"]["b-2"]
    settings = budget.pop("settings")
    assert settings["train.label_smoothing"] == 0.1 and not settings.keys() & NOT_COMPARED
    trained = {"updates": 40, "tokens": 20400, "preset": "base", "corpus": "another"}
    assert budget == {**trained, "init_from": ""}


def test_interrupted_training_counts_updates_of_its_checkpoint_but_no_tokens(fake):
    train(fake, "a-1", 20, 5000)
    for name in ("b-1", "b-2"):  # twice the updates, half the tokens in each
        train(fake, name, 40, 2500)
    note = (
        "The systems were not trained alike: updates (a-1 20, b-1 40, b-2 40); seeds (a-1 1, b 2)."
    )
    assert remarks(fake) == [note]
    for name in ("b-1", "b-2"):  # a signal stopped it between two lines of the log
        (fake.run.system(name).checkpoints / "step-00000046").mkdir(parents=True)
    assert remarks(fake) == [note.replace("40", "46")]
    assert fake.result()["made_from"]["budgets"]["b-1"]["tokens"] is None


def test_budgets_of_more_than_six_systems_are_summarised():
    budgets = {f"a-{i}": Budget(i, None, "", "x" if i < 5 else "y") for i in range(1, 8)}
    assert unequal(budgets) == [
        "The systems were not trained alike: updates (from 1 (a-1) to 7 (a-7)); preparations of the"
        " corpus (x of 4 systems, y of 3 systems)."
    ]
    del budgets["a-7"]
    (note,) = unequal(budgets)
    assert ", ".join(f"a-{i} {i}" for i in range(1, 7)) in note and ", a-6 y)" in note


def test_one_update_more_is_a_difference():
    assert unequal({"a": Budget(100, None, ""), "b": Budget(101, None, "")})


def test_different_training_settings_are_listed():
    rates = {"a": 1.0, "b": 1.0, "c": 0.5}
    same = {"train.betas": [0.9, 0.98]}
    budgets = {
        name: Budget(9, None, "", settings={"train.lr": rate, **same})
        for name, rate in rates.items()
    }
    budgets["unknown"] = Budget(9, None, "")
    note = "The systems were not trained alike: train.lr (a 1.0, b 1.0, c 0.5)."
    assert unequal(budgets) == [note]


def test_settings_known_of_one_system_are_ignored_and_long_lists_are_shortened():
    one, two = ({f"train.{letter}": n for letter in "abcdefghij"} for n in (1, 2))
    one |= {"hardware.precision": "float32"}
    budgets = {name: Budget(9, None, "", settings=of) for name, of in (("a", one), ("b", two))}
    assert unequal(budgets)[0].endswith("; and 4 more settings of training.")


def test_initial_weights_of_another_system_are_a_difference():
    budgets = {"a": Budget(9, None, "", "x"), "b": Budget(9, None, "", "x", "a")}
    note = "The systems were not trained alike: initial weights (a random, b a)."
    assert unequal(budgets) == [note]


@pytest.mark.parametrize(
    "starts",
    [
        {"b": "a", "c": "a"},
        {"b-s1": "a-s1", "b-s2": "a-s2", "c": "a"},
        {"b-s1": "../wmt/systems/a-s1", "b-s2": "/runs/wmt/systems/a-s2"},
        {f"b-s{i}": f"wmt/systems/a-s{i}/checkpoints/step-00000009" for i in (1, 2)},
        {"b-s1": "/weights/a-s1", "b-s2": "/weights/a-s2"},
    ],
)
def test_initial_weights_of_one_system_or_of_its_seeds_are_equal(starts):
    assert not unequal({name: Budget(9, None, "", "x", start) for name, start in starts.items()})


def test_systems_of_equal_names_in_two_runs_are_different_initial_weights():
    """By default a system has the name of its variant."""
    sources = {"a": "../wmt/systems/base-s1", "b": "../news/systems/base"}
    budgets = {name: Budget(9, None, "", "x", source) for name, source in sources.items()}
    assert "initial weights (a wmt/base, b news/base)" in unequal(budgets)[0]


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("wmt/systems/a/checkpoints/step-9", "news/systems/a/checkpoints/step-9"),
        ("wmt/systems/a/checkpoints/step-8", "wmt/systems/a/checkpoints/step-9"),
        ("/big/weights/a", "/small/weights/a"),
        (".", ""),  # the folder in which `nmtkit train` was called; random
    ],
)
def test_other_checkpoints_and_other_folders_are_different_initial_weights(one, two):
    budgets = {
        name: Budget(9, None, "", "x", start) for name, start in {"a": one, "b": two}.items()
    }
    assert "initial weights" in unequal(budgets)[0]


def test_path_of_a_system_in_the_same_run_is_its_name(fake):
    for name, source in (("a", "base"), ("b", fake.run.path / "systems" / "base")):
        fake.add(name, 0.3, init_from=str(source))
        assert read_budget(fake.run, name).init_from == "base"
    checkpoint = "systems/base/checkpoints/step-00000009"
    fake.add("c", 0.3, init_from=str(fake.run.path / checkpoint))
    assert read_budget(fake.run, "c").init_from == checkpoint
    other = str(fake.run.path.with_name("another") / "systems" / "base")
    fake.add("d", 0.3, init_from=other)
    assert read_budget(fake.run, "d").init_from == other


def test_seeds_that_start_with_the_same_weights_are_noted():
    seeds = SeedGroup("a", ["a-s1", "a-s2"], [1, 2])
    budgets = {name: Budget(9, None, "", init_from="x") for name in seeds.systems}
    note = "All seeds of a began with the weights of x, so no p covers the seed of these weights."
    assert unequal(budgets, [seeds]) == [note]
    for other in ("", "y"):
        different = budgets | {"a-s2": Budget(9, None, "", init_from=other)}
        assert not any("All seeds" in text for text in unequal(different, [seeds]))
