"""Training seeds: which systems form a group, the group's mean and spread, and differences."""

import dataclasses
import os
import statistics
import tomllib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nmtkit.errors import ConfigError
from nmtkit.report.commands import score_command
from nmtkit.score import metrics, seeds
from nmtkit.score.notes import seed_notes
from nmtkit.score.resampling import Draws
from nmtkit.score.result_tables import seeds_table
from nmtkit.score.significance import compare, difference, holm
from nmtkit.score.stored_scores import Comparison, SeedPair
from nmtkit.toml import write_toml
from tests.benchmarks.seed_tests import mean_score, shares
from tests.manifests import write_json
from tests.refused import refused

from .conftest import FakeRun, spoil


def over_seeds(ours, theirs, draws, others=()):
    """Call `seeds.over_seeds` with metrics in place of resampled scores."""
    first, second = ([seeds.Resampled.of(m, draws) for m in metrics] for metrics in (ours, theirs))
    return seeds.over_seeds(first, second, draws.sentences, draws.seed, others)


def test_systems_that_differ_only_in_the_seed_form_a_group():
    x, y = {"lr": 1.0}, {"lr": 2.0}
    settings = {"a": (x, 1), "b": (y, 1), "a2": (x, 2), "ens": ({}, None)}
    groups = seeds.group_systems(settings | {"a3": (x, 3), "out": (x, None)})
    assert [(group.name, group.systems, group.seeds) for group in groups] == [
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
        ((["small.1"], ["x", "y"]), ["small.1", "x"]),  # single system; no common part
        ((["base-s1", "base-s2"], ["base"]), ["base-s1", "base"]),  # name of another system
        ((["base-s1", "base-s2"], ["base-4", "base-5"]), ["base-s1", "base-4"]),
        ((["base-s1", "base-s2"], ["base", "zero"]), ["base-s1", "base"]),
    ],
)
def test_group_name_is_the_common_part_of_its_systems_names(groups, names):
    settings = {
        name: ({"lr": i}, seed) for i, group in enumerate(groups) for seed, name in enumerate(group)
    }
    assert [group.name for group in seeds.group_systems(settings)] == names


def test_grouping_by_name_ignores_settings_and_lists_the_differences():
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
def test_spread_has_mean_half_range_mid_range_and_deviation(values):
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
def test_holm_correction_equals_the_step_down_procedure(p_values):
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


def variances(groups):
    return [statistics.variance([metric.value for metric in group]) for group in groups]


def errors_of_three_seeds(ours, theirs, _):
    """Return (ORDERS, 400) draws of t(4)·√(pooled variance · (1/3 + 1/3))."""
    variance = sum(variances([ours, theirs])) / 2
    return seeds.student_t(4, 400, 1) * (variance * 2 / 3) ** 0.5


def errors_of_one_seed(_, theirs, other):
    """Return (ORDERS, 400) draws of t(3)·√(variance pooled over all groups · (1 + 1/3))."""
    of_theirs, of_other = variances([theirs, other])
    variance = (2 * of_theirs + of_other) / 3
    return seeds.student_t(3, 400, 1) * (variance * (1 + 1 / 3)) ** 0.5


@pytest.mark.parametrize(
    ("gain", "count", "errors_of"),
    [
        (0.4, 3, errors_of_three_seeds),
        (-0.4, 3, errors_of_three_seeds),
        (0.4, 1, errors_of_one_seed),
    ],
)
def test_difference_over_seeds_has_errors_of_sentences_and_seeds(gain, count, errors_of):
    """Oracle: the difference of means over resampled sentences, plus a draw of the seeds' error."""
    rng, draws = np.random.default_rng(3), Draws(50, resamples=400)
    ours, theirs, other, single = (
        [mean_score(rng.normal(mean, 1, 50)) for _ in range(n)]
        for mean, n in ((gain, count), (0.0, 3), (0.2, 2), (0.1, 1))
    )
    others = [[metric.value for metric in group] for group in (other, single)]
    delta, p = over_seeds(ours, theirs, draws, others)

    def mean(group, rows):
        return statistics.fmean(metric.statistics[rows, 0].mean() for metric in group)

    samples = []
    for counts, errors in zip(draws.full.counts, errors_of(ours, theirs, other).T, strict=True):
        rows = np.repeat(np.arange(50), counts)
        samples += [mean(ours, rows) - mean(theirs, rows) + error for error in errors]
    everything = np.arange(50)
    assert delta.value == pytest.approx(mean(ours, everything) - mean(theirs, everything))
    assert (delta.low, delta.high) == pytest.approx(tuple(np.quantile(samples, [0.025, 0.975])))
    wrong = sum(sample * gain <= 0 for sample in samples) / seeds.ORDERS
    assert p == pytest.approx(2 * (wrong + 1) / 401)


