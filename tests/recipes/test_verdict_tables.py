"""The tables of the verdict, from the results in the repository."""

import json
import re
import shutil
import tomllib
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import sacrebleu

from nmtkit import demo, files
from nmtkit.errors import DataError
from nmtkit.records import StoredFinding, load
from nmtkit.score.seeds import Resampled, over_seeds
from nmtkit.score.stored_scores import Scores
from nmtkit.tables.table import Column, StoredTable, Table, text_column
from recipes.verdict import kernel_sizes, leavings, pages, tables
from recipes.verdict.folders import Folders
from recipes.verdict.listing import HERE, read_list
from recipes.verdict.measured import measured
from tests.manifests import edit, read_json
from tests.recipes.recipe_calls import in_this_process
from tests.refused import refused

CORPUS, SET = "multi30k-ende", "test_2017_flickr"
ITEMS = read_list(HERE / "systems.sh")


@pytest.fixture
def folders(tmp_path):
    """Results without a state: on another machine."""
    return Folders(tmp_path / "state", HERE / "results")


def rows(table):
    keys = [column.key for column in table.columns]
    return {row[0]: dict(zip(keys, row, strict=True)) for row in table.rows}


def bleu(folder, wanted=lambda words: True):
    """BLEU of the sentences whose sources have a wanted number of words."""
    texts = folder.parent / "texts"
    names = folder / "translate" / SET / "hyp.txt", texts / f"{SET}.ref", texts / f"{SET}.src"
    lines = zip(*map(files.text_lines, names), strict=True)
    hypotheses, reference, _ = zip(*(x for x in lines if wanted(len(x[2].split()))), strict=True)
    return sacrebleu.corpus_bleu(hypotheses, [reference]).score


def captions(folders):
    """What is finished on the captions."""
    return next(of for of in tables.finished(ITEMS, folders) if next(iter(of)).dataset == CORPUS)


def test_scores_and_costs_of_single_seeds(folders):
    names = "transformer", "enc-dc", "rnnsearch"
    found = {row: paths[:1] for row, paths in captions(folders).items() if row.name in names}
    scores = rows(tables.scores(SET, found, folders))
    costs = rows(tables.costs(found, folders))
    assert list(scores) == list(costs) and next(iter(scores)) == "transformer"
    for name, row in scores.items():
        folder = HERE / "results" / CORPUS / f"{name}-s1"
        assert row["bleu"] == pytest.approx(bleu(folder)) and row["half_range"] is None
        summary = json.loads((folder / "summary.json").read_text("utf-8"))
        assert costs[name]["parameters"] == summary["parameters"]
        seconds = summary["seconds"]["training"] + summary["seconds"]["validation"]
        assert costs[name]["hours"] == pytest.approx(seconds / 3600)
        if name == "transformer":
            assert row["delta"] is row["p"] is None and costs[name]["over"] == 1
            continue
        assert row["delta"].value == pytest.approx(row["bleu"] - scores["transformer"]["bleu"])
        assert row["delta"].low < row["delta"].value < row["delta"].high
        assert 0 <= row["p"] <= row["p_holm"] <= 1
    assert scores["rnnsearch"]["p"] == pytest.approx(2 / 1001)  # of 1,000 resamples


