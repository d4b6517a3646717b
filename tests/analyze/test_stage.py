"""Analyses as a stage: printed, kept, up to date, refused."""

import csv
import io
import json
import os
from collections import Counter

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from nmtkit.analyze import ANALYSES, stage
from nmtkit.analyze.analysis import Finding, Inputs
from nmtkit.analyze.shared import timing
from nmtkit.analyze.shared.macs import count_macs, count_parameters
from nmtkit.analyze.study import Study
from nmtkit.cli import app
from nmtkit.cli.analyze import analysis_command
from nmtkit.data.batches import source_batch
from nmtkit.data.documents import documents_file
from nmtkit.data.store import spans_writer
from nmtkit.errors import ConfigError, DataError
from nmtkit.options import GENERAL
from nmtkit.settings import SearchSettings, build
from nmtkit.tables.table import Column, Table
from nmtkit.text.vocabulary import EOS
from nmtkit.translate.beam import search
from tests.score.conftest import write

from .conftest import SMALL, AnalysedRun

TOY = "tests.toy_recurrent:ToyRecurrent"


def finding(run, name):
    return json.loads((run.path / "analyze" / name / "finding.json").read_text("utf-8"))


OUTSIDE = "tests.toy_analysis:FrequentWords"


@pytest.mark.parametrize("name", [*ANALYSES, OUTSIDE])
def test_a_command_has_the_options_of_its_analysis_and_the_general_ones(name):
    options = [
        param for param in analysis_command(name).params if param.param_type_name == "option"
    ]
    panels = {param.name: param.rich_help_panel for param in options}
    general = {name for name, panel in panels.items() if panel == GENERAL}
    assert {*panels} - general == {*stage.find(name).Options.model_fields}
    assert general >= {"systems", "set_names", "output_format", "run", "force", "quiet", "debug"}
    assert all(param.help for param in options) and stage.shows(name)


def study(analysed, *systems):
    return Study(analysed.run, "cost", list(systems), ["test"])


@pytest.fixture
def two(analysed):
    analysed.models = {
        "base": analysed.system(
            "base", "transformer", SMALL, 0.4, speeds=(10, 1000, 1200, 1100), decoding=50
        ),
        "own": analysed.system("own", TOY, {}, 0.1, speeds=(500, 400, 600), decoding=20),
    }
    os.utime(analysed.run.path / "systems" / "base" / "config.toml", (1, 1))
    return analysed


def test_every_entry_of_the_table_is_found_under_its_name():
    assert {name: stage.find(name).name for name in ANALYSES} == {name: name for name in ANALYSES}
    for name, hint in (
        ("length", "'lengths'"),
        ("tests.toy_analysis:Frequent", "package.module:Class"),
        ("no.such:Thing", "package.module:Class"),
    ):
        with pytest.raises(ConfigError) as error:
            stage.find(name)
        assert name in error.value.message and hint in error.value.hint


def test_an_analysis_outside_the_package(two, capsys):
    """It has a command with its options, is kept, is up to date, and refuses what is not its
    own.
    """
    words = ["analyze", OUTSIDE, "--words", "2", "--run", str(two.run.path)]
    assert CliRunner().invoke(app, words).exit_code == 0
    found = finding(two.run, "frequent-words")
    counts = Counter(word for line in two.lines["test"] for word in line.split())
    assert found["table"]["rows"][0]["word"] in counts and len(found["table"]["rows"]) == 4
    stage.analyze(two.run, OUTSIDE, words=2)
    assert "frequent-words: up to date" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="bad value for"):
        stage.analyze(two.run, OUTSIDE, words=0)
    assert CliRunner().invoke(app, [*words, "--measure"]).exit_code == 2


def test_options_may_stand_before_the_name(two):
    where = ["--run", str(two.run.path)]
    for words in (
        ["lengths", *where],
        [*where, "lengths"],
        [*where, "--system", "own", "lengths", "--force"],
    ):
        assert CliRunner().invoke(app, ["analyze", *words]).exit_code == 0