@pytest.mark.parametrize(
    ("freedom", "quantile"),
    [
        (1, lambda u: np.tan(np.pi * (u - 0.5))),
        (2, lambda u: (2 * u - 1) * np.sqrt(0.5 / (u * (1 - u)))),
    ],
)
def test_student_t_draws_are_evenly_spaced_quantiles(freedom, quantile):
    orders = seeds.student_t(freedom, 1000, 1)
    values = np.sort(orders, axis=1)
    assert (values == values[0]).all() and (orders[0] != orders[1]).any()
    assert (values[0] == -values[0][::-1]).all()
    assert (seeds.student_t(freedom, 1000, 2) != orders).any()
    middle = slice(10, 990)
    expected = quantile((np.arange(1000) + 0.5) / 1000)
    assert values[0][middle] == pytest.approx(expected[middle], rel=0.04, abs=0.02)


@pytest.fixture
def pair():
    """Two systems whose sentence scores differ by 0.3 on average, and draws."""
    rng = np.random.default_rng(4)
    return *(mean_score(rng.normal(mean, 1, 50)) for mean in (0.3, 0.0)), Draws(50)


def test_equal_seeds_have_the_interval_of_one_system(pair):
    ours, theirs, draws = pair
    delta, _ = over_seeds([ours] * 2, [theirs] * 2, draws)
    single = difference(ours, theirs, draws)
    assert (delta.low, delta.high) == pytest.approx((single.low, single.high))


def test_single_seeds_have_neither_interval_nor_p(pair):
    ours, theirs, draws = pair
    delta, p = over_seeds([ours], [theirs], draws, [[1.0], [2.0]])
    assert (delta.low, delta.high, p) == (None, None, None)
    assert delta.value == pytest.approx(ours.value - theirs.value)


@pytest.mark.parametrize("count", [29, 30])
def test_p_over_seeds_needs_30_sentences(count):
    equal = [mean_score(np.random.default_rng(4).normal(0, 1, count))] * 2
    _, p = over_seeds(equal, equal, Draws(count))
    assert p == (None if count < 30 else 1.0)


@pytest.mark.parametrize("seeds", [1, 3])
def test_equal_systems_over_seeds_rarely_have_small_p(seeds):
    sentences, _, both = shares(repeats=250, seeds=seeds, seed_error=1.0, gap=0.0)
    assert both <= 7.5
    assert sentences > 10


def test_groups_are_compared_with_the_test_and_the_seed_of_the_draws(monkeypatch):
    """A single seed of the baseline varies like the seeds of the two other groups. The sign test is
    not symmetric: the system comes first.
    """
    monkeypatch.setattr(seeds, "compare", lambda *arguments: Comparison(arguments, ""))
    ref = [" ".join("abcdefghij"[: 3 + i % 8]) for i in range(60)]
    names, shares = ("a1", "b1", "b2", "c1", "c2", "c3"), (0.5, 0.4, 0.3, 0.4, 0.5, 0.4)
    groups = [
        seeds.SeedGroup(name, [*of], [int(member[1]) for member in of])
        for name, of in (("a", names[:1]), ("b", names[1:3]), ("c", names[3:]))
    ]
    bleu = {
        name: metrics.bleu(spoil(ref, share, number), [ref])
        for number, (name, share) in enumerate(zip(names, shares, strict=True))
    }
    draws = Draws(60, 100, seed=5)
    result = seeds.summarize(groups, {"bleu": bleu}, "a1", "sign", draws, "seed")
    against = result.groups[1].against["bleu"]
    assert [pair.p for pair in against.pairs] == [("sign", bleu["b1"], bleu["a1"], draws)]
    of_group = [[bleu[name] for name in group.systems] for group in groups]
    others = [[metric.value for metric in of_group[2]]]
    expected = over_seeds(of_group[1], of_group[0], draws, others)
    assert (against.estimate, against.p) == expected and against.p is not None


