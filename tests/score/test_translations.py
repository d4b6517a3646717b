"""The translations that are scored, and remarks on old or differently searched translations."""

import hashlib
import json
import re

import pytest

from nmtkit.errors import ConfigError, DataError
from nmtkit.files import write_json
from nmtkit.run import Run
from nmtkit.score.stage import score
from nmtkit.score.translations import FORCED, unlike_searches
from tests.manifests import edit, read_json, write_best
from tests.refused import refused

from .conftest import write

SHA = "0" * 64


def describe(fake, system, text, checkpoint="step-00000010"):
    """Write meta.json of a translation of a text by a checkpoint."""
    digest = hashlib.sha256("".join(line + "\n" for line in text).encode()).hexdigest()
    fake.describe(
        system,
        source={"lines": 40, "sha256": digest},
        settings={"beam": 5},
        checkpoints=[{"system": system, "name": checkpoint, "sha256": 8 * checkpoint[-8:]}],
    )


def test_translations_of_an_earlier_test_set_are_left_out(fake, stderr):
    lines = fake.lines["test"]
    for name, text in (("today", lines), ("earlier", lines[::-1])):
        fake.add(name, 0.3)
        describe(fake, name, text)
    fake.translate("ensemble-a+b", lines)
    describe(fake, "ensemble-a+b", lines[::-1])
    fake.score()
    printed = stderr()
    for name, systems in (("earlier", "earlier"), ("ensemble-a+b", "a --system b --ensemble")):
        message = f"the translation by '{name}' is of an earlier test set, so it is left out"
        assert f"{message} (nmtkit translate --system {systems} --on" in printed
    assert fake.systems() == ["today"]
    for options in ({"systems": ["earlier"]}, {"against": "earlier"}):
        refused(DataError, "is of an earlier test set", fake.score, **options)
    write(fake.run.source("test"), lines[::-1])
    fake.score(systems=["earlier"])
    assert fake.systems() == ["earlier"]
    write(fake.run.source("test"), ["another"] * 40)
    refused(DataError, "nothing to score", fake.score)


@pytest.fixture
def trained(fake):
    """System `a` with two checkpoints, translated with the first one; and its folder."""
    folder = fake.add("a", 0.3)
    describe(fake, "a", fake.lines["test"])
    for name in ("step-00000010", "step-00000020"):
        weights = {"model.safetensors": {"bytes": 0, "sha256": 8 * name[-8:]}}
        manifest = {"format": 1, "step": 10, "files": weights}
        write(folder / "checkpoints" / name / "model.safetensors", [])
        write(folder / "checkpoints" / name / "manifest.json", [json.dumps(manifest)])
    return fake, folder


EARLIER = "'a' was translated with step-00000010, and its weights have changed since"


@pytest.mark.parametrize(("best", "earlier"), [("step-00000010", False), ("step-00000020", True)])
def test_translation_with_earlier_weights_is_noted(trained, stderr, best, earlier):
    fake, folder = trained
    write_best(folder, best)
    fake.score()
    for text in (stderr(), str(fake.result()["remarks"]), fake.read("table.md")):
        assert (EARLIER in text) is earlier


def test_weights_that_would_be_averaged_now_are_compared_with_those_used(trained, stderr):
    fake, folder = trained
    write_best(folder, "step-00000020")
    averaged = "[train]\ncheckpoint_every = 10\n[search]\naverage = 2"
    write(folder / "config.toml", ['variant = "x"', averaged])
    fake.score()
    assert EARLIER in stderr()
    describe(fake, "a", fake.lines["test"], "step-00000020")
    write(folder / "config.toml", ['variant = "x"'])
    fake.score()
    assert "weights have changed" not in stderr() and not fake.result()["remarks"]


