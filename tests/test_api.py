"""From Python: the numbers of the commands, the errors of the house, and the lines of the
README.
"""

import contextlib
import copy
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


def float32(device, precision, remembered=None):
    """In the place of measurements, which change process-wide settings and may come out
    differently from call to call.
    """
    return Hardware("cpu", "test", 1, "float32", "highest", False)


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
    monkeypatch.setattr("nmtkit.nn.hardware.choose", float32)


def scored(*arguments):
    return [json.loads(line)["log_prob"] for line in printed(*arguments)]


def printed(*arguments):
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
def test_the_numbers_of_the_commands_bit_for_bit(run, texts, name):
    system = nmtkit.load(run.path, system=name, device="cpu")
    assert system.translate(SRC) == printed(texts[0], "--run", run.path, "--system", name)
    assert system.translate(SRC)[1] == "" and len(set(system.translate(SRC))) > 2
    given = ["--force-target", texts[1], "--run", run.path, "--system", name]
    wanted = list(map(json.loads, printed(texts[0], *given)))
    assert system.score(SRC, TGT) == [line["log_prob"] for line in wanted]
    tokens = system.token_scores(SRC, TGT)
    assert [(line.tokens, line.log_probs) for line in tokens] == [
        (line["tokens"], line["log_probs"]) for line in wanted
    ]
    assert all(
        line.tokens[-1] == "</s>" and line.log_prob == sum(line.log_probs) < 0 for line in tokens
    )


def test_the_n_best_and_settings_of_the_search(run, texts):
    system = nmtkit.load(run.path, "plain", "cpu", beam=4, nbest=3, length_penalty=1.0)
    options = ["--run", run.path, "--beam", 4, "--nbest", 3, "--length-penalty", 1]
    lines = printed(texts[0], "--system", "plain", *options)
    wanted = [json.loads(line)["nbest"] for line in lines]
    found = [one.candidates for one in system.translations(SRC)]
    assert [list(map(vars, candidates)) for candidates in found] == wanted
    assert list(map(len, wanted)) == [3, 0, 3, 3, 3]
    assert (system.settings.beam, system.settings.max_source) == (4, 20)
    one_job, two_jobs = (
        nmtkit.load(run.path, "plain", "cpu", jobs=jobs, batch_size=2) for jobs in (1, 2)
    )
    assert one_job.translate(SRC) == two_jobs.translate(SRC)


def test_documents(run, texts, tmp_path):
    system = nmtkit.load(run.path, "with-context", "cpu")
    (tmp_path / "starts").write_text("0\n2\n", "utf-8")
    for docs, documents in ((tmp_path / "starts", [0, 2]), ("blank", "blank")):
        given = ["--run", run.path, "--system", "with-context", "--docs", docs]
        assert system.translate(SRC, documents=documents) == printed(texts[0], *given)
        wanted = scored(texts[0], "--force-target", texts[1], *given)
        assert system.score(SRC, TGT, documents=documents) == wanted != system.score(SRC, TGT)
    marked = [tmp_path / f"marked.{side}" for side in ("src", "tgt")]
    for path, lines in zip(marked, (SRC, TGT), strict=True):
        files.write_lines(path, ["<d>", *lines[:2], "<d>", *lines[2:]])
    wanted = system.translate(SRC, documents=[0, 2])
    given = ["--run", run.path, "--system", "with-context", "--docs", "marker"]
    assert printed(marked[0], *given) == ["<d>", *wanted[:2], "<d>", *wanted[2:]]
    found = scored(marked[0], "--force-target", marked[1], *given)
    assert [*found[1:3], *found[4:]] == pytest.approx(
        system.score(SRC, TGT, documents=[0, 2]), abs=1e-4
    )
    for wrong in ([], [1, 2], [0, 2, 2], [0, 5], [0, 3, 1], [0, 1.5], [0, "x"], 0, 5):
        said = "wrong line numbers of document starts"
        error = refused(DataError, said, system.translate, SRC, documents=wrong)
        assert error.hint == "give rising line numbers; the first is 0, all are below 5"
    refused(ConfigError, "'blanks' does not say", system.translate, SRC, documents="blanks")
    plain = nmtkit.load(run.path, "plain", "cpu")  # reads no context
    assert plain.score(SRC, TGT, documents=[0, 2]) == plain.score(SRC, TGT)


