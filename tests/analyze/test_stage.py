"""Analyses as a stage: commands, users' analyses, `cost`, `lengths`, files, up to date, refusals."""

import csv
import io
import json
import os
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from nmtkit.analyze import ANALYSES, cost, stage, timing
from nmtkit.analyze.analysis import Finding
from nmtkit.analyze.study import Study
from nmtkit.cli import app
from nmtkit.cli.analyze import analysis_command
from nmtkit.data.batches import source_batch
from nmtkit.data.documents import documents_file
from nmtkit.data.store import Store, write_spans
from nmtkit.errors import ConfigError, DataError, EnvironmentProblem, explained
from nmtkit.files import write_json
from nmtkit.measures.macs import count_parameters
from nmtkit.models.loading import build_untrained
from nmtkit.options import GENERAL
from nmtkit.owned_files import WEIGHTS
from nmtkit.records import FindingInputs, StoredFinding, load
from nmtkit.report.commands import analyze_command
from nmtkit.settings import SearchSettings, build
from nmtkit.tables.table import Column, Estimate, Table
from nmtkit.text.vocabulary import EOS
from nmtkit.translate.beam import search
from tests.full_disk import full_disk
from tests.manifests import edit, read_json
from tests.refused import refused
from tests.score.conftest import write

from .conftest import SMALL, TOY, AnalysedRun

OUTSIDE = "tests.toy_analysis:FrequentWords"
TRAIN_ANOTHER = "train a variant that does (nmtkit/analyze/README.md names them)"


@pytest.mark.parametrize("name", [*ANALYSES, OUTSIDE])
def test_command_has_the_options_of_its_analysis_and_the_general_ones(name):
    options = [p for p in analysis_command(name).params if p.param_type_name == "option"]
    general = {param.name for param in options if param.rich_help_panel == GENERAL}
    assert general >= {"systems", "set_names", "output_format", "run", "force", "quiet", "debug"}
    assert {param.name for param in options} - general == {*stage.find(name).Options.model_fields}
    assert all(param.help for param in options) and stage.summary(name)


def study(analysed, *systems):
    return Study(analysed.run, "cost", list(systems), ["test"])


def two_systems(path):
    """Return a run with a Transformer and a user's model, with logged speeds and translations."""
    analysed = AnalysedRun(path)
    speeds = (10, 1000, 1200, 1100)
    base = analysed.system(share=0.4, speeds=speeds, decoding=50)
    own = analysed.system("own", TOY, {}, 0.1, speeds=(500, 400, 600), decoding=20)
    analysed.models = {"base": base, "own": own}
    os.utime(analysed.run.system("base").config, (1, 1))
    return analysed


@pytest.fixture
def two(tmp_path):
    return two_systems(tmp_path / "run")


def macs_of(model, src_length, tgt_length, contexts=0, spans=()):
    """Return the counted products of a model; the fixture of conftest.py counts them once."""
    return cost.count_macs(model, src_length, tgt_length, contexts, list(spans))


@pytest.fixture
def decoded(monkeypatch):
    """Return the list of what measuring gives to decode: (model, batch). Updates are few."""
    monkeypatch.setattr(timing, "UPDATES", 1)
    work = []
    monkeypatch.setattr(timing.Bench, "_decode", lambda _, *decoded: work.append(decoded))
    return work


def test_analyses_are_found_by_name_and_unknown_names_are_refused():
    assert {name: stage.find(name).name for name in ANALYSES} == {name: name for name in ANALYSES}
    for name, hint in (
        ("length", "'lengths'"),
        ("tests.toy_analysis:Frequent", "'FrequentWords'"),
        ("no.such:Thing", "must be the current one or on PYTHONPATH"),
        (TOY, "nmtkit/analyze/README.md"),
    ):
        error = refused(ConfigError, None, stage.find, name)
        assert name.rpartition(":")[2] in error.message and hint in error.hint


USER_ANALYSIS = """
from nmtkit.analyze.analysis import Analysis, Finding
class Mine(Analysis):
    name, title = "mine", "Mine"
    def measure(self, study):
        return half({})
    def present(self, result):
        return Finding(None, "")
def half(counts):
    return counts["half"]
"""
OPTIONS = """\
    from nmtkit.options import Options
    class Options(Options):
        {}: str = "x"
    name"""


