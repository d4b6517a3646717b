"""The stage export: its files, its refusals, interrupted exports, and the real CTranslate2."""

import json
import os
import shutil
import sys
from functools import partial
from itertools import count
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest.mock import Mock

import pytest
from typer.testing import CliRunner

import nmtkit
from nmtkit.cli import app
from nmtkit.errors import ConfigError, EnvironmentProblem
from nmtkit.export import check, folder, stage
from nmtkit.export.check import Searched
from nmtkit.export.to_ctranslate2 import CTranslate2
from nmtkit.models import loading
from nmtkit.run import Run
from nmtkit.settings import PrepSettings
from nmtkit.text.side import TextSide
from nmtkit.text.vocabulary import load_vocabularies
from nmtkit.translate.hypotheses import length_limit
from nmtkit.translate.systems import SystemGroup, choose
from tests.export.conftest import EOS, SETTINGS
from tests.manifests import edit, read_json, write_json
from tests.random_systems import add_system, prepare
from tests.refused import refused

LINES = ["The cats sleep, and the dog runs.", "It runs."]


@pytest.fixture
def copy(run, tmp_path):
    """A copy of the run that a test may change."""
    return Run(Path(shutil.copytree(run.path, tmp_path / "run")))


class Killed(BaseException):
    """Ends an export as a kill does."""


def killed_at(number, original):
    """Return a function that raises Killed instead of its n-th call and every later call."""
    calls = count(1)

    def killed(*arguments, **options):
        if next(calls) >= number:
            raise Killed
        return original(*arguments, **options)

    return killed


@pytest.fixture
def without_package(monkeypatch):
    """Replace CTranslate2: an export is one file with its quantization and positions."""
    saved = []

    def save(self, model, vocabularies, about, target):
        saved.append((about.quantization, about.positions))
        (target / "model.bin").write_text(f"{about.quantization} {about.positions}", "utf-8")

    monkeypatch.setitem(sys.modules, "ctranslate2", ModuleType("ctranslate2"))
    monkeypatch.setattr(CTranslate2, "save", save)
    monkeypatch.setattr(CTranslate2, "load", lambda self, folder: ("fast", None))
    return saved


def test_export_writes_model_record_and_readme(copy, without_package):
    out = stage.export(copy, "post", "ctranslate2")
    assert out == copy.system("post").path / "export" / "ctranslate2"
    about = read_json(out / folder.ABOUT)
    assert about["checkpoints"][0]["name"] == "step-00000001"
    assert (about["src"], about["tgt"]) == ("en", "de")
    assert about["vocabulary"] == loading.vocabulary_hashes(copy)
    assert about["positions"] == 1024 and without_package == [("float32", 1024)]
    present = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    assert {*about["files"], folder.ABOUT} == present
    assert present >= {"model.bin", "README.md", "text/codes.bpe", "text/truecase.en"}
    assert {path.name for path in out.parent.iterdir()} == {"ctranslate2", ".lock"}
    page = (out / folder.README).read_text("utf-8")
    steps = [step for steps in about["text"].values() for step in steps]
    words = ["Moses' tokenizer", "truecase.en", "beam_size=3", "α = 0.6", *steps]
    assert all(word in page for word in words)


def test_export_is_recorded_in_the_history(copy, without_package):
    stage.export(copy, "post", "ctranslate2")
    record = json.loads((copy.path / "history.jsonl").read_text().splitlines()[-1])
    assert (record["stage"], record["systems"], record["exit"]) == ("export", ["post"], 0)


@pytest.mark.parametrize("side", ["src", "tgt"])
def test_exported_text_files_encode_and_decode_like_those_of_prep(copy, without_package, side):
    out = stage.export(copy, "post", "ctranslate2")
    exported, original = TextSide.load(out / folder.TEXT, side), TextSide.load(copy.prep, side)
    assert [exported.encode(line) for line in LINES] == [original.encode(line) for line in LINES]
    assert exported.decode(exported.encode(LINES[0])) == LINES[0]
    assert read_json(out / folder.TEXT / "manifest.json")["tools"] == copy.manifest().tools