def test_differences_grow_with_the_length_of_the_source(tmp_path):
    copied, folders = (Folders(tmp_path / "state", tmp_path / name) for name in ("new", "old"))
    for name in ("transformer-s1", "csan-s1", "full-dc-s1", "texts"):
        for place in (copied, folders):
            shutil.copytree(HERE / "results" / CORPUS / name, place.results / CORPUS / name)
    path = copied.results / CORPUS / "csan-s1" / "translate" / SET / "hyp.txt"
    sources = files.text_lines(copied.results / CORPUS / "texts" / f"{SET}.src")
    spoilt = [
        " ".join(line.split()[::-1]) if len(source.split()) >= 11 else line
        for line, source in zip(files.text_lines(path), sources, strict=True)
    ]
    files.write_lines(path, spoilt)
    before, after = (
        rows(tables.lengths(SET, captions(place), place)) for place in (folders, copied)
    )
    corpus = HERE / "results" / CORPUS
    for key, wanted in (("short", lambda n: n <= 8), ("long", lambda n: n >= 11)):
        parts = [bleu(corpus / system, wanted) for system in ("csan-s1", "transformer-s1")]
        assert before["csan"][key].value == pytest.approx(parts[0] - parts[1])
    for row in (*before.values(), *after.values()):
        assert row["growth"].value == pytest.approx(row["long"].value - row["short"].value)
        assert row["growth"].low < row["growth"].value < row["growth"].high
    assert before["csan"]["short"] == after["csan"]["short"]
    assert before["csan"]["p"] > 0.5 and after["csan"]["p_holm"] < 0.05
    path = copied.results / CORPUS / "texts" / f"{SET}.src"
    lines = files.text_lines(HERE / "results" / CORPUS / "texts" / f"{SET}.src")
    files.write_lines(path, [line.replace(" ", "") for line in lines])
    assert "characters" in tables.lengths(SET, captions(copied), copied).title


def test_several_seeds_are_one_row_with_their_mean_and_spread(tmp_path):
    """Another system's translations stand for a second seed."""
    folders, corpus = Folders(tmp_path / "state", tmp_path / "results"), HERE / "results" / CORPUS
    copies = {"transformer-s1": "transformer-s1", "transformer-s2": "csan-s1"}
    copies |= {"enc-dc-s1": "enc-dc-s1", "texts": "texts"}
    for name, source in copies.items():
        shutil.copytree(corpus / source, folders.results / CORPUS / name)
    made = {table.name: rows(table) for table in tables.tables(ITEMS, folders)}
    base, other = made[f"{CORPUS}-{SET}"].values()
    costs = made[f"{CORPUS}-costs"]
    seeds = [bleu(corpus / name) for name in ("transformer-s1", "csan-s1")]
    assert base["n"] == 2 and base["bleu"] == pytest.approx(sum(seeds) / 2)
    assert base["half_range"] == pytest.approx(abs(seeds[0] - seeds[1]) / 2)
    assert other["delta"].value == pytest.approx(other["bleu"] - base["bleu"])
    assert 0 < other["p"] <= 1 and costs["transformer"]["choice"] == 0
    shutil.copytree(corpus / "full-dc-s1", folders.results / CORPUS / "enc-dc-s2")
    path = folders.results / CORPUS / "enc-dc-s2" / "history.jsonl"
    path.write_text(path.read_text("utf-8").replace(': "cpu"', ': "cuda"'), "utf-8")
    made = {table.name: rows(table) for table in tables.tables(ITEMS, folders)}
    other = made[f"{CORPUS}-{SET}"]["enc-dc"]
    assert other["n"] == 2 and other["delta"].value == pytest.approx(other["bleu"] - base["bleu"])
    # Only seeds that were trained on a CPU have costs.
    assert made[f"{CORPUS}-costs"]["enc-dc"]["hours"] == costs["enc-dc"]["hours"]
    # Times on different CPUs are not compared.
    assert made[f"{CORPUS}-costs"]["enc-dc"]["over"] == costs["enc-dc"]["over"] > 1
    path = folders.results / CORPUS / "enc-dc-s1" / "config.toml"
    path.write_text(path.read_text("utf-8").replace("AMD EPYC", "another CPU"), "utf-8")
    of_another = rows(tables.costs(captions(folders), folders))["enc-dc"]
    assert of_another["over"] is None and of_another["seconds"] == costs["enc-dc"]["seconds"]


def test_ranks_are_counted_in_processor_seconds(tmp_path):
    lines = [{"step": 1, "kind": "train", "cpu_seconds": 2.0}]
    lines.append({"step": 2, "kind": "train", "cpu_seconds": 3.0, "processes": 2})
    files.write_lines(tmp_path / "metrics.jsonl", map(json.dumps, lines))
    assert measured(tmp_path).training == 2 + 2 * 3


