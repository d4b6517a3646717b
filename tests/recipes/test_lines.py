"""The lines of the recipes at the scales that no test can afford: what they ask of nmtkit
exists, and has the papers' sizes and updates.
"""

import functools
import re
import tomllib
from types import SimpleNamespace

import pytest
import torch
from typer.main import get_command

from nmtkit.cli import app
from nmtkit.cli.analyze import analysis_command
from nmtkit.corpora import table
from nmtkit.models.base import Vocabularies
from nmtkit.models.variants import build_model, count_parameters
from nmtkit.score import lengths, paper
from nmtkit.score.significance import TESTS
from nmtkit.train.options import TrainOptions
from nmtkit.train.plan import make_plan
from nmtkit.train.schedule import learning_rate
from tests.recipes.recipe_calls import ROOT, nothing, run_recipe

SIZES = tomllib.loads((ROOT / "tests/recipes/sizes.toml").read_text("utf-8"))
"""The vocabularies, and the size and the updates of each training, of each recipe."""
DC = ["transformer", "enc-dc", "dec-dc", "full-dc"]
TRANSFORMERS = {"transformer", "big", "transformer-matched", "attention-rep"}
STAGES = {
    "score": "score",
    "task": "probing",
    "cost": "cost",
    "group": "lengths",
}
"""What measures the columns of a kind."""
COMMANDS = get_command(app).commands
ABLATED = ("context_encoder", "inter_attention", "context", "context_size")
KEYS = ("glance", "attentive", "transparent", "segmentation")