def test_cost_of_a_variant_inside_and_one_outside_the_package(two, capsys):
    stage.analyze(two.run, "cost")
    out = capsys.readouterr().out
    found = finding(two.run, "cost")
    base, own = found["table"]["rows"]
    sizes = [len(line.split()) + 1 for line in two.lines["test"]]
    length = round(sum(sizes) / len(sizes))
    assert (found["facts"]["src_length"], found["facts"]["tgt_length"]) == (length, length)
    for row, model in ((base, two.models["base"]), (own, two.models["own"])):
        parameters, macs = count_parameters(model), count_macs(model, length, length)
        assert (
            row["parameters"]
            == sum(p.numel() for p in model.parameters())
            == row["embeddings"] + row["rest"]
        )
        assert row["rest"] == parameters.rest > 0
        assert row["train_mmac"] * 1e6 == pytest.approx(macs.train)
        assert row["step_mmac"] * 1e6 == pytest.approx(macs.step)
        assert row["train_mac_ratio"] == pytest.approx(row["train_mmac"] / base["train_mmac"])
    assert (base["train_tokens_per_s"], own["train_tokens_per_s"]) == (
        1100,
        500,
    )  # medians without the first stretch
    assert own["train_time_ratio"]["value"] == pytest.approx(2.2)
    assert own["train_time_per_mac"] == pytest.approx(2.2 / own["train_mac_ratio"])
    assert own["decode_time_ratio"]["value"] == pytest.approx(2.5)
    macs = [count_macs(two.models[n], length, length) for n in ("base", "own")]
    whole = [m.encode * length + 2 * m.step * length for m in macs]  # beam 2
    assert own["decode_time_per_mac"] == pytest.approx(2.5 / (whole[1] / whole[0]))
    assert base["train_mac_ratio"] == base["train_time_ratio"]["value"] == 1.0
    assert "no interval" in out
    assert found["text"] in out
    folder = two.run.path / "analyze" / "cost"
    assert r"\toprule" in (folder / "table.tex").read_text("utf-8")
    assert "relative to base" in (folder / "figure.svg").read_text("utf-8")


def test_cost_of_a_document_model_counts_its_contexts(analysed, capsys, monkeypatch):
    """As many as the training set's sentences have; decoding is measured with those of the set
    that is decoded.
    """
    analysed.system("base", "transformer", SMALL)
    model = analysed.system("memory", "amn", SMALL)
    for name, starts in (("train", [0, 3, 4]), ("test", [0, 20])):
        write(documents_file(analysed.run.prep, name), map(str, starts))
    stage.analyze(analysed.run, "cost", systems=["base", "memory"])
    found = finding(analysed.run, "cost")
    count = len(analysed.lines["test"])  # the training set is a copy
    assert found["facts"]["contexts"] == {"memory": pytest.approx((count - 3) / count)}
    length = found["facts"]["src_length"]
    expected = count_macs(model, length, length, contexts=(count - 3) / count)
    assert found["table"]["rows"][1]["train_mmac"] * 1e6 == pytest.approx(expected.train)
    assert f"memory {(count - 3) / count:.2f}" in capsys.readouterr().out
    batches = []
    monkeypatch.setattr(timing, "_decode", lambda model, batch, settings: batches.append(batch))
    timing.measure_speed(study(analysed, "base", "memory"), 5, rounds=1)
    alone, beside = sorted(batches, key=lambda batch: batch.context is not None)[
        :: len(batches) - 1
    ]
    assert alone.context is None and torch.equal(alone.src, beside.src)
    with_context = (beside.context.rows >= 0).sum()
    assert 0 < with_context < len(beside.src) and with_context >= len(beside.src) - 2


