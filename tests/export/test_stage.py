"""The stage: what is written, what is up to date, what is refused, and the real engine where it
is installed.
"""

import json
import os
import shutil
import sys
from itertools import count
from pathlib import Path
from types import ModuleType

import pytest
from typer.testing import CliRunner

import nmtkit
from nmtkit.cli import app
from nmtkit.errors import ConfigError, EnvironmentProblem
from nmtkit.export import check, folder, stage
from nmtkit.export.check import Searched
from nmtkit.export.to_ctranslate2 import CTranslate2
from nmtkit.run import Run
from nmtkit.text.side import TextSide
from nmtkit.text.vocabulary import load_vocabularies
from nmtkit.translate.hypotheses import length_limit
from nmtkit.translate.systems import choose
from tests.export.conftest import EOS, SETTINGS
from tests.manifests import edit, read_json, write_json
from tests.random_systems import add_system, prepare
from tests.refused import refused

LINES = ["The cats sleep, and the dog runs.", "It runs."]


@pytest.fixture
def copy(run, tmp_path):
    """A run that a test may write into."""
    return Run(Path(shutil.copytree(run.path, tmp_path / "run")))


class Killed(BaseException):
    """Ends an export as a kill does."""


def killed_at(number, original):
    """A function that ends its n-th call, and every later one, before it does anything."""
    calls = count(1)

    def killed(*arguments, **options):
        if next(calls) >= number:
            raise Killed
        return original(*arguments, **options)

    return killed


@pytest.fixture
def without_package(monkeypatch):
    """The stage with everything of CTranslate2 left out: its files are one that says what was to
    be in them.
    """
    saved = []

    def save(self, model, vocabularies, about, target):
        saved.append((about.quantization, about.positions))
        (target / "model.bin").write_text(f"{about.quantization} {about.positions}", "utf-8")

    monkeypatch.setitem(sys.modules, "ctranslate2", ModuleType("ctranslate2"))
    monkeypatch.setattr(CTranslate2, "save", save)
    monkeypatch.setattr(CTranslate2, "load", lambda self, folder: ("fast", None))
    return saved


def test_what_is_written(copy, without_package, capsys):
    out = stage.export(copy, "post", "ctranslate2")
    assert out == copy.system("post").path / "export" / "ctranslate2"
    said = read_json(out / folder.ABOUT)
    assert said["checkpoints"][0]["name"] == "step-00000001"
    assert (said["src"], said["tgt"]) == ("en", "de")
    assert said["positions"] == 1024 and without_package == [("float32", 1024)]
    present = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    assert (
        set(said["files"]) | {folder.ABOUT}
        == present
        >= {"model.bin", "README.md", "text/codes.bpe", "text/truecase.en"}
    )
    page = (out / folder.README).read_text("utf-8")
    words = "Moses' tokenizer", "truecase.en", "beam_size=3", "α = 0.6"
    assert all(word in page for word in words)
    assert all(step in page for steps in said["text"].values() for step in steps)
    assert {path.name for path in out.parent.iterdir()} == {"ctranslate2", ".lock"}
    for side in ("src", "tgt"):  # its text files alone do what the run's do
        there, here = TextSide.load(out / folder.TEXT, side), TextSide.load(copy.prep, side)
        assert [there.encode(line) for line in LINES] == [here.encode(line) for line in LINES]
        assert there.decode(there.encode(LINES[0])) == LINES[0]
    record = json.loads((copy.path / "history.jsonl").read_text().splitlines()[-1])
    assert (record["stage"], record["systems"], record["exit"]) == ("export", ["post"], 0)


def test_what_is_up_to_date_and_what_is_written_again(copy, without_package, tmp_path, stderr):
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


def test_a_folder_of_something_else_is_left_alone(copy, without_package, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / folder.ABOUT).write_text("[]")
    for out in (tmp_path / "mine", tmp_path / "mine" / "thesis.txt", tmp_path / "other"):
        with pytest.raises(ConfigError, match="not a folder that nmtkit export wrote"):
            stage.export(copy, "post", "ctranslate2", out=out, force=True)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years"
    assert not without_package
    (tmp_path / "empty").mkdir()
    stage.export(copy, "post", "ctranslate2", out=tmp_path / "empty")
    assert (tmp_path / "empty" / folder.README).is_file()