SHARES = {
    "base": 0.40,
    "new": 0.30,
    "base-2": 0.42,
    "new-2": 0.41,
    "base-3": 0.38,
    "new-9": 0.20,
    "other": 0.1,
}
BASE, NEW = ["base", "base-2", "base-3"], ["new", "new-2", "new-9"]


def add_seeds(fake):
    """Add three seeds of a baseline and of a better system, two seeds in common; and one system
    with other settings.
    """
    for name, seed in zip(SHARES, (1, 1, 2, 2, 3, 9, 1), strict=True):
        more = {} if name in BASE else {"model": {"gate": name != "other"}}
        fake.add(name, SHARES[name], seed=seed, **more)
    return fake


@pytest.fixture
def seeded(fake_run):
    return add_seeds(fake_run(count=60))


def groups_of(fake):
    """Score by seed, with BLEU alone; return the systems of each group."""
    fake.score(group_by="seed", metrics="bleu")
    return [group["systems"] for group in fake.result()["seeds"]["groups"]]


@pytest.fixture(scope="module")
def grouped(tmp_path_factory):
    """The seeded run, scored by seed, its groups, and the BLEU of each system."""
    fake = add_seeds(FakeRun(tmp_path_factory.mktemp("seeds") / "run", count=60))
    fake.score(resamples=100, trials=50, group_by="seed")
    ref = fake.lines["test"]
    hyps = {name: spoil(ref, share, len(name)) for name, share in SHARES.items()}
    bleu = {name: metrics.bleu(hyp, [ref]) for name, hyp in hyps.items()}
    return fake, fake.result()["seeds"]["groups"], bleu


def test_groups_have_names_systems_seeds_and_spread(grouped):
    _, (base, new, other), bleu = grouped
    facts = [[group[key] for key in ("name", "systems", "seeds")] for group in (base, new)]
    assert facts == [["base", BASE, [1, 2, 3]], ["new", NEW, [1, 2, 9]]]
    assert other["scores"]["bleu"]["n"] == 1
    values = [bleu[name].value for name in NEW]
    spread = new["scores"]["bleu"]
    assert spread["mean"] == pytest.approx(statistics.fmean(values))
    assert spread["deviation"] == pytest.approx(statistics.stdev(values))


@pytest.mark.parametrize("grouping", ["seed", "name"])
def test_baseline_may_be_named_by_its_group(fake_run, stderr, grouping):
    fake = fake_run(count=40)
    for name in ("a-s1", "b-s1", "a-s2", "b-s2"):
        fake.add(name, 0.2, seed=int(name[-1]), variant=f"toy-{name[0]}")
    fake.score(against="b", group_by=grouping)
    assert fake.result()["baseline"] == "b-s1" and fake.result()["seeds"]["baseline"] == "b"
    assert "test: the baseline is 'b-s1', the first of 'b'" in stderr()
    refused(ConfigError, "has no system 'c'", fake.score, against="c", group_by=grouping)


def test_groups_have_differences_to_the_baselines_mean_and_holms_p(grouped):
    _, (_, new, other), bleu = grouped
    ours, theirs = ([bleu[name].value for name in names] for names in (NEW, BASE))
    gap = statistics.fmean(ours) - statistics.fmean(theirs)
    against = new["against"]["bleu"]
    assert against["difference"] == pytest.approx(gap)
    assert against["low"] < gap < against["high"]
    delta, p = over_seeds([bleu["other"]], [bleu[name] for name in BASE], Draws(60, 100), [ours])
    single = other["against"]["bleu"]
    assert (single["low"], single["high"], single["p"]) == pytest.approx((delta.low, delta.high, p))
    for key in ("bleu", "ter"):
        compared = [group["against"][key] for group in (new, other)]
        assert [entry["p_holm"] for entry in compared] == holm([entry["p"] for entry in compared])


def test_pairs_of_equal_seeds_are_tested_with_the_metrics_direction(grouped):
    _, (_, new, _), bleu = grouped
    pairs = new["against"]["bleu"]["pairs"]
    names = [(pair["seed"], pair["system"], pair["baseline"]) for pair in pairs]
    assert names == [(1, "new", "base"), (2, "new-2", "base-2")]
    for pair in pairs:
        ours, theirs = bleu[pair["system"]], bleu[pair["baseline"]]
        assert pair["p"] == compare("paired_bootstrap", ours, theirs, Draws(60, 100)).p
    ter = new["against"]["ter"]["pairs"]
    assert [pair["better"] for pair in ter] == [pair["difference"] < 0 for pair in ter]
    assert ter[0]["better"]


