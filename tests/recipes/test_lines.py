"""Check without training the calls of nmtkit by recipes at the scales `small` and `full`.

Options exist, and models have the papers' sizes and updates.
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
from tests.recipes.recipe_calls import ROOT, do_nothing, run_recipe

SIZES = tomllib.loads((ROOT / "tests/recipes/sizes.toml").read_text("utf-8"))
"""Vocabularies, parameters and updates of the trainings of each recipe."""
DC = ["transformer", "enc-dc", "dec-dc", "full-dc"]
TRANSFORMERS = {"transformer", "big", "transformer-matched", "attention-rep"}
STAGES = {"score": "score", "task": "probing", "cost": "cost", "group": "lengths"}
"""Kind of a paper's column -> the stage or analysis that measures it."""
COMMANDS = get_command(app).commands
WITHOUT_CONTEXT = {"newscommentary-esen"}
"""Corpora without documents in the training text; AMN's tables do not train on these corpora."""
PLANS, PARAMETERS = {}, {}
"""Caches of `plan_of` and `parameters`: recipes share many trainings."""


@pytest.fixture(scope="module")
def trees(tmp_path_factory):
    """A folder with parses."""
    folder = tmp_path_factory.mktemp("trees")
    for name in ("train", "dev"):
        (folder / f"{name}.trees").touch()
    return folder


@pytest.fixture(scope="module")
def at_scale(trees, tmp_path_factory):
    """A function (recipe, scale) -> the ended recipe, which had parses; each runs once."""

    @functools.cache
    def at_scale(name, scale):
        return ended(name, tmp_path_factory.mktemp("lines"), SCALE=scale, PARSES=trees)

    return at_scale


def ended(name, folder, code=0, **variables):
    """Run a recipe whose calls of nmtkit do nothing; assert its exit code."""
    recipe = ROOT / "recipes" / f"{name}.sh"
    done = run_recipe(recipe, folder, do_nothing, RUNS=folder / "runs", **variables)
    assert done.code == code, done.stderr
    return done


def plan_of(values):
    """Return the plan of a training, given the options of the call."""
    run = SimpleNamespace(manifest=lambda: SimpleNamespace(preset="", fingerprint=""))
    keys = ("variant", "preset", "config", "assignments", "seed")
    options = {key: values[key] for key in keys if values[key] is not None}
    if repr(options) not in PLANS:
        PLANS[repr(options)] = make_plan(run, TrainOptions.of(options))
    return PLANS[repr(options)]


def parameters(plan, vocabularies):
    """Return the number of parameters of a plan's model."""
    key = plan.variant, repr(plan.model), vocabularies
    if key not in PARAMETERS:
        with torch.device("meta"):
            model = build_model(plan.variant, plan.model, vocabularies)
        PARAMETERS[key] = count_parameters(model)
    return PARAMETERS[key]


def trainings(done):
    """Return the system and the plan of each training of a recipe; names lack the end of seed 1."""
    calls = options_of(done, "train")
    return [(values["name"].removesuffix("-s1"), plan_of(values)) for values in calls]


def plans_of(done):
    """Return the plans of a recipe by system; its systems have the same plan on every corpus."""
    return dict(trainings(done))


def options_of(done, command):
    """Return the options of each call of a command, with defaults; check what they name."""
    return [checked_options(call) for call in done.calls if call[0] == command]


def checked_options(call):
    if call[0] == "analyze":
        command = analysis_command(call[1])
        return command.make_context(call[1], list(call[2:])).params | {"analysis": call[1]}
    values = COMMANDS[call[0]].make_context(call[0], list(call[1:])).params
    if call[0] == "prep":
        table.find(values["dataset"])
    elif call[0] == "train":
        plan_of(values)
    elif call[0] == "score":
        lengths.groups(values["buckets"] or "dc")
        assert values["test"] in TESTS
    return values


@pytest.mark.parametrize("scale", ["small", "full"])
@pytest.mark.parametrize("name", SIZES)
def test_systems_are_trained_translated_scored_and_analysed(name, scale, at_scale):
    done = at_scale(name, scale)
    (score,), analyses = options_of(done, "score")[-1:], options_of(done, "analyze")
    baseline = "rnnsearch-s1" if name.startswith("caru/") else "transformer-s1"
    systems = score["systems"]
    assert systems == [values["name"] for values in options_of(done, "train")][-len(systems) :]
    assert options_of(done, "translate")[-1]["systems"] == systems
    assert score["against"] == systems[0] == baseline
    assert all(values["systems"] == systems for values in analyses)
    assert all(values["measure"] for values in analyses if values["analysis"] == "cost")