def test_states_are_those_that_the_decoder_reads_without_padding(run):
    system = nmtkit.load(run.path, "plain", "cpu")
    side, vocabulary = TextSide.load(run.prep, "src"), load_vocabularies(run.prep)[0]
    encoded = system.encode(SRC)
    for line, found in zip(SRC, encoded, strict=True):
        subwords = side.encode(line) if line else []
        assert found.tokens == [*subwords, "</s>"]
        with torch.no_grad():
            alone = system.model.encode(source_batch([vocabulary.encode(subwords)]))["states"][0]
        assert found.states.shape == (len(found.tokens), 16)
        assert torch.allclose(found.states, alone, atol=1e-5)
    assert len(encoded[2].tokens) > system.settings.max_source  # and is not cut
    (encoded[0].states.requires_grad_() * 2).sum().backward()  # a tensor like any other
    assert encoded[0].states.grad is not None
    with pytest.raises(NoStates, match="no states of source positions"):
        nmtkit.load(run.path, "recurrent", "cpu").encode(SRC)


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_fault_of_a_model_of_your_own_is_named(run, monkeypatch, jobs):
    monkeypatch.setattr(ToyRecurrent, "encode", lambda *_: {})
    system = nmtkit.load(run.path, "recurrent", "cpu", jobs=jobs, batch_size=2)
    caught = refused(ConfigError, "your code failed: KeyError", system.translate, SRC)
    assert "toy_recurrent.py, line " in caught.where
    words = f"translate --run {run.path} --system recurrent --jobs {jobs} --device cpu --force"
    result = CliRunner().invoke(app, words.split())
    assert result.exit_code == 2 and "your code failed: KeyError" in result.stderr


def test_a_run_on_a_read_only_disk(run, read_only):
    read_only(run.path)
    assert nmtkit.load(run.path, "plain", "cpu", beam=2).translate(SRC[:1])


def test_no_lines(run):
    system = nmtkit.load(run.path, "plain", "cpu")
    assert system.translate([]) == system.score([], []) == system.encode([]) == []


@pytest.mark.parametrize("wrong", ["A dog.", b"A dog.", 3, None, ["A dog.", 3], [["A dog."]]])
def test_one_string_is_no_list_of_lines(run, wrong):
    system = nmtkit.load(run.path, "plain", "cpu")
    for call in (
        lambda: system.translate(wrong),
        lambda: system.score(SRC, wrong),
        lambda: system.score(wrong, SRC),
        lambda: system.encode(wrong),
    ):
        caught = refused(TypeError, None, call)
        assert isinstance(caught, NmtkitError) and (
            "expected a list of lines" in str(caught) or "a line must be a string" in str(caught)
        )


def test_phrases_that_are_no_list_are_refused(run):
    system = nmtkit.load(run.path, "plain", "cpu")
    said = "expected a list of lines, not int"
    refused(TypeError, said, lambda: system.translate(SRC, constraints=5))


@pytest.mark.parametrize("copied", [pickle.dumps, copy.deepcopy, copy.copy])
def test_a_loaded_system_is_not_copied(run, copied):
    refused(NmtkitError, "cannot be pickled or copied", copied, nmtkit.load(run.path, "plain"))


def test_one_target_for_each_source(run):
    with pytest.raises(DataError, match="4 targets for 5 sources"):
        nmtkit.load(run.path, "plain", "cpu").score(SRC, TGT[:4])


def test_which_system(run, tmp_path, stderr, monkeypatch):
    assert nmtkit.load(run.path, device="cpu").name == "recurrent"
    assert "translating with 'recurrent', the system trained last" in stderr()
    monkeypatch.chdir(run.path.parent)
    assert nmtkit.load(f"{run.path.name}/systems/plain", device="cpu").name == "plain"
    assert "trained last" not in stderr()
    assert nmtkit.load(run.path / "systems" / "plain", "plain", "cpu").name == "plain"
    for path, system, said in [
        (run.path, "plan", "no system 'plan'"),
        (run.path / "systems" / "plan", None, "no system 'plan'"),
        (run.path / "systems" / "plain", "other", "is not the folder of 'other'"),
        (run.path / "nothing", None, "no such folder"),
        (run.path / "prep", None, "this run is not prepared"),
    ]:
        refused(NmtkitError, said, nmtkit.load, path, system, "cpu")
    refused(ConfigError, "did you mean 'beam'", nmtkit.load, run.path, "plain", "cpu", baem=3)
    for wrong, said in [
        ({"path": None}, "expected a folder, not NoneType"),
        ({"system": 3}, "expected the name of a system, not int"),
        ({"device": None}, "expected auto, cpu, cuda or mps, not NoneType"),
        ({"device": torch.device("cpu")}, "expected auto, cpu, cuda or mps, not device"),
        ({"jobs": "2"}, "expected a whole number, not str"),
        ({"jobs": 1.5}, "expected a whole number, not float"),
    ]:
        error = refused(ConfigError, said, nmtkit.load, **{"path": run.path, **wrong})
        assert [error.where] == list(wrong)
    error = refused(ConfigError, "nbest", nmtkit.load, run.path, "plain", "cpu", nbest=9)
    assert error.hint == "change one of them"
    refused(ConfigError, "unknown device", nmtkit.load, run.path, "plain", "tpu")