def test_seeds_table_shows_spread_difference_and_significant_pairs(grouped, stdout):
    fake, (_, new, _), _ = grouped
    fake.score(resamples=100, trials=50, group_by="seed")
    out, spread, against = stdout(), new["scores"]["bleu"], new["against"]["bleu"]
    row = next(line for line in out.splitlines() if line.startswith("new "))
    cells = [f"{spread[key]:.2f}" for key in ("mean", "half_range", "deviation")]
    assert row.split()[:5] == ["new", "3", *cells]
    assert "{difference:+.2f} [{low:+.2f}, {high:+.2f}]".format(**against) in row
    significant = sum(pair["better"] and pair["p"] < 0.05 for pair in against["pairs"])
    p_values = [f"{against[key]:.3f}" for key in ("p", "p_holm")]
    assert row.split()[8:12] == [str(significant), "2", *p_values]
    assert "a test within one seed does not account for the seed" in out
    assert "compare a p only" not in out  # nor the table of single systems
    assert "new: new (seed 1), new-2 (seed 2), new-9 (seed 9)" in out and "other: " not in out


def test_seeds_csv_has_exact_numbers_and_empty_cells_for_one_seed(grouped):
    fake, (_, new, _), _ = grouped
    base, row, single = fake.csv("seeds.csv")
    assert [cells["system"] for cells in (base, row, single)] == ["base", "new", "other"]
    against = new["against"]["bleu"]
    numbers = [
        new["scores"]["bleu"]["half_range"],
        *(against[key] for key in ("difference", "low", "high")),
    ]
    columns = ("bleu_half_range", "delta", "delta_low", "delta_high")
    assert [float(row[column]) for column in columns] == numbers
    assert single["bleu_half_range"] == single["bleu_deviation"] == ""


def test_significant_pairs_in_the_wrong_direction_are_not_counted(grouped):
    result = grouped[0].loaded()
    result.seeds.groups[2].against["bleu"].pairs[0] = SeedPair(1, "other", "base", -1, False, 0.01)
    assert seeds_table(result).as_json()["rows"][2]["better"] == 0


@pytest.mark.parametrize("resamples", [80, 79])  # 2 comparisons, p at least 2/(N+1)
def test_table_warns_of_too_few_resamples_for_the_holm_correction(seeded, stdout, resamples):
    seeded.score(resamples=resamples, group_by="seed", metrics="bleu")
    out = stdout()
    assert "corrected for 2 comparisons with a p" in out
    warning = "with 79 resamples no p (Holm) can be below 0.05; use --resamples 790"
    assert (warning in out) == (resamples == 79)


def test_holm_correction_counts_only_comparisons_with_a_p(seeded, stdout):
    """Two seeds of two systems do not show the error of the third system's seed."""
    systems = ["base", "base-2", "new", "new-2", "other"]
    seeded.score(group_by="seed", metrics="bleu", systems=systems)
    assert "corrected for 1 comparison with a p" in stdout()


def test_seeds_translated_with_other_search_settings_are_not_grouped(seeded):
    for name, beam, size in (("base", 4, 64), ("base-2", 4, 0), ("base-3", 1, 64)):
        seeded.describe(name, settings={"beam": beam, "batch_size": size})
    assert groups_of(seeded) == [["base", "base-2"], NEW, ["base-3"], ["other"]]


def test_grouping_by_name_lists_different_search_settings_and_is_kept(fake, stdout):
    for seed, beam in ((1, 4), (2, 5)):
        fake.add(f"base-s{seed}", 0.4, seed=seed)
        fake.describe(f"base-s{seed}", settings={"beam": beam})
    fake.score(group_by="name")
    text = "base: base-s1 (seed 1), base-s2 (seed 2); they also differ in search.beam"
    assert text in stdout()
    fake.score(test="sign")  # keeps the grouping
    result = fake.loaded()
    assert [group.name for group in result.seeds.groups] == ["base"]
    assert "--group-by name" in score_command(fake.run, "test", result)
    fake.score(group_by="seed")
    assert "they also differ" not in stdout()
    assert len(fake.result()["seeds"]["groups"]) == 2


