"""Make the tables, the figure and the page of the verdict from the results in the repository."""

import json
import re
import shutil
import tomllib
from dataclasses import replace
from functools import partial
from pathlib import Path
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
RESULTS = HERE / "results"
ITEMS = read_list(HERE / "systems.sh")


@pytest.fixture
def published(tmp_path):
    """The results in the repository, without a state: as on another machine."""
    return Folders(tmp_path / "state", RESULTS)


@pytest.fixture
def copied(tmp_path):
    """Folders without results."""
    return Folders(tmp_path / "state", tmp_path / "results")


def copy_results(folders, dataset, names):
    """Copy results of the repository; names: system here -> system in the repository."""
    names = names if isinstance(names, dict) else dict(zip(names, names, strict=True))
    for name, source in (names | {"texts": "texts"}).items():
        shutil.copytree(RESULTS / dataset / source, folders.results / dataset / name)
    return folders.results / dataset


def rows(table):
    """Return {system: {column: cell}}."""
    keys = [column.key for column in table.columns]
    return {row[0]: dict(zip(keys, row, strict=True)) for row in table.rows}


def bleu(folder, wanted=lambda words: True):
    """Return sacreBLEU's score of the sentences whose sources have a wanted number of words."""
    texts = folder.parent / "texts"
    names = folder / "translate" / SET / "hyp.txt", texts / f"{SET}.ref", texts / f"{SET}.src"
    lines = zip(*map(files.text_lines, names), strict=True)
    hypotheses, reference, _ = zip(*(x for x in lines if wanted(len(x[2].split()))), strict=True)
    return sacrebleu.corpus_bleu(hypotheses, [reference]).score


def captions(folders):
    """Return the finished systems of the captions."""
    return next(of for of in tables.finished(ITEMS, folders) if next(iter(of)).dataset == CORPUS)


# scores and costs


@pytest.fixture
def single_seeds(published):
    """The first seed of three systems."""
    names = "transformer", "enc-dc", "rnnsearch"
    return {row: paths[:1] for row, paths in captions(published).items() if row.name in names}


def test_scores_of_single_seeds_are_sacrebleus_with_differences_to_the_baseline(
    published, single_seeds
):
    scores = rows(tables.scores(SET, single_seeds, published))
    for name, row in scores.items():
        assert row["bleu"] == pytest.approx(bleu(RESULTS / CORPUS / f"{name}-s1"))
        assert row["half_range"] is None
    baseline, *others = scores.values()
    assert next(iter(scores)) == "transformer"
    assert baseline["delta"] is baseline["p"] is None
    for row in others:
        assert row["delta"].value == pytest.approx(row["bleu"] - baseline["bleu"])
        assert row["delta"].low < row["delta"].value < row["delta"].high
        assert 0 <= row["p"] <= row["p_holm"] <= 1
    assert scores["rnnsearch"]["p"] == pytest.approx(2 / 1001)  # of 1,000 resamples


def test_costs_of_single_seeds_are_those_of_their_summaries(published, single_seeds):
    costs = rows(tables.costs(single_seeds, published))
    assert list(costs) == [row.name for row in single_seeds]
    for name, row in costs.items():
        summary = read_json(RESULTS / CORPUS / f"{name}-s1" / "summary.json")
        assert row["parameters"] == summary["parameters"]
        seconds = summary["seconds"]["training"] + summary["seconds"]["validation"]
        assert row["hours"] == pytest.approx(seconds / 3600)
    assert costs["transformer"]["over"] == 1


@pytest.fixture
def two_seeds(copied):
    """A baseline with two seeds (csan stands for the second), and a system with one."""
    names = {"transformer-s1": "transformer-s1", "transformer-s2": "csan-s1"}
    copy_results(copied, CORPUS, names | {"enc-dc-s1": "enc-dc-s1"})
    return copied


def made(folders):
    """Return the rows of all tables of the captions, by the name of the table."""
    return {
        table.name.removeprefix(f"{CORPUS}-"): rows(table)
        for table in tables.tables(ITEMS, folders)
    }


