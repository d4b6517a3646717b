"""The comparison of systems in a report: verdicts, cautions, seeds, and the table of costs."""

import shutil
from dataclasses import replace

import pytest

from nmtkit.records import SystemRecord
from nmtkit.report import comparison
from nmtkit.report.contents import read_contents
from nmtkit.score.resampling import FEW
from nmtkit.score.result_tables import significance_table
from nmtkit.score.seeds import NOT_KNOWN
from nmtkit.score.significance import FEW_DIFFERENT
from nmtkit.score.stage import score
from nmtkit.score.stored_scores import (
    Comparison,
    MetricScore,
    Scores,
    SignificanceTest,
    SystemScores,
)
from nmtkit.tables.table import Column, Estimate, Table, text_column
from tests.manifests import edit

from .conftest import ReportedRun

pytestmark = pytest.mark.usefixtures("without_figures")


def texts(remarks):
    return [remark.text for remark in remarks]


@pytest.fixture
def scored(tmp_path):
    """Scores systems (name, share of wrong words, seed; the variant is the name's first letter).

    Returns: the run and what a report reads of it.
    """

    def build(*systems, count=40, **options):
        run = ReportedRun(tmp_path / "run", count=count)
        for name, share, seed in systems:
            run.add(name, share, seed=seed, variant=name[0])
        score(run.run, resamples=20, trials=20, **options)
        return run, read_contents(run.run)

    return build


@pytest.mark.parametrize(
    ("low", "p", "verdict"),
    [
        (0.5, 0.01, "own is better than base"),
        (-0.1, 0.04, "own is perhaps better"),
        (-0.1, 0.2, "not clearly different from"),
        (0.5, 0.05, "not clearly different from"),  # 0.05 is not below 0.05
    ],
)
def test_verdict_depends_on_p_and_interval(low, p, verdict):
    def system(name, bleu, *compared):
        scores = {"bleu": MetricScore("BLEU", bleu, None, None, "", {})}
        return SystemScores(name, scores, Estimate(1.0), 0, *compared)

    own = system("own", 21.0, {}, {"t": {"bleu": Comparison(p, "")}})
    result = Scores.model_construct(
        baseline="base",
        test="t",
        tests={"t": SignificanceTest("", "", 0.001)},
        systems=[system("base", 20.0, {}, {}), own],
    )
    for delta, expected in (
        (Estimate(1.0, low, 2.0), verdict),
        (Estimate(-1.0, -2.0, -low), verdict.replace("better", "worse")),
        (Estimate(0.0, 0.0, 0.0), "own is not clearly different from base: +0.00"),
        (Estimate(0.004, low, 2.0), "own is not clearly different from base: +0.00"),
        (Estimate(0.01, low, 2.0), verdict),
    ):
        own.differences["bleu"] = delta
        assert expected in comparison.verdicts(result)[0]


def test_verdict_shows_p_below_the_finest_shown_value(reported):
    result = read_contents(reported.run).scores["test"]
    _, own = result.systems
    own.tests[result.test]["bleu"] = Comparison(0.0, "")  # of 20 resamples
    assert comparison.verdicts(result)[0].endswith("p < 0.050.")
    of_10_000 = {"tests": result.tests | {result.test: SignificanceTest("", "", 1e-4)}}
    assert comparison.verdicts(result.model_copy(update=of_10_000))[0].endswith("p < 0.0001.")
    result = result.model_copy(update={"test": "sign"})
    own.tests["sign"]["bleu"] = Comparison(1e-9, "")
    assert not result.tests["sign"].finest
    assert comparison.verdicts(result)[0].endswith("p < 0.001.")


def test_equal_outputs_get_no_verdict(scored):
    _, contents = scored(("a", 0.3, None), ("b", 0.3, None), test="sacrebleu_randomization")
    result = contents.scores["test"]
    (verdict,) = comparison.verdicts(result)
    assert verdict.startswith("b - a: ") and verdict.endswith(f"] BLEU; {FEW_DIFFERENT}.")
    assert FEW_DIFFERENT in comparison.tables(contents, "test")[0].notes
    notes = significance_table(result).notes
    assert sum(note.count(FEW_DIFFERENT) for note in notes) == 1