@pytest.mark.parametrize(
    ("line", "changed", "number", "message"),
    [
        ("class Mine(Analysis):", "class Mine(Analysis:", 3, "SyntaxError"),
        ("class Mine(Analysis):", "class Mine:", 3, "not a subclass"),
        ("def present(", "def presents(", 3, "does not define present"),
        (', title = "mine", ', " = ", 3, "has no title"),
        ('"mine"', '"lengths"', 3, "'lengths' cannot name an analysis of your own"),
        ('"mine"', '"../mine1"', 3, "'../mine1' cannot name an analysis of your own"),
        ("    name", "    class Options: pass\n    name", 4, "Options of"),
        ("    name", OPTIONS.format("system"), 5, "every analysis has the option --system"),
        ("    name", OPTIONS.format("quiet"), 5, "every analysis has the option --quiet"),
        ("", "", 10, "your code failed: KeyError: 'half'"),
        ("half({})", "1", 3, "your code failed: AttributeError"),
    ],
)
def test_mistake_in_a_users_analysis_is_reported_with_its_line(
    two, line, changed, number, message, monkeypatch, tmp_path
):
    module = f"mistaken_{len(changed)}"
    (tmp_path / f"{module}.py").write_text(USER_ANALYSIS.replace(line, changed, 1), "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    words = ["analyze", f"{module}:Mine", "--run", str(two.run.path)]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2
    assert message in result.stderr
    assert f"in: {tmp_path / module}.py, line {number}\n" in result.stderr


def test_users_analysis_has_a_command_and_is_up_to_date(two, capsys):
    words = ["analyze", OUTSIDE, "--words", "2", "--run", str(two.run.path)]
    assert CliRunner().invoke(app, words).exit_code == 0
    stage.analyze(two.run, OUTSIDE, words=2, output_format="csv")
    out, err = capsys.readouterr()
    _, *rows = csv.reader(out.splitlines())
    assert rows[0][1] in " ".join(two.lines["test"]).split() and len(rows) == 4
    assert "frequent-words: up to date" in err
    inputs = load(StoredFinding, two.run.path / "analyze/frequent-words/finding.json").made_from
    command = analyze_command("frequent-words", inputs, two.run.system_names())
    assert command == f"nmtkit analyze {OUTSIDE} --words 2"
    error = two.refused(OUTSIDE, ConfigError, "bad value for '--words'", words=0)
    assert error.where == "--words"
    assert CliRunner().invoke(app, [*words, "--measure"]).exit_code == 2


def test_users_analysis_is_outdated_when_its_code_changes(two, stderr, monkeypatch, tmp_path):
    code = tmp_path / "edited.py"
    code.write_bytes((Path(__file__).parents[1] / "toy_analysis.py").read_bytes())
    monkeypatch.syspath_prepend(tmp_path)
    for up_to_date in (False, True):
        stage.analyze(two.run, "edited:FrequentWords")
        assert ("up to date" in stderr()) == up_to_date
    code.write_text(code.read_text("utf-8") + "# edited\n", "utf-8")
    stage.analyze(two.run, "edited:FrequentWords")
    assert "up to date" not in stderr()


def test_first_test_set_is_read_by_default_else_dev_else_train(analysed):
    train, test, other = analysed.manifest()["sets"]
    dev = other | {"split": "dev"}
    for sets, name in (([train, dev, test], "test"), ([train, dev], "other"), ([train], "train")):
        analysed.change_manifest(sets=sets)
        assert Study(analysed.run, "cost", [], []).set_name == name


@pytest.fixture(scope="module")
def costs(tmp_path_factory):
    """Analyse the cost of two systems; count the products of each (`macs`)."""
    two = two_systems(tmp_path_factory.mktemp("costs") / "run")
    length = two.analyze("cost")["facts"]["src_length"]
    two.macs = [macs_of(model, length, length) for model in two.models.values()]
    return two


def test_cost_counts_parameters_and_macs_of_a_typical_sentence(costs):
    facts, rows, macs = costs.finding["facts"], costs.finding["table"]["rows"], costs.macs
    sizes = [len(line.split()) + 1 for line in costs.lines["test"]]
    length = round(sum(sizes) / len(sizes))
    assert (facts["src_length"], facts["tgt_length"]) == (length, length)
    for row, model, count in zip(rows, costs.models.values(), macs, strict=True):
        total = sum(p.numel() for p in model.parameters())
        assert row["parameters"] == total == row["embeddings"] + row["rest"]
        assert row["rest"] == count_parameters(model).rest > 0
        assert row["train_mmac"] * 1e6 == pytest.approx(count.train)
        assert row["encode_mmac"] * 1e6 == pytest.approx(count.encode)
        assert row["step_mmac"] * 1e6 == pytest.approx(count.step)
        assert row["train_mac_ratio"] == pytest.approx(count.train / macs[0].train)
        assert row["step_mac_ratio"] == pytest.approx(count.step / macs[0].step)


def test_cost_compares_logged_speeds(costs):
    base, own = costs.finding["table"]["rows"]
    # Medians without the first line.
    assert (base["train_tokens_per_s"], own["train_tokens_per_s"]) == (1100, 500)
    assert own["train_time_ratio"]["value"] == pytest.approx(2.2)
    assert own["train_time_per_mac"] == pytest.approx(2.2 / own["train_mac_ratio"])
    assert (base["decode_tokens_per_s"], own["decode_tokens_per_s"]) == (50, 20)
    assert own["decode_time_ratio"]["value"] == pytest.approx(2.5)
    of_base, of_own = (m.encode + 2 * m.step for m in costs.macs)  # beam 2, equal lengths
    assert own["decode_time_per_mac"] == pytest.approx(2.5 / (of_own / of_base))
    assert base["train_mac_ratio"] == base["train_time_ratio"]["value"] == 1.0
    assert "no interval" in costs.text("cost", "table.md")
    assert "relative to base" in costs.text("cost")
    drawn = [bar["value"] for bar in costs.figure("cost")["series"]["own"]]
    keys = ("train_mac_ratio", "train_time_ratio", "step_mac_ratio", "decode_time_ratio")
    ratios = [own[key]["value"] if "time" in key else own[key] for key in keys]
    assert drawn == pytest.approx([own["parameters"] / base["parameters"], *ratios])


def test_typical_lengths_are_those_of_each_side(two):
    lengths = {"src_lengths": np.array([5, 9]), "tgt_lengths": np.array([4, 3, 3])}
    counted = cost.count(study(two, "base"), "base", SimpleNamespace(**lengths, spans=None))
    assert (counted.macs.src_length, counted.macs.tgt_length) == (7, 3)


def set_hardware(system, **values):
    """Write the hardware on which a system was trained."""
    config = system.config.read_text("utf-8").partition("\n[hardware]")[0]
    table = "".join(f'{key} = "{value}"\n' for key, value in values.items())
    system.config.write_text(f"{config}\n[hardware]\n{table}", "utf-8")


@pytest.mark.parametrize(("device", "speed"), [("cpu", 50.0), ("cuda", 25.0)])
def test_logged_training_speed_on_a_cpu_is_of_processor_time(two, device, speed):
    """The second system's updates took twice their processor time."""
    line = {"step": 10, "kind": "train", "updates": 10, "tgt_tokens": 100, "cpu_seconds": 2.0}
    for name, seconds in (("base", 2.0), ("own", 4.0)):
        system = two.run.system(name)
        write(system.metrics, [json.dumps(line | {"seconds": seconds})])
        set_hardware(system, device=device)
    _, own = two.rows("cost")
    assert own["train_tokens_per_s"] == pytest.approx(speed)
    assert own["train_time_ratio"]["value"] == pytest.approx(50.0 / speed)


def test_logged_times_of_different_hardware_or_search_have_no_ratio(two):
    base, own = map(two.run.system, ("base", "own"))
    set_hardware(base, name="one", precision="float32")

    def ratios(name="one", precision="float32"):
        set_hardware(own, name=name, precision=precision)
        row = two.rows("cost")[1]
        return row["train_time_ratio"]["value"], row["decode_time_ratio"]["value"]

    train, decode = ratios()
    assert train and decode
    assert ratios(name="two") == ratios(precision="bfloat16") == (None, decode)
    meta = own.translation("test") / "meta.json"
    values = read_json(meta)
    for change in ({"settings": {"beam": 1}}, {"hardware": {"jobs": 2}}):
        write_json(meta, values | change)
        assert ratios() == (train, None)


@pytest.fixture
def documents(analysed):
    """Add a Transformer and a model that reads context; give the sets documents."""
    analysed.system()
    analysed.models = {"memory": analysed.system("memory", "amn")}
    for name, starts in (("train", [0, 3, 4]), ("test", [0, 20])):
        write(documents_file(analysed.run.prep, name), map(str, starts))
    return analysed


def test_cost_counts_as_many_contexts_as_training_sentences_have(documents):
    finding = documents.analyze("cost", systems=["base", "memory"])
    count = len(documents.lines["test"])
    share, facts = (count - 3) / count, finding["facts"]
    assert facts["contexts"] == {"memory": pytest.approx(share)}
    lengths = facts["src_length"], facts["tgt_length"]
    expected = macs_of(documents.models["memory"], *lengths, share)
    assert finding["table"]["rows"][1]["train_mmac"] * 1e6 == pytest.approx(expected.train)


def test_measured_decoding_reads_the_contexts_of_its_set(documents, decoded):
    timing.measure_speed(study(documents, "base", "memory"), 5, rounds=1)
    batches = sorted((batch for _, batch in decoded), key=lambda batch: batch.context is not None)
    alone, beside = batches[0], batches[-1]
    assert alone.context is None and torch.equal(alone.src, beside.src)
    with_context = (beside.context.rows >= 0).sum()
    assert 0 < with_context < len(beside.src) and with_context >= len(beside.src) - 2


def test_cost_counts_contexts_as_training_reads_them(analysed, decoded, monkeypatch):
    """In training amn reads the contexts of its batch, in evaluation the whole document."""
    batches = []
    monkeypatch.setattr(
        timing.Bench,
        "_update",
        lambda _, __, shares, *___: batches.extend(share.batches[0] for _, share in shares),
    )
    analysed.system("memory", "amn", {**SMALL, "memory_scope": "batch"})
    write(documents_file(analysed.run.prep, "train"), ["0"])
    asked, count = study(analysed, "memory"), len(analysed.lines["test"])
    store = Store(analysed.run.prep / "train")
    counted = cost.count(asked, "memory", store)
    assert counted.contexts == pytest.approx((count - 1) / count)
    model = build_untrained(asked.run, asked.run.system("memory")).eval()
    lengths = counted.macs.src_length, counted.macs.tgt_length
    whole = macs_of(model, *lengths, cost.typical_contexts(store, model.context_rule))
    assert counted.macs.encode == pytest.approx(whole.encode)
    timing.measure_speed(asked, 5, rounds=1)
    assert {batch.context.rows.size(1) for batch in batches} == {1}


def test_measured_updates_are_packed_as_in_training(analysed, decoded, monkeypatch):
    packed = []
    monkeypatch.setattr(
        timing.Gradients,
        "_add_part",
        lambda _, batch, *__: packed.append(batch.segments is not None) or torch.zeros(2),
    )
    for variant in ("transformer", "concat"):  # a CPU packs only the first
        analysed.system(variant, variant)
    timing.measure_speed(study(analysed, "transformer", "concat"), 5, rounds=1)
    assert packed == [True, False, False, True]  # the order alternates


@pytest.fixture
def parses(analysed):
    """Add a model that cuts n-grams and one that reads parses; write parses of the training set,
    and return the span sizes of each sentence, some without a parse.
    """
    analysed.models = {
        name: analysed.system(name, "pr", {**SMALL, "segmentation": name})
        for name in ("ngram", "parse")
    }
    lengths = [len(line.split()) + 1 for line in analysed.lines["test"]]
    spans = [[2] * (n // 2) + [1] * (n % 2) if i % 4 else [] for i, n in enumerate(lengths)]
    write_spans(analysed.run.prep / "train", 0, spans)
    return spans


def test_cost_counts_the_phrases_of_parses(analysed, parses):
    finding = analysed.analyze("cost", systems=["ngram", "parse"])
    facts, rows = finding["facts"], finding["table"]["rows"]
    count, length = round(np.mean([len(spans) for spans in parses if spans])), facts["src_length"]
    assert facts["spans"] == {"parse": count}
    sizes = [len(part) for part in np.array_split(range(length), count)]
    for row, model, spans in zip(rows, analysed.models.values(), ([], sizes), strict=True):
        expected = macs_of(model, length, length, spans=spans)
        assert row["train_mmac"] * 1e6 == pytest.approx(expected.train)
        assert row["step_mmac"] * 1e6 == pytest.approx(expected.step)


def test_measured_decoding_reads_parses_if_the_set_has_some(analysed, parses, decoded, stderr):
    timing.measure_speed(study(analysed, "ngram", "parse"), 5, rounds=1)
    assert all(batch.spans is None for _, batch in decoded)
    warning = "'parse' reads parses, but test has none: it decodes with n-grams instead"
    assert warning in stderr()
    write_spans(analysed.run.prep / "test", 0, parses)
    decoded.clear()
    timing.measure_speed(study(analysed, "ngram", "parse"), 5, rounds=1)
    assert "n-grams instead" not in stderr()
    batch = next(batch for endless, batch in decoded if endless.model.reads_spans)
    assert sorted([size for size in row if size] for row in batch.spans.tolist()) == sorted(parses)


def test_cost_without_measurements_has_empty_cells_and_no_figure(analysed, stdout):
    analysed.system("only")
    (row,) = analysed.rows("cost")
    assert row["train_tokens_per_s"] is row["decode_tokens_per_s"] is None
    assert row["train_time_ratio"]["value"] is None and "–" in stdout()
    assert not (analysed.folder("cost") / "figure.svg").exists()


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("metrics.jsonl", '{"kind": "train"}\n'),
        ("translate/test/meta.json", "{}"),
    ],
)
def test_cost_refuses_a_damaged_measurement(two, file, content):
    path = two.run.system("own").path / file
    path.write_text(content, "utf-8")
    assert str(path) in two.refused("cost", DataError, "the file is damaged").where


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


@pytest.fixture
def paper(tmp_path):
    (tmp_path / "paper.toml").write_text(COSTS, "utf-8")
    return str(tmp_path / "paper.toml")


def test_macs_beside_measured_times_use_the_beam_of_the_baseline(two, brief):
    config = two.run.system("own").config
    edit(config, "beam = 2", "beam = 7")
    assert "beam = 7" in config.read_text("utf-8")
    finding = two.analyze("cost", measure=True)
    length = finding["facts"]["src_length"]
    macs = [macs_of(model, length, length) for model in two.models.values()]
    base, own = (count.encode + 2 * count.step for count in macs)
    row = finding["table"]["rows"][1]
    per_mac = row["decode_time_ratio"]["value"] / (own / base)
    assert row["decode_time_per_mac"] == pytest.approx(per_mac)


def test_timed_pass_waits_for_the_gpu_before_and_after(monkeypatch):
    bench, events = object.__new__(timing.Bench), []
    bench.device = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: events.append("wait"))
    bench._seconds(lambda: events.append("work"))
    assert events == ["wait", "work", "wait"]