def test_seeds_of_a_system_are_one_row_with_mean_and_half_range(two_seeds):
    tables_of_two = made(two_seeds)
    base, other = tables_of_two[SET].values()
    seeds = [bleu(RESULTS / CORPUS / name) for name in ("transformer-s1", "csan-s1")]
    assert base["n"] == 2 and base["bleu"] == pytest.approx(sum(seeds) / 2)
    assert base["half_range"] == pytest.approx(abs(seeds[0] - seeds[1]) / 2)
    assert other["delta"].value == pytest.approx(other["bleu"] - base["bleu"])
    assert 0 < other["p"] <= 1 and tables_of_two["costs"]["transformer"]["choice"] == 0


def test_costs_count_trainings_on_the_baselines_cpu_only(two_seeds):
    before = made(two_seeds)["costs"]["enc-dc"]
    corpus = two_seeds.results / CORPUS
    shutil.copytree(RESULTS / CORPUS / "full-dc-s1", corpus / "enc-dc-s2")
    edit(corpus / "enc-dc-s2" / "history.jsonl", ': "cpu"', ': "cuda"')
    after = made(two_seeds)
    base, other = after[SET].values()
    assert other["n"] == 2 and other["delta"].value == pytest.approx(other["bleu"] - base["bleu"])
    assert after["costs"]["enc-dc"]["hours"] == before["hours"]
    assert after["costs"]["enc-dc"]["over"] == before["over"] > 1
    edit(corpus / "enc-dc-s1" / "config.toml", "AMD EPYC", "another CPU")
    of_another = rows(tables.costs(captions(two_seeds), two_seeds))["enc-dc"]
    assert of_another["over"] is None and of_another["seconds"] == before["seconds"]


def test_processor_seconds_of_an_update_count_for_every_rank(tmp_path):
    lines = [{"step": 1, "kind": "train", "cpu_seconds": 2.0}]
    lines.append({"step": 2, "kind": "train", "cpu_seconds": 3.0, "processes": 2})
    files.write_lines(tmp_path / "metrics.jsonl", map(json.dumps, lines))
    assert measured(tmp_path).training == 2 + 2 * 3


# differences by length


def length_rows(folders):
    return rows(tables.lengths(SET, captions(folders), folders))


def test_differences_of_short_and_long_sources_are_those_of_their_sentences(copied):
    corpus = copy_results(copied, CORPUS, ["transformer-s1", "csan-s1"])
    row = length_rows(copied)["csan"]
    for key, wanted in (("short", lambda n: n <= 8), ("long", lambda n: n >= 11)):
        parts = [bleu(corpus / system, wanted) for system in ("csan-s1", "transformer-s1")]
        assert row[key].value == pytest.approx(parts[0] - parts[1])


def test_worse_translations_of_long_sources_make_the_growth_significant(copied):
    corpus = copy_results(copied, CORPUS, ["transformer-s1", "csan-s1", "full-dc-s1"])
    before = length_rows(copied)
    path, sources = (
        corpus / "csan-s1" / "translate" / SET / "hyp.txt",
        files.text_lines(corpus / "texts" / f"{SET}.src"),
    )
    worse = [
        " ".join(line.split()[::-1]) if len(source.split()) >= 11 else line
        for line, source in zip(files.text_lines(path), sources, strict=True)
    ]
    files.write_lines(path, worse)
    after = length_rows(copied)
    for row in (*before.values(), *after.values()):
        assert row["growth"].value == pytest.approx(row["long"].value - row["short"].value)
        assert row["growth"].low < row["growth"].value < row["growth"].high
    assert before["csan"]["short"] == after["csan"]["short"]
    assert before["csan"]["p"] > 0.5 and after["csan"]["p_holm"] < 0.05


def test_sources_without_spaces_are_measured_in_characters(copied):
    corpus = copy_results(copied, CORPUS, ["transformer-s1", "csan-s1"])
    edit(corpus / "texts" / f"{SET}.src", " ", "")
    assert "characters" in tables.lengths(SET, captions(copied), copied).title


# significance


