"""Training seeds as one row: who belongs together, mean and spread, and what is said of a
difference.
"""

import csv
import dataclasses
import io
import json
import os
import statistics
import tomllib

import numpy as np
import pytest
import sacrebleu
from hypothesis import given, settings
from hypothesis import strategies as st

from nmtkit.errors import ConfigError
from nmtkit.records import load
from nmtkit.report.commands import score_command
from nmtkit.score import metrics, seeds
from nmtkit.score.notes import seed_notes
from nmtkit.score.resampling import Draws
from nmtkit.score.result_tables import seeds_table
from nmtkit.score.significance import compare, difference, holm
from nmtkit.score.stored_scores import Scores, SeedPair
from nmtkit.toml import write_toml
from tests.benchmarks.seed_tests import mean_score, shares
from tests.refused import refused

from .conftest import read, result_of, spoil


def over_seeds(ours, theirs, draws, others=()):
    first, second = ([seeds.Resampled.of(m, draws) for m in metrics] for metrics in (ours, theirs))
    return seeds.over_seeds(first, second, draws.sentences, draws.seed, others)


def test_what_differs_in_the_seed_alone_is_together():
    x, y = {"lr": 1.0}, {"lr": 2.0}
    settings = {"a": (x, 1), "b": (y, 1), "a2": (x, 2), "ens": ({}, None)}
    found = seeds.group_systems(settings | {"a3": (x, 3), "out": (x, None)})
    assert [(group.name, group.systems, group.seeds) for group in found] == [
        ("a", ["a", "a2", "a3"], [1, 2, 3]),
        ("b", ["b"], [1]),
        ("ens", ["ens"], [None]),
        ("out", ["out"], [None]),
    ]


@pytest.mark.parametrize(
    ("groups", "names"),
    [
        (
            (["enc-dc-s1", "enc-dc-s2"], ["pr-seed11", "pr-seed12"], ["tiny_1", "tiny_2"]),
            ["enc-dc", "pr", "tiny"],
        ),
        ((["small.1"], ["x", "y"]), ["small.1", "x"]),  # one keeps its name; nothing shared
        ((["base-s1", "base-s2"], ["base"]), ["base-s1", "base"]),  # the name is another's
        ((["base-s1", "base-s2"], ["base-4", "base-5"]), ["base-s1", "base-4"]),
        ((["base-s1", "base-s2"], ["base", "zero"]), ["base-s1", "base"]),
    ],
)
def test_a_group_is_named_by_what_its_names_share(groups, names):
    settings = {
        name: ({"lr": i}, seed) for i, group in enumerate(groups) for seed, name in enumerate(group)
    }
    assert [group.name for group in seeds.group_systems(settings)] == names


def test_systems_with_the_same_name_are_together_whatever_their_settings():
    def of(**train):
        return {"corpus": "x", "train": train}

    settings = {
        "base-s1": (of(lr=1.0, clip=2.0), 1),
        "base-s2": (of(lr=1.0, clip=3.0), 2),
        "base-s3": ({"corpus": "y", "train": {"lr": 1.0}}, 3),
        "base-f2": (of(lr=1.0), 1),
        "base-f3": (of(lr=1.0), 2),
        "deep_seed1": (of(lr=2.0), 1),
        "deep_seed2": (of(lr=2.0), 2),
        "s1": (of(lr=3.0), 1),
        "out-s1": ({}, None),
        "out-s2": ({}, None),
        "tall-1-s2": (of(lr=4.0), 2),
        "tall-1-s3": (of(lr=4.0), 3),
    }
    groups = seeds.group_systems(settings, by_name=True)
    assert [(group.name, len(group.systems), group.unequal) for group in groups] == [
        ("base", 3, ["corpus", "train.clip"]),
        ("base-f2", 1, []),
        ("base-f3", 1, []),
        ("deep", 2, []),
        ("s1", 1, []),
        ("out-s1", 1, []),
        ("out-s2", 1, []),
        ("tall-1", 2, []),
    ]


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(0, 100, allow_subnormal=False), min_size=1, max_size=8))
def test_mean_half_range_and_deviation(values):
    found = seeds.spread(values)
    n, mean = len(values), sum(values) / len(values)
    assert (found.n, found.low, found.high) == (n, min(values), max(values))
    assert found.mean == pytest.approx(mean)
    assert found.half_range == pytest.approx((max(values) - min(values)) / 2)
    assert found.mid_range == pytest.approx((max(values) + min(values)) / 2)
    deviation = None if n == 1 else (sum((v - mean) ** 2 for v in values) / (n - 1)) ** 0.5
    assert found.deviation == (None if n == 1 else pytest.approx(deviation, abs=1e-9))