def test_scores_are_float32_beside_a_search_in_bfloat16(run, monkeypatch):
    packed = []

    def measured(device, precision, width):
        torch.set_float32_matmul_precision("medium")
        return Hardware(
            "cpu", "test", 1, "float32" if precision == "float32" else "bfloat16", "medium", False
        )

    monkeypatch.setattr("nmtkit.nn.hardware.choose", measured)
    monkeypatch.setattr(
        "nmtkit.models.loading.pack",
        lambda model, precision: packed.append((precision, torch.get_float32_matmul_precision())),
    )
    seen = []
    for owner, name in (
        (Translator, "translate_windows"),
        (Scorer, "force"),
        (api, "encoder_states"),
    ):
        own = getattr(owner, name)

        def watched(*args, own=own, **options):
            seen.append((torch.get_num_threads(), torch.get_float32_matmul_precision()))
            return own(*args, **options)

        monkeypatch.setattr(owner, name, watched)
    threads, matmul = torch.get_num_threads(), torch.get_float32_matmul_precision()
    torch.set_num_threads(2)
    torch.set_float32_matmul_precision("highest")
    try:
        system = nmtkit.load(run.path, "plain", "cpu")
        assert (
            packed == [("bfloat16", "medium")] and torch.get_float32_matmul_precision() == "highest"
        )
        system.translate(SRC)
        system.score(SRC, TGT)
        system.encode(SRC)
        assert packed == [("bfloat16", "medium"), ("float32", "medium")]
        assert seen == [(1, "medium")] * 3  # while it computes
        assert (torch.get_num_threads(), torch.get_float32_matmul_precision()) == (2, "highest")
    finally:
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(matmul)


def test_a_loaded_system_never_has_the_weights_of_two_trainings(run, tmp_path, monkeypatch):
    """Those for scores are read at their first use if the search has another precision."""
    copied = tmp_path / "run"
    shutil.copytree(run.path, copied)

    def measured(device, precision, width):
        kind = "float32" if precision == "float32" else "bfloat16"
        return Hardware("cpu", "test", 1, kind, "highest", False)

    monkeypatch.setattr("nmtkit.nn.hardware.choose", measured)
    system, twin = (nmtkit.load(copied, "plain", "cpu") for _ in range(2))
    twin.score(SRC, TGT)
    shutil.rmtree(copied / "systems/plain/checkpoints")
    other = run.system("recurrent").checkpoints
    refused(CheckpointError, "have changed since it was loaded", system.score, SRC, TGT)
    shutil.copytree(other, copied / "systems/plain/checkpoints")
    refused(CheckpointError, "have changed since it was loaded", system.score, SRC, TGT)
    system.translate(SRC)
    twin.score(SRC, TGT)


def test_a_training_that_ends_while_weights_are_read_is_noticed(run, monkeypatch):
    system = nmtkit.load(run.path, "plain", "cpu")
    read = SystemGroup.scorer

    def trained_meanwhile(group, *arguments):
        monkeypatch.setattr(SystemGroup, "checkpoints", lambda group: [])
        return read(group, *arguments)

    monkeypatch.setattr(SystemGroup, "scorer", trained_meanwhile)
    system._loaded.clear()
    refused(CheckpointError, "have changed since it was loaded", system.score, SRC, TGT)


def test_ctrl_c_while_a_system_loads_leaves_gradients_on(run, monkeypatch):
    """Even between the change and the block of torch.no_grad, which draws the first weights."""

    def stopped(context):
        torch.set_grad_enabled(False)
        raise KeyboardInterrupt

    monkeypatch.setattr(torch.no_grad, "__enter__", stopped)
    with pytest.raises(KeyboardInterrupt):
        nmtkit.load(run.path, "plain")
    assert torch.is_grad_enabled()