def test_single_seed_has_the_error_of_all_systems_with_several_seeds():
    rng, counts = np.random.default_rng(1), {"base": 2, "one": 1, "two": 2, "three": 3}
    systems = {name: replace(ITEMS[0].row, name=name) for name in counts}
    scores = {
        systems[name]: [
            Resampled(value, value + rng.normal(size=100)) for value in rng.normal(size=n)
        ]
        for name, n in counts.items()
    }
    compared = tables.against_first(scores, 50, 1)
    base, one, *several = scores.values()
    values = [[score.value for score in of_row] for of_row in several]
    assert compared[systems["one"]] == over_seeds(one, base, 50, 1, values)
    assert compared[systems["two"]] == over_seeds(several[0], base, 50, 1, if_unknown=True)


def test_p_is_corrected_within_a_part_of_the_list():
    systems = {"a": "main", "sweep": "sweeps", "b": "main"}
    listed = [replace(ITEMS[0].row, name=name, part=part) for name, part in systems.items()]
    corrected = tables.corrected(dict(zip(listed, (0.01, 0.03, 0.02), strict=True)))
    assert {row.name: p for row, p in corrected.items()} == {"a": 0.02, "sweep": 0.03, "b": 0.02}
    assert tables.holm_note(listed).endswith("each part of the list (2 of main, 1 of sweeps)")


# findings


def finding_table(system, shares):
    """Return the stored table of an analysis of one system."""
    columns = [text_column("kind"), Column("n", "pairs"), Column(system, system)]
    cells = [[kind, 10, share] for kind, share in shares.items()]
    return StoredTable.model_validate(Table("x", "A title", columns, cells).as_json())


def test_findings_of_single_systems_are_joined_by_the_words_of_their_rows():
    a, b = finding_table("a", {"near": 1, "far": 2}), finding_table("b", {"far": 3, "all": 4})
    table = tables.side_by_side("corpus-x", [a, b])
    assert [column.key for column in table.columns] == ["kind", "n", "a", "b"]
    assert table.rows == [["near", 10, 1, None], ["far", 10, 2, 3], ["all", 10, None, 4]]
    one, two = finding_table("a", {"near": 1}), finding_table("a", {"far": 2})
    assert tables.side_by_side("corpus-x", [one, two]).rows == [["near", 10, 1], ["far", 10, 2]]


def test_rows_of_layers_of_one_finding_stay_apart():
    """The column of the layers has words and is right-aligned."""
    stored = RESULTS / "multi30k-ende/enc-dc-s2/analyze/divergence.json"
    divergence = load(StoredFinding, stored).table
    assert len(tables.side_by_side("x", [divergence]).rows) == len(divergence.rows)