@settings(deadline=None, max_examples=50)
@given(st.lists(st.none() | st.integers(0, 100).map(lambda n: n / 100), max_size=6))
def test_holms_correction_is_the_step_down_procedure(p_values):
    corrected = holm(p_values)
    assert [p is None for p in corrected] == [p is None for p in p_values]
    known = sorted(p for p in p_values if p is not None)
    for level in (0.005, 0.0499, 0.1999, 0.5001, 0.9999):
        rejected = 0
        while rejected < len(known) and known[rejected] <= level / (len(known) - rejected):
            rejected += 1
        limit = known[rejected] if rejected < len(known) else 2.0
        for p, p_holm in zip(p_values, corrected, strict=True):
            if p is not None:
                assert (p_holm <= level) == (p < limit)


@pytest.mark.parametrize("alone", [False, True])
def test_the_error_of_a_mean_over_seeds_and_sentences(alone):
    """The error of one seed alone is that of the systems with several, of the baseline too."""
    rng, draws = np.random.default_rng(3), Draws(50, resamples=400)
    ours, theirs, *more = (
        [mean_score(rng.normal(m, 1, 50)) for _ in range(n)]
        for m, n in ((0.4, 1 if alone else 3), (0.0, 3), (0.2, 2), (0.1, 1))
    )
    others = [[metric.value for metric in group] for group in more]
    delta, p = over_seeds(ours, theirs, draws, others)
    values = [[metric.value for metric in group] for group in (ours, theirs)]
    if alone:
        variance = (2 * statistics.variance(values[1]) + statistics.variance(others[0])) / 3
        errors = seeds.student_t(3, 400, 1) * (variance * (1 + 1 / 3)) ** 0.5
    else:
        variance = sum(statistics.variance(group) for group in values) / 2
        errors = seeds.student_t(4, 400, 1) * (variance * 2 / 3) ** 0.5
    samples = []
    for counts, of_resample in zip(draws.full.counts, errors.T, strict=True):
        drawn = np.repeat(np.arange(50), counts)
        first, second = (
            statistics.fmean(metric.statistics[drawn, 0].mean() for metric in group)
            for group in (ours, theirs)
        )
        samples += [first - second + error for error in of_resample]
    assert delta.value == pytest.approx(statistics.fmean(values[0]) - statistics.fmean(values[1]))
    assert (delta.low, delta.high) == pytest.approx(tuple(np.quantile(samples, [0.025, 0.975])))
    tail = sum(sample <= 0 for sample in samples) / seeds.ORDERS
    assert p == pytest.approx(2 * (tail + 1) / 401)


@pytest.mark.parametrize(
    ("freedom", "quantile"),
    [
        (1, lambda u: np.tan(np.pi * (u - 0.5))),
        (2, lambda u: (2 * u - 1) * np.sqrt(0.5 / (u * (1 - u)))),
    ],
)
def test_the_values_of_students_t_lie_as_its_quantiles(freedom, quantile):
    orders = seeds.student_t(freedom, 1000, 1)
    values = np.sort(orders, axis=1)
    assert (values == values[0]).all() and (orders[0] != orders[1]).any()
    assert (values[0] == -values[0][::-1]).all()
    assert (seeds.student_t(freedom, 1000, 2) != orders).any()
    middle = slice(10, 990)
    expected = quantile((np.arange(1000) + 0.5) / 1000)
    assert values[0][middle] == pytest.approx(expected[middle], rel=0.04, abs=0.02)


