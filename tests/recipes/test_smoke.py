"""Run every recipe at SCALE=smoke, on one prepared demo corpus: systems, scores and analyses."""

import functools
import json
import os
import re
from pathlib import Path

import pytest
import torch

from nmtkit import demo
from nmtkit.analyze import cost, timing
from nmtkit.tables import drawing
from nmtkit.tables.table import SUFFIXES
from tests.analyze.conftest import multiplications_are_counted_once  # noqa: F401
from tests.manifests import read_json
from tests.recipes.recipe_calls import RECIPES, ROOT, run_recipe

DC = ["transformer", "enc-dc", "dec-dc", "full-dc"]
DC_TABLE_1 = [DC[0], "csan", *DC[1:]]
CARU = ["plain", "caatt", "caembed", "caru"]
TABLES = {
    "caru/table1": (["rnnsearch", "gru-inv", "gatt", *CARU], ["cost"]),
    "caru/table2": (["rnnsearch", "gru-inv", "caru"], ["examples"]),
    "caru/table3": (["rnnsearch", *CARU[1:]], ["weights"]),
    "caru/one_way": (["rnnsearch", "gru-inv", *(f"{name}-one-way" for name in CARU)], ["cost"]),
    "caru/convergence": (["rnnsearch", "gru-inv", *CARU], ["convergence"]),
    "caru/importance": (["rnnsearch", "gru-inv", *CARU[1:]], ["importance"]),
    "caru/gates": (["rnnsearch", *CARU[1:]], ["gates"]),
    "caru/phrases": (["rnnsearch", "gru-inv", *CARU], ["phrases"]),
    "dual_context/agreement": (DC[:2], ["agreement"]),
    "dual_context/table1": (DC_TABLE_1, ["cost"]),
    "dual_context/table2": (DC, []),
    "dual_context/table5": (["transformer", "enc-dc", "enc-dc-layers-1-1"], ["cost"]),
    "dual_context/kernel_size": (["transformer", "enc-dc", "enc-dc-f3"], ["divergence", "cost"]),
    "dual_context/controls": (
        [*DC[:2], "transformer-matched", "enc-dc-no-conv", "transformer-cycle", "attention-rep"],
        ["cost"],
    ),
    "dual_context/probing": (DC[:2], ["probing"]),
    "memory/context_use": (["transformer", "amn"], ["agreement", "context"]),
    "memory/subtitles": (["transformer", "amn", "context-aware"], ["context", "cost"]),
    "memory/table2": (["transformer", "context-aware", "han", "amn", "concat"], ["cost"]),
    "memory/table3": (["transformer", "amn", "amn-wo-rnn", "amn-wo-attention", "amn-wo-both"], []),
    "memory/table4": (["transformer", "amn", "amn-next-2", "amn-next-2-parallel"], []),
    "phrase/table1": (["transformer", "pr", "big", "big-pr"], []),
    "phrase/table2": (
        ["transformer", "mean", "max", "max-attn", "pr", "parse", "big"],
        ["cost", "layers"],
    ),
    "phrase/length": (["transformer", "pr", "big"], ["lengths"]),
    "phrase/agreement": (["transformer", "pr", "big"], ["agreement"]),
}
"""Recipe -> its systems and its analyses."""
HALVES = {
    "sentences": [*DC, "pr", "rnnsearch", "gru-inv", "caru"],
    "documents": ["transformer", "amn", "context-aware", "han", "concat"],
}
"""The systems of compare_all."""
PRINTED = (
    *("caru/table1", "phrase/table1", "phrase/table2"),
    *("dual_context/table1", "dual_context/table2", "dual_context/table5"),
    *("memory/table2", "memory/table3", "memory/table4"),
)
"""Recipes of tables with scores in the papers."""
PRINTED_ANALYSES = {
    "dual_context/table1": ["cost"],
    "dual_context/probing": ["probing"],
    "phrase/table2": ["cost"],
    "phrase/length": ["lengths"],
}
"""Recipes of tables with other numbers in the papers -> the analyses that measure them."""