def test_the_current_folder_is_not_replaced(copy, without_package, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = {"out": Path(".")}
    refused(ConfigError, "the current folder", stage.export, copy, "post", "ctranslate2", **options)


def test_a_record_names_files_not_patterns(copy, without_package, tmp_path):
    out = stage.export(copy, "post", "ctranslate2", out=tmp_path / "out")
    record = read_json(out / folder.ABOUT)
    record["files"]["*"] = "0"
    write_json(out / folder.ABOUT, record)
    (out / "notes.md").write_text("mine")
    with pytest.raises(ConfigError, match=r"'\*' cannot be a name"):
        stage.export(copy, "post", "ctranslate2", out=out, force=True)
    assert (out / "notes.md").read_text() == "mine"


def test_nothing_half_written(copy, without_package, tmp_path, monkeypatch):
    out = stage.export(copy, "post", "ctranslate2", out=tmp_path / "out")
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}

    def full(*arguments):
        (arguments[-1] / "model.bin").write_text("half")
        raise OSError(28, "No space left on device")

    def refused(source, target, replace=os.replace):
        if str(source).endswith(f".nmtkit-tmp-out-{os.getpid()}"):
            raise OSError(5, "Input/output error")
        replace(source, target)

    with (
        monkeypatch.context() as patched
    ):  # the new folder does not get its name: the old one has it again
        patched.setattr(os, "replace", refused)
        with pytest.raises(EnvironmentProblem, match="Input/output error"):
            stage.export(copy, "post", "ctranslate2", out=out, force=True)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    monkeypatch.setattr(CTranslate2, "save", full)
    for place in (out, tmp_path / "new"):
        with pytest.raises(EnvironmentProblem, match="No space left on device"):
            stage.export(copy, "post", "ctranslate2", out=place, force=True)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "run"]


@pytest.mark.parametrize("place", [None, "out"])
@pytest.mark.parametrize("name", ["replace", "unlink"])
def test_notes_outlive_a_kill_at_any_change(
    copy, without_package, tmp_path, monkeypatch, place, name
):
    """Of the folders that an export replaces; then the same command goes on."""
    options = {"force": True, "out": place and tmp_path / place}
    out = stage.export(copy, "post", "ctranslate2", **options)
    (out / "notes.md").write_text("mine")
    whole = {path.relative_to(out) for path in out.rglob("*")}
    calls = 1
    while calls:
        with monkeypatch.context() as patch:
            patch.setattr(os, name, killed_at(calls, getattr(os, name)))
            try:
                stage.export(copy, "post", "ctranslate2", **options)
                calls = -1
            except Killed:
                pass
        stage.export(copy, "post", "ctranslate2", **options)
        assert (out / "notes.md").read_text() == "mine", calls
        assert {path.relative_to(out) for path in out.rglob("*")} == whole
        left = [path.name for path in out.parent.glob(".*")]
        assert left == [".lock"] * (place is None), calls
        calls += 1
    assert calls == 0


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
def test_what_it_cannot_run_is_refused_before_anything_is_loaded(run, monkeypatch, system, reason):
    monkeypatch.setattr("nmtkit.models.loading.load_system", None)
    monkeypatch.setattr(stage, "imported", lambda *of: pytest.fail("looked for"))
    caught = refused(ConfigError, None, stage.export, run, system, "ctranslate2")
    assert f"CTranslate2 cannot run '{system}': {reason}" in caught.message
    assert "nmtkit translate" in caught.hint
    assert not (run.system(system).path / "export").exists()


def command(run, arguments):
    """`nmtkit export` of a run, to CTranslate2 unless the arguments name an engine."""
    engine = "" if "--to" in arguments else "--to ctranslate2"
    return CliRunner().invoke(app, f"export {engine} --system {arguments} --run {run.path}".split())


