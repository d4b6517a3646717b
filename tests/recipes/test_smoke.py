"""Every recipe of the papers' tables at SCALE=smoke: the lines of shell that larger scales run
too, on one prepared demo corpus.
"""

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
HALVES = {
    "sentences": [*DC, "pr", "rnnsearch", "gru-inv", "caru"],
    "documents": ["transformer", "amn", "context-aware", "han", "concat"],
}
"""The comparison of no paper, in two parts."""
PRINTED = (
    "caru/table1",
    *(f"dual_context/table{i}" for i in (1, 2, 5)),
    *(f"memory/table{i}" for i in (2, 3, 4)),
    "phrase/table1",
    "phrase/table2",
)
"""Those of which the papers print scores."""
BESIDE = {
    "dual_context/table1": ["cost"],
    "dual_context/probing": ["probing"],
    "phrase/table2": ["cost"],
    "phrase/length": ["lengths"],
}
"""And what else they print, by the analysis that measures it."""


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Tiny products: a second thread only waits."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module", autouse=True)
def short_sets():
    """A dev and a test set of 20 sentences: those of 500 take half the time of all recipes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "generate", functools.partial(demo.generate, dev=20, test=20))
        yield


@pytest.fixture(scope="module", autouse=True)
def empty_figures():
    """Figures take a seventh of the time, and no test here looks at them."""
    with pytest.MonkeyPatch.context() as patch:
        svg = b'<svg xmlns="http://www.w3.org/2000/svg"/>'
        patch.setattr(drawing, "saved", lambda draw, form, metadata: svg)
        yield


@pytest.fixture(scope="module", autouse=True)
def one_core():
    """Searches and analyses of a few sentences start no worker processes, whose forks take a sixth
    of the time; tests/translate and tests/analyze start them.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "sched_getaffinity", lambda process: {0})
        yield


@pytest.fixture(autouse=True)
def quick_cost(monkeypatch):
    """The analysis of the cost counts short sentences, and takes each time twice."""
    monkeypatch.setattr(cost, "typical_lengths", lambda store: (3, 3))
    monkeypatch.setattr(timing, "LEAST", 2)
    monkeypatch.setattr(timing, "MOST", 2)


@pytest.fixture(scope="module")
def shared_run(short_sets, tmp_path_factory):
    """The variables that give all recipes one run, with a tree for each of its sentences:
    right-branching, as the grammar has none.
    """
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
    done = run_recipe(ROOT / "recipes" / f"{name}.sh", folder, SCALE="smoke", **variables, **more)
    assert done.code == 0, done.stderr[-2000:]
    return done


def test_every_recipe_is_here():
    found = {str(path.relative_to(ROOT / "recipes").with_suffix("")) for path in RECIPES}
    assert found == {*TABLES, "compare_all"}


@pytest.mark.parametrize("name", TABLES)
def test_the_table_has_its_systems_and_its_analyses(name, shared_run, tmp_path):
    names, analyses = TABLES[name]
    names = [f"{system}-s1" for system in names]
    done = smoke(name, tmp_path, shared_run)
    kept = shared_run["RUN"] / "recipes" / name
    folder = kept / "score" / "test"
    assert {path.name for path in kept.iterdir()} == {"score", *analyses}
    scores = read_json(folder / "scores.json")
    assert {row["name"] for row in scores["systems"]} == set(names)
    baseline = "rnnsearch-s1" if name.startswith("caru/") else "transformer-s1"
    assert scores["made_from"]["baseline"] == names[0] == baseline
    assert first_column(folder / "table.md") == {"system", *names}
    assert set(names) <= {line.split(" ")[0] for line in done.stdout.splitlines()}
    stems = {"table", "significance", "lengths", "paper"}
    forms = {p.name for p in folder.iterdir() if p.stem in stems and p.suffix != ".svg"}
    assert {f"{Path(form).stem}.{suffix}" for form in forms for suffix in SUFFIXES} == forms
    assert ("paper.md" in forms) == (name in PRINTED)
    beside = {str(path.relative_to(kept)) for path in kept.glob("*/paper.md")}
    assert beside == {f"{analysis}/paper.md" for analysis in BESIDE.get(name, ())}
    if name in PRINTED:
        paper = (folder / "paper.md").read_text("utf-8")
        assert "(another corpus than the paper's)" in paper
    for analysis in analyses:
        finding = read_json(kept / analysis / "finding.json")
        assert finding["name"] == analysis and (kept / analysis / "table.md").is_file()
        if analysis == "cost":
            assert [row["system"] for row in finding["table"]["rows"]] == names
    FURTHER.get(name, lambda kept: None)(kept)