@pytest.fixture
def measured(two, brief):
    """Measure speeds once; return the finding."""
    return two.analyze("cost", measure=True)


def test_system_without_checkpoint_is_not_timed(two, brief, stderr):
    shutil.rmtree(two.run.system("own").checkpoints)
    finding = two.analyze("cost", measure=True)
    assert [row["system"] for row in finding["table"]["rows"]] == ["base"]
    assert [*finding["facts"]["measured"]] == ["base"]
    assert "left out: own: no checkpoint of 'own'" in stderr()
    shutil.rmtree(two.run.system("base").checkpoints)
    error = two.refused("cost", DataError, "no system can be timed", measure=True)
    assert error.hint.startswith("nmtkit train --system base")


def test_measured_costs_are_kept_and_compared_with_a_papers(capsys, two, measured, paper):
    out, err = capsys.readouterr()
    assert "2 alternating rounds" in out and "measuring on: device cpu" in err
    times, own = measured["facts"]["measured"]["own"], measured["table"]["rows"][1]
    assert times["rounds"] == 2  # the maximum, because small models are fast
    assert own["train_tokens_per_s"] == pytest.approx(times["train_tokens_per_s"])
    after = two.analyze("cost", paper=paper, table="one")
    assert after["facts"]["measured"] == measured["facts"]["measured"]
    assert after["table"] == measured["table"]
    rows = {row["column"]: row for row in after["paper"]["rows"]}
    assert {column: row["measured"] for column, row in rows.items()} == {
        "millions": pytest.approx(own["parameters"] / 1e6),
        "training": times["train_ratio"]["value"],
        "steps/s": times["updates_per_s"],
    }
    assert rows["training"]["difference"] is None
    out, err = capsys.readouterr()
    assert "times relative to base" in out and "not of these systems" not in err