def test_figure_shows_each_window_and_the_divergence_of_each_seed(published, tmp_path):
    pytest.importorskip("matplotlib", reason="figures need the extra [plots]")
    results = captions(published)
    windows = {kernel_sizes.size_of(row): row for row in results if kernel_sizes.size_of(row)}
    names = {size: windows[size].name for size in (2, 3, 7)}
    assert names == {2: "enc-dc", 3: "enc-dc-f3", 7: "enc-dc-f7"}
    values = kernel_sizes.divergences(results[windows[2]])
    table = next(t for t in tables.findings(results) if t.name == f"{CORPUS}-divergence")
    means = [r for r in table.rows if r[0].startswith("enc-dc-s") and r[3:5] == ["all", "E_d"]]
    assert values == [row[5] for row in means] and len(values) >= 2
    small = {row: results[row] for row in results if row.name in ("transformer", "enc-dc")}
    kernel_sizes.draw(small, published, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


# missing and damaged results


def test_tables_need_the_baseline_and_another_system(tmp_path):
    message = "no corpus has results of 'transformer' and another"
    refused(DataError, message, tables.tables, ITEMS, Folders(tmp_path, tmp_path))


def test_test_set_without_texts_is_left_out_until_its_small_texts_are_collected(
    copied, capsys, monkeypatch
):
    corpus = copy_results(copied, CORPUS, ["transformer-s1", "csan-s1"])
    texts = shutil.move(corpus / "texts", copied.state / "texts")
    assert [table.name for table in tables.tables(ITEMS, copied)] == [f"{CORPUS}-costs"]
    assert f"no texts of {SET}" in capsys.readouterr().err
    shutil.copytree(texts, copied.run(CORPUS) / "prep/text")
    (copied.state / "results").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(leavings, "LARGEST_TEXT", 65_000)  # smaller than a reference of 2016 alone
        assert leavings.collect(copied) == []
        names = {path.name for path in (corpus / "texts").iterdir()}
        assert names == {"test_2017_flickr.src", "test_2017_flickr.ref"}
    assert leavings.collect(copied) == [] and len(list((corpus / "texts").iterdir())) == 4
    assert len(tables.tables(ITEMS, copied)) == 5


def test_damaged_hypotheses_are_refused_with_their_path(copied):
    corpus = copy_results(copied, CORPUS, ["transformer-s1", "csan-s1"])
    hypotheses = corpus / "csan-s1" / "translate" / SET / "hyp.txt"
    lines = hypotheses.read_text("utf-8")
    for text in (lines.partition("\n")[2], lines + "x\n", ""):
        hypotheses.write_text(text, "utf-8")
        message = f"^the hypotheses: {text.count(chr(10)):,} lines, but reference 0 has 1,000"
        error = refused(DataError, message, tables.scores, SET, captions(copied), copied)
        assert error.where == str(hypotheses) and "delete the system's folder" in error.hint
    hypotheses.unlink()
    message = f"no such file: {hypotheses}"
    refused(DataError, message, tables.scores, SET, captions(copied), copied)


def test_damaged_summary_is_refused_with_its_path(copied):
    corpus = copy_results(copied, CORPUS, ["transformer-s1", "csan-s1"])
    (corpus / "csan-s1" / "summary.json").write_text('{"updates": 0}')
    message = r"csan-s1.summary\.json"
    refused(DataError, message, tables.costs, captions(copied), copied)


# the page


DEMO_SYSTEMS = ["transformer-s1", "transformer-s2", "amn-s1", "amn-s2"]


@pytest.fixture(scope="module")
def demo_page(tmp_path_factory):
    """Make the page of the demo corpus; return the folders and what nmtkit printed."""
    tmp_path = tmp_path_factory.mktemp("page")
    folders = Folders(tmp_path / "state", tmp_path / "results")
    corpus = copy_results(folders, "demo", DEMO_SYSTEMS)
    folders.state.mkdir()
    printed = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "generate", partial(demo.generate, dev=500, test=500))

        def run(command, cwd, **options):
            patch.chdir(cwd)
            code, *streams = in_this_process(command[1:])
            printed.append("".join(streams))
            return SimpleNamespace(returncode=code)

        options = ["--run", "runs/demo", "--preset", "demo", "--jobs", "1", "--size", "300"]
        assert run(["nmtkit", "prep", "demo", *options], folders.state).returncode == 0
        # The corpus is smaller than that of the systems, whose fingerprint it gets.
        manifest = folders.run("demo") / "prep/manifest.json"
        config = tomllib.loads((corpus / "amn-s1" / "config.toml").read_text("utf-8"))
        edit(manifest, read_json(manifest)["fingerprint"], config["corpus"])
        patch.setattr(pages, "subprocess", SimpleNamespace(run=run))
        assert pages.page(ITEMS, folders) == folders.state / "page/demo/report/index.html"
    return folders, printed


@pytest.fixture
def copied_page(demo_page, tmp_path):
    """A copy of the folders with the page, which a test may change."""
    folders = demo_page[0].state, demo_page[0].results
    return Folders(*(Path(shutil.copytree(path, tmp_path / path.name)) for path in folders))


def test_page_has_the_scores_of_the_results_without_warnings(demo_page):
    folders, printed = demo_page
    assert not [line for text in printed for line in text.splitlines() if "warning" in line]
    scores = load(Scores, folders.state / "page/demo/score/test/scores.json")
    for system in scores.systems:
        stored = load(Scores, folders.results / f"demo/{system.name}/scores/test.json")
        # Python 3.12 adds numbers more exactly than Python 3.11.
        expected = pytest.approx(stored.systems[0].scores["bleu"].value, rel=1e-12)
        assert system.scores["bleu"].value == expected
    assert scores.names == DEMO_SYSTEMS and scores.seeds is not None