@pytest.fixture(scope="module", autouse=True)
def quick():
    """Use dev and test sets of 20 sentences, empty figures, one thread and no worker processes."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    svg = b'<svg xmlns="http://www.w3.org/2000/svg"/>'
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "generate", functools.partial(demo.generate, dev=20, test=20))
        patch.setattr(drawing, "saved", lambda draw, form, metadata: svg)
        patch.setattr(os, "sched_getaffinity", lambda process: {0}, raising=False)
        yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def quick_cost(monkeypatch):
    """Let the cost analysis count short sentences and measure each time twice."""
    monkeypatch.setattr(cost, "typical_lengths", lambda store: (3, 3))
    monkeypatch.setattr(timing, "LEAST", 2)
    monkeypatch.setattr(timing, "MOST", 2)


@pytest.fixture(scope="module")
def shared_run(quick, tmp_path_factory):
    """The variables of a run for all recipes, with a right-branching tree for each sentence."""
    folder = tmp_path_factory.mktemp("recipes")
    demo.generate(folder / "demo", size=300, seed=1)
    (folder / "trees").mkdir()
    for name in ("train", "dev", "test"):
        trees = []
        for line in (folder / "demo" / f"{name}.en").read_text("utf-8").splitlines():
            leaves = [f"(X {leaf})" for leaf in re.findall(r"\w+|[^\w\s]", line)]
            trees.append("".join(f"(S {leaf} " for leaf in leaves) + ")" * len(leaves) + "\n")
        (folder / "trees" / f"{name}.trees").write_text("".join(trees), "utf-8")
    return {"RUN": folder / "run", "PARSES": folder / "trees"}


def smoke(name, folder, variables, **more):
    """Run a recipe to its end."""
    done = run_recipe(ROOT / "recipes" / f"{name}.sh", folder, SCALE="smoke", **variables, **more)
    assert done.code == 0, done.stderr[-2000:]
    return done


def first_column(table):
    """Return the first column of a table in Markdown, with its head."""
    lines = table.read_text("utf-8").splitlines()
    return {line.split(" | ")[0].removeprefix("| ") for line in lines if line.startswith("| ")}


def rows(kept, analysis):
    return read_json(kept / analysis / "finding.json")["table"]["rows"]


def systems(kept, analysis):
    """Return the systems in the rows of an analysis."""
    return {row["system"] for row in rows(kept, analysis)}


def seeded(*names):
    """Return the names of systems with seed 1."""
    return {f"{name}-s1" for name in names}


def test_every_recipe_is_tested():
    recipes = {str(path.relative_to(ROOT / "recipes").with_suffix("")) for path in RECIPES}
    assert recipes == {*TABLES, "compare_all"}


@pytest.mark.parametrize("name", TABLES)
def test_recipe_scores_and_analyses_its_systems(name, shared_run, tmp_path):
    names, analyses = TABLES[name]
    names = [f"{system}-s1" for system in names]
    done = smoke(name, tmp_path, shared_run)
    kept = shared_run["RUN"] / "recipes" / name
    assert {path.name for path in kept.iterdir()} == {"score", *analyses}
    check_scores(kept / "score" / "test", names)
    baseline = "rnnsearch-s1" if name.startswith("caru/") else "transformer-s1"
    assert names[0] == baseline
    assert set(names) <= {line.split(" ")[0] for line in done.stdout.splitlines()}
    papers = [path.relative_to(kept).parent.as_posix() for path in kept.rglob("paper.md")]
    printed = [*PRINTED_ANALYSES.get(name, []), *["score/test"] * (name in PRINTED)]
    assert sorted(papers) == sorted(printed)
    if name in PRINTED:
        table = (kept / "score/test/paper.md").read_text("utf-8")
        assert "(another corpus than the paper's)" in table
    for analysis in analyses:
        finding = read_json(kept / analysis / "finding.json")
        assert finding["name"] == analysis and (kept / analysis / "table.md").is_file()
        if analysis == "cost":
            assert [row["system"] for row in finding["table"]["rows"]] == names
    MORE_CHECKS.get(name, lambda kept: None)(kept)


def check_scores(folder, names):
    """Check the scores of systems, of which the first is the baseline, and their tables."""
    scores = read_json(folder / "scores.json")
    assert {row["name"] for row in scores["systems"]} == set(names)
    assert scores["made_from"]["baseline"] == names[0]
    assert first_column(folder / "table.md") == {"system", *names}
    stems = {"table", "significance", "lengths", "paper"}
    files = {p.name for p in folder.iterdir() if p.stem in stems and p.suffix != ".svg"}
    assert {f"{Path(file).stem}.{suffix}" for file in files for suffix in SUFFIXES} == files


def by_length_of_dc(kept):
    lengths = read_json(kept / "score" / "test" / "scores.json")["by_length"]
    assert lengths["buckets"] == "dc"
    assert {row["system"] for row in lengths["groups"]} == seeded(*DC_TABLE_1)


def kernels(kept):
    encoders = {
        (row["system"], row["settings"], row["layer"])
        for row in rows(kept, "divergence")
        if row["stack"] == "encoder"
    }
    both = (("enc-dc-s1", "kernel_size=2"), ("enc-dc-f3-s1", "kernel_size=3"))
    assert encoders == {(*system, layer) for system in both for layer in ("1", "2", "E_d")}


def ten_tasks(kept):
    tasks = rows(kept, "probing")
    assert sum(row["classes"] is not None for row in tasks) == 10
    assert tasks[-1]["task"] == "average of 5"
    assert {"majority class", "transformer-s1", "enc-dc-s1", "enc-dc-s1, embeddings"} <= tasks[
        0
    ].keys()
    assert not list(kept.rglob("*.npy"))  # the vectors are not copied
    assert {"Transformer", "Enc-DC"} < first_column(kept / "probing" / "paper.md")


def groups_of_pr(kept):
    assert {row["group"] for row in rows(kept, "lengths")} == {"≤15", "(15,30]", "(30,45]", ">45"}
    assert systems(kept, "lengths") == seeded("transformer", "pr", "big")
    assert (kept / "score" / "test" / "lengths.md").is_file()


def distances(kept):
    agreement = rows(kept, "agreement")
    labels = {row["label"] for row in agreement if row["section"] == "distance, subject-verb"}
    assert set(map(str, range(1, 16))) <= labels
    assert seeded("transformer", "pr", "big") <= agreement[0].keys()
    assert (kept / "agreement" / "pr-s1.scores").is_file()


def contexts(kept):
    assert [(row["system"], row["context"]) for row in rows(kept, "context")] == [
        ("amn-s1", name) for name in ("own", "none", "same document", "other documents")
    ]
    assert (kept / "context" / "examples.html").is_file()
    agreement = rows(kept, "agreement")
    assert {"transformer-s1", "amn-s1", "amn-s1, none", "amn-s1, foreign"} <= agreement[0].keys()
    labels = [(row["section"], row["label"]) for row in agreement]
    assert labels[:2] == [("all", "all"), ("sentence", "better than every wrong one")]
    assert ("type", "masculine_for_neuter") in labels


MORE_CHECKS = {
    "memory/context_use": contexts,
    "dual_context/table1": by_length_of_dc,
    "dual_context/kernel_size": kernels,
    "dual_context/probing": ten_tasks,
    "phrase/length": groups_of_pr,
    "phrase/agreement": distances,
}


def test_comparison_of_all_models_has_two_halves_on_one_page(shared_run, tmp_path):
    runs = {
        "sentences": tmp_path / "smoke-demo-tiny-parsed",
        "documents": tmp_path / "smoke-demo-demo-parsed",
    }
    shared_run["RUN"].mkdir(exist_ok=True)
    # The other recipes have trained its systems there.
    runs["sentences"].symlink_to(shared_run["RUN"])
    smoke("compare_all", tmp_path, {"RUNS": tmp_path, "PARSES": shared_run["PARSES"]})
    page = runs["sentences"] / "recipes" / "compare_all" / "report" / "index.html"
    parts = page.read_text("utf-8").split('<section id="run2"')
    for (half, run), part in zip(runs.items(), parts, strict=True):
        names = seeded(*HALVES[half])
        kept = run / "recipes" / "compare_all" / half
        scores = read_json(kept / "score" / "test" / "scores.json")
        assert scores["made_from"]["baseline"] == "transformer-s1" and scores["by_length"]["groups"]
        assert {row["name"] for row in scores["systems"]} == systems(kept, "cost") == names
        assert all(f'data-key="{system}"' in part for system in names)


def test_repeated_recipe_trains_and_translates_nothing_and_has_the_same_tables(
    shared_run, tmp_path
):
    name = "dual_context/kernel_size"
    kept = shared_run["RUN"] / "recipes" / name
    smoke(name, tmp_path, shared_run)
    before = {path: path.read_bytes() for path in kept.rglob("table.*")}
    history = shared_run["RUN"] / "history.jsonl"
    known = len(history.read_text("utf-8").splitlines())
    again = smoke(name, tmp_path, shared_run)
    records = [json.loads(line) for line in history.read_text("utf-8").splitlines()[known:]]
    assert [record["steps"] for record in records if record["stage"] == "train"] == [[2, 2]] * 3
    assert again.stderr.count("has translated test already") == 3
    assert {path: path.read_bytes() for path in kept.rglob("table.*")} == before
    assert "is prepared; its corpus is used" in again.stderr and not again.named("prep")


def test_seeds_of_a_system_are_one_row(shared_run, tmp_path):
    done = smoke("phrase/agreement", tmp_path, shared_run, SEEDS="1 2")
    table = shared_run["RUN"] / "recipes" / "phrase" / "agreement" / "score" / "test" / "seeds.md"
    assert first_column(table) == {"system", "transformer", "pr", "big"}
    assert "pr: pr-s1 (seed 1), pr-s2 (seed 2)" in done.stdout