def test_steps_of_text_are_those_of_the_settings_and_of_each_side():
    plain = {"truecaser": None, "splitter": None}
    source = SimpleNamespace(tokenizer="moses", lang="en", **plain)
    target = SimpleNamespace(tokenizer="moses", lang="de", **plain)

    def steps(**settings):
        values = {"normalize": False, "aggressive_hyphens": False, "escape": True} | settings
        steps = folder.text_steps(source, target, PrepSettings(**values))
        return [step for step in steps["source"] if "invisible" not in step], steps["target"]

    normalisation, detokenizer = "Moses' punctuation normalisation", "Moses' detokenizer"
    assert steps() == (
        ["Moses' tokenizer (language en)"],
        [f"{detokenizer} (language de)"],
    )
    values = {"normalize": True, "aggressive_hyphens": True, "escape": False, "lowercase": True}
    tokenizer = "Moses' tokenizer with aggressive hyphens, without escapes (language en)"
    assert steps(**values)[0] == [normalisation, tokenizer, "lowercase"]
    source.truecaser = True
    assert steps()[0][1:] == ["Moses' truecaser (truecase.en)"]
    assert len(steps()[1]) == 1
    source.truecaser, target.truecaser = None, True
    assert len(steps()[0]) == 1 and "detruecaser" in steps()[1][0]
    source.tokenizer = target.tokenizer = "characters"
    assert steps(normalize=True)[0] == ["every character is a word; ▁ stands for a space"]


def test_export_is_written_again_only_if_something_has_changed(
    copy, without_package, tmp_path, stderr
):
    out = tmp_path / "deep" / "out"

    def written(**options):
        count = len(without_package)
        stage.export(copy, "post", "ctranslate2", out=out, **options)
        return len(without_package) > count

    assert written() and not written()
    assert "up to date" in stderr()
    assert written(force=True)
    (out / "model.bin").write_text("mine")
    assert written() and not written()
    kept = next(out.parent.glob("not-of-nmtkit-*"))
    assert (kept / "model.bin").read_text() == "mine" and str(kept) in stderr()
    assert [path.name for path in kept.iterdir()] == ["model.bin"]
    assert written(quantization="int8") and (out / "model.bin").read_text() == "int8 1024"
    config = copy.system("post").config
    edit(config, "max_source = 20", "max_source = 3000")
    assert written(quantization="int8") and without_package[-1] == ("int8", 3001)
    edit(config, "max_length_b = 30", "max_length_b = 5000")
    longest = length_limit(3001, copy.system("post").searching())
    assert written(quantization="int8") and without_package[-1] == ("int8", longest)


def test_folder_that_is_no_export_is_refused_and_kept(copy, without_package, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / folder.ABOUT).write_text("[]")
    for out in (tmp_path / "mine", tmp_path / "mine" / "thesis.txt", tmp_path / "other"):
        message, options = "not a folder that nmtkit export wrote", {"out": out, "force": True}
        refused(ConfigError, message, stage.export, copy, "post", "ctranslate2", **options)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years"
    assert not without_package
    (tmp_path / "empty").mkdir()
    stage.export(copy, "post", "ctranslate2", out=tmp_path / "empty")
    assert (tmp_path / "empty" / folder.README).is_file()


def test_current_folder_is_not_replaced(copy, without_package, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = {"out": Path(".")}
    refused(ConfigError, "the current folder", stage.export, copy, "post", "ctranslate2", **options)


def test_pattern_in_the_record_of_an_export_is_refused(copy, without_package, tmp_path):
    out = stage.export(copy, "post", "ctranslate2", out=tmp_path / "out")
    record = read_json(out / folder.ABOUT)
    record["files"]["*"] = "0"
    write_json(out / folder.ABOUT, record)
    (out / "notes.md").write_text("mine")
    message, options = r"'\*' cannot be a name", {"out": out, "force": True}
    refused(ConfigError, message, stage.export, copy, "post", "ctranslate2", **options)
    assert (out / "notes.md").read_text() == "mine"


def content(out):
    return {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}


def test_full_disk_keeps_the_old_export_and_leaves_no_files(
    copy, without_package, tmp_path, monkeypatch
):
    out = stage.export(copy, "post", "ctranslate2", out=tmp_path / "out")
    before = content(out)

    def full(*arguments):
        (arguments[-1] / "model.bin").write_text("half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(CTranslate2, "save", full)
    for place in (out, tmp_path / "new"):
        with pytest.raises(EnvironmentProblem, match="No space left on device"):
            stage.export(copy, "post", "ctranslate2", out=place, force=True)
    assert content(out) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "run"]


def test_failed_rename_of_the_new_export_restores_the_old_one(
    copy, without_package, tmp_path, monkeypatch
):
    out, replace = stage.export(copy, "post", "ctranslate2", out=tmp_path / "out"), os.replace
    before = content(out)

    def fail(source, target):
        if str(source).endswith(f".nmtkit-tmp-out-{os.getpid()}"):
            raise OSError(5, "Input/output error")
        replace(source, target)

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(EnvironmentProblem, match="Input/output error"):
        stage.export(copy, "post", "ctranslate2", out=out, force=True)
    assert content(out) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "run"]