@pytest.fixture(scope="module")
def parses(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trees")
    for name in ("train", "dev"):
        (folder / f"{name}.trees").touch()
    return folder


@pytest.fixture(scope="module")
def with_parses(parses, tmp_path_factory):
    """A recipe's calls at a scale, asked for once."""

    @functools.cache
    def calls(name, scale):
        return asked(name, tmp_path_factory.mktemp("lines"), SCALE=scale, PARSES=parses)

    return calls


def asked(name, folder, code=0, **variables):
    """A recipe that has ended with a code."""
    recipe = ROOT / "recipes" / f"{name}.sh"
    done = run_recipe(recipe, folder, nothing, RUNS=folder / "runs", **variables)
    assert done.code == code, done.stderr
    return done


PLANS, PARAMETERS = {}, {}
"""By the options of a call, and by the settings of a model: recipes share many."""


def planned(values):
    """What a call of train resolves to."""
    run = SimpleNamespace(manifest=lambda: SimpleNamespace(preset="", fingerprint=""))
    keys = ("variant", "preset", "config", "assignments", "seed")
    given = {key: values[key] for key in keys if values[key] is not None}
    if repr(given) not in PLANS:
        PLANS[repr(given)] = make_plan(run, TrainOptions.of(given))
    return PLANS[repr(given)]


def parameters(plan, vocabularies):
    """How many parameters the model of a plan has."""
    key = plan.variant, repr(plan.model), vocabularies
    if key not in PARAMETERS:
        with torch.device("meta"):
            model = build_model(plan.variant, plan.model, vocabularies)
        PARAMETERS[key] = count_parameters(model)
    return PARAMETERS[key]


def trainings(done):
    """The name and the plan of each training of a recipe, in order; seed 1 is not named."""
    calls = values_of(done, "train")
    return [(values["name"].removesuffix("-s1"), planned(values)) for values in calls]


def values_of(done, command):
    """The options of each call of a command."""
    return [understood(call) for call in done.calls if call[0] == command]


def understood(call):
    """The options of a call, with defaults; what they name exists."""
    if call[0] == "analyze":
        command = analysis_command(call[1])
        return command.make_context(call[1], list(call[2:])).params | {"analysis": call[1]}
    values = COMMANDS[call[0]].make_context(call[0], list(call[1:])).params
    if call[0] == "prep":
        table.find(values["dataset"])
    elif call[0] == "train":
        planned(values)
    elif call[0] == "score":
        lengths.groups(values["buckets"] or "dc")
        assert values["test"] in TESTS
    return values


WITHOUT_CONTEXT = {"newscommentary-esen"}
"""Corpora whose training text has no documents: AMN's tables do not train on them."""


@pytest.mark.parametrize("scale", ["small", "full"])
@pytest.mark.parametrize("name", SIZES)
def test_every_call_is_understood(name, scale, with_parses):
    done = with_parses(name, scale)
    (score,), analyses = values_of(done, "score")[-1:], values_of(done, "analyze")
    baseline = "rnnsearch-s1" if name.startswith("caru/") else "transformer-s1"
    systems = score["systems"]
    assert systems == [values["name"] for values in values_of(done, "train")][-len(systems) :]
    assert values_of(done, "translate")[-1]["systems"] == systems
    assert score["against"] == systems[0] == baseline
    assert all(values["systems"] == systems for values in analyses)
    assert all(values["measure"] for values in analyses if values["analysis"] == "cost")


@pytest.mark.parametrize("name", SIZES)
def test_full_has_the_papers_sizes_and_updates(name, with_parses):
    entry = SIZES[name]
    vocabularies, count = Vocabularies(*entry["vocabularies"]), entry["trainings"]
    sizes, updates = (entry[key] * (count // len(entry[key])) for key in ("millions", "updates"))
    done = with_parses(name, "full")
    assert "without a GPU" in done.stderr
    plans = [plan for _, plan in trainings(done)]
    found = [parameters(plan, vocabularies) / 1e6 for plan in plans]
    assert found == pytest.approx(sizes, abs=0.0051)
    assert [plan.train.max_steps for plan in plans] == updates


@pytest.mark.parametrize("name", SIZES)
def test_the_papers_numbers_stand_beside_the_table_that_has_them(name, with_parses):
    """By the stage that measures them; and that has the paper's corpora, and a system for every
    row that names one.
    """
    done = with_parses(name, "full")
    folder, stem = name.split("/")
    table = paper.load(paper.PAPERS[folder]).tables.get(stem)
    calls = {values["analysis"]: values for values in values_of(done, "analyze")}
    calls["score"] = values_of(done, "score")[-1]
    for kind, stage_name in STAGES.items():
        columns = [column for column in table.columns if column.kind == kind] if table else []
        values = calls.get(stage_name, {"paper": None, "table": None})
        beside = (str(values["paper"] or ""), values["table"] or "")
        assert beside == ((folder, stem) if columns else ("", ""))
        if columns:
            datasets = dict.fromkeys(column.dataset for column in columns)
            assert [name for name in datasets if name not in WITHOUT_CONTEXT] == done.named("prep")
            systems = {f"{row.system}-s1" for row in table.rows if row.system}
            assert systems <= set(values["systems"])


@pytest.mark.parametrize(
    "name", [name for name in SIZES if not name.startswith(("caru/", "memory/"))]
)
def test_a_system_is_what_its_name_says(name, with_parses):
    for system, plan in trainings(with_parses(name, "full")):
        module = next((dc for dc in ("enc-dc", "dec-dc", "full-dc") if system.startswith(dc)), "pr")
        own = system if system in {"csan", "transformer-cycle"} else module
        assert plan.variant == ("transformer" if system in TRANSFORMERS else own)
        if module == "enc-dc":
            size, layers = system.partition("-f")[2] or "2", system.partition("-layers-")[2]
            assert (str(plan.model["kernel_size"]), plan.model["layers"]) == (size, layers)
            assert plan.model["local"] == ("none" if system.endswith("no-conv") else "conv")
        assert plan.train.replace == ("uniform" if system == "attention-rep" else "none")


def test_small_trains_post_norm_as_the_papers_define(with_parses):
    for name in SIZES:
        if name.startswith(("dual_context/", "phrase/")):
            plans = trainings(with_parses(name, "small"))
            assert {plan.model["norm"] for _, plan in plans} == {"post"}, name


def test_a_control_has_the_parameters_of_the_module(tmp_path):
    done = asked("dual_context/controls", tmp_path, SCALE="small", SEEDS="3 5")
    matched = [values["name"] for values in values_of(done, "train") if values["match_parameters"]]
    assert matched == ["transformer-matched-s3", "transformer-matched-s5"]
    assert done.options("train", "--match-parameters") == ["enc-dc-s3"] * 2


def test_the_ladder_of_phrases(with_parses):
    plans = dict(trainings(with_parses("phrase/table2", "full")))
    rungs = [
        tuple(plans[name].model[key] for key in KEYS)
        for name in ("mean", "max", "max-attn", "pr", "parse")
    ]
    assert rungs == [
        ("mean", False, False, "ngram"),
        ("max", False, False, "ngram"),
        ("max", True, False, "ngram"),
        ("max", True, True, "ngram"),
        ("max", True, True, "parse"),
    ]


def test_the_rows_of_the_memory(with_parses):
    """What the paper takes away, and which sentences it reads."""

    def read(name):
        return dict(trainings(with_parses(name, "full")))

    _, *ablations = read("memory/table3").items()
    assert {plan.variant for _, plan in ablations} == {"amn"}
    assert {name: tuple(plan.model[key] for key in ABLATED) for name, plan in ablations} == {
        "amn": ("gru", True, "previous", 1),
        "amn-wo-rnn": ("none", True, "previous", 1),
        "amn-wo-attention": ("gru", False, "foreign", 1),
        "amn-wo-both": ("transformer", False, "foreign", 1),
    }
    _, *sweep = read("memory/table4").items()
    kinds = ("previous", "next", "random")
    wanted = {(kind, k, "concatenate") for kind in kinds for k in range(1, 6)}
    wanted |= {(kind, k, "parallel") for kind in kinds for k in range(2, 6)}
    contexts = [
        tuple(plan.model[key] for key in ("context", "context_size", "context_join"))
        for _, plan in sweep
    ]
    assert set(contexts) == wanted and len(contexts) == len(wanted)
    for (name, _), context in zip(sweep, contexts, strict=True):
        kind, size, *join = name.split("-")[1:] or ("previous", 1)
        assert context == (kind, int(size), *(join or ["concatenate"]))
    assert [*read("memory/table2")] == ["transformer", "context-aware", "han", "amn", "concat"]


@pytest.mark.parametrize("name", ["table2", "table3", "table4", "context_use"])
def test_small_trains_on_the_demo_corpus_until_its_contexts_are_learnt(name, tmp_path):
    for variables, steps in (({}, 5000), ({"STEPS": 70}, 70)):
        done = asked(f"memory/{name}", tmp_path, SCALE="small", **variables)
        assert {plan.train.max_steps for _, plan in trainings(done)} == {steps}
        assert f"small-demo-demo-{steps}" in done.options("prep", "--run")[0]


@pytest.mark.parametrize(
    ("name", "option", "expected", "variables"),
    [
        ("memory/context_use", "--pairs", [], {"SCALE": "full"}),
        ("dual_context/probing", "--probes", [""], {"SCALE": "small"}),
        ("dual_context/probing", "--probes", ["senteval"], {"SCALE": "full"}),
        ("dual_context/probing", "--probes", ["xprobe"], {"SCALE": "small", "PROBES": "xprobe"}),
    ],
)
def test_files_of_an_analysis(name, option, expected, variables, tmp_path):
    assert asked(name, tmp_path, **variables).options("analyze", option) == expected


RUNGS = ("caatt", "caembed", "attention_norm")


@pytest.mark.parametrize("scale", ["small", "full"])
def test_the_ladder_of_gates(scale, with_parses):
    plans = dict(trainings(with_parses("caru/table1", scale)))
    assert [plan.variant for plan in plans.values()] == [
        "rnnsearch",
        "gru-inv",
        "gatt",
        *["caru"] * 4,
    ]
    assert {name: tuple(plans[name].model[key] for key in RUNGS) for name in list(plans)[3:]} == {
        "plain": (False, "off", "softmax"),
        "caatt": (True, "off", "softmax"),
        "caembed": (True, "state", "softmax"),
        "caru": (True, "state", "l1_exp_nx"),
    }
    assert {plan.model["d_hidden"] for plan in plans.values()} == {
        512 if scale == "small" else 1024
    }
    assert {plan.model["d_embedding"] for plan in plans.values()} == {256}
    widths = [
        plan.model["d_alignment" if plan.variant == "rnnsearch" else "alignment_width"]
        for plan in plans.values()
    ]
    assert set(widths) == {256 if scale == "small" else 0}  # 0: as wide as the state


def test_big_french_has_the_smaller_dropout(tmp_path):
    done = asked("phrase/table1", tmp_path, SCALE="full")
    models = [plan.model for _, plan in trainings(done)]
    for key in ("dropout", "attention_dropout"):
        assert [model[key] for model in models] == [0.1, 0.1, 0.3, 0.3, 0.1, 0.1, 0.1, 0.1]
    assert done.named("prep") == ["wmt14-ende", "wmt14-enfr"]


@pytest.mark.parametrize("name", ["length", "agreement"])
def test_big_at_small_is_twice_as_wide_and_learns_half_as_fast(name, tmp_path):
    """Captions and the demo corpus have presets of their own, with other sizes and schedules."""
    done = asked(f"phrase/{name}", tmp_path, SCALE="small")
    plans = dict(trainings(done))
    base, big = plans["transformer"], plans["big"]
    assert [big.model[key] / base.model[key] for key in ("d_model", "d_ff", "heads")] == [2, 2, 2]
    peaks = [
        learning_rate(plan.train, plan.model["d_model"], plan.train.warmup) for plan in (base, big)
    ]
    assert peaks[1] == pytest.approx(peaks[0] / 2, rel=0.02)


def test_the_rung_of_parses_needs_parses(parses, tmp_path):
    without = asked("phrase/table2", tmp_path, SCALE="small")
    assert "the row +Parsing is left out" in without.stderr
    assert "parse-s1" not in without.options("train", "--system")
    given = asked("phrase/table2", tmp_path, SCALE="small", PARSES=parses)
    assert given.options("prep", "--parses") == [
        f"{name}={parses / name}.trees" for name in ("dev", "train")
    ]
    assert given.options("prep", "--run") != without.options("prep", "--run")
    assert "parse-s1" in given.options("train", "--system")
    parsed = asked("phrase/table2", tmp_path, SCALE="small", PARSER="stanza")
    assert "parse-s1" in parsed.options("train", "--system")


def test_what_the_caller_may_choose(tmp_path):
    chosen = {"SEEDS": "3 5", "STEPS": 70, "PRESET": "tiny", "FROM_DIR": "/data", "PAIRS": "a,b,c"}
    done = asked("phrase/agreement", tmp_path, SCALE="full", **chosen)
    names = [f"{system}-s{seed}" for system in ("transformer", "pr", "big") for seed in (3, 5)]
    assert done.options("train", "--system") == names
    plans = [plan.train for _, plan in trainings(done)]
    assert [(plan.seed, plan.max_steps) for plan in plans] == [(3, 70), (5, 70)] * 3
    for command, option, expected in (
        ("prep", "--from-dir", "/data"),
        ("prep", "--preset", "tiny"),
        ("analyze", "--pairs", "a,b,c"),
        ("score", "--group-by", "seed"),
        ("score", "--against", "transformer-s3"),
    ):
        assert done.options(command, option) == [expected]
    # systems of other budgets have other runs
    assert all(run.endswith("-tiny-70") for run in done.options("prep", "--run"))


def test_of_several_seeds_the_first_is_looked_into(tmp_path):
    done = asked("dual_context/kernel_size", tmp_path, SCALE="small", SEEDS="3 5")
    looked = [values["systems"] for values in values_of(done, "analyze")]
    first = ["transformer-s3", "enc-dc-s3", *(f"enc-dc-f{size}-s3" for size in range(3, 9))]
    assert looked == [first, first]


def test_a_prepared_run_keeps_its_corpus_and_notes(tmp_path):
    results = tmp_path / "mine/recipes/dual_context/table1/score"
    for path in (results / "test/table.md", results / "notes.md"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("before")
    (tmp_path / "mine" / "prep").mkdir(parents=True)
    (tmp_path / "mine" / "prep" / "manifest.json").touch()
    done = asked("dual_context/table1", tmp_path, SCALE="small", RUN=tmp_path / "mine")
    assert not done.named("prep")
    runs = {run for call in done.calls for run in done.options(call[0], "--run")}
    assert runs == {str(tmp_path / "mine")}
    assert (results / "test/table.md").read_text() == ""
    assert (results / "notes.md").read_text() == "before"
    several = asked("dual_context/table2", tmp_path, code=2, SCALE="small", RUN=tmp_path / "mine")
    assert "leave RUN out" in several.stderr


def test_a_recipe_stops_where_nmtkit_does(tmp_path):
    def stops(call):
        return (75, "", "stopped\n") if "enc-dc-s1" in call else nothing(call)

    recipe = ROOT / "recipes" / "dual_context" / "table1.sh"
    done = run_recipe(recipe, tmp_path, stops, SCALE="small", RUNS=tmp_path / "runs")
    names = ["transformer-s1", "csan-s1", "enc-dc-s1"]
    assert done.code == 75 and done.options("train", "--system") == names


def test_a_preset_has_its_own_sizes(tmp_path):
    """Also of the recurrent models, which small gives others."""
    done = asked("compare_all", tmp_path, SCALE="small", PRESET="demo")
    plans = dict(trainings(done))
    for name in ("rnnsearch", "gru-inv", "caru"):
        assert plans[name].model["d_hidden"] == 256


def test_each_half_of_the_comparison_has_a_run_of_its_own(tmp_path):
    """But for one corpus with one preset; then the page has one run."""
    done = asked("compare_all", tmp_path, code=2, SCALE="smoke", RUN=tmp_path / "mine")
    assert not done.calls and "leave RUN out" in done.stderr
    for preset, runs in (("", 2), ("demo", 1)):
        done = asked("compare_all", tmp_path, SCALE="smoke", PRESET=preset)
        assert len(set(done.options("train", "--run"))) == runs
        assert len(done.options("report", "--also")) == runs - 1


@pytest.mark.parametrize(
    ("scale", "more", "steps", "datasets", "analyses"),
    [
        (
            "small",
            {"DOCUMENT_STEPS": 90},
            (70, 90),
            ["multi30k-ende", "demo"],
            [*["cost", "attention"] * 2, "agreement"],
        ),
        ("full", {}, (70, 70), ["wmt14-ende", "ted-zhen"], ["cost", "attention"] * 2),
    ],
)
def test_all_models_have_one_budget(scale, more, steps, datasets, analyses, tmp_path):
    """In each half of the comparison that no paper has; at full the halves are of one size, too."""
    done = asked("compare_all", tmp_path, SCALE=scale, SEEDS="1 2", STEPS=70, **more)
    halves = {}
    for values in values_of(done, "train"):
        halves.setdefault(values["run"], []).append(planned(values))
    assert [[plan.variant for plan in plans[::2]] for plans in halves.values()] == [
        [*DC, "pr", "rnnsearch", "gru-inv", "caru"],
        ["transformer", "amn", "context-aware", "han", "concat"],
    ]
    for plans, updates in zip(halves.values(), steps, strict=True):
        assert [plan.train.seed for plan in plans] == [1, 2] * (len(plans) // 2)
        first, *others = (plan.train.model_copy(update={"seed": 0}) for plan in plans)
        assert first.max_steps == updates and all(other == first for other in others)
    assert (done.named("prep"), done.named("analyze")) == (datasets, analyses)
    (page,) = values_of(done, "report")
    assert [page["run"], *page["also"]] == [*halves]
    assert all(f"{updates} updates" in page["title"] for updates in steps)


@pytest.mark.parametrize(
    ("name", "more"), [("table3", ["context"]), ("table4", []), ("context_use", ["context"])]
)
def test_small_says_who_uses_the_context(name, more, tmp_path):
    """By the demo corpus's pronouns; of a corpus of one's own by the pairs that are named, or
    none.
    """
    for pairs, expected in (
        ({}, "pronouns"),
        ({"PAIRS": "a,b,c,d"}, "a,b,c,d"),
        ({"PAIRS": ""}, None),
    ):
        done = asked(f"memory/{name}", tmp_path, SCALE="small", **pairs)
        assert done.named("analyze") == more + ["agreement"] * bool(expected)
        if expected:
            last = values_of(done, "analyze")[-1]
            assert (last["pairs"], last["context"]) == (expected, "true,none,foreign")


@pytest.mark.parametrize("line", ["0", "abc", "-3"])
def test_a_line_that_is_no_number_is_refused_before_any_work(line, tmp_path):
    done = asked("caru/table2", tmp_path, code=2, SCALE="small", LINE=line)
    assert not done.calls and f"not '{line}'" in done.stderr
    assert asked("caru/table3", tmp_path, SCALE="small", LINE="12").options(
        "analyze", "--sentence"
    ) == ["12"]


@pytest.mark.parametrize("scale", ["", "tiny"])
def test_the_scale_is_asked_for(scale, tmp_path):
    done = asked("dual_context/table1", tmp_path, code=2, SCALE=scale)
    assert "SCALE=smoke" in done.stderr and not done.calls


def test_a_macs_bash_can_read_the_recipes():
    """Bash before 4.4 refuses "${x[@]}" of an empty array under set -u."""
    scripts = [*(ROOT / "recipes").rglob("*.sh"), ROOT / "tests/run.sh"]
    filled = {"systems", "first_seed"}  # by the first system of a table
    for script in scripts:
        text = script.read_text("utf-8")
        for name in set(re.findall(r"\b(\w+)=\(\)", text)) - filled:
            guarded = '${x[@]+"${x[@]}"}'.replace("x", name)
            assert not re.search(rf"\b{name}\[@\]", text.replace(guarded, "")), f"{script}: {name}"
        newer = (
            r"\b(mapfile|readarray|declare -A|wait -n|sha256sum|nproc|realpath)\b|\$\{\w+(,,|\^\^)"
        )
        assert not re.search(newer, text), script