def test_equal_seeds_leave_the_error_of_the_sentences_and_one_seed_has_none():
    rng, draws = np.random.default_rng(4), Draws(50)
    ours, theirs = (mean_score(rng.normal(m, 1, 50)) for m in (0.3, 0.0))
    delta, _ = over_seeds([ours] * 2, [theirs] * 2, draws)
    alone = difference(ours, theirs, draws)
    assert (delta.low, delta.high) == pytest.approx((alone.low, alone.high))
    delta, p = over_seeds([ours], [theirs], draws, [[1.0], [2.0]])
    assert (delta.low, delta.high, p) == (None, None, None)
    assert delta.value == pytest.approx(ours.value - theirs.value)
    for count in (29, 30):
        equal = [mean_score(rng.normal(0, 1, count))] * 2
        assert (over_seeds(equal, equal, Draws(count))[1] is None) == (count < 30)


@pytest.mark.parametrize("seeds", [1, 3])
def test_a_difference_that_is_not_there_is_rarely_found(seeds):
    sentences, _, both = shares(repeats=250, seeds=seeds, seed_error=1.0, gap=0.0)
    assert both <= 7.5
    assert sentences > 10


@pytest.fixture
def seeded(fake_run):
    """A baseline and a better system of three seeds each, two seeds in common; and one system of
    another setting.
    """
    fake = fake_run(count=60)
    for name, seed in zip(SHARES, (1, 1, 2, 2, 3, 9, 1), strict=True):
        more = {} if name.startswith("base") else {"model": {"gate": name != "other"}}
        fake.add(name, SHARES[name], seed=seed, **more)
    return fake


SHARES = {
    "base": 0.40,
    "new": 0.30,
    "base-2": 0.42,
    "new-2": 0.41,
    "base-3": 0.38,
    "new-9": 0.20,
    "other": 0.1,
}


def test_seeds_are_one_row_and_significance_is_said_honestly(seeded, stdout):
    seeded.score(resamples=100, trials=50, group_by="seed")
    out = stdout()
    result = result_of(seeded.run)
    ref = seeded.lines["test"]
    hyps = {name: spoil(ref, share, len(name)) for name, share in SHARES.items()}
    value = {name: sacrebleu.corpus_bleu(hyp, [ref]).score for name, hyp in hyps.items()}
    base, new, other = result["seeds"]["groups"]
    for group, systems, numbers in (
        (base, ["base", "base-2", "base-3"], [1, 2, 3]),
        (new, ["new", "new-2", "new-9"], [1, 2, 9]),
    ):
        facts = {"name": systems[0], "systems": systems, "seeds": numbers}
        assert facts.items() <= group.items()
    assert other["scores"]["bleu"]["n"] == 1
    of_bleu = {name: metrics.bleu(hyp, [ref]) for name, hyp in hyps.items()}
    delta, p = over_seeds(
        [of_bleu["other"]],
        [of_bleu[name] for name in base["systems"]],
        Draws(60, 100),
        [[value[name] for name in new["systems"]]],
    )
    found = other["against"]["bleu"]
    assert (found["low"], found["high"], found["p"]) == pytest.approx((delta.low, delta.high, p))
    ours, theirs = ([value[name] for name in group["systems"]] for group in (new, base))
    spread, against = new["scores"]["bleu"], new["against"]["bleu"]
    assert spread["mean"] == pytest.approx(statistics.fmean(ours))
    assert spread["deviation"] == pytest.approx(statistics.stdev(ours))
    gap = statistics.fmean(ours) - statistics.fmean(theirs)
    assert against["difference"] == pytest.approx(gap)
    assert against["low"] < gap < against["high"]
    of_groups = [group["against"]["bleu"] for group in (new, other)]
    assert [of["p_holm"] for of in of_groups] == holm([of["p"] for of in of_groups])
    pairs = [(pair["seed"], pair["system"], pair["baseline"]) for pair in against["pairs"]]
    assert pairs == [(1, "new", "base"), (2, "new-2", "base-2")]
    ter = new["against"]["ter"]["pairs"]
    assert [pair["better"] for pair in ter] == [pair["difference"] < 0 for pair in ter]
    assert ter[0]["better"]
    for pair in against["pairs"]:
        system, baseline = (metrics.bleu(hyps[pair[key]], [ref]) for key in ("system", "baseline"))
        assert pair["p"] == compare("paired_bootstrap", system, baseline, Draws(60, 100)).p
    row = next(line for line in out.splitlines() if line.startswith("new "))
    significant = sum(pair["better"] and pair["p"] < 0.05 for pair in against["pairs"])
    shown = [f"{spread[key]:.2f}" for key in ("mean", "half_range", "deviation")]
    assert row.split()[:5] == ["new", "3", *shown]
    assert f"{against['difference']:+.2f} [{against['low']:+.2f}, {against['high']:+.2f}]" in row
    p_values = [f"{against[key]:.3f}" for key in ("p", "p_holm")]
    assert row.split()[8:12] == [str(significant), "2", *p_values]
    assert "a test within one seed does not account for the seed" in out
    assert "compare a p only" not in out  # nor the table of single systems
    assert "new: new (seed 1), new-2 (seed 2), new-9 (seed 9)" in out and "other: " not in out
    rows = list(csv.DictReader(io.StringIO(read(seeded.run, "test", "seeds.csv"))))
    assert [row["system"] for row in rows] == ["base", "new", "other"]
    assert float(rows[1]["bleu_half_range"]) == spread["half_range"]
    cells = [float(rows[1][key]) for key in ("delta", "delta_low", "delta_high")]
    assert cells == [against["difference"], against["low"], against["high"]]
    assert rows[2]["bleu_half_range"] == rows[2]["bleu_deviation"] == ""
    result = load(Scores, seeded.run.path / "score/test/scores.json")
    result.seeds.groups[2].against["bleu"].pairs[0] = SeedPair(1, "other", "base", -1, False, 0.01)
    assert seeds_table(result).as_json()["rows"][2]["better"] == 0


