"""nmtkit.load() gives the numbers and errors of the commands; the README's example works."""

import contextlib
import copy
import functools
import json
import os
import pickle
import re
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import nmtkit
from nmtkit import api, environment, files
from nmtkit.analyze.sentence_vectors import NoStates
from nmtkit.cli import app
from nmtkit.data.batches import source_batch
from nmtkit.errors import CheckpointError, ConfigError, DataError, NmtkitError
from nmtkit.nn.hardware import Hardware
from nmtkit.run import Run
from nmtkit.text.side import TextSide
from nmtkit.text.vocabulary import load_vocabularies
from nmtkit.translate.scorer import Scorer
from nmtkit.translate.systems import SystemGroup
from nmtkit.translate.translator import Translator
from tests import ROOT
from tests.faults.trainings import interfere
from tests.processes import python
from tests.random_systems import add_system, prepare
from tests.refused import refused
from tests.toy_recurrent import ToyRecurrent

SRC = [
    "The cat sleeps.",
    "",
    "The old dog that the man near the river sees runs, and the cats near the house sleep and run. "
    * 2,
    "It runs.",
    "dog",
]
TGT = ["Die Katze schläft.", "Hund", "Der Hund rennt.", "", "Er rennt nicht."]


def fixed_hardware(precision="float32", matmul="highest"):
    return Hardware("cpu", "test", 1, precision, matmul, False)


def bfloat16_if_allowed(device, precision, width):
    """Replace `hardware.choose`: bfloat16 and reduced float32 products, where allowed."""
    torch.set_float32_matmul_precision("medium")
    return fixed_hardware("float32" if precision == "float32" else "bfloat16", "medium")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    made = prepare(tmp_path_factory.mktemp("api") / "run")
    add_system(made, "plain", "transformer")
    add_system(made, "with-context", "concat", seed=2)
    add_system(made, "recurrent", "tests.toy_recurrent:ToyRecurrent", seed=3)
    newest = made.system("recurrent").checkpoints / "step-00000001"
    os.utime(newest, ns=(2**62, 2**62))
    return made


@pytest.fixture(autouse=True)
def no_measurements(monkeypatch):
    """Measurements change process-wide settings and may differ from call to call."""
    monkeypatch.setattr("nmtkit.nn.hardware.choose", lambda *_, **__: fixed_hardware())


@pytest.fixture
def plain(run):
    return nmtkit.load(run.path, "plain", "cpu")


def printed_log_probs(*arguments):
    return [json.loads(line)["log_prob"] for line in printed(*arguments)]


def printed(*arguments):
    """Return the lines that `nmtkit translate` prints."""
    options = ["--jobs", "1", "--device", "cpu"]
    result = CliRunner().invoke(app, ["translate", *map(str, arguments), *options])
    assert result.exit_code == 0, result.stderr
    return result.stdout.splitlines()


@pytest.fixture
def texts(tmp_path):
    for name, lines in (("src", SRC), ("tgt", TGT)):
        (tmp_path / name).write_text("".join(line + "\n" for line in lines), "utf-8")
    return tmp_path / "src", tmp_path / "tgt"


@pytest.mark.parametrize("name", ["plain", "recurrent", "with-context"])
def test_translations_and_scores_equal_the_commands_bit_for_bit(run, texts, name):
    system = nmtkit.load(run.path, system=name, device="cpu")
    assert system.translate(SRC) == printed(texts[0], "--run", run.path, "--system", name)
    assert system.translate(SRC)[1] == "" and len(set(system.translate(SRC))) > 2
    options = ["--force-target", texts[1], "--run", run.path, "--system", name]
    expected = list(map(json.loads, printed(texts[0], *options)))
    assert system.score(SRC, TGT) == [line["log_prob"] for line in expected]
    for line, wanted in zip(system.token_scores(SRC, TGT), expected, strict=True):
        assert (line.tokens, line.log_probs) == (wanted["tokens"], wanted["log_probs"])
        assert line.tokens[-1] == "</s>" and line.log_prob == sum(line.log_probs) < 0