def test_different_search_settings_are_noted_with_one_command_for_all(fake, stderr):
    for name, beam, precision in (("a", 5, "float32"), ("b", 5, "bfloat16"), ("c", 4, "float32")):
        fake.add(name, 0.3)
        settings = {"beam": beam, "batch_size": beam}
        fake.describe(name, settings=settings, hardware={"precision": precision})
    fake.score(systems=["a", "b"])
    printed = stderr()
    assert "with the same search.precision (float32: a; bfloat16: b)" in printed
    assert "search.beam" not in printed and "batch_size" not in printed
    fake.score()
    # Of two commands the second would undo the first.
    (line,) = (line for line in stderr().splitlines() if "searched" in line)
    differences = "search.beam (5: a, b; 4: c), search.precision (float32: a, c; bfloat16: b)"
    assert f"with the same {differences}; alike after: nmtkit" in line
    command = "--system a --system b --system c --force --on test"
    settings = "--set search.beam=… --set search.precision=…"
    assert line.endswith(f"{command} {settings} --run {fake.run.path}")
    fake.score(systems=["a"])
    assert "searched" not in stderr()


@pytest.fixture
def folders(tmp_path):
    """Builds folders of translations: system -> (checkpoint numbers, settings of the search)."""

    def build(translations):
        for name, (checkpoints, settings) in translations.items():
            systems = name.removeprefix("ensemble-").split("+")
            used = [
                {"system": system, "name": f"step-{i}", "sha256": SHA}
                for system in systems
                for i in checkpoints
            ]
            forced = {key: value for key, value in settings.items() if key in FORCED}
            search = {"beam": 5, "average": 1, **settings}
            search = {key: value for key, value in search.items() if key not in FORCED}
            meta = {"format": 1, "settings": search, "checkpoints": used, **forced}
            write_json(tmp_path / name / "meta.json", meta)
        return {name: tmp_path / name for name in translations}

    return build


def test_number_of_averaged_checkpoints_is_compared_not_the_setting(folders):
    """`--average 99` of one kept checkpoint searches like `--average 1`; of three it does not."""
    alike = {"one": ([1], {}), "many": ([1], {"average": 99})}
    assert unlike_searches("test", folders(alike)) is None
    unlike = folders({**alike, "three": ([1, 2, 3], {"average": 99})})
    assert "search.average (1: one, many; 3: three)" in unlike_searches("test", unlike).text


def test_averages_of_checkpoints_with_unequal_distances_are_unlike(folders):
    """The mean of three checkpoints 100 updates apart is not that of three 1,000 updates apart."""
    alike = {name: ([700, 800, 900], {"average": 3}) for name in ("base", "like")}
    assert unlike_searches("test", folders(alike)) is None
    unlike = folders({**alike, "far": ([7000, 8000, 9000], {"average": 3})})
    message = unlike_searches("test", unlike)
    distances = "updates between averaged checkpoints (100: base, like; 1000: far)"
    assert message.text.endswith(f"searched with the same {distances}")
    (command,) = message.commands
    assert command.endswith("--force --on test --set search.average=1")


def test_checkpoint_with_an_endless_number_has_no_distance(folders):
    """Python refuses to read numbers of more than 4,300 digits."""
    translations = {name: (["9" * 5000, 9], {"average": 2}) for name in "ab"}
    assert unlike_searches("test", folders(translations)) is None


def test_search_setting_that_older_translations_lack_is_not_compared(folders):
    translations = {"old": ([1], {}), "new": ([1], {"seed": 1})}
    assert unlike_searches("test", folders(translations)) is None


@pytest.mark.parametrize("option", FORCED)
def test_forced_translation_differs_from_a_free_one(folders, option):
    translations = {"a": ([1], {}), "b": ([1], {}), "c": ([1], {option: SHA})}
    unlike = unlike_searches("test", folders(translations))
    assert unlike.text.endswith(f"the same --{option} (none: a, b; 00000000: c)")
    command = "nmtkit translate --system a --system b --system c --force --on test"
    assert unlike.commands == [command]


def test_ensemble_is_searched_again_by_a_separate_command(folders):
    unlike = folders({"a": ([1], {}), "ensemble-a+b": ([1], {"beam": 4})})
    assert unlike_searches("test", unlike).commands == [
        f"nmtkit translate{systems} --force --on test --set search.beam=…"
        for systems in (" --system a", " --ensemble --system a --system b")
    ]