@pytest.mark.parametrize("place", [None, "out"])
@pytest.mark.parametrize("name", ["replace", "unlink"])
def test_notes_survive_a_kill_at_any_change_of_files(
    copy, without_package, tmp_path, monkeypatch, place, name
):
    """Afterwards the same command completes the export."""
    export = partial(stage.export, copy, "post", "ctranslate2", force=True)
    export = partial(export, out=place and tmp_path / place)
    out = export()
    (out / "notes.md").write_text("mine")
    whole = {path.relative_to(out) for path in out.rglob("*")}
    for call in count(1):
        killed = False
        with monkeypatch.context() as patch:
            patch.setattr(os, name, killed_at(call, getattr(os, name)))
            try:
                export()
            except Killed:
                killed = True
        export()
        assert (out / "notes.md").read_text() == "mine", call
        assert {path.relative_to(out) for path in out.rglob("*")} == whole
        hidden = [path.name for path in out.parent.glob(".*")]
        assert hidden == [".lock"] * (place is None), call
        if not killed:
            break
    assert call > 1


@pytest.mark.parametrize(
    ("system", "reason"),
    [
        ("enc-dc", "it is not a plain Transformer but DualContext (Ampomah et al. 2021)"),
        ("concat", "it is not a plain Transformer but ConcatTransformer"),
        ("rnnsearch", "it is not a plain Transformer but RNNSearch"),
        ("mine", "it is not a plain Transformer but Derived"),
        ("blind", "its encoder has no layers"),
    ],
)
def test_system_that_ctranslate2_cannot_run_is_refused_before_it_is_loaded(
    run, monkeypatch, system, reason
):
    monkeypatch.setattr("nmtkit.models.loading.load_system", None)
    monkeypatch.setattr(stage, "imported", lambda *_: pytest.fail("the package was imported"))
    error = refused(ConfigError, None, stage.export, run, system, "ctranslate2")
    assert f"CTranslate2 cannot run '{system}': {reason}" in error.message
    assert "nmtkit translate" in error.hint
    assert not (run.system(system).path / "export").exists()


def command(run, arguments):
    """Run `nmtkit export`, to CTranslate2 unless the arguments name an engine."""
    engine = "" if "--to" in arguments else "--to ctranslate2"
    return CliRunner().invoke(app, f"export {engine} --system {arguments} --run {run.path}".split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("post --to ctranslate", "did you mean 'ctranslate2'"),
        ("post --to onnx", "--to huggingface, from whose folder Optimum"),
        ("pots", "did you mean 'post'"),
        ("post --quantization int9", "did you mean 'int8'"),
        ("post --to huggingface --quantization int8", "'int8' of Hugging Face"),
        ("enc-dc --to huggingface", "Hugging Face cannot run 'enc-dc': it is not a plain"),
        ("concat", "cannot run 'concat'"),
        ("post --lines 5", "--lines has no effect"),
    ],
)
def test_wrong_arguments_are_refused(run, arguments, message):
    result = command(run, arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr and "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("package", "arguments", "place", "extra"),
    [
        ("ctranslate2", "post", "--to ctranslate2", "export"),
        ("transformers", "post --to huggingface --check", "--check", "huggingface"),
    ],
)
def test_missing_package_is_named(copy, monkeypatch, package, arguments, place, extra):
    monkeypatch.setitem(sys.modules, package, None)
    result = command(copy, arguments)
    message, *rest = result.stderr.splitlines()[-3:]
    assert result.exit_code == 3 and message.startswith(f"nmtkit: {package} is not installed: ")
    hint = f"  try: in nmtkit's checkout: pip install -e '.[{extra}]'"
    assert rest == [f"  in: {place}", hint]