def test_nbest_lists_and_search_settings_equal_the_command(run, texts):
    system = nmtkit.load(run.path, "plain", "cpu", beam=4, nbest=3, length_penalty=1.0)
    options = ["--run", run.path, "--beam", 4, "--nbest", 3, "--length-penalty", 1]
    lines = printed(texts[0], "--system", "plain", *options)
    expected = [json.loads(line)["nbest"] for line in lines]
    found = [list(map(vars, line.candidates)) for line in system.translations(SRC)]
    assert found == expected and list(map(len, expected)) == [3, 0, 3, 3, 3]
    assert (system.settings.beam, system.settings.max_source) == (4, 20)


def test_number_of_jobs_changes_no_translation(run):
    first, second = (
        nmtkit.load(run.path, "plain", "cpu", jobs=jobs, batch_size=2).translate(SRC)
        for jobs in (1, 2)
    )
    assert first == second


@pytest.fixture
def with_context(run):
    return nmtkit.load(run.path, "with-context", "cpu")


@pytest.mark.parametrize(("docs", "documents"), [("starts", [0, 2]), ("blank", "blank")])
def test_documents_give_the_numbers_of_the_commands(
    with_context, run, texts, tmp_path, monkeypatch, docs, documents
):
    monkeypatch.chdir(tmp_path)
    Path("starts").write_text("0\n2\n", "utf-8")
    options = ["--run", run.path, "--system", "with-context", "--docs", docs]
    assert with_context.translate(SRC, documents=documents) == printed(texts[0], *options)
    expected = printed_log_probs(texts[0], "--force-target", texts[1], *options)
    assert with_context.score(SRC, TGT, documents=documents) == expected
    assert with_context.score(SRC, TGT) != expected


def test_documents_equal_marker_lines_of_the_command(with_context, run, tmp_path):
    src, tgt = (tmp_path / f"marked.{side}" for side in ("src", "tgt"))
    for path, lines in ((src, SRC), (tgt, TGT)):
        files.write_lines(path, ["<d>", *lines[:2], "<d>", *lines[2:]])
    options = ["--run", run.path, "--system", "with-context", "--docs", "marker"]
    lines = with_context.translate(SRC, documents=[0, 2])
    assert printed(src, *options) == ["<d>", *lines[:2], "<d>", *lines[2:]]
    log_probs = printed_log_probs(src, "--force-target", tgt, *options)
    assert [*log_probs[1:3], *log_probs[4:]] == pytest.approx(
        with_context.score(SRC, TGT, documents=[0, 2]), abs=1e-4
    )


@pytest.mark.parametrize(
    "documents", [[], [1, 2], [0, 2, 2], [0, 5], [0, 3, 1], [0, 1.5], [0, "x"], 0, 5]
)
def test_wrong_document_starts_are_refused(with_context, documents):
    message = "wrong line numbers of document starts"
    error = refused(DataError, message, with_context.translate, SRC, documents=documents)
    assert error.hint == "give rising line numbers; the first is 0, all are below 5"


def test_unknown_kind_of_documents_is_refused(with_context):
    message = "'blanks' does not say"
    refused(ConfigError, message, with_context.translate, SRC, documents="blanks")


def test_model_without_context_ignores_documents(plain):
    assert plain.score(SRC, TGT, documents=[0, 2]) == plain.score(SRC, TGT)


def test_encode_returns_encoder_states_without_padding(run, plain):
    side, vocabulary = TextSide.load(run.prep, "src"), load_vocabularies(run.prep)[0]
    encoded = plain.encode(SRC)
    for line, found in zip(SRC, encoded, strict=True):
        subwords = side.encode(line) if line else []
        assert found.tokens == [*subwords, "</s>"]
        with torch.no_grad():
            alone = plain.model.encode(source_batch([vocabulary.encode(subwords)]))["states"][0]
        assert found.states.shape == (len(found.tokens), 16)
        assert torch.allclose(found.states, alone, atol=1e-5)
    assert len(encoded[2].tokens) > plain.settings.max_source  # encode does not cut lines


def test_encoder_states_take_part_in_autograd(plain):
    states = plain.encode(SRC[:1])[0].states
    (states.requires_grad_() * 2).sum().backward()
    assert states.grad is not None


def test_encode_refuses_a_model_without_source_states(run):
    system = nmtkit.load(run.path, "recurrent", "cpu")
    refused(NoStates, "no states of source positions", system.encode, SRC)