def test_too_few_resamples_for_so_many_comparisons_are_said(seeded, stdout):
    for resamples, said in ((80, False), (79, True)):  # 2 comparisons, p at least 2/(N+1)
        seeded.score(resamples=resamples, group_by="seed")
        words = "with 79 resamples no p (Holm) can be below 0.05"
        out = stdout()
        assert "corrected for 2 comparisons with a p" in out
        assert (f"{words}; use --resamples 790" in out) == said
    # Two seeds of two systems do not tell the error of the third system's seed.
    seeded.score(group_by="seed", systems=["base", "base-2", "new", "new-2", "other"])
    assert "corrected for 1 comparison with a p" in stdout()


def test_a_translation_searched_otherwise_is_not_the_same_system(seeded, stdout):
    for name, beam, size in (("base", 4, 64), ("base-2", 4, 0), ("base-3", 1, 64)):
        seeded.describe(name, settings={"beam": beam, "batch_size": size})
    seeded.score(group_by="seed", output_format="json")
    groups = json.loads(stdout())[0]["seeds"]["groups"]
    systems = [["base", "base-2"], ["new", "new-2", "new-9"], ["base-3"], ["other"]]
    assert [group["systems"] for group in groups] == systems


def test_seeds_with_one_name_may_differ_in_the_search_which_the_table_lists(fake, stdout):
    for seed, beam in ((1, 4), (2, 5)):
        fake.add(f"base-s{seed}", 0.4, seed=seed)
        fake.describe(f"base-s{seed}", settings={"beam": beam})
    fake.score(group_by="name")
    text = "base: base-s1 (seed 1), base-s2 (seed 2); they also differ in search.beam"
    assert text in stdout()
    fake.score(test="sign")  # keeps the grouping
    result = load(Scores, fake.run.path / "score/test/scores.json")
    assert [group.name for group in result.seeds.groups] == ["base"]
    assert "--group-by name" in score_command(fake.run, "test", result)
    fake.score(group_by="seed")
    assert "they also differ" not in stdout()
    assert len(result_of(fake.run)["seeds"]["groups"]) == 2


def test_another_grouping_with_the_same_groups_is_kept(fake):
    for seed in (1, 2):
        fake.add(f"base-s{seed}", 0.4, seed=seed)
    fake.score()
    fake.score(group_by="name")
    assert result_of(fake.run)["seeds"]["grouping"] == "name"


def test_scores_of_an_earlier_method_are_out_of_date(seeded, stderr):
    seeded.score()
    path = seeded.run.path / "score/test/scores.json"
    stored = json.loads(path.read_text("utf-8"))
    stored["made_from"]["seeds"] = stored["made_from"]["seeds"][1:]
    path.write_text(json.dumps(stored), "utf-8")
    stderr()
    seeded.score()
    assert "written to" in stderr()