def test_new_grouping_with_equal_groups_is_stored(fake):
    for seed in (1, 2):
        fake.add(f"base-s{seed}", 0.4, seed=seed)
    fake.score()
    fake.score(group_by="name")
    assert fake.result()["seeds"]["grouping"] == "name"


def test_scores_of_an_earlier_method_are_computed_again(seeded, stderr):
    seeded.score()
    stored = seeded.result()
    del stored["made_from"]["seeds"][0]  # the version of the method
    write_json(seeded.scores / "scores.json", stored)
    stderr()
    seeded.score()
    assert "written to" in stderr()


# What is logged and kept cannot change the weights.
SAME = {"log_every": 7, "samples": 0, "checkpoint_every": 9, "keep_checkpoints": 2}
SAME |= {"deterministic": True, "log_to": "none"}
# What ends a training, or chooses the best checkpoint, can.
DIFFERENT = {"max_steps": 11, "patience": 3, "max_minutes": 1.0, "best_by": "dev_loss"}
DIFFERENT |= {"dev_bleu": False, "dev_sentences": 3}


@pytest.mark.parametrize(
    ("average", "split"),
    # An average depends on the checkpoints that were written and kept.
    [(1, []), (3, ["checkpoint_every", "keep_checkpoints"])],
)
def test_only_settings_that_change_weights_or_outputs_split_a_group(fake, average, split):
    for number, (key, value) in enumerate([("seed", 0), *SAME.items(), *DIFFERENT.items()]):
        folder = fake.add(key, 0.2)
        search = {"beam": 5, "average": average, "nbest": 1 + number % 2}
        config = {"variant": "toy", "preset": f"p{number}", "search": search}
        config["train"] = {"max_steps": 10, key: value, "seed": number}
        config["hardware"] = {"name": f"machine {number}", "threads": number}
        write_toml(folder / "config.toml", config)
        os.utime(folder / "config.toml", (number + 1, number + 1))
    together = [key for key in ("seed", *SAME) if key not in split]
    assert groups_of(fake) == [together, *([key] for key in (*split, *DIFFERENT))]


def test_absent_setting_counts_as_its_default_in_grouping(seeded):
    for name, newer in (("base", {}), ("base-2", {"word_dropout": 0.0}), ("base-3", {"lr": 9.0})):
        config = seeded.run.system(name).config
        values = tomllib.loads(config.read_text("utf-8"))
        values["train"] |= newer
        write_toml(config, values)
    assert sorted(groups_of(seeded)) == [["base", "base-2"], ["base-3"], NEW, ["other"]]


def test_seed_groups_are_stored_by_plain_scores_and_printed_on_request(seeded, capsys):
    seeded.score()
    assert "deviation" not in capsys.readouterr().out
    assert (seeded.scores / "seeds.md").is_file()
    seeded.score(group_by="seed")
    out, err = capsys.readouterr()
    assert "up to date" in err and "deviation" in out


def test_second_training_with_the_same_seed_is_no_further_seed(seeded, stdout):
    seeded.add("base-s3", 0.38, seed=1)
    assert groups_of(seeded)[-1] == ["base-s3"]
    assert "a seed occurs twice" not in stdout()
    seeded.score(group_by="name")
    assert "base: a seed occurs twice" in stdout()


def test_without_several_seeds_every_row_is_one_system(fake, stdout):
    fake.add("a", 0.2, seed=1)
    fake.add("ensemble-a", 0.1, trained=False)
    fake.add("ensemble-b", 0.2, trained=False)
    fake.score(group_by="seed", against="ensemble-b")
    out = stdout()
    assert "no system has several seeds, so every row is one system" in out
    assert "(--group-by name groups by name alone)" in out and "occurs twice" not in out
    result = fake.loaded()
    assert [group.against["bleu"].pairs for group in result.seeds.groups[:2]] == [[], []]
    assert seeds_table(result).as_json()["rows"][0]["pairs"] is None
    by_name = dataclasses.replace(result.seeds, grouping="name")
    assert not any("--group-by" in note for note in seed_notes(result, by_name))
    assert not (fake.scores / "seeds.csv").exists()


def test_unknown_grouping_is_refused(fake):
    message = "cannot group systems by 'variant'"
    error = refused(ConfigError, message, fake.score, group_by="variant")
    assert error.hint == "known: name, seed"