@pytest.mark.parametrize("jobs", [1, 2])
def test_exception_in_a_users_model_is_a_user_error(run, monkeypatch, jobs):
    monkeypatch.setattr(ToyRecurrent, "encode", lambda *_: {})
    system = nmtkit.load(run.path, "recurrent", "cpu", jobs=jobs, batch_size=2)
    caught = refused(ConfigError, "your code failed: KeyError", system.translate, SRC)
    assert "toy_recurrent.py, line " in caught.where
    words = f"translate --run {run.path} --system recurrent --jobs {jobs} --device cpu --force"
    result = CliRunner().invoke(app, words.split())
    assert result.exit_code == 2 and "your code failed: KeyError" in result.stderr


def test_load_and_translate_work_on_a_read_only_disk(run, read_only):
    read_only(run.path)
    assert nmtkit.load(run.path, "plain", "cpu", beam=2).translate(SRC[:1])


def test_empty_list_of_lines_gives_an_empty_list(plain):
    assert plain.translate([]) == plain.score([], []) == plain.encode([]) == []


@pytest.mark.parametrize("wrong", ["A dog.", b"A dog.", 3, None, ["A dog.", 3], [["A dog."]]])
def test_arguments_that_are_no_lists_of_strings_are_refused(plain, wrong):
    message = "expected a list of lines|a line must be a string"
    for call, *arguments in (
        (plain.translate, wrong),
        (plain.score, SRC, wrong),
        (plain.score, wrong, SRC),
        (plain.encode, wrong),
    ):
        assert isinstance(refused(TypeError, message, call, *arguments), NmtkitError)


def test_constraints_that_are_no_list_are_refused(plain):
    message = "expected a list of lines, not int"
    refused(TypeError, message, plain.translate, SRC, constraints=5)


@pytest.mark.parametrize("copied", [pickle.dumps, copy.deepcopy, copy.copy])
def test_loaded_system_cannot_be_pickled_or_copied(run, copied):
    refused(NmtkitError, "cannot be pickled or copied", copied, nmtkit.load(run.path, "plain"))


def test_different_numbers_of_targets_and_sources_are_refused(plain):
    refused(DataError, "4 targets for 5 sources", plain.score, SRC, TGT[:4])


def test_load_takes_the_system_trained_last_by_default(run, stderr):
    assert nmtkit.load(run.path, device="cpu").name == "recurrent"
    assert "translating with 'recurrent', the system trained last" in stderr()


def test_load_takes_the_folder_of_a_system(run, stderr, monkeypatch):
    monkeypatch.chdir(run.path.parent)
    assert nmtkit.load(f"{run.path.name}/systems/plain", device="cpu").name == "plain"
    assert "trained last" not in stderr()
    assert nmtkit.load(run.path / "systems" / "plain", "plain", "cpu").name == "plain"


@pytest.mark.parametrize(
    ("path", "system", "message"),
    [
        (".", "plan", "no system 'plan'"),
        ("systems/plan", None, "no system 'plan'"),
        ("systems/plain", "other", "is not the folder of 'other'"),
        ("nothing", None, "no such folder"),
        ("prep", None, "this run is not prepared"),
    ],
)
def test_load_refuses_a_missing_run_or_system(run, path, system, message):
    refused(NmtkitError, message, nmtkit.load, run.path / path, system, "cpu")


@pytest.mark.parametrize(
    ("argument", "value", "message"),
    [
        ("path", None, "expected a folder, not NoneType"),
        ("system", 3, "expected the name of a system, not int"),
        ("device", None, "expected auto, cpu, cuda or mps, not NoneType"),
        ("device", torch.device("cpu"), "expected auto, cpu, cuda or mps, not device"),
        ("jobs", "2", "expected a whole number, not str"),
        ("jobs", 1.5, "expected a whole number, not float"),
    ],
)
def test_load_names_an_argument_of_the_wrong_type(run, argument, value, message):
    error = refused(ConfigError, message, nmtkit.load, **{"path": run.path, argument: value})
    assert error.where == argument


def test_load_refuses_settings_and_devices_that_do_not_exist(run):
    load = functools.partial(nmtkit.load, run.path, "plain")
    refused(ConfigError, "did you mean 'beam'", load, "cpu", baem=3)
    assert refused(ConfigError, "nbest", load, "cpu", nbest=9).hint == "change one of them"
    refused(ConfigError, "unknown device", load, "tpu")


def torch_state():
    return torch.get_num_threads(), torch.get_float32_matmul_precision()