def test_few_sentences_get_no_verdict(scored):
    systems = ("a-1", 0.5, 1), ("b-1", 0.1, 1), ("a-2", 0.5, 2), ("b-2", 0.1, 2)
    run, contents = scored(*systems[:2], count=20)
    (verdict,) = comparison.verdicts(contents.scores["test"])
    assert verdict.startswith("b-1 - a-1: +") and verdict.endswith(f"] BLEU; {FEW}.")
    assert FEW in comparison.tables(contents, "test")[0].notes and FEW in run.page().text
    _, contents = scored(*systems, count=20)
    (verdict,) = comparison.verdicts(contents.scores["test"])
    assert verdict.startswith("b (2 seeds): mean difference") and FEW in verdict


def test_caution_suggests_an_unused_seed(reported):
    edit(reported.run.system("own").config, "seed = 1", "seed = 2")
    cautions = texts(comparison.cautions(read_contents(reported.run)))
    assert any("and --seed 3; then:" in caution for caution in cautions)


def test_caution_counts_tested_differences_and_their_chance(reported):
    contents = read_contents(reported.run)
    base, own = contents.scores["test"].systems

    def count(systems, **update):
        result = contents.scores["test"].model_copy(update={"systems": systems, **update})
        changed = replace(contents, scores={"test": result})
        return " ".join(texts(comparison.cautions(changed)))

    assert "tested" not in count([base, own])
    assert "2 differences are tested: about 0.2 of them" in count([base, own, own])
    assert "2 differences are tested: about 0.1 of them" in count([base, own, own], test="sign")
    own.tests["sign"]["bleu"] = Comparison(None, "")  # not tested
    assert "tested" not in count([base, own, own], test="sign")


def test_systems_without_scores_are_left_out(reported):
    """A system that was trained longer, but not translated, is no unequal training."""
    reported.add("elsewhere", 0.5, sets=[])
    folder, own = (reported.run.system(name).path for name in ("elsewhere", "own"))
    for name in ("config.toml", "metrics.jsonl"):
        shutil.copy(own / name, folder / name)
    edit(folder / "metrics.jsonl", '"step": 10', '"step": 99')
    contents = read_contents(reported.run)
    assert [system.name for system in contents.systems] == ["base", "own"]
    assert "not trained alike" not in " ".join(texts(comparison.cautions(contents)))


def test_unequal_budgets_are_a_caution_in_the_words_of_the_scores(tmp_path):
    made = ReportedRun(tmp_path / "budgets")
    for name, step in (("a", 10), ("b", 99)):
        made.add(name, 0.3, variant=name, seed=1, corpus=f"of {name}")
        made.log(name)
        edit(made.run.system(name).path / "metrics.jsonl", '"step": 10', f'"step": {step}')
    score(made.run, resamples=20, trials=20)
    contents = read_contents(made.run)
    (caution,) = (text for text in texts(comparison.cautions(contents)) if "alike" in text)
    corpora = "preparations of the corpus (a of a, b of b)"
    assert caution == f"The systems were not trained alike: updates (a 10, b 99); {corpora}."
    assert contents.scores["test"].remarks == [caution]


THREE = [("a", 0.5, None), ("b", 0.3, None), ("c", 0.1, None)]


def test_verdicts_and_differences_are_ordered_from_best_to_worst(scored):
    _, contents = scored(*THREE)
    result = contents.scores["test"]
    assert [verdict.split()[0] for verdict in comparison.verdicts(result)] == ["c", "b"]
    assert [point.name for point in comparison.differences(result)] == ["c", "b"]
    _, contents = scored(*THREE, against="c")
    points = comparison.differences(contents.scores["test"])
    assert [point.name for point in points] == ["b", "a"]  # both are below 0


def test_stored_test_of_another_version_is_accepted(scored):
    run, _ = scored(*THREE, test="sign")
    edit(run.scores / "scores.json", '"sign"', '"newer"')
    assert "about 0.1 of 2 such p are below 0.05 by chance" in run.page().text