@pytest.mark.parametrize("name", SIZES)
def test_scale_full_has_the_papers_sizes_and_updates(name, at_scale):
    entry = SIZES[name]
    vocabularies, count = Vocabularies(*entry["vocabularies"]), entry["trainings"]
    millions, updates = (entry[key] * (count // len(entry[key])) for key in ("millions", "updates"))
    done = at_scale(name, "full")
    assert "without a GPU" in done.stderr
    plans = [plan for _, plan in trainings(done)]
    assert [parameters(plan, vocabularies) / 1e6 for plan in plans] == pytest.approx(
        millions, abs=0.0051
    )
    assert [plan.train.max_steps for plan in plans] == updates


@pytest.mark.parametrize("name", SIZES)
def test_stage_that_measures_a_papers_column_gets_the_papers_table(name, at_scale):
    """The recipe has the table's corpora, and a system for every row that names one."""
    done = at_scale(name, "full")
    folder, stem = name.split("/")
    printed = paper.load(paper.PAPERS[folder]).tables.get(stem)
    calls = {values["analysis"]: values for values in options_of(done, "analyze")}
    calls["score"] = options_of(done, "score")[-1]
    for kind, stage_name in STAGES.items():
        columns = [column for column in printed.columns if column.kind == kind] if printed else []
        values = calls.get(stage_name, {"paper": None, "table": None})
        named = str(values["paper"] or ""), values["table"] or ""
        assert named == ((folder, stem) if columns else ("", ""))
        if columns:
            datasets = dict.fromkeys(column.dataset for column in columns)
            assert [name for name in datasets if name not in WITHOUT_CONTEXT] == done.named("prep")
            systems = {f"{row.system}-s1" for row in printed.rows if row.system}
            assert systems <= set(values["systems"])


@pytest.mark.parametrize("name", [n for n in SIZES if not n.startswith(("caru/", "memory/"))])
def test_name_of_a_system_says_its_variant_kernel_size_and_layers(name, at_scale):
    for system, plan in trainings(at_scale(name, "full")):
        module = next((dc for dc in DC[1:] if system.startswith(dc)), "pr")
        variant = system if system in {"csan", "transformer-cycle"} else module
        assert plan.variant == ("transformer" if system in TRANSFORMERS else variant)
        if module == "enc-dc":
            size, layers = system.partition("-f")[2] or "2", system.partition("-layers-")[2]
            assert (str(plan.model["kernel_size"]), plan.model["layers"]) == (size, layers)
            assert plan.model["local"] == ("none" if system.endswith("no-conv") else "conv")
        assert plan.train.replace == ("uniform" if system == "attention-rep" else "none")


@pytest.mark.parametrize("name", [n for n in SIZES if n.startswith(("dual_context/", "phrase/"))])
def test_scale_small_is_post_norm_as_in_the_papers(name, at_scale):
    plans = trainings(at_scale(name, "small"))
    assert {plan.model["norm"] for _, plan in plans} == {"post"}


def test_matched_baseline_has_as_many_parameters_as_the_first_enc_dc(tmp_path):
    done = ended("dual_context/controls", tmp_path, SCALE="small", SEEDS="3 5")
    trainings = options_of(done, "train")
    matched = [values["name"] for values in trainings if values["match_parameters"]]
    assert matched == ["transformer-matched-s3", "transformer-matched-s5"]
    assert done.options("train", "--match-parameters") == ["enc-dc-s3"] * 2


def chosen(plans, *keys):
    """Return some model settings of each plan, by system."""
    return {name: tuple(plan.model[key] for key in keys) for name, plan in plans.items()}


def test_systems_of_phrase_table_2_add_the_parts_of_the_model_one_by_one(at_scale):
    keys = ("glance", "attentive", "transparent", "segmentation")
    plans = plans_of(at_scale("phrase/table2", "full"))
    ladder = {name: plans[name] for name in ("mean", "max", "max-attn", "pr", "parse")}
    assert chosen(ladder, *keys) == {
        "mean": ("mean", False, False, "ngram"),
        "max": ("max", False, False, "ngram"),
        "max-attn": ("max", True, False, "ngram"),
        "pr": ("max", True, True, "ngram"),
        "parse": ("max", True, True, "parse"),
    }


def test_systems_of_memory_table_3_lack_parts_of_the_model(at_scale):
    plans = plans_of(at_scale("memory/table3", "full"))
    del plans["transformer"]
    assert {plan.variant for plan in plans.values()} == {"amn"}
    keys = ("context_encoder", "inter_attention", "context", "context_size")
    assert chosen(plans, *keys) == {
        "amn": ("gru", True, "previous", 1),
        "amn-wo-rnn": ("none", True, "previous", 1),
        "amn-wo-attention": ("gru", False, "foreign", 1),
        "amn-wo-both": ("transformer", False, "foreign", 1),
    }


def test_systems_of_memory_table_4_read_other_contexts(at_scale):
    plans = plans_of(at_scale("memory/table4", "full"))
    del plans["transformer"]
    kinds = ("previous", "next", "random")
    expected = {(kind, k, "concatenate") for kind in kinds for k in range(1, 6)}
    expected |= {(kind, k, "parallel") for kind in kinds for k in range(2, 6)}
    contexts = chosen(plans, "context", "context_size", "context_join")
    assert set(contexts.values()) == expected and len(contexts) == len(expected)
    for name, context in contexts.items():
        kind, size, *join = name.split("-")[1:] or ("previous", 1)
        assert context == (kind, int(size), *(join or ["concatenate"]))


def test_memory_table_2_compares_five_models(at_scale):
    names = ["transformer", "context-aware", "han", "amn", "concat"]
    assert [*plans_of(at_scale("memory/table2", "full"))] == names


@pytest.mark.parametrize("name", ["table2", "table3", "table4", "context_use"])
def test_small_memory_recipes_train_on_the_demo_corpus_for_5000_updates(name, at_scale):
    done = at_scale(f"memory/{name}", "small")
    assert {plan.train.max_steps for _, plan in trainings(done)} == {5000}
    assert "small-demo-demo-5000" in done.options("prep", "--run")[0]


@pytest.mark.parametrize("name", ["table2", "table3", "table4", "context_use"])
def test_variable_steps_replaces_the_5000_updates_of_small_memory_recipes(name, tmp_path):
    done = ended(f"memory/{name}", tmp_path, SCALE="small", STEPS=70)
    assert {plan.train.max_steps for _, plan in trainings(done)} == {70}
    assert "small-demo-demo-70" in done.options("prep", "--run")[0]


@pytest.mark.parametrize(
    ("name", "scale", "option", "expected"),
    [
        ("memory/context_use", "full", "--pairs", []),
        ("dual_context/probing", "small", "--probes", [""]),
        ("dual_context/probing", "full", "--probes", ["senteval"]),
    ],
)
def test_files_of_an_analysis_depend_on_the_scale(name, scale, option, expected, at_scale):
    assert at_scale(name, scale).options("analyze", option) == expected


def test_variable_probes_chooses_the_files_of_probing(tmp_path):
    done = ended("dual_context/probing", tmp_path, SCALE="small", PROBES="xprobe")
    assert done.options("analyze", "--probes") == ["xprobe"]


@pytest.mark.parametrize(
    ("scale", "hidden", "alignment"),
    [("small", 512, 256), ("full", 1024, 0)],  # 0: as wide as the state
)
def test_systems_of_caru_table_1_add_the_parts_of_the_model_one_by_one(
    scale, hidden, alignment, at_scale
):
    plans = plans_of(at_scale("caru/table1", scale))
    variants = ["rnnsearch", "gru-inv", "gatt", *["caru"] * 4]
    assert [plan.variant for plan in plans.values()] == variants
    ladder = {name: plan for name, plan in plans.items() if plan.variant == "caru"}
    assert chosen(ladder, "caatt", "caembed", "attention_norm") == {
        "plain": (False, "off", "softmax"),
        "caatt": (True, "off", "softmax"),
        "caembed": (True, "state", "softmax"),
        "caru": (True, "state", "l1_exp_nx"),
    }
    assert set(chosen(plans, "d_hidden", "d_embedding").values()) == {(hidden, 256)}
    baseline = plans.pop("rnnsearch").model["d_alignment"]
    widths = chosen(plans, "alignment_width").values()
    assert {(baseline,), *widths} == {(alignment,)}


def test_big_has_the_smaller_dropout_in_french_alone(at_scale):
    done = at_scale("phrase/table1", "full")
    models = [plan.model for _, plan in trainings(done)]
    for key in ("dropout", "attention_dropout"):
        assert [model[key] for model in models] == [0.1, 0.1, 0.3, 0.3, 0.1, 0.1, 0.1, 0.1]
    assert done.named("prep") == ["wmt14-ende", "wmt14-enfr"]


@pytest.mark.parametrize("name", ["length", "agreement"])
def test_small_big_is_twice_as_wide_and_has_half_the_learning_rate(name, at_scale):
    """Captions and the demo corpus have presets with other sizes and schedules."""
    plans = plans_of(at_scale(f"phrase/{name}", "small"))
    base, big = plans["transformer"], plans["big"]
    assert [big.model[key] / base.model[key] for key in ("d_model", "d_ff", "heads")] == [2, 2, 2]
    base_peak, big_peak = (
        learning_rate(plan.train, plan.model["d_model"], plan.train.warmup) for plan in (base, big)
    )
    assert big_peak == pytest.approx(base_peak / 2, rel=0.02)


def test_system_with_parses_is_left_out_without_parses(trees, at_scale, tmp_path):
    without = ended("phrase/table2", tmp_path, SCALE="small")
    assert "the row +Parsing is left out" in without.stderr
    assert "parse-s1" not in without.options("train", "--system")
    parsed = at_scale("phrase/table2", "small")
    files = [f"{name}={trees / name}.trees" for name in ("dev", "train")]
    assert parsed.options("prep", "--parses") == files
    by_parser = ended("phrase/table2", tmp_path, SCALE="small", PARSER="stanza")
    for done in (parsed, by_parser):
        assert "parse-s1" in done.options("train", "--system")
        assert done.options("prep", "--run") != without.options("prep", "--run")


def test_variables_choose_seeds_steps_preset_folder_and_pairs(tmp_path):
    variables = {
        "SEEDS": "3 5",
        "STEPS": 70,
        "PRESET": "tiny",
        "FROM_DIR": "/data",
        "PAIRS": "a,b,c",
    }
    done = ended("phrase/agreement", tmp_path, SCALE="full", **variables)
    names = [f"{system}-s{seed}" for system in ("transformer", "pr", "big") for seed in (3, 5)]
    assert done.options("train", "--system") == names
    plans = [plan_of(values).train for values in options_of(done, "train")]
    assert [(plan.seed, plan.max_steps) for plan in plans] == [(3, 70), (5, 70)] * 3
    for command, option, expected in (
        ("prep", "--from-dir", "/data"),
        ("prep", "--preset", "tiny"),
        ("analyze", "--pairs", "a,b,c"),
        ("score", "--group-by", "seed"),
        ("score", "--against", "transformer-s3"),
    ):
        assert done.options(command, option) == [expected]
    # Each budget has its own run.
    assert all(run.endswith("-tiny-70") for run in done.options("prep", "--run"))


def test_analyses_read_the_first_of_several_seeds(tmp_path):
    done = ended("dual_context/kernel_size", tmp_path, SCALE="small", SEEDS="3 5")
    analysed = [values["systems"] for values in options_of(done, "analyze")]
    first = ["transformer-s3", "enc-dc-s3", *(f"enc-dc-f{size}-s3" for size in range(3, 9))]
    assert analysed == [first, first]


def test_variable_run_uses_a_prepared_corpus_and_keeps_notes(tmp_path):
    results = tmp_path / "mine/recipes/dual_context/table1/score"
    for path in (results / "test/table.md", results / "notes.md"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("before")
    (tmp_path / "mine" / "prep").mkdir(parents=True)
    (tmp_path / "mine" / "prep" / "manifest.json").touch()
    done = ended("dual_context/table1", tmp_path, SCALE="small", RUN=tmp_path / "mine")
    assert not done.named("prep")
    runs = {run for call in done.calls for run in done.options(call[0], "--run")}
    assert runs == {str(tmp_path / "mine")}
    assert (results / "test/table.md").read_text() == ""
    assert (results / "notes.md").read_text() == "before"
    several = ended("dual_context/table2", tmp_path, code=2, SCALE="small", RUN=tmp_path / "mine")
    assert "leave RUN out" in several.stderr


def test_recipe_ends_with_the_exit_code_of_a_stopped_training(tmp_path):
    def stop(call):
        return (75, "", "stopped\n") if "enc-dc-s1" in call else do_nothing(call)

    recipe = ROOT / "recipes" / "dual_context" / "table1.sh"
    done = run_recipe(recipe, tmp_path, stop, SCALE="small", RUNS=tmp_path / "runs")
    names = ["transformer-s1", "csan-s1", "enc-dc-s1"]
    assert done.code == 75 and done.options("train", "--system") == names


def test_preset_gives_recurrent_models_its_own_sizes(tmp_path):
    plans = plans_of(ended("compare_all", tmp_path, SCALE="small", PRESET="demo"))
    for name in ("rnnsearch", "gru-inv", "caru"):
        assert plans[name].model["d_hidden"] == 256


def test_comparison_has_two_runs_unless_both_halves_have_one_preset(tmp_path):
    done = ended("compare_all", tmp_path, code=2, SCALE="smoke", RUN=tmp_path / "mine")
    assert not done.calls and "leave RUN out" in done.stderr
    for preset, runs in (("", 2), ("demo", 1)):
        done = ended("compare_all", tmp_path, SCALE="smoke", PRESET=preset)
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
def test_models_of_each_half_of_the_comparison_have_the_same_training_settings(
    scale, more, steps, datasets, analyses, tmp_path
):
    done = ended("compare_all", tmp_path, SCALE=scale, SEEDS="1 2", STEPS=70, **more)
    halves = {}
    for values in options_of(done, "train"):
        halves.setdefault(values["run"], []).append(plan_of(values))
    assert [[plan.variant for plan in plans[::2]] for plans in halves.values()] == [
        [*DC, "pr", "rnnsearch", "gru-inv", "caru"],
        ["transformer", "amn", "context-aware", "han", "concat"],
    ]
    for plans, updates in zip(halves.values(), steps, strict=True):
        assert [plan.train.seed for plan in plans] == [1, 2] * (len(plans) // 2)
        first, *others = (plan.train.model_copy(update={"seed": 0}) for plan in plans)
        assert first.max_steps == updates and all(other == first for other in others)
    assert (done.named("prep"), done.named("analyze")) == (datasets, analyses)
    (page,) = options_of(done, "report")
    assert [page["run"], *page["also"]] == [*halves]
    assert all(f"{updates} updates" in page["title"] for updates in steps)


@pytest.mark.parametrize(
    ("name", "more"), [("table3", ["context"]), ("table4", []), ("context_use", ["context"])]
)
def test_small_memory_recipes_analyse_pronouns_or_the_named_pairs(name, more, at_scale, tmp_path):
    name = f"memory/{name}"
    by_default, named, without = (
        at_scale(name, "small"),
        *(ended(name, tmp_path, SCALE="small", PAIRS=pairs) for pairs in ("a,b,c,d", "")),
    )
    for done, pairs in ((by_default, "pronouns"), (named, "a,b,c,d")):
        assert done.named("analyze") == [*more, "agreement"]
        last = options_of(done, "analyze")[-1]
        assert (last["pairs"], last["context"]) == (pairs, "true,none,foreign")
    assert without.named("analyze") == more


@pytest.mark.parametrize("line", ["0", "abc", "-3"])
def test_line_that_is_not_a_number_is_refused_before_any_call(line, tmp_path):
    done = ended("caru/table2", tmp_path, code=2, SCALE="small", LINE=line)
    assert not done.calls and f"not '{line}'" in done.stderr


def test_variable_line_chooses_the_sentence(tmp_path):
    done = ended("caru/table3", tmp_path, SCALE="small", LINE="12")
    assert done.options("analyze", "--sentence") == ["12"]


@pytest.mark.parametrize("scale", ["", "tiny"])
def test_missing_or_unknown_scale_is_refused_before_any_call(scale, tmp_path):
    done = ended("dual_context/table1", tmp_path, code=2, SCALE=scale)
    assert "SCALE=smoke" in done.stderr and not done.calls


def test_recipes_use_no_feature_that_bash_3_lacks():
    """Bash before 4.4 refuses "${x[@]}" of an empty array under set -u."""
    scripts = [*(ROOT / "recipes").rglob("*.sh"), ROOT / "tests/run.sh"]
    never_empty = {"systems", "first_seed"}
    for script in scripts:
        text = script.read_text("utf-8")
        for name in set(re.findall(r"\b(\w+)=\(\)", text)) - never_empty:
            guarded = '${x[@]+"${x[@]}"}'.replace("x", name)
            assert not re.search(rf"\b{name}\[@\]", text.replace(guarded, "")), f"{script}: {name}"
        newer = (
            r"\b(mapfile|readarray|declare -A|wait -n|sha256sum|nproc|realpath)\b|\$\{\w+(,,|\^\^)"
        )
        assert not re.search(newer, text), script