@pytest.fixture
def two_threads():
    """Two threads and full float32 products, restored at the end."""
    threads, matmul = torch_state()
    torch.set_num_threads(2)
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(matmul)


@pytest.fixture
def packed(two_threads, monkeypatch):
    """Let searches use bfloat16; return a list of the precisions for which weights are packed."""
    packed = []
    monkeypatch.setattr("nmtkit.nn.hardware.choose", bfloat16_if_allowed)
    monkeypatch.setattr(
        "nmtkit.models.loading.pack",
        lambda model, precision: packed.append((precision, torch_state()[1])),
    )
    return packed


def test_scores_use_float32_beside_a_bfloat16_search(run, packed):
    system = nmtkit.load(run.path, "plain", "cpu")
    assert packed == [("bfloat16", "medium")]
    system.translate(SRC)
    system.score(SRC, TGT)
    system.encode(SRC)
    assert packed == [("bfloat16", "medium"), ("float32", "medium")]


@pytest.mark.usefixtures("packed")
def test_threads_and_precision_change_only_during_a_call(run, monkeypatch):
    states = []
    for owner, name in (
        (Translator, "translate_windows"),
        (Scorer, "force"),
        (api, "encoder_states"),
    ):
        interfere(monkeypatch, owner, name, {1}, lambda: states.append(torch_state()))
    system = nmtkit.load(run.path, "plain", "cpu")
    assert torch_state() == (2, "highest")
    system.translate(SRC)
    system.score(SRC, TGT)
    system.encode(SRC)
    assert states == [(1, "medium")] * 3
    assert torch_state() == (2, "highest")


def test_changed_weights_are_refused_when_scoring_loads_them(run, tmp_path, monkeypatch):
    """Scores load their weights at the first call if the search has another precision."""
    copied = tmp_path / "run"
    shutil.copytree(run.path, copied)
    monkeypatch.setattr("nmtkit.nn.hardware.choose", bfloat16_if_allowed)
    system, twin = (nmtkit.load(copied, "plain", "cpu") for _ in range(2))
    twin.score(SRC, TGT)
    shutil.rmtree(copied / "systems/plain/checkpoints")
    other = run.system("recurrent").checkpoints
    refused(CheckpointError, "have changed since it was loaded", system.score, SRC, TGT)
    shutil.copytree(other, copied / "systems/plain/checkpoints")
    refused(CheckpointError, "have changed since it was loaded", system.score, SRC, TGT)
    system.translate(SRC)
    twin.score(SRC, TGT)


def test_weights_that_change_while_they_are_read_are_refused(plain, monkeypatch):
    change = functools.partial(monkeypatch.setattr, SystemGroup, "checkpoints", lambda group: [])
    interfere(monkeypatch, SystemGroup, "scorer", {1}, change)
    plain._loaded.clear()
    refused(CheckpointError, "have changed since it was loaded", plain.score, SRC, TGT)


def test_ctrl_c_during_load_leaves_gradients_enabled(run, monkeypatch):
    """Ctrl-C arrives after torch.no_grad has disabled gradients and before its block begins."""

    def stopped(context):
        torch.set_grad_enabled(False)
        raise KeyboardInterrupt

    monkeypatch.setattr(torch.no_grad, "__enter__", stopped)
    with pytest.raises(KeyboardInterrupt):
        nmtkit.load(run.path, "plain")
    assert torch.is_grad_enabled()


def test_load_limits_the_onednn_cache_as_the_commands_do(run, monkeypatch):
    limit = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"
    monkeypatch.setattr(environment, "_ours", {})
    for user_value, expected in ((None, str(environment.PRODUCTS)), ("7", "7")):
        monkeypatch.delenv(limit, raising=False)
        if user_value:
            monkeypatch.setenv(limit, user_value)
        nmtkit.load(run.path, "plain", "cpu")
        assert os.environ[limit] == expected


def test_worker_of_a_process_pool_translates_without_workers(run):
    code = (
        "import multiprocessing, sys, nmtkit\n"
        "def work(path):\n"
        "    system = nmtkit.load(path, 'plain', 'cpu', jobs=2, batch_size=1)\n"
        "    return system.translate(['dog', 'It runs.'])\n"
        "with multiprocessing.get_context('fork').Pool(1) as pool:\n"
        "    assert pool.apply(work, [sys.argv[1]]) == work(sys.argv[1])\n"
    )
    done = python("-c", code, str(run.path))
    assert done.returncode == 0, done.stderr