def test_measured_times_are_dropped_when_systems_set_weights_or_settings_change(
    two, measured, stderr
):
    message = "the times that --measure took of base, own are not of these systems"
    finding = two.folder("cost") / "finding.json"
    stored = finding.read_bytes()
    for options in ({"systems": ["own"]}, {"set_names": ["other"]}):
        assert two.analyze("cost", **options)["facts"]["measured"] == {}
        assert message in stderr()
        finding.write_bytes(stored)
    (manifest,) = two.run.system("own").checkpoints.glob("*/manifest.json")
    before = manifest.read_bytes()
    edit(manifest, read_json(manifest)["files"][WEIGHTS]["sha256"], "0" * 64)
    two.rows("cost")
    assert message in stderr()
    manifest.write_bytes(before)
    finding.write_bytes(stored)
    with open(two.run.system("own").config, "a", encoding="utf-8") as stream:
        stream.write("# trained on\n")
    row = two.rows("cost")[1]
    assert message in stderr() and row["train_tokens_per_s"] == 500


def test_gains_by_length_are_compared_with_a_papers(two, paper, stdout):
    """Gains are over the mean of the baseline's seeds; a missing group is noted."""
    two.system("base-s1", share=0.5)
    two.system("base-s2", share=0.6)
    for systems, base in (
        (["base", "own"], ["base"]),
        (["base-s2", "own", "base-s1"], ["base-s1", "base-s2"]),
    ):
        found = two.analyze("lengths", systems=systems, paper=paper, table="lengths")
        rows = [row for row in found["table"]["rows"] if row["group"] == "<10"]
        bleu = {row["system"]: row["bleu"]["value"] for row in rows}
        short, other = found["paper"]["rows"]
        mean = sum(bleu[name] for name in base) / len(base)
        assert short["measured"] == pytest.approx(bleu["own"] - mean)
        assert (other["system"], other["measured"]) == ("not measured", None)
    missing = "no group ≤15 among the measured ones: --buckets names the groups"
    assert missing in stdout()