def test_search_context_and_overlap_with_training_are_noted_under_the_table(fake):
    for name, beam, without_context in (("base", 5, 40), ("new", 1, 0)):
        fake.add(name, 0.2)
        fake.describe(name, settings={"beam": beam}, counts={"no_context": without_context})
    path = fake.run.prep / "manifest.json"
    overlap = [{"name": "test", "exact": 3, "normalised": 4}]
    repeats = {"duplicates": 0, "identical": 0, "overlap": overlap}
    write_json(path, read_json(path) | {"repeats": repeats})
    fake.score()
    texts = [
        "test: not all systems were searched with the same search.beam (5: base; 1: new)",
        "test: base read it without context, since the set has no document starts",
        "test: 3 of 40 pairs were in the training text before cleaning",
    ]
    assert fake.result()["remarks"] == texts
    assert all(text in fake.read("table.md") for text in texts)
    fake.describe("new", settings={"beam": 5})
    fake.score()
    assert fake.result()["remarks"] == texts[1:]
    overlap[0]["exact"] = 0
    write_json(path, read_json(path) | {"repeats": repeats})
    fake.score()
    assert fake.result()["remarks"] == texts[1:2]


def test_development_set_is_noted_as_used_to_choose_checkpoints(fake_run):
    fake = fake_run(sets=("dev",))
    fake.add("base", 0.2)
    fake.score(set_names=["dev"])
    text = "dev: the development set, on which checkpoints were chosen"
    assert fake.result("dev")["remarks"] == [text]


@pytest.mark.parametrize(
    ("meta", "message"),
    [
        ([], "damaged: must be an object"),
        ({"hardware": None}, "damaged: 'hardware' must be"),
        ({"checkpoints": [{}]}, r"damaged: 'checkpoints\.0\.system' is missing"),
        ({"format": 2}, r"written by another version of nmtkit \(format 2\)"),
    ],
)
def test_damaged_meta_json_is_refused_with_its_path(fake, meta, message):
    fake.add("a", 0.3)
    path = fake.run.system("a").translation("test") / "meta.json"
    write_json(path, {"format": 1, **meta} if meta else meta)
    error = refused(DataError, message, fake.score)
    assert str(error.where) == str(path) and "nmtkit translate --force" in error.hint


def test_ensemble_or_outside_translation_that_lacks_the_set_is_not_called_unknown(fake_run):
    fake = fake_run(sets=("dev", "test"))
    fake.add_all(a=0.2, b=0.2)
    for name in ("ensemble-a+b", "outside"):
        fake.add(name, 0.1, sets=["dev"], trained=False)
    for name, hint in (
        ("ensemble-a+b", "nmtkit translate --system a --system b --ensemble --on test"),
        ("ensemble-b+a", "nmtkit translate --system b --system a --ensemble --on test"),
        ("outside", f"write it to {fake.run.path}/systems/outside/translate/test/hyp.txt"),
    ):
        message = f"'{re.escape(name)}' has no translation of test"
        for options in ({"systems": [name]}, {"against": name}):
            error = refused(DataError, message, fake.score, set_names=["test"], **options)
            assert error.hint.startswith(hint)
    for name in ("ensemble-a+c", "ensemble-a+a", "a+b", "a+"):
        refused(ConfigError, "has no system", fake.score, systems=[name])


def test_untranslated_systems_are_named_oldest_first_with_the_command_for_the_set(fake_run, stderr):
    fake = fake_run(sets=("dev", "test"))
    for name in ["zeta", "alpha", "mid", "done", "beta", "last"]:
        fake.add(name, 0.1, sets=["dev", "test"] if name == "done" else ["test"])
    fake.score(set_names=["dev"])
    left_out = [line for line in stderr().splitlines() if "left out" in line]
    assert [line.split("'")[1] for line in left_out] == ["zeta", "alpha", "mid", "beta", "last"]
    command = f"nmtkit translate --system zeta --on dev --run {fake.run.path}"
    assert left_out[0].endswith(f"({command})")