def test_export_to_huggingface_without_check_does_not_need_transformers(copy, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert command(copy, "post --to huggingface").exit_code == 0


def test_export_of_another_system_or_engine_is_replaced_only_by_force(
    copy, without_package, tmp_path
):
    out = stage.export(copy, "post", "ctranslate2", out=tmp_path / "out")
    for system, engine in (("pre", "ctranslate2"), ("post", "huggingface")):
        with pytest.raises(ConfigError, match="has the export of 'post' to ctranslate2"):
            stage.export(copy, system, engine, out=out)
    assert folder.read_about(out).to == "ctranslate2" and (out / "model.bin").is_file()
    stage.export(copy, "post", "huggingface", out=out, force=True)
    assert folder.read_about(out).to == "huggingface" and (out / "model.safetensors").is_file()
    assert not (out / "model.bin").exists()


@pytest.fixture
def compared(without_package, monkeypatch):
    """Replace a comparison in which 3 of 3 greedy and 2 of 3 beam translations are equal.

    Returns: a Mock; its third argument are the lines that are compared.
    """
    greedy = Searched(1, ["a", "b", "c"], ["a", "b", "c"], [True] * 3, (1.0, 0.1))
    beam = Searched(3, ["A", "B", "C"], ["A", "X", "C"], [True, False, True], (2.0, 0.5))
    monkeypatch.setattr(check, "compare", compare := Mock(return_value=[greedy, beam]))
    return compare


def test_too_few_equal_translations_end_with_exit_code_1(copy, compared):
    result = command(copy, "post --check --lines 3")
    lines = compared.call_args.args[2]
    assert lines == check.comparable_lines(copy, 3, 20, TextSide.load(copy.prep, "src"))[1]
    assert result.exit_code == 1
    assert "only 2 of 3 translations are equal, less than 95% (beam 3)" in result.stderr
    assert "please report this bug in nmtkit" in result.stderr
    assert f"2 (beam 3): {lines[1]}\n  nmtkit  B\n  engine  X" in result.stdout
    rows = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert "1 3 of 3 (100.0%) 3.0/s 30.0/s" in rows and "3 2 of 3 (66.7%) 1.5/s 6.0/s" in rows


@pytest.mark.parametrize("option", ["--at-least 60", "--quantization int8"])
def test_lower_threshold_and_quantization_accept_fewer_equal_translations(copy, compared, option):
    assert command(copy, f"post --check --lines 3 {option}").exit_code == 0


def test_only_greedy_search_counts_for_an_engine_with_another_beam_search(
    copy, compared, monkeypatch
):
    monkeypatch.setattr(CTranslate2, "same_search", False)
    assert command(copy, "post --check --lines 3").exit_code == 0


def test_check_compares_plain_beam_search(copy):
    other_ways = {"sample": True, "top_k": 2, "mbr": 3}, {"beam": 4, "diverse_groups": 2}
    for search in other_ways:
        (group,) = choose(copy, ["post"], False, search, single=True)
        settings = check.plain_search(group.settings, 2, 9)
        assert (settings.sample, settings.mbr, settings.diverse_groups) == (False, 0, 1)


@pytest.mark.parametrize("beam", [1, 3])
def test_check_searches_in_float32_with_one_limit_and_the_batch_size_of_the_system(
    copy, monkeypatch, beam
):
    (group,) = choose(copy, ["post"], False, {"beam": beam, "batch_size": 2}, single=True)
    side, calls, forced = TextSide.load(copy.prep, "src"), [], []
    hardware = SystemGroup.hardware

    def translate(sources, *how):
        calls.append((len(sources), *how))
        return [["x"]] * len(sources)

    def recorded(self, device, **options):
        forced.append(options)
        return hardware(self, device, **options)

    monkeypatch.setattr(check, "WARM", 1)
    monkeypatch.setattr(SystemGroup, "hardware", recorded)
    sources = [side.encode(line) for line in LINES]
    searches = check.compare(group, translate, LINES, sources)
    limit = max(length_limit(len(subwords) + 1, group.settings) for subwords in sources)
    beams = [1, 3] if beam == 3 else [1]
    assert [searched.beam for searched in searches] == beams
    assert calls == [(n, k, limit, 2) for k in beams for n in (1, 2)]  # a warm-up comes first
    assert forced == [{"forced": True}] * len(beams)
    assert not any(searches[0].equal) and searches[0].theirs == ["X"] * 2  # as text


def test_check_compares_lines_that_are_neither_blank_nor_too_long(copy):
    (copy.prep / "text" / "test.src").write_text(
        f"\n{LINES[0]}\n{LINES[0] * 9}\n  \n{LINES[1]}\n{LINES[0]}\n", "utf-8"
    )
    side = TextSide.load(copy.prep, "src")
    longest = len(side.encode(LINES[0]))
    assert check.comparable_lines(copy, 2, longest, side) == ("test", LINES)
    assert check.comparable_lines(copy, 9, longest, side) == ("test", [*LINES, LINES[0]])
    (copy.prep / "text" / "test.src").unlink()
    assert check.comparable_lines(copy, 1, 250, side)[0] == "dev"


def readme_code(out):
    """Return the code in the README of an exported folder."""
    page = (out / folder.README).read_text("utf-8")
    return "\n".join(line[4:] for line in page.splitlines() if line.startswith("    "))


# With the real engine


@pytest.mark.parametrize("name", SETTINGS)
def test_ctranslate2_translates_like_nmtkit(copy, name, stdout, monkeypatch):
    """All subwords are equal, with greedy search and with beam 3; the README's code runs."""
    import ctranslate2

    result = command(copy, f"{name} --check --lines 20")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.count("20 of 20 (100.0%)") == 2
    out = copy.system(name).path / "export" / "ctranslate2"
    assert ctranslate2.contains_model(str(out))
    source, target = load_vocabularies(copy.prep)
    assert source is target
    assert read_json(out / "shared_vocabulary.json") == list(source)
    monkeypatch.chdir(out)
    options, translate = {}, ctranslate2.Translator.translate_batch

    def watched(*arguments, **given):
        options.update(given)
        return translate(*arguments, **given)

    monkeypatch.setattr(ctranslate2.Translator, "translate_batch", watched)
    exec(readme_code(out).replace('["…"]', repr(LINES)), {})
    assert stdout().startswith("['")
    side, search = TextSide.load(copy.prep, "src"), copy.system(name).searching()
    limit = max(length_limit(len(side.encode(line)) + 1, search) for line in LINES)
    assert (options["beam_size"], options["max_decoding_length"]) == (3, limit)
    assert options["length_penalty"] == search.length_penalty
    assert options["max_input_length"] == options["min_decoding_length"] == 0


def test_text_that_spells_a_special_symbol_is_unknown_to_ctranslate2(tmp_path, stdout, monkeypatch):
    words = {"subwords": "none", "src_tokenizer": "none", "tgt_tokenizer": "none"}
    run = prepare(tmp_path / "run", **words)
    search = {"length_penalty": 0, "max_length_b": 30}
    add_system(run, "words", "transformer", eos=EOS, softmax_bias=True, search=search)
    line = "<s> The cats </s> sleep <pad> and the dog runs."
    (run.prep / "text" / "test.src").write_text(line + "\n", "utf-8")
    result = command(run, "words --check")
    assert result.stdout.count("1 of 1 (100.0%)") == 2, result.output
    monkeypatch.chdir(run.system("words").path / "export" / "ctranslate2")
    exec(readme_code(Path()).replace('["…"]', repr([line])), {})
    assert stdout() == f"{nmtkit.load(run.path, device='cpu').translate([line])}\n"


def test_quantizations_are_those_of_ctranslate2(copy):
    from ctranslate2.specs.model_spec import ACCEPTED_MODEL_TYPES

    assert set(CTranslate2.quantizations) == set(ACCEPTED_MODEL_TYPES)
    result = command(copy, "post --quantization int8 --check --lines 20 --at-least 0")
    assert result.exit_code == 0 and "CTranslate2, int8" in result.stdout