def test_system_on_a_cpu_leaves_gpu_settings_unchanged(run):
    def gpu_settings():
        return torch.backends.cuda.cudnn_sdp_enabled(), torch.backends.cudnn.allow_tf32

    before = gpu_settings()
    for tf32 in (True, False):
        torch.backends.cudnn.allow_tf32 = tf32
        nmtkit.load(run.path, "plain", "cpu")
        assert gpu_settings() == (before[0], tf32)
    torch.backends.cudnn.allow_tf32 = before[1]


def test_concurrent_threads_compute_one_after_another(plain):
    """Afterwards torch has its earlier settings."""
    expected, before = plain.translate(SRC), torch_state()
    inside, most, original = [], [0], api.workers.one_thread

    @contextlib.contextmanager
    def watched(device):
        inside.append(1)
        most[0] = max(most[0], len(inside))
        with original(device):
            time.sleep(0.02)
            yield
        inside.pop()

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(3) as threads:
        patch.setattr(api.workers, "one_thread", watched)
        assert list(threads.map(lambda _: plain.translate(SRC), range(6))) == [expected] * 6
    assert most == [1] and torch_state() == before


def test_forked_process_does_not_inherit_the_parents_lock():
    with ThreadPoolExecutor(1) as threads:
        threads.submit(api._one_thread_at_a_time.acquire).result()
        if not (child := os.fork()):
            os._exit(not api._one_thread_at_a_time.acquire(blocking=False))
        threads.submit(api._one_thread_at_a_time.release).result()
    assert os.waitpid(child, 0)[1] == 0


def test_precision_set_by_newer_torch_attributes_is_kept(run):
    matmul = torch.backends.cuda.matmul
    if not hasattr(matmul, "fp32_precision"):
        pytest.skip("this torch has one way to set it")
    before = torch.get_float32_matmul_precision()
    try:
        for value in (matmul.fp32_precision, "tf32", "ieee"):
            matmul.fp32_precision = value
            assert nmtkit.load(run.path, "plain", "cpu").translate(SRC)
            assert matmul.fp32_precision == value
    finally:
        torch.set_float32_matmul_precision(before)


def test_import_does_not_load_torch():
    code = (
        "import sys, nmtkit; assert 'torch' not in sys.modules; nmtkit.load; assert 'torch' in"
        " sys.modules; nmtkit.lod"
    )
    done = python("-c", code)
    assert done.returncode == 1 and "module 'nmtkit' has no attribute 'lod'" in done.stderr


def test_dir_lists_the_interface_without_loading_torch():
    code = (
        "import sys, nmtkit; assert 'torch' not in sys.modules; print(*dir(nmtkit));"
        "assert 'torch' not in sys.modules; from nmtkit import *; print(load, NmtkitError)"
    )
    listed, loaded = python("-c", code, check=True).stdout.splitlines()
    assert listed.split() == sorted([*nmtkit.__all__, "__version__"])
    assert "function load" in loaded and "errors.NmtkitError" in loaded
    assert all(getattr(nmtkit, name).__name__ == name for name in nmtkit.__all__)


def test_python_example_of_the_readme_works(run, tmp_path, monkeypatch, stdout):
    page = (ROOT / "README.md").read_text("utf-8")
    section = page.split("\n## From Python\n")[1].split("\n## ")[0]
    code = "\n".join(
        line.removeprefix("    ") for line in section.splitlines() if line.startswith("    ")
    )
    (folder,) = re.findall(r'"(runs/\S+)"', code)
    copied = Run(Path(shutil.copytree(run.path, tmp_path / folder)))
    later = 2**62 + 10**9
    os.utime(copied.system("plain").checkpoints / "step-00000001", ns=(later, later))
    monkeypatch.chdir(tmp_path)
    shown = []
    lines = [
        f"shown.append({line.partition('  #')[0]})" if line.startswith("system.") else line
        for line in code.splitlines()
    ]
    exec("\n".join(lines), {"shown": shown})
    assert [type(value) for value in shown] == [list] * 4
    assert [len(value) for value in shown[:3]] == [2, 1, 1]
    assert shown[2][0] == pytest.approx(sum(shown[3]))
    assert "</s>" in stdout()