def test_measured_rounds_have_new_batches_and_the_same_for_all_systems(two, decoded, monkeypatch):
    """In training too each update has new shapes."""
    seen, order = {}, []

    def update(_, gradients, shares, first):
        order.append(id(gradients))
        seen.setdefault(id(gradients), []).extend(rows[0].tolist() for rows, _ in shares)

    batches = iter(np.arange(24).reshape(-1, 2))
    monkeypatch.setattr(timing, "UPDATES", 3)
    monkeypatch.setattr(timing.Bench, "_update", update)
    monkeypatch.setattr(timing.Updates, "next", lambda _: [next(batches)])
    timing.measure_speed(study(two, "base", "own"), 5, rounds=2)
    base, own = seen.values()
    assert base == own == [[2 * i, 2 * i + 1] for i in range(9)]
    assert order[:2] == order[2:4][::-1] == order[4:]


@pytest.mark.parametrize(("seconds", "rounds"), [(20.0, timing.LEAST), (3.0, 10)])
def test_number_of_rounds_depends_on_the_time_of_one(two, monkeypatch, seconds, rounds):
    monkeypatch.setattr(timing.Bench, "_seconds", lambda _, work: seconds)
    assert timing.measure_speed(study(two, "base", "own"), 5)["own"].rounds == rounds