@pytest.fixture
def cost(reported):
    """Writes a finding of `analyze cost`; returns the row of `own` and the headers of times."""
    columns = [
        text_column("system"),
        *(Column(key, "time ×", interval=True) for key in comparison.TIMES),
    ]
    table = Table("cost", "Cost", columns, [["own", Estimate(1.2), Estimate(1.5)]])

    def row(facts=None, **options):
        if facts is not None:
            facts = {"baseline": "base", "set": "dev", "measured": {}, **facts}
            reported.finding("cost", "cost", facts=facts, table=table, **options)
        shown = comparison.tables(read_contents(reported.run), "test")[-1]
        return shown.as_json()["rows"][1], [column.header for column in shown.columns[5:]]

    return row


def test_cost_table_has_updates_minutes_seed_and_parameters(reported, cost):
    SystemRecord(made=1, parameters=12).write(reported.run.system("own").record)
    row, headers = cost()
    assert {"updates": 10, "seed": 1, "parameters": 12e-6}.items() <= row.items()
    assert row["minutes"] == pytest.approx(1.0) and headers == []
    (reported.run.system("own").path / "metrics.jsonl").unlink()
    assert cost()[0]["updates"] is None


def test_cost_of_a_system_from_elsewhere_is_unknown(reported):
    reported.add("outside", 0.2, trained=False)
    reported.score()
    *_, cost = comparison.tables(read_contents(reported.run), "test")
    assert [column.key for column in cost.columns[1:]] == [
        *("seed", "parameters", "updates", "minutes")
    ]
    rows = {name: cells for name, *cells in cost.rows}
    assert rows["outside"] == [None] * 4 and rows["own"][2] == 10


def test_cost_table_has_the_times_of_analyze_cost(cost):
    row, headers = cost({})
    assert headers == ["update, × (logged)", "search, × (logged on dev)"]
    assert [row[key]["value"] for key in comparison.TIMES] == [1.2, 1.5]
    _, headers = cost({"measured": {"own": {}}})
    assert headers == ["update, × (measured)", "search, × (measured on dev)"]


def test_cost_table_leaves_out_times_of_another_baseline_or_an_outdated_analysis(cost):
    assert cost({"baseline": "own"})[1] == []
    files = {"systems/own/config.toml": "another"}
    assert cost({}, made_from={"systems": ["base", "own"], "files": files})[1] == []


SEEDS = [("a-1", 0.3, 1), ("a-2", 0.33, 2), ("b-1", 0.1, 1), ("b-2", 0.1, 2)]


@pytest.fixture
def seeds(scored):
    """Two seeds of two systems: (run, contents, difference of b to a)."""
    run, contents = scored(*SEEDS)
    _, group = contents.scores["test"].seeds.groups
    return run, contents, group, group.against["bleu"]


def test_seeds_are_compared_by_their_mean(seeds):
    run, contents, _, against = seeds
    page = run.page()
    assert "by training seed" in page.text and "Each system was trained once" not in page.text
    verdict = (
        f"b (2 seeds) is not clearly different from a: {against.difference:+.2f} BLEU"
        f" [{against.low:+.2f}, {against.high:+.2f}], p = {against.p:.3f} (Holm"
        f" {against.p_holm:.3f})."
    )
    assert comparison.verdicts(contents.scores["test"]) == [verdict] and verdict in page.text
    tables = comparison.tables(contents, "test")
    assert [table.name for table in tables] == ["seeds", "comparison", "cost"]


def test_verdict_over_seeds_depends_on_holms_p(seeds):
    _, contents, group, against = seeds
    result = contents.scores["test"]
    group.against["bleu"] = replace(against, p=2e-4, p_holm=2e-4)  # as of 10,000 resamples
    assert comparison.verdicts(result)[0].endswith(" p < 0.001 (Holm <0.001).")
    assert comparison.tables(contents, "test")[0].cells()[1].count("<0.001") == 2
    group.against["bleu"] = replace(against, p=0.04, p_holm=0.08)
    assert comparison.verdicts(result)[0].startswith("b (2 seeds) is not clearly different from a")