def test_how_a_training_was_watched_does_not_part_its_seeds(fake, stdout):
    """What is shown and kept cannot change the weights; what ends a training, or chooses the
    best checkpoint, can.
    """
    same = {"log_every": 7, "samples": 0, "checkpoint_every": 9, "keep_checkpoints": 2}
    same |= {"deterministic": True, "log_to": "none"}
    others = {"max_steps": 11, "patience": 3, "max_minutes": 1.0, "best_by": "dev_loss"}
    others |= {"dev_bleu": False, "dev_sentences": 3}
    changes = [{}, *({key: value} for key, value in (same | others).items())]

    def groups(average):
        for number, change in enumerate(changes):
            train = {"max_steps": 10, **change, "seed": number}
            search = {"beam": 5, "average": average, "nbest": 1 + number % 2}
            folder = fake.add(f"s{number:02d}", 0.2)
            config = {"variant": "toy", "preset": f"p{number}", "train": train, "search": search}
            config["hardware"] = {"name": f"machine {number}", "threads": number}
            write_toml(folder / "config.toml", config)
            os.utime(folder / "config.toml", (number + 1, number + 1))
        fake.score(output_format="json", force=True)
        groups = json.loads(stdout())[0]["seeds"]["groups"]
        return [group["systems"] for group in groups]

    apart = [[f"s{number:02d}"] for number in range(1 + len(same), 1 + len(same) + len(others))]
    assert groups(1) == [[f"s{number:02d}" for number in range(1 + len(same))], *apart]
    # An average is of the checkpoints that were saved and kept.
    assert groups(3) == [["s00", "s01", "s02", "s05", "s06"], ["s03"], ["s04"], *apart]


def test_a_seed_trained_before_a_setting_existed_belongs_to_the_others(seeded, stdout):
    for name, newer in (("base", {}), ("base-2", {"word_dropout": 0.0}), ("base-3", {"lr": 9.0})):
        config = seeded.run.system(name).config
        values = tomllib.loads(config.read_text("utf-8"))
        values["train"] |= newer
        write_toml(config, values)
    seeded.score(output_format="json")
    groups = json.loads(stdout())[0]["seeds"]["groups"]
    expected = [["base", "base-2"], ["base-3"], ["new", "new-2", "new-9"], ["other"]]
    assert sorted(group["systems"] for group in groups) == expected


def test_a_changed_seed_is_not_up_to_date_and_plain_scores_have_the_groups_too(seeded, capsys):
    seeded.score()
    assert "deviation" not in capsys.readouterr().out
    assert (seeded.run.path / "score/test/seeds.md").is_file()
    seeded.score(group_by="seed")
    out, err = capsys.readouterr()
    assert "up to date" in err
    assert "deviation" in out
    seeded.add("base-s3", 0.38, seed=1)
    seeded.score(group_by="seed")
    out, err = capsys.readouterr()
    assert "written to" in err  # a second training with seed 1 is no further seed
    assert "base-s3 " in out and "a seed occurs twice" not in out
    seeded.score(group_by="name")
    assert "base: a seed occurs twice" in capsys.readouterr().out


def test_no_two_seeds_and_unknown_groupings(fake, stdout):
    fake.add("a", 0.2, seed=1)
    fake.add("ensemble-a", 0.1, trained=False)
    fake.add("ensemble-b", 0.2, trained=False)
    fake.score(group_by="seed", against="ensemble-b")
    out = stdout()
    assert "no system has several seeds, so every row is one system" in out
    assert "(--group-by name groups by name alone)" in out and "occurs twice" not in out
    result = load(Scores, fake.run.path / "score/test/scores.json")
    assert [group.against["bleu"].pairs for group in result.seeds.groups[:2]] == [[], []]
    assert seeds_table(result).as_json()["rows"][0]["pairs"] is None
    by_name = dataclasses.replace(result.seeds, grouping="name")
    assert not any("--group-by" in note for note in seed_notes(result, by_name))
    assert not (fake.run.path / "score/test/seeds.csv").exists()
    error = refused(
        ConfigError, "cannot group systems by 'variant'", fake.score, group_by="variant"
    )
    assert error.hint == "known: name, seed"