def test_measured_speeds_are_medians_and_ratios_to_the_baseline_in_the_same_round(two, monkeypatch):
    seconds = {  # of updates and search: the first system, the second one
        0: [(9, 9), (9, 9)],  # the warm-up does not count
        1: [(1, 2), (2, 2)],
        2: [(1, 2), (3, 4)],
        3: [(2, 4), (8, 16)],
    }
    monkeypatch.setattr(
        timing.Bench, "round", lambda _, number, advance: (60, np.array(seconds[number]))
    )
    base, own = timing.measure_speed(study(two, "base", "own"), 5, rounds=3).values()
    assert vars(own.train_ratio) == pytest.approx({"value": 3, "low": 2.05, "high": 3.95})
    assert vars(own.decode_ratio) == pytest.approx({"value": 2, "low": 1.05, "high": 3.9})
    assert base.train_ratio == base.decode_ratio == Estimate(1, 1, 1)
    assert (own.train_tokens_per_s, own.updates_per_s) == (20, 1)  # in 3 seconds, the median
    assert own.decode_tokens_per_s == 40 * 5 / 4
    assert (own.rounds, base.train_tokens_per_s) == (3, 60)


def test_measured_searches_never_end_early(two):
    settings = build(SearchSettings, {"beam": 3, "max_length_a": 0.0, "max_length_b": 7}, "search")
    model = two.models["own"]
    model.output.bias.data[EOS] = 100.0
    sources = source_batch([[5, 6, 2], [7, 2]])

    def hypotheses(model):
        return [(len(h.ids), h.finished) for (h,) in search([model], sources, settings)]

    assert hypotheses(model) == [(0, True)] * 2
    assert hypotheses(timing.Endless(model).eval()) == [(7, False)] * 2


def test_lengths_compare_bleu_by_group_of_source_length(two):
    rows = two.rows("lengths", buckets="10,20")
    assert [(r["group"], r["system"]) for r in rows] == [
        (g, s) for g in ("<10", "[10,20)", "≥20") for s in ("base", "own")
    ]
    assert sum(r["sentences"] for r in rows if r["system"] == "own") == 40
    for worse, better in zip(rows[::2], rows[1::2], strict=True):
        bleu = better["bleu"]
        assert worse["bleu"]["value"] < bleu["value"]
        if better["sentences"] < 10:
            assert bleu["low"] is None and bleu["high"] is None
        else:
            assert bleu["low"] <= bleu["value"] <= bleu["high"]
        assert better["length_ratio"]["value"] == pytest.approx(1.0)
    assert "</svg>" in two.text("lengths")


def test_lengths_note_the_signature_of_each_set(two):
    sets = two.manifest()["sets"]
    sets[-1]["references"] = 2
    two.change_manifest(sets=sets)
    for path in (two.run.prep / "text/other.ref1", two.run.system("own").translation("other")):
        write(path if path.suffix else path / "hyp.txt", two.lines["other"])
    notes = two.analyze("lengths")["table"]["notes"]
    beginnings = ["BLEU of test: nrefs:1|", "BLEU of other: nrefs:2|"]
    assert [note[: len(of)] for note, of in zip(notes, beginnings, strict=False)] == beginnings


def test_stored_finding_is_printed_again(two, capsys):
    for form in ("csv", "table"):
        printed = []
        for message in ("written to", "up to date"):
            stage.analyze(two.run, "lengths", output_format=form, force=not printed)
            out, err = capsys.readouterr()
            assert message in err
            printed.append(out)
        assert printed[0] == printed[1]
        if form == "csv":
            assert next(csv.DictReader(io.StringIO(out)))["system"] == "base"
    text = json.loads(two.text("lengths", "finding.json"))["text"]
    assert " ".join(text.split()) in " ".join(out.split())


def test_finding_is_outdated_when_options_or_inputs_change(two, stderr):
    def outdated(**options):
        stage.analyze(two.run, "lengths", **options)
        return "written to" in stderr()

    assert outdated() and not outdated()
    for options in ({"force": True}, {"buckets": "pr"}, {"systems": ["own"]}):
        assert outdated(**options)
    reference, prep = two.run.references("test")[0], two.run.prep
    for change in (
        lambda: two.translate("own", ["x"] * 40),
        # A new test set, documents and parses leave the fingerprint as it is.
        lambda: write(reference, ["x x x x"] * 40),
        lambda: write(documents_file(prep, "test"), ["0", "20"]),
        lambda: write_spans(prep / "test", 0, [[1]] * 40),
    ):
        change()
        assert outdated(systems=["own"])
    assert two.rows("lengths", systems=["own"])[0]["bleu"]["value"] == 0