def test_the_memory_of_products_is_limited_as_in_the_commands(run, monkeypatch):
    limit = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"
    monkeypatch.setattr(environment, "_ours", {})
    for of_user, expected in ((None, str(environment.PRODUCTS)), ("7", "7")):
        monkeypatch.delenv(limit, raising=False)
        if of_user:
            monkeypatch.setenv(limit, of_user)
        nmtkit.load(run.path, "plain", "cpu")
        assert os.environ[limit] == expected


def test_a_worker_of_a_pool_has_no_workers(run):
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


def test_a_system_on_a_cpu_leaves_the_settings_of_gpus(run):
    def of_gpus():
        return torch.backends.cuda.cudnn_sdp_enabled(), torch.backends.cudnn.allow_tf32

    before = of_gpus()
    for tf32 in (True, False):
        torch.backends.cudnn.allow_tf32 = tf32
        nmtkit.load(run.path, "plain", "cpu")
        assert of_gpus() == (before[0], tf32)
    torch.backends.cudnn.allow_tf32 = before[1]


def test_threads_wait_for_each_other(run):
    """Torch's settings are those of before when all threads have ended."""
    system, wanted = nmtkit.load(run.path, "plain", "cpu"), []
    wanted = system.translate(SRC)
    before = torch.get_num_threads(), torch.get_float32_matmul_precision()
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
        assert list(threads.map(lambda _: system.translate(SRC), range(6))) == [wanted] * 6
    assert most == [1]
    assert (torch.get_num_threads(), torch.get_float32_matmul_precision()) == before


def test_a_forked_process_does_not_wait_for_a_thread_of_its_parent():
    with ThreadPoolExecutor(1) as threads:
        threads.submit(api._one_thread_at_a_time.acquire).result()
        if not (child := os.fork()):
            os._exit(not api._one_thread_at_a_time.acquire(blocking=False))
        threads.submit(api._one_thread_at_a_time.release).result()
    assert os.waitpid(child, 0)[1] == 0


def test_precision_that_is_set_by_torchs_newer_attributes_stays(run):
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


def test_importing_loads_nothing():
    code = (
        "import sys, nmtkit; assert 'torch' not in sys.modules; nmtkit.load; assert 'torch' in"
        " sys.modules; nmtkit.lod"
    )
    done = python("-c", code)
    assert done.returncode == 1 and "module 'nmtkit' has no attribute 'lod'" in done.stderr


def test_the_package_lists_its_interface_without_loading_it():
    code = (
        "import sys, nmtkit; assert 'torch' not in sys.modules; print(*dir(nmtkit));"
        "assert 'torch' not in sys.modules; from nmtkit import *; print(load, NmtkitError)"
    )
    listed, loaded = python("-c", code, check=True).stdout.splitlines()
    assert listed.split() == sorted([*nmtkit.__all__, "__version__"])
    assert "function load" in loaded and "errors.NmtkitError" in loaded
    assert all(getattr(nmtkit, name).__name__ == name for name in nmtkit.__all__)


def test_the_lines_of_the_readme(run, tmp_path, monkeypatch, stdout):
    page = (ROOT / "README.md").read_text("utf-8")
    section = page.split("\n## From Python\n")[1].split("\n## ")[0]
    code = "\n".join(
        line.removeprefix("    ") for line in section.splitlines() if line.startswith("    ")
    )
    (folder,) = re.findall(r'"(runs/\S+)"', code)
    copied = Run(Path(shutil.copytree(run.path, tmp_path / folder)))
    os.utime(
        copied.system("plain").checkpoints / "step-00000001", ns=(2**62 + 10**9, 2**62 + 10**9)
    )
    monkeypatch.chdir(tmp_path)
    shown = []
    lines = [
        f"shown.append({line.partition('  #')[0]})" if line.startswith("system.") else line
        for line in code.splitlines()
    ]
    exec("\n".join(lines), {"shown": shown})
    assert [type(value).__name__ for value in shown] == ["list", "list", "list", "list"]
    assert [len(value) for value in shown[:3]] == [2, 1, 1] and shown[2][0] == pytest.approx(
        sum(shown[3])
    )
    assert "</s>" in stdout()