def test_page_has_commands_parameters_and_joined_findings(demo_page):
    page = demo_page[0].state / "page/demo"
    text = re.sub(r"<[^>]+>", "", (page / "report/index.html").read_text("utf-8"))
    assert "Made before these changed" not in text and "amn: amn-s1 (seed 1), amn-s2" in text
    assert "nmtkit train --run runs/demo --system amn-s2" in text
    assert "nmtkit analyze agreement --pairs pronouns --context true,none,foreign" in text
    assert all(text.count(millions) >= 2 for millions in ("1.32", "1.72"))
    finding = load(StoredFinding, page / "analyze/pronouns/finding.json")
    columns = {column.key for column in finding.table.table.columns}
    assert {*DEMO_SYSTEMS, "amn-s2, foreign"} <= columns


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("amn-s1/history.jsonl", "damaged\n", "amn-s1/history.jsonl, line 1"),
        ("amn-s1/metrics.jsonl", None, "no metrics.jsonl"),
        ("texts/test.src", "Another text.\n", "not the text that was translated"),
    ],
)
def test_page_refuses_damaged_results_and_leaves_nothing_half_written(
    copied_page, monkeypatch, name, content, message
):
    monkeypatch.setattr(pages.corpus, "prepare", lambda *_: True)
    path = copied_page.results / "demo" / name
    if content is None:
        path.unlink()
    else:
        path.write_text(content)
    refused(DataError, message, pages.page, ITEMS, copied_page)
    assert not list((copied_page.state / "page").glob(".*"))


def test_page_is_refused_if_the_corpus_cannot_be_prepared(copied_page, monkeypatch):
    monkeypatch.setattr(pages.corpus, "prepare", lambda *_: False)
    refused(DataError, "demo cannot be prepared", pages.page, ITEMS, copied_page)


def test_failed_command_of_the_page_is_reported_after_a_fresh_copy_of_the_results(
    copied_page, monkeypatch
):
    folders = copied_page
    copy = folders.state / "page/demo/systems/amn-s1/best.json"
    copy.write_text("damaged")
    monkeypatch.setattr(pages.corpus, "prepare", lambda *_: True)
    failing = SimpleNamespace(run=lambda *_, **__: SimpleNamespace(returncode=2))
    monkeypatch.setattr(pages, "subprocess", failing)
    refused(DataError, "nmtkit score failed", pages.page, ITEMS, folders)
    assert copy.read_bytes() == (folders.results / "demo/amn-s1/best.json").read_bytes()


def test_texts_may_differ_in_what_nmtkit_tidies(tmp_path):
    """An earlier nmtkit kept soft hyphens."""
    for folder, text in (("scored", "a \u00adb\n"), ("prepared", "a b\n"), ("others", "a c\n")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "test.src").write_text(text, "utf-8")
    pages._check_texts(tmp_path / "scored", tmp_path / "prepared")
    message = "not the text that was translated"
    refused(DataError, message, pages._check_texts, tmp_path / "scored", tmp_path / "others")


def test_page_of_two_corpora_tests_over_seeds_if_a_system_has_several(copied, monkeypatch):
    names = {CORPUS: ["transformer-s1", "csan-s1"]}
    names["demo"] = ["transformer-s1", "transformer-s2", "amn-s1"]
    for dataset, systems in names.items():
        corpus = copy_results(copied, dataset, systems)
        run = copied.run(dataset)
        shutil.copytree(corpus / "texts", run / "prep" / "text")
        (run / "run.toml").write_text("")
    calls = []

    def note(command, **options):
        calls.append(command[1:])
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(pages.corpus, "prepare", lambda *_: True)
    monkeypatch.setattr(pages, "subprocess", SimpleNamespace(run=note))
    assert pages.page(ITEMS, copied) == copied.state / f"page/{CORPUS}/report/index.html"
    first, second, report = calls
    assert first[:3] == ["score", "--run", f"page/{CORPUS}"]
    assert first[-2:] == ["--significance", "sacrebleu_randomization"]
    assert second[:3] == ["score", "--run", "page/demo"] and second[-2:] == ["--group-by", "name"]
    assert report[:5] == ["report", "--run", f"page/{CORPUS}", "--also", "page/demo"]
    finding = read_json(copied.state / "page/demo/analyze/pronouns/finding.json")
    assert finding["made_from"]["systems"] == names["demo"]
    assert finding["attachments"] == [] and finding["made_from"]["weights"] == {}