def test_cost_of_phrases_from_parses_counts_and_times_the_parses(analysed, capsys, monkeypatch):
    """A system that cuts n-grams is counted and timed on these."""
    models = {
        name: analysed.system(name, "pr", {**SMALL, "segmentation": name})
        for name in ("ngram", "parse")
    }
    lengths = [
        len(line.split()) + 1 for line in analysed.lines["test"]
    ]  # of the training set too, which is a copy
    cuts = [
        [2] * (length // 2) + [1] * (length % 2) if i % 4 else []
        for i, length in enumerate(lengths)
    ]  # some have no parse
    with spans_writer(analysed.run.prep / "train") as writer:
        writer.add_block(
            bytes(size for cut in cuts for size in cut), np.array([len(cut) for cut in cuts])
        )
    stage.analyze(analysed.run, "cost", systems=["ngram", "parse"])
    found = finding(analysed.run, "cost")
    count = round(np.mean([len(cut) for cut in cuts if cut]))
    assert found["facts"]["spans"] == {"parse": count}
    assert f"parse {count}" in capsys.readouterr().out
    length = found["facts"]["src_length"]
    sizes = [len(part) for part in np.array_split(range(length), count)]
    for row, spans in zip(found["table"]["rows"], ([], sizes), strict=True):
        expected = count_macs(models[row["system"]], length, length, spans=spans)
        assert (row["train_mmac"] * 1e6, row["step_mmac"] * 1e6) == pytest.approx(
            (expected.train, expected.step)
        )
    decoded = []
    monkeypatch.setattr(
        timing, "_decode", lambda model, batch, settings: decoded.append((model.reads_spans, batch))
    )
    systems = list(models)
    timing.measure_speed(Study(analysed.run, "cost", systems, ["test"]), 5, rounds=1)
    assert all(batch.spans is None for _, batch in decoded)
    assert (
        "'parse' reads parses, which test has none of: it decodes with n-grams instead"
        in capsys.readouterr().err
    )
    for suffix in ("bin", "idx"):
        (analysed.run.prep / f"test.spans.{suffix}").write_bytes(
            (analysed.run.prep / f"train.spans.{suffix}").read_bytes()
        )
    decoded.clear()
    timing.measure_speed(Study(analysed.run, "cost", systems, ["test"]), 5, rounds=1)
    assert "n-grams instead" not in capsys.readouterr().err
    drawn = [batch for reads, batch in decoded if reads][0]
    in_order = sorted(range(len(lengths)), key=lambda i: lengths[i])
    assert sorted([size for size in row if size] for row in drawn.spans.tolist()) == sorted(
        cuts[i] for i in in_order
    )
    assert all(
        (cut.sum() in (0, size)) for cut, size in zip(drawn.spans, drawn.src_lengths, strict=True)
    )


def test_cost_without_any_measurement_shows_gaps(analysed, capsys):
    analysed.system("only", "transformer", SMALL)
    stage.analyze(analysed.run, "cost")
    row = finding(analysed.run, "cost")["table"]["rows"][0]
    assert (
        row["train_tokens_per_s"],
        row["decode_tokens_per_s"],
        row["train_time_ratio"]["value"],
    ) == (None, None, None)
    assert "–" in capsys.readouterr().out
    assert not (analysed.run.path / "analyze" / "cost" / "figure.svg").exists()


def test_cost_measured_in_turn(two, capsys, monkeypatch):
    monkeypatch.setattr("nmtkit.analyze.shared.timing.SENTENCES", 4)
    monkeypatch.setattr("nmtkit.analyze.shared.timing.UPDATES", 1)
    monkeypatch.setattr("nmtkit.analyze.shared.timing.MOST", 8)
    stage.analyze(two.run, "cost", measure=True)
    base, own = finding(two.run, "cost")["table"]["rows"]
    measured = finding(two.run, "cost")["facts"]["measured"]
    assert (
        base["train_time_ratio"]
        == base["decode_time_ratio"]
        == {
            "value": 1.0,
            "low": 1.0,
            "high": 1.0,
        }
    )
    assert (
        own["train_time_ratio"]["low"]
        <= own["train_time_ratio"]["value"]
        <= own["train_time_ratio"]["high"]
    )
    assert measured["own"]["rounds"] == 8  # small models are fast: the most
    assert own["train_tokens_per_s"] == pytest.approx(measured["own"]["train_tokens_per_s"])
    out, err = capsys.readouterr()
    assert "8 alternating rounds" in out
    assert "measuring on: device cpu" in err


COSTS = """
citation = "Somebody 2020"
[tables.one]
title = "Table 1"
metric = "times that of base"
columns = [
  { name = "millions", dataset = "mine", cost = "parameters" },
  { name = "training", dataset = "mine", cost = "train_time_ratio" },
  { name = "steps/s", dataset = "mine", cost = "updates_per_s" },
]
rows = [{ printed = "Ours", system = "own", numbers = { millions = 0.5, training = 1.64, "steps/s" = 3.66 } }]
[tables.lengths]
title = "by length"
metric = "gained"
columns = [{ name = "short", group = "<10" }, { name = "other", group = "≤15" }]
rows = [{ printed = "Ours", system = "own", numbers = { short = 2.0, other = 3.0 } }]
"""


def test_measured_times_outlive_a_call_that_takes_none(two, tmp_path, capsys, monkeypatch):
    """As long as they are of the same systems, baseline and set; what is lost is said. And a
    paper's numbers stand beside them.
    """
    monkeypatch.setattr("nmtkit.analyze.shared.timing.SENTENCES", 4)
    monkeypatch.setattr("nmtkit.analyze.shared.timing.UPDATES", 1)
    monkeypatch.setattr("nmtkit.analyze.shared.timing.MOST", 7)
    (tmp_path / "paper.toml").write_text(COSTS, "utf-8")
    stage.analyze(two.run, "cost", measure=True)
    before = finding(two.run, "cost")
    stage.analyze(two.run, "cost", paper=str(tmp_path / "paper.toml"), table="one")
    after, own = finding(two.run, "cost"), before["facts"]["measured"]["own"]
    assert (
        after["facts"]["measured"] == before["facts"]["measured"]
        and after["table"] == before["table"]
    )
    rows = {row["column"]: row for row in after["paper"]["rows"]}
    assert (rows["training"]["measured"], rows["steps/s"]["measured"]) == (
        own["train_ratio"]["value"],
        own["updates_per_s"],
    )
    assert rows["millions"]["measured"] == pytest.approx(
        before["table"]["rows"][1]["parameters"] / 1e6
    )
    out, err = capsys.readouterr()
    assert (
        "times relative to base" in out
        and "not of these systems" not in err
        and rows["training"]["difference"] is None
    )
    stage.analyze(two.run, "cost", systems=["own"])
    assert (
        "the times that --measure took of base, own are not of these systems"
        in capsys.readouterr().err
    )
    assert finding(two.run, "cost")["facts"]["measured"] == {}
    stage.analyze(two.run, "cost", measure=True)
    with open(two.run.path / "systems" / "own" / "config.toml", "a", encoding="utf-8") as stream:
        stream.write("# trained on\n")
    stage.analyze(two.run, "cost")
    assert (
        "not of these systems" in capsys.readouterr().err
        and finding(two.run, "cost")["table"]["rows"][1]["train_tokens_per_s"] == 500
    )


def test_gains_by_length_beside_the_papers(two, tmp_path, capsys):
    """Over the mean of the baseline's seeds; a group that the paper has and this call has not is
    named.
    """
    two.system("base-s1", "transformer", SMALL, 0.5)
    two.system("base-s2", "transformer", SMALL, 0.6)
    (tmp_path / "paper.toml").write_text(COSTS, "utf-8")
    told = {"paper": str(tmp_path / "paper.toml"), "table": "lengths"}
    for systems, base in (
        (["base", "own"], ["base"]),
        (["base-s2", "own", "base-s1"], ["base-s1", "base-s2"]),
    ):
        stage.analyze(two.run, "lengths", systems=systems, **told)
        found = finding(two.run, "lengths")
        bleu = {
            row["system"]: row["bleu"]["value"]
            for row in found["table"]["rows"]
            if row["group"] == "<10"
        }
        short, other = found["paper"]["rows"]
        assert short["measured"] == pytest.approx(
            bleu["own"] - sum(bleu[name] for name in base) / len(base)
        )
        assert (other["system"], other["measured"]) == ("not measured", None)
    assert (
        "no group ≤15 among the measured ones: --buckets names the groups"
        in capsys.readouterr().out
    )


def test_measured_updates_are_of_new_batches_every_round_and_the_same_for_all(two, monkeypatch):
    """As training meets them: a shape met before is faster."""
    seen = {}
    monkeypatch.setattr(
        timing,
        "_updates",
        lambda model, batches, *_: seen.setdefault(id(model), []).append(
            [b.rows.tolist() for b in batches]
        ),
    )
    monkeypatch.setattr(timing, "_decode", lambda *_: None)
    monkeypatch.setattr(timing, "batch_list", lambda *_: [np.array([i]) for i in range(12)])
    timing.measure_speed(study(two, "base", "own"), 5, rounds=2)
    base, own = seen.values()
    assert base == own == [[[3 * number + i] for i in range(3)] for number in range(3)]


def test_slow_systems_have_the_least_rounds(two, monkeypatch):
    monkeypatch.setattr(timing, "_seconds", lambda work, device: 20.0)
    found = timing.measure_speed(study(two, "base", "own"), 5)
    assert found["own"].rounds == timing.LEAST
    monkeypatch.setattr(timing, "_seconds", lambda work, device: 3.0)
    assert timing.measure_speed(study(two, "base", "own"), 5)["own"].rounds == 10


def test_measured_searches_have_one_length(two):
    """A system that would end at once does as many steps as one that never ends."""
    settings = build(SearchSettings, {"beam": 3, "max_length_a": 0.0, "max_length_b": 7}, "search")
    model = two.models["own"].eval()
    model.output.bias.data[EOS] = 100.0
    sources = source_batch([[5, 6, 2], [7, 2]])
    assert [[h.ids for h in n_best] for n_best in search([model], sources, settings)] == [
        [[]],
        [[]],
    ]
    ended = [
        h for n_best in search([timing.Endless(model).eval()], sources, settings) for h in n_best
    ]
    assert [(len(h.ids), h.finished) for h in ended] == [(7, False)] * 2


def test_lengths_side_by_side(two, capsys):
    stage.analyze(two.run, "lengths", buckets="10,20")
    out = capsys.readouterr().out
    rows = finding(two.run, "lengths")["table"]["rows"]
    assert [(r["group"], r["system"]) for r in rows] == [
        (g, s) for g in ("<10", "[10,20)", "≥20") for s in ("base", "own")
    ]
    assert sum(r["sentences"] for r in rows if r["system"] == "own") == 40
    for worse, better in zip(rows[::2], rows[1::2], strict=True):
        assert worse["bleu"]["value"] < better["bleu"]["value"]
        assert better["bleu"]["low"] <= better["bleu"]["value"] <= better["bleu"]["high"]
        assert better["length_ratio"]["value"] == pytest.approx(1.0)
    assert "█" in out
    assert "tok:13a" in out
    assert "Compare systems inside a group" in out
    assert "</svg>" in (two.run.path / "analyze" / "lengths" / "figure.svg").read_text("utf-8")


def test_up_to_date_until_something_it_depends_on_changes(two, capsys, monkeypatch):
    stage.analyze(two.run, "lengths", output_format="csv")
    first = capsys.readouterr()
    assert "written to" in first.err
    stage.analyze(two.run, "lengths", output_format="csv")
    again = capsys.readouterr()
    assert "up to date" in again.err
    assert again.out == first.out
    assert next(csv.DictReader(io.StringIO(again.out)))["system"] == "base"
    for options in ({"force": True}, {"buckets": "pr"}, {"systems": ["own"]}):
        stage.analyze(two.run, "lengths", **options)
        assert "written to" in capsys.readouterr().err
    hyp = two.run.path / "systems" / "own" / "translate" / "test" / "hyp.txt"
    hyp.write_text("x\n" * 40, "utf-8")
    stage.analyze(two.run, "lengths", systems=["own"])
    assert "written to" in capsys.readouterr().err
    assert finding(two.run, "lengths")["table"]["rows"][0]["bleu"]["value"] == 0
    two.run.references("test")[0].write_text(
        "x x x x\n" * 40, "utf-8"
    )  # prepared anew with other test text: the same fingerprint
    stage.analyze(two.run, "lengths", systems=["own"])
    assert "written to" in capsys.readouterr().err


def test_what_an_earlier_call_attached_goes_with_it(tmp_path):
    """Files that nmtkit has not written there stay."""
    (tmp_path / "own.txt").parent.mkdir(exist_ok=True)
    (tmp_path / "own.txt").write_text("mine")
    table = Table("t", "t", [Column("a", "a")], [[1]])
    for attachments in ({"paper.md": "1", "a.scores": "2"}, {"a.scores": "3"}, {}):
        Finding(table, "t", attachments=attachments).write(tmp_path, Inputs(systems=[], files={}))
        there = {path.name for path in tmp_path.iterdir()}
        assert there == {
            "own.txt",
            "finding.json",
            "table.md",
            "table.tex",
            "table.csv",
            *attachments,
        }


def test_what_cannot_be_analysed_is_said(two):
    with pytest.raises(ConfigError, match="no system 'owl'"):
        stage.analyze(two.run, "cost", systems=["owl"])
    with pytest.raises(ConfigError, match="no set 'tast'"):
        stage.analyze(two.run, "lengths", set_names=["tast"])
    with pytest.raises(DataError, match="nothing to score"):
        stage.analyze(two.run, "lengths", set_names=["other"])
    with pytest.raises(ConfigError, match="length groups"):
        stage.analyze(two.run, "lengths", buckets="no")
    with pytest.raises(ConfigError, match="unknown format"):
        stage.analyze(two.run, "lengths", output_format="xml")
    hyp = two.run.path / "systems" / "own" / "translate" / "test" / "hyp.txt"
    hyp.write_text("x\n", "utf-8")
    with pytest.raises(DataError, match="1 lines, but reference 0 has 40"):
        stage.analyze(two.run, "lengths")
    assert not (two.run.path / "analyze" / "lengths" / "finding.json").exists()


@pytest.mark.parametrize(
    ("name", "options", "where", "hint"),
    [
        ("lengths", {"measure": True}, "--measure", "these have it: cost"),
        ("cost", {"buckets": "10"}, "--buckets", "these have it: lengths"),
        ("cost", {"new_one": None}, "--new-one", "no analysis has it"),
    ],
)
def test_an_option_of_another_analysis_is_refused(two, name, options, where, hint):
    with pytest.raises(ConfigError, match=f"'{name}' has no such option") as error:
        stage.analyze(two.run, name, **options)
    assert error.value.where == where
    assert hint in error.value.hint
    assert not (two.run.path / "analyze").exists()


def test_an_analysis_depends_on_its_own_options_only(two, capsys):
    stage.analyze(two.run, "lengths")
    assert finding(two.run, "lengths")["made_from"]["options"] == {
        "set_names": [],
        "buckets": "dc",
        "paper": "",
        "table": "",
    }
    stage.analyze(two.run, "lengths", buckets="dc")
    assert "up to date" in capsys.readouterr().err


def test_cost_is_of_one_set(two):
    with pytest.raises(ConfigError, match="reads one set, not test, other"):
        stage.analyze(two.run, "cost", set_names=["test", "other"])


def test_a_run_without_systems(tmp_path):
    with pytest.raises(DataError) as error:
        stage.analyze(AnalysedRun(tmp_path / "run").run, "cost")
    assert "nmtkit train" in error.value.hint