def test_figure_of_differences_has_means_and_seeds(seeds):
    run, contents, _, against = seeds
    result = contents.scores["test"]
    (point,) = comparison.differences(result)
    assert (point.name, point.group) == ("b, 2 seeds", "b")
    assert point.delta == Estimate(against.difference, against.low, against.high)
    bleu = {system.name: system.scores["bleu"].value for system in result.systems}
    base = (bleu["a-1"] + bleu["a-2"]) / 2
    assert point.seeds == pytest.approx([bleu["b-1"] - base, bleu["b-2"] - base])
    run.add("c-1", 0.2, seed=1, variant="c")
    run.score()
    result = read_contents(run.run).scores["test"]
    points = comparison.differences(result)
    assert [(point.name, len(point.seeds)) for point in points] == [("b, 2 seeds", 2), ("c-1", 0)]
    assert [verdict.split()[0] for verdict in comparison.verdicts(result)] == ["b", "c-1"]
    groups = {"a-1": "a", "a-2": "a", "b-1": "b", "b-2": "b", "c-1": "c-1"}
    assert comparison.group_of(result) == groups


def test_caution_counts_differences_of_groups_of_seeds(scored):
    _, contents = scored(*SEEDS, ("c-1", 0.2, 1), ("c-2", 0.2, 2))
    cautions = " ".join(texts(comparison.cautions(contents)))
    assert "2 differences are tested: about 0.1 of them" in cautions
    group = contents.scores["test"].seeds.groups[1]
    group.against["bleu"] = replace(group.against["bleu"], p=None)  # not tested
    assert "differences are tested" not in " ".join(texts(comparison.cautions(contents)))


def test_remarks_on_scores_are_cautions_once_unless_they_are_about_outdated_weights(reported):
    contents = read_contents(reported.run)
    result = contents.scores["test"]
    made_from = result.made_from.model_copy(update={"older_checkpoints": ["older"]})
    result = result.model_copy(update={"remarks": ["older", "new"], "made_from": made_from})
    changed = replace(contents, scores={"test": result, "other": result})
    cautions = texts(comparison.cautions(changed))
    assert cautions.count("new") == 1 and "older" not in cautions


def test_requested_metrics_are_columns_of_the_scores_but_not_of_the_costs(scored):
    for options, requested in (({}, []), ({"metrics": "bleu,ter"}, ["ter"])):
        _, contents = scored(*THREE, **options)
        scores, cost = comparison.tables(contents, "test")
        keys = [column.key for column in scores.columns]
        assert keys == ["system", "bleu", "delta", "p", *(requested or ["chrf"])]
        assert [column.key for column in cost.columns][2:] == ["parameters", "updates", "minutes"]


def test_single_seed_is_compared_once_other_systems_show_the_error_of_seeds(scored):
    """Two seeds of one system are two systems; with three degrees of freedom there is a p."""
    systems = [("a-1", 0.3, 1), ("a-2", 0.3, 2), ("b-1", 0.1, 1), ("a-3", 0.3, 3), ("a-4", 0.3, 4)]

    def compared(count):
        _, contents = scored(*systems[:count])
        cautions = " ".join(texts(comparison.cautions(contents)))
        assert "differences are tested" not in cautions  # one at most
        result = contents.scores["test"]
        against = result.seeds.groups[-1].against.get("bleu")
        return comparison.verdicts(result), comparison.differences(result), against

    assert compared(1)[1] == []
    (verdict,), (point,), _ = compared(2)
    assert verdict.startswith("a-2 is ") and point.name == "a-2"
    (verdict,), (point,), against = compared(3)
    gap = against.difference
    assert verdict == f"b-1 (1 seed): mean difference {gap:+.2f} BLEU; {NOT_KNOWN}."
    # The difference is to the mean of a, as in the table of seeds; not to a-1.
    assert (point.name, point.delta) == ("b-1", Estimate(gap))
    (verdict,), _, _ = compared(4)
    assert verdict.endswith(f"; {NOT_KNOWN}.")
    (verdict,), (point,), against = compared(5)
    assert verdict.startswith("b-1 (1 seed) is ") and "(Holm " in verdict
    assert point.delta.value == pytest.approx(against.difference)