def test_the_figure_has_the_windows_and_the_divergence_of_each_seed(folders, tmp_path):
    pytest.importorskip("matplotlib", reason="figures need the extra [plots]")
    found = captions(folders)
    rows = {kernel_sizes.size_of(row): row for row in found if kernel_sizes.size_of(row)}
    assert {rows[size].name for size in (2, 3, 7)} == {"enc-dc", "enc-dc-f3", "enc-dc-f7"}
    values = kernel_sizes.divergences(found[rows[2]])
    table = next(t for t in tables.findings(found) if t.name == f"{CORPUS}-divergence")
    means = [r for r in table.rows if r[0].startswith("enc-dc-s") and r[3:5] == ["all", "E_d"]]
    assert values == [row[5] for row in means] and len(values) >= 2
    small = {row: found[row] for row in found if row.name in ("transformer", "enc-dc")}
    kernel_sizes.draw(small, folders, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_a_single_seed_has_the_error_of_all_systems_with_several():
    rng, counts = np.random.default_rng(1), {"base": 2, "one": 1, "two": 2, "three": 3}
    rows = {name: replace(ITEMS[0].row, name=name) for name in counts}
    scores = {
        rows[name]: [Resampled(value, value + rng.normal(size=100)) for value in rng.normal(size=n)]
        for name, n in counts.items()
    }
    found = tables.against_first(scores, 50, 1)
    base, one, *others = scores.values()
    values = [[score.value for score in of_row] for of_row in others]
    assert found[rows["one"]] == over_seeds(one, base, 50, 1, values)
    assert found[rows["two"]] == over_seeds(others[0], base, 50, 1, if_unknown=True)


def test_p_is_corrected_within_a_part_of_the_list():
    systems = {"a": "main", "sweep": "sweeps", "b": "main"}
    rows = [replace(ITEMS[0].row, name=name, part=part) for name, part in systems.items()]
    corrected = tables.corrected(dict(zip(rows, (0.01, 0.03, 0.02), strict=True)))
    assert {row.name: p for row, p in corrected.items()} == {"a": 0.02, "sweep": 0.03, "b": 0.02}
    assert tables.holm_note(rows).endswith("each part of the list (2 of main, 1 of sweeps)")


def test_findings_of_single_systems_are_one_table():
    """Cells of the same words are in one row; a system without a row has an empty cell there."""

    def of_system(name, kinds):
        words, count, own = text_column("kind"), Column("n", "pairs"), Column(name, name)
        rows = [[kind, 10, share] for kind, share in kinds.items()]
        return StoredTable.model_validate(
            Table("x", "A title", [words, count, own], rows).as_json()
        )

    table = tables.side_by_side(
        "corpus-x", [of_system("a", {"near": 1, "far": 2}), of_system("b", {"far": 3, "all": 4})]
    )
    assert [column.key for column in table.columns] == ["kind", "n", "a", "b"]
    assert table.rows == [["near", 10, 1, None], ["far", 10, 2, 3], ["all", 10, None, 4]]
    one, two = of_system("a", {"near": 1}), of_system("a", {"far": 2})
    assert tables.side_by_side("corpus-x", [one, two]).rows == [["near", 10, 1], ["far", 10, 2]]
    stored = (
        HERE / "results/multi30k-ende/enc-dc-s2/analyze/divergence.json"
    )  # its layers are not left-aligned
    divergence = load(StoredFinding, stored).table
    assert len(tables.side_by_side("x", [divergence]).rows) == len(divergence.rows)


def test_what_is_missing_is_said(tmp_path, folders, capsys, monkeypatch):
    with pytest.raises(DataError, match="no corpus has results of 'transformer' and another"):
        tables.tables(ITEMS, Folders(tmp_path, tmp_path))
    results = tmp_path / "results" / CORPUS
    for name in ("transformer-s1", "csan-s1"):
        shutil.copytree(HERE / "results" / CORPUS / name, results / name)
    elsewhere = Folders(tmp_path / "state", results.parent)
    assert len(tables.tables(ITEMS, elsewhere)) == 1  # costs
    assert f"no texts of {SET}" in capsys.readouterr().err
    shutil.copytree(HERE / "results" / CORPUS / "texts", elsewhere.run(CORPUS) / "prep/text")
    (elsewhere.state / "results").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(leavings, "LARGEST_TEXT", 65_000)  # smaller than a reference of 2016 alone
        assert leavings.collect(elsewhere) == []
        kept = {path.name for path in (results / "texts").iterdir()}
        assert kept == {"test_2017_flickr.src", "test_2017_flickr.ref"}
    assert leavings.collect(elsewhere) == [] and (results / "texts" / f"{SET}.src").is_file()
    assert len(tables.tables(ITEMS, elsewhere)) == 5

    hypotheses = results / "csan-s1" / "translate" / SET / "hyp.txt"
    lines = hypotheses.read_text("utf-8")
    for text in (lines.partition("\n")[2], lines + "x\n", ""):
        hypotheses.write_text(text, "utf-8")
        message = f"^the hypotheses: {text.count(chr(10)):,} lines, but reference 0 has 1,000"
        caught = refused(DataError, message, tables.tables, ITEMS, elsewhere)
        assert caught.where == str(hypotheses) and "delete the system's folder" in caught.hint
    hypotheses.unlink()
    refused(DataError, f"no such file: {hypotheses}", tables.tables, ITEMS, elsewhere)
    hypotheses.write_text(lines, "utf-8")

    (results / "csan-s1" / "summary.json").write_text('{"updates": 0}')
    with pytest.raises(DataError, match=r"csan-s1.summary\.json"):
        tables.tables(ITEMS, elsewhere)


def pretend_whole(manifest, system):
    """Give a part of the corpus the fingerprint of the corpus that a system was trained on."""
    config = tomllib.loads((system / "config.toml").read_text("utf-8"))
    edit(manifest, read_json(manifest)["fingerprint"], config["corpus"])


def test_the_page_has_the_numbers_of_the_results(tmp_path, monkeypatch):
    """Translations, curves, sizes and findings of systems whose weights are not here."""
    monkeypatch.setattr(demo, "generate", partial(demo.generate, dev=500, test=500))
    names = ["transformer-s1", "transformer-s2", "amn-s1", "amn-s2"]
    folders = Folders(tmp_path / "state", tmp_path / "results")
    for name in [*names, "texts"]:
        shutil.copytree(HERE / "results/demo" / name, folders.results / "demo" / name)
    printed = []

    def run(command, cwd, **options):
        monkeypatch.chdir(cwd)
        code, *streams = in_this_process(command[1:])
        printed.append("".join(streams))
        return SimpleNamespace(returncode=code)

    folders.state.mkdir()
    options = ["--run", "runs/demo", "--preset", "demo", "--jobs", "1", "--size", "300"]
    assert run(["nmtkit", "prep", "demo", *options], folders.state).returncode == 0
    pretend_whole(folders.run("demo") / "prep/manifest.json", folders.results / "demo/amn-s1")
    monkeypatch.setattr(pages, "subprocess", SimpleNamespace(run=run))
    page = pages.page(ITEMS, folders)
    assert page == folders.state / "page/demo/report/index.html"
    assert not [line for text in printed for line in text.splitlines() if "warning" in line]
    made = load(Scores, page.parents[1] / "score/test/scores.json")
    for system in made.systems:
        stored = load(Scores, folders.results / f"demo/{system.name}/scores/test.json")
        assert system.scores["bleu"].value == stored.systems[0].scores["bleu"].value
    assert made.names == names and made.seeds is not None
    text = re.sub(r"<[^>]+>", "", page.read_text("utf-8"))
    assert "Made before these changed" not in text and "amn: amn-s1 (seed 1), amn-s2" in text
    assert "nmtkit train --run runs/demo --system amn-s2" in text
    assert "nmtkit analyze agreement --pairs pronouns --context true,none,foreign" in text
    finding = load(StoredFinding, page.parents[1] / "analyze/pronouns/finding.json")
    assert {*names, "amn-s2, foreign"} <= {column.key for column in finding.table.table.columns}
    assert all(text.count(f"{millions}") >= 2 for millions in (1.32, 1.72))  # parameters
    copied = folders.state / "page/demo/systems/amn-s1/best.json"
    best = copied.read_bytes()
    copied.write_text("damaged")
    pages.subprocess.run = lambda *_, **__: SimpleNamespace(returncode=2)
    with pytest.raises(DataError, match="nmtkit score failed"):
        pages.page(ITEMS, folders)
    assert copied.read_bytes() == best
    corpus = folders.results / "demo"
    (corpus / "amn-s1/history.jsonl").write_text("damaged\n")
    with pytest.raises(DataError, match="amn-s1/history.jsonl, line 1"):
        pages.page(ITEMS, folders)
    (corpus / "amn-s1/metrics.jsonl").unlink()
    with pytest.raises(DataError, match="no metrics.jsonl"):
        pages.page(ITEMS, folders)
    (corpus / "texts/test.src").write_text("Another text.\n")
    with pytest.raises(DataError, match="not the text that was translated"):
        pages.page(ITEMS, folders)
    monkeypatch.setattr(pages.corpus, "prepare", lambda *_: False)
    with pytest.raises(DataError, match="demo cannot be prepared"):
        pages.page(ITEMS, folders)
    assert not list((folders.state / "page").glob(".*"))  # nothing half-written


def test_texts_that_an_earlier_nmtkit_tidied_less_are_the_same(tmp_path):
    for folder, text in (("scored", "a \u00adb\n"), ("prepared", "a b\n"), ("others", "a c\n")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "test.src").write_text(text, "utf-8")
    pages._check_texts(tmp_path / "scored", tmp_path / "prepared")
    with pytest.raises(DataError, match="not the text that was translated"):
        pages._check_texts(tmp_path / "scored", tmp_path / "others")


def test_a_page_of_two_corpora_and_how_each_is_tested(tmp_path, monkeypatch):
    folders = Folders(tmp_path / "state", tmp_path / "results")
    kept = {CORPUS: ["transformer-s1", "csan-s1"], "demo": ["transformer-s1", "transformer-s2"]}
    kept["demo"].append("amn-s1")
    for dataset, names in kept.items():
        for name in [*names, "texts"]:
            shutil.copytree(HERE / "results" / dataset / name, folders.results / dataset / name)
        run = folders.run(dataset)
        shutil.copytree(folders.results / dataset / "texts", run / "prep" / "text")
        (run / "run.toml").write_text("")
    monkeypatch.setattr(pages.corpus, "prepare", lambda *_: True)
    calls = []

    def note(command, **options):
        calls.append(command[1:])
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(pages, "subprocess", SimpleNamespace(run=note))
    assert pages.page(ITEMS, folders) == folders.state / f"page/{CORPUS}/report/index.html"
    first, second, report = calls
    assert first[:3] == ["score", "--run", f"page/{CORPUS}"]
    assert first[-2:] == ["--significance", "sacrebleu_randomization"]
    assert second[:3] == ["score", "--run", "page/demo"] and second[-2:] == ["--group-by", "name"]
    assert report[:5] == ["report", "--run", f"page/{CORPUS}", "--also", "page/demo"]
    finding = json.loads((folders.state / "page/demo/analyze/pronouns/finding.json").read_text())
    assert finding["made_from"]["systems"] == ["transformer-s1", "transformer-s2", "amn-s1"]
    assert finding["attachments"] == [] and finding["made_from"]["weights"] == {}