def first_column(table):
    """What stands in the first column of a table in Markdown, its head included."""
    return {
        line.split(" | ")[0].removeprefix("| ")
        for line in table.read_text("utf-8").splitlines()
        if line.startswith("| ")
    }


def rows(kept, analysis):
    return read_json(kept / analysis / "finding.json")["table"]["rows"]


def systems(kept, analysis):
    """The systems that the rows of an analysis name."""
    return {row["system"] for row in rows(kept, analysis)}


def seeded(*names):
    """The names of systems as seed 1 has them."""
    return {f"{name}-s1" for name in names}


def by_length_of_dc(kept):
    lengths = read_json(kept / "score" / "test" / "scores.json")["by_length"]
    assert lengths["buckets"] == "dc"
    assert {row["system"] for row in lengths["groups"]} == seeded(*DC_TABLE_1)


def kernels(kept):
    found = {
        (row["system"], row["settings"], row["layer"])
        for row in rows(kept, "divergence")
        if row["stack"] == "encoder"
    }
    both = (("enc-dc-s1", "kernel_size=2"), ("enc-dc-f3-s1", "kernel_size=3"))
    assert found == {(*system, layer) for system in both for layer in ("1", "2", "E_d")}


def ten_tasks(kept):
    found = rows(kept, "probing")
    assert sum(row["classes"] is not None for row in found) == 10
    assert found[-1]["task"] == "average of 5"
    assert {"majority", "transformer-s1", "enc-dc-s1", "enc-dc-s1, embeddings"} <= found[0].keys()
    assert not list(kept.rglob("*.npy"))  # the vectors stay where they are
    assert {"Transformer", "Enc-DC"} < first_column(kept / "probing" / "paper.md")


def groups_of_pr(kept):
    assert {row["group"] for row in rows(kept, "lengths")} == {"≤15", "(15,30]", "(30,45]", ">45"}
    assert systems(kept, "lengths") == seeded("transformer", "pr", "big")
    assert (kept / "score" / "test" / "lengths.md").is_file()


def distances(kept):
    found = rows(kept, "agreement")
    labels = {row["label"] for row in found if row["section"] == "distance, subject-verb"}
    assert set(map(str, range(1, 16))) <= labels
    assert seeded("transformer", "pr", "big") <= found[0].keys()
    assert (kept / "agreement" / "pr-s1.scores").is_file()


def context_used(kept):
    assert [(row["system"], row["context"]) for row in rows(kept, "context")] == [
        ("amn-s1", name) for name in ("own", "none", "same document", "other documents")
    ]
    assert (kept / "context" / "examples.html").is_file()
    found = rows(kept, "agreement")
    assert {"transformer-s1", "amn-s1", "amn-s1, none", "amn-s1, foreign"} <= found[0].keys()
    assert [(row["section"], row["label"]) for row in found[:2]] == [
        ("all", "all"),
        ("sentence", "better than every wrong one"),
    ]
    assert ("type", "masculine_for_neuter") in [(row["section"], row["label"]) for row in found]


FURTHER = {
    "memory/context_use": context_used,
    "dual_context/table1": by_length_of_dc,
    "dual_context/kernel_size": kernels,
    "dual_context/probing": ten_tasks,
    "phrase/length": groups_of_pr,
    "phrase/agreement": distances,
}
"""What else comes of a recipe that asks for it."""


def test_all_models_are_compared_in_two_parts_and_one_page(shared_run, tmp_path):
    runs = {
        "sentences": tmp_path / "smoke-demo-tiny-parsed",
        "documents": tmp_path / "smoke-demo-demo-parsed",
    }
    shared_run["RUN"].mkdir(exist_ok=True)
    # where the other recipes have trained its systems
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


def test_again_trains_and_translates_nothing_and_finds_the_same(shared_run, tmp_path):
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


def test_seeds_become_one_row(shared_run, tmp_path):
    done = smoke("phrase/agreement", tmp_path, shared_run, SEEDS="1 2")
    table = shared_run["RUN"] / "recipes" / "phrase" / "agreement" / "score" / "test" / "seeds.md"
    assert first_column(table) == {"system", "transformer", "pr", "big"}
    assert "pr: pr-s1 (seed 1), pr-s2 (seed 2)" in done.stdout