@pytest.mark.parametrize(
    ("name", "options", "read"),
    [
        ("lengths", {"buckets": "dc"}, set()),
        ("gates", {"src_tags": "tags/x.txt"}, {"tags/x.txt"}),
        ("probing", {"probes": "tags"}, {"tags/x.txt"}),
        ("agreement", {"pairs": "test/x.txt", "scores": ["dc/x.txt"]}, {"test/x.txt", "dc/x.txt"}),
    ],
)
def test_finding_depends_only_on_files_that_its_options_name(
    two, tmp_path, monkeypatch, name, options, read
):
    monkeypatch.chdir(tmp_path)
    files = {str(write(Path(folder) / "x.txt", ["x"])) for folder in ("test", "dc", "tags")}
    cls = stage.find(name)
    study = Study(two.run, name, ["base"], ["test"])
    assert files & stage.inputs_of(study, cls(cls.Options(**options))).files.keys() == read


def write_finding(folder, figure=None, **attachments):
    """Write a small finding; `_` in the name of an attachment stands for a dot."""
    table = Table("t", "t", [Column("a", "a")], [[1]])
    files = {name.replace("_", "."): text for name, text in attachments.items()}
    finding = Finding(table, "t", figure=figure, attachments=files, name="toy")
    finding.write(folder, FindingInputs(systems=[], files={}))


def files_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


ALWAYS = {"finding.json", "table.md", "table.tex", "table.csv"}


def test_attachments_of_an_earlier_finding_are_removed(tmp_path):
    for attachments in ({"paper_md": "1", "a_scores": "2"}, {"a_scores": "3"}, {}):
        write_finding(tmp_path, **attachments)
        names = {name.replace("_", ".") for name in attachments}
        assert files_of(tmp_path).keys() == ALWAYS | names


def test_edited_attachments_and_files_of_the_user_stay(tmp_path):
    (tmp_path / "own.txt").write_text("mine")
    write_finding(tmp_path, b_md="1", é_md="é")
    (tmp_path / "b.md").write_text("edited")
    finding = tmp_path / "finding.json"
    hashes = read_json(finding)["hashes"] | {"own.txt": 64 * "0"}  # a forged hash
    write_json(finding, read_json(finding) | {"hashes": hashes})
    write_finding(tmp_path)
    assert files_of(tmp_path).keys() == ALWAYS | {"own.txt", "b.md"}


def test_system_may_be_named_like_a_column(analysed, tmp_path):
    analysed.system("pairs")
    paths = [tmp_path / name for name in ("src", "right", "wrong")]
    for number, path in enumerate(paths):
        write(path, [f"w{number} w5"])
    row = analysed.rows("agreement", pairs=",".join(map(str, paths)))[0]
    assert row["pairs"] == 1 and row["pairs_"]["value"] in {0.0, 100.0}


def test_earlier_finding_stays_if_the_disk_is_full(tmp_path):
    write_finding(tmp_path, "<svg/>", a_md="1")
    before = files_of(tmp_path)
    with full_disk(1 << 20):
        large = {"a_md": "2", "b_md": "2" * (2 << 20)}
        refused(EnvironmentProblem, "File too large", write_finding, tmp_path, **large)
    assert files_of(tmp_path) == before


def test_folder_in_the_place_of_a_finding_is_named(two):
    path = two.folder("lengths") / "finding.json"
    path.mkdir(parents=True)
    error = explained(pytest.raises(OSError, two.analyze, "lengths").value)
    assert error.where == str(path) and error.hint.startswith("move away the file or folder")


@pytest.mark.parametrize("name", ["figure.svg", "table.tex", "base.scores"])
def test_removed_file_of_a_finding_is_written_again(analysed, tmp_path, stderr, name):
    """A table is in finding.json, too, so that it needs no new measurement."""
    analysed.system()
    paths = [write(tmp_path / file, [f"{file} w5"]) for file in ("src", "right", "wrong")]
    pairs = ",".join(map(str, paths))
    analysed.analyze("agreement", pairs=pairs)
    before = files_of(analysed.folder("agreement"))
    (analysed.folder("agreement") / name).unlink()
    for up_to_date in (name == "table.tex", True):
        stderr()
        analysed.analyze("agreement", pairs=pairs)
        assert ("up to date" in stderr()) == up_to_date
    assert files_of(analysed.folder("agreement")) == before


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[:100],
        lambda text: text.replace('"bleu": {', '"blue": {', 1),
    ],
)
def test_damaged_finding_is_computed_again(two, stderr, damage):
    whole = two.analyze("lengths")
    path = two.folder("lengths") / "finding.json"
    path.write_text(damage(path.read_text("utf-8")), "utf-8")
    assert two.analyze("lengths") == whole
    assert "up to date" not in stderr()