def test_run_without_a_test_set_is_refused(fake):
    manifest = fake.run.prep / "manifest.json"
    edit(manifest, '"split": "test"', '"split": "dev"')
    fake.add("a", 0.1)
    error = refused(DataError, "no test set", fake.score)
    assert error.where == str(manifest) and "--on" in error.hint


@pytest.fixture
def partly_translated(fake_run):
    """A run with two sets: `a` has no translation, `base` has one of set `one`."""
    fake = fake_run(sets=("one", "two"))
    fake.add("a", 0.1, sets=[])
    fake.add("base", 0.1, sets=["one"])
    return fake


@pytest.mark.parametrize(
    ("error", "options", "message", "hint"),
    [
        (
            DataError,
            {"set_names": ["two"]},
            "nothing to score: no system of this run has translated two",
            "nmtkit translate --on two",
        ),
        (
            DataError,
            {"against": "a"},
            "'a' has no translation of one",
            "nmtkit translate --system a --on one",
        ),
        (ConfigError, {"systems": ["bass"]}, "no system 'bass'", "'base'"),
        (ConfigError, {"systems": ["aa"]}, "no system 'aa'", "'a'"),
        (ConfigError, {"output_format": "yaml"}, "unknown format", ""),
        (ConfigError, {"buckets": "x"}, "length groups", ""),
    ],
)
def test_wrong_options_are_refused_with_a_hint(partly_translated, error, options, message, hint):
    assert hint in refused(error, message, partly_translated.score, **options).hint
    assert not (partly_translated.run.path / "score" / "one").exists()


def test_refused_call_is_recorded_with_its_exit_code(partly_translated):
    refused(ConfigError, None, partly_translated.score, systems=["aa"])
    call = json.loads(partly_translated.run.history.read_text("utf-8"))
    assert (call["stage"], call["exit"]) == ("score", 2)


def test_run_without_systems_or_translations_is_refused_with_the_next_command(fake_run):
    fake = fake_run(sets=("one", "two"))
    assert "nmtkit train" in refused(DataError, "no trained system", fake.score).hint
    fake.add("a", 0.1, sets=[])
    assert "nmtkit translate" in refused(DataError, "nothing to score", fake.score).hint


def test_unprepared_folder_is_refused_and_stays_empty(tmp_path):
    refused(DataError, "not prepared", score, Run(tmp_path))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("path", "count", "message", "hint"),
    [
        ("systems/base/translate/one/hyp.txt", 39, "39 lines for 40 sentences", "--force"),
        ("systems/base/translate/one/hyp.subwords.txt", 3, "3 lines for 40 sentences", "--force"),
        ("prep/text/one.ref", 1, "1 line for 40 sentences", "nmtkit prep --force"),
    ],
)
def test_wrong_line_counts_are_refused_with_the_command(
    partly_translated, path, count, message, hint
):
    write(partly_translated.run.path / path, partly_translated.lines["one"][:count])
    assert hint in refused(DataError, message, partly_translated.score).hint


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("systems/base/translate/one/hyp.txt", "nmtkit translate --system base"),
        ("systems/base/translate/one/hyp.subwords.txt", "nmtkit translate --system base"),
        ("prep/text/one.ref", "nmtkit prep --force"),
    ],
)
def test_damaged_text_of_a_run_is_refused_with_the_command(partly_translated, path, hint):
    damaged = partly_translated.run.path / path
    damaged.write_bytes(b"\xff\n" * 40)
    error = refused(DataError, "not UTF-8", partly_translated.score)
    assert hint in error.hint and str(damaged) in error.where
    if path.endswith("ref"):
        damaged.unlink()
        assert hint in refused(DataError, "no such file", partly_translated.score).hint


def test_set_without_its_text_is_refused(partly_translated):
    partly_translated.run.source("two").unlink()
    error = refused(DataError, "two.src is missing", partly_translated.score, set_names=["two"])
    assert "prepare" in error.hint and "--on" not in error.hint