@pytest.mark.parametrize(
    ("arguments", "said"),
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
def test_wrong_words(run, arguments, said):
    result = command(run, arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr and "Traceback" not in result.stderr


def test_without_the_package(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    result = command(run, "post")
    assert result.exit_code == 3
    message, *rest = result.stderr.splitlines()[-3:]
    assert message.startswith("nmtkit: ctranslate2 is not installed: ")
    assert rest == [
        "  in: --to ctranslate2",
        "  try: in nmtkit's checkout: pip install -e '.[export]'",
    ]


def test_only_check_needs_the_package_transformers(copy, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    result = command(copy, "post --to huggingface --check")
    assert result.exit_code == 3
    message, *rest = result.stderr.splitlines()[-3:]
    assert message.startswith("nmtkit: transformers is not installed: ")
    assert rest == [
        "  in: --check",
        "  try: in nmtkit's checkout: pip install -e '.[huggingface]'",
    ]
    assert command(copy, "post --to huggingface").exit_code == 0


def test_a_folder_of_another_engine_is_replaced_by_force_alone(copy, without_package, tmp_path):
    for to, file in (("ctranslate2", "model.bin"), ("huggingface", "model.safetensors")):
        if to == "huggingface":
            with pytest.raises(ConfigError, match="has the export of 'post' to ctranslate2"):
                stage.export(copy, "post", to, out=tmp_path / "out")
        out = stage.export(copy, "post", to, out=tmp_path / "out", force=True)
        assert folder.read_about(out).to == to and (out / file).is_file()
    assert not (out / "model.bin").exists()


def test_too_few_equal_translations_end_with_1(copy, without_package, monkeypatch):
    greedy = Searched(1, ["a", "b", "c"], ["a", "b", "c"], [True] * 3, (1.0, 0.1))
    beam = Searched(3, ["A", "B", "C"], ["A", "X", "C"], [True, False, True], (2.0, 0.5))
    found, asked = [greedy, beam], []
    monkeypatch.setattr(check, "compare", lambda *a: (asked.append(a[2]), found)[1])
    result = command(copy, "post --check --lines 3")
    assert result.exit_code == 1
    assert "only 2 of 3 translations are equal, less than 95% (beam 3)" in result.stderr
    assert f"2 (beam 3): {asked[0][1]}\n  nmtkit  B\n  engine  X" in result.stdout
    rows = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert "1 3 of 3 (100.0%) 3.0/s 30.0/s" in rows and "3 2 of 3 (66.7%) 1.5/s 6.0/s" in rows
    for lower in ("--at-least 60", "--quantization int8"):
        assert command(copy, f"post --check --lines 3 {lower}").exit_code == 0
    monkeypatch.setattr(CTranslate2, "same_search", False)  # only greedy search counts then
    assert command(copy, "post --check --lines 3").exit_code == 0
    assert asked == [check.comparable_lines(copy, 3, 20, TextSide.load(copy.prep, "src"))[1]] * 4


def test_the_search_compared_is_a_plain_one(copy):
    other_ways = {"sample": True, "top_k": 2, "mbr": 3}, {"beam": 4, "diverse_groups": 2}
    for search in other_ways:
        (group,) = choose(copy, ["post"], False, search, single=True)
        settings = check.plain_search(group.settings, 2, 9)
        assert (settings.sample, settings.mbr, settings.diverse_groups) == (False, 0, 1)


def test_the_lines_compared_are_neither_blank_nor_in_pieces(copy):
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
    """The code in a folder's README."""
    page = (out / folder.README).read_text("utf-8")
    return "\n".join(line[4:] for line in page.splitlines() if line.startswith("    "))


# With the real engine


@pytest.mark.parametrize("name", SETTINGS)
def test_the_real_engine_translates_alike(copy, name, stdout, monkeypatch):
    """Small models of weights just drawn: equal to the last subword."""
    import ctranslate2

    result = command(copy, f"{name} --check --lines 20")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.count("20 of 20 (100.0%)") == 2  # greedy, and beam 3
    out = copy.system(name).path / "export" / "ctranslate2"
    source, target = load_vocabularies(copy.prep)
    names = ["source_vocabulary.json", "target_vocabulary.json"]
    if source is target:
        names = ["shared_vocabulary.json"] * 2
    assert [read_json(out / file) for file in names] == [list(source), list(target)]
    monkeypatch.chdir(out)
    asked, translate = [], ctranslate2.Translator.translate_batch
    watched = lambda *a, **options: asked.append(options) or translate(*a, **options)  # noqa: E731
    monkeypatch.setattr(ctranslate2.Translator, "translate_batch", watched)
    exec(readme_code(out).replace('["…"]', repr(LINES)), {})
    assert stdout().startswith("['")
    side, search = TextSide.load(copy.prep, "src"), copy.system(name).searching()
    limit = max(length_limit(len(side.encode(line)) + 1, search) for line in LINES)
    assert (asked[0]["beam_size"], asked[0]["max_decoding_length"]) == (3, limit)
    assert asked[0]["length_penalty"] == search.length_penalty
    assert asked[0]["max_input_length"] == asked[0]["min_decoding_length"] == 0
    assert ctranslate2.contains_model(str(out))


def test_text_that_spells_a_special_symbol_is_unknown_to_the_real_engine(
    tmp_path, stdout, monkeypatch
):
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


def test_the_real_engines_quantizations(copy):
    from ctranslate2.specs.model_spec import ACCEPTED_MODEL_TYPES

    assert set(CTranslate2.quantizations) == set(ACCEPTED_MODEL_TYPES)
    result = command(copy, "post --quantization int8 --check --lines 20 --at-least 0")
    assert result.exit_code == 0 and "CTranslate2, int8" in result.stdout