def test_unknown_systems_sets_and_formats_are_refused(two):
    for error, words, name, options in (
        (ConfigError, "no system 'owl'", "cost", {"systems": ["owl"]}),
        (ConfigError, "reads one set, not test, other", "cost", {"set_names": ["test", "other"]}),
        (ConfigError, "no set 'tast'", "lengths", {"set_names": ["tast"]}),
        (DataError, "nothing to score", "lengths", {"set_names": ["other"]}),
        (ConfigError, "length groups", "lengths", {"buckets": "no"}),
        (ConfigError, "unknown format", "lengths", {"output_format": "xml"}),
    ):
        two.refused(name, error, words, **options)
    two.translate("own", ["x"])
    two.refused("lengths", DataError, "1 line, but reference 0 has 40")
    assert not (two.folder("lengths") / "finding.json").exists()


def test_set_may_be_named_twice(two):
    assert two.rows("examples", set_names=["test", "test"])
    assert len({row["set"] for row in two.rows("lengths", set_names=["test", "test"])}) == 1


def test_ensemble_translation_is_analysed_only_without_weights(two):
    name = "ensemble-base+own"
    folder = two.run.path / "systems" / name / "translate" / "test"
    write(folder / "hyp.txt", two.lines["test"])
    for analysis in ("lengths", "examples"):
        rows = two.rows(analysis, systems=["base", name])
        assert {row["system"] for row in rows} == {"base", name}
    untranslated = "ensemble-own+base"
    error = two.refused("lengths", DataError, "none of ensemble-own", systems=[untranslated])
    assert error.hint.startswith("nmtkit translate --system own --system base --ensemble --on test")
    error = two.refused("attention", ConfigError, f"'{re.escape(name)}' is an ens", systems=[name])
    assert "lengths, examples, phrases" in error.hint


@pytest.mark.parametrize(
    ("name", "key", "where", "hint"),
    [
        ("lengths", "measure", "--measure", "these have it: cost"),
        ("cost", "buckets", "--buckets", "these have it: lengths"),
    ],
)
def test_option_of_another_analysis_is_refused_and_its_analysis_named(name, key, where, hint):
    cls, message = stage.find(name), f"'{name}' has no such option"
    error = refused(ConfigError, message, stage.check_option, cls, key)
    assert error.where == where and hint in error.hint


def test_option_of_no_analysis_is_refused(two):
    two.refused("cost", ConfigError, "'--new-one'", new_one=None)
    stage.check_option(stage.find("cost"), "new_one")  # the parser of options names it
    assert not (two.run.path / "analyze").exists()


def test_finding_depends_only_on_options_of_its_analysis(two, stderr):
    options = {"set_names": [], "buckets": "dc", "paper": "", "table": ""}
    assert two.analyze("lengths")["made_from"]["options"] == options
    stage.analyze(two.run, "lengths", buckets="dc")
    assert "up to date" in stderr()


def test_finding_depends_on_translations_only_if_the_analysis_reads_them(two, stderr):
    for again in (False, True):
        for name in ("alignment", "lengths"):
            stage.analyze(two.run, name, systems=["base"])
            assert ("up to date" in stderr()) == (again and name == "alignment")
        two.translate("base", two.lines["test"])


@pytest.mark.parametrize(
    ("name", "words", "hint"),
    [
        ("alignment", "has this attention", "another --layer or --head"),
        ("divergence", "records local and global attention", TRAIN_ANOTHER),
        ("gates", "records gates", TRAIN_ANOTHER),
        ("importance", "whose attention can be taken away", "`nmtkit variants` lists the variants"),
        ("layers", "records mixtures", TRAIN_ANOTHER),
        ("weights", "records gated attention", TRAIN_ANOTHER),
    ],
)
def test_run_without_a_suitable_system_is_refused_with_the_reason(analysed, name, words, hint):
    analysed.system("toy", TOY, {})
    analysed.add("later", 0.3, sets=["test"])  # it has no checkpoint
    error = analysed.refused(name, DataError, f"no system (of this run )?{words}.*toy: it ")
    assert hint in error.hint


@pytest.mark.parametrize("name", ["agreement", "importance"])
def test_system_without_a_checkpoint_is_left_out_or_refused(analysed, name, tmp_path):
    analysed.system()
    analysed.add("later", 0.3, sets=["test"])
    words = [str(write(tmp_path / f"{i}", [f"w{i} w5"])) for i in range(3)]
    options = {"pairs": ",".join(words)} if name == "agreement" else {}
    reason = "no checkpoint of 'later'"
    assert analysed.analyze(name, **options)["facts"]["left_out"] == {"later": reason}
    error = analysed.refused(name, DataError, f"later: {reason}", systems=["later"], **options)
    assert "nmtkit train --system later" in error.hint


def test_run_without_systems_is_refused(tmp_path):
    error = AnalysedRun(tmp_path / "run").refused("cost", DataError, "no trained system")
    assert "nmtkit train" in error.hint
