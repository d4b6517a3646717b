"""Several processes (ranks) train one model: the updates of one process, one writer, one log, and an
end that names the lost rank.

The ranks are forked from a server that has imported everything, because a start of torch takes
seconds. One test uses torchrun itself.
"""

import functools
import multiprocessing
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import nmtkit
from nmtkit.errors import EnvironmentProblem
from nmtkit.models import checkpoints
from nmtkit.settings import TrainSettings
from nmtkit.train import loss as losses
from nmtkit.train import ranks, saving, torchrun
from nmtkit.train.checks import check_ranks_agree
from nmtkit.train.ema import RAW
from nmtkit.train.gradients import Gradients
from nmtkit.train.ranks import Ranks
from nmtkit.train.state import TrainState
from tests import ROOT
from tests.device import ON_GPU
from tests.models.contract import Case
from tests.train.tiny import as_arguments, lines_of, make_run, metrics, options, state_of

# 7 micro-batches of about 64 target tokens make an update, and an epoch has 7 of them: every update
# takes as many as no number of ranks divides. Without key biases, whose gradient is rounding alone
# (a softmax is blind to them) and becomes whole steps in Adam.
SETTINGS = options(
    "train.max_steps=6",
    "train.update_size=380",
    "train.validate_every=3",
    "train.checkpoint_every=3",
    "train.log_every=2",
    "train.ema=0.5",
    "model.attn_bias=false",
    "train.precision=float32",
    "train.clip_norm=1.0",
)


def arguments(run, *extra, name="system"):
    settings = as_arguments((*SETTINGS, *extra))
    return ["train", "--run", str(run.path), "--system", name, *settings]


def rank_process(rank, world, port, argv, log, timeout, before):
    """Run the command as one rank, in the environment that torchrun gives; stderr is a file."""
    rank_of = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world}
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, torchrun.TIMEOUT: timeout}
    os.environ.update({key: str(value) for key, value in (rank_of | address).items()})
    ranks.BEAT, ranks.SILENCE, ranks.GRACE = 0.2, 2.0, 4.0
    descriptor = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(descriptor, 2)
    torch.set_num_threads(1)
    sys.argv = ["nmtkit", *argv]
    if before:
        before()
    from nmtkit.cli import main

    main()


class Together:
    """Ranks that run one command, or each rank on a command of its own.

    Args:
        folder: gets a log of each rank.
        argv: words of the command, or of each rank's command.
        timeout: NMTKIT_RANK_TIMEOUT, in seconds.
        before: called in each process first.
    """

    def __init__(self, folder, world, argv, timeout=60, before=None, port=None):
        # Importing tests.device uses CUDA on a GPU, and a fork cannot use CUDA again.
        context = multiprocessing.get_context("spawn" if ON_GPU else "forkserver")
        context.set_forkserver_preload(
            ["tests.train.test_ranks", "nmtkit.cli", "nmtkit.train.stage"]
        )
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = port or free.getsockname()[1]
        folder.mkdir(exist_ok=True)
        self.logs = [folder / f"rank{rank}.log" for rank in range(world)]
        for log in self.logs:
            log.write_text("")
        commands = argv if isinstance(argv[0], list) else [argv] * world
        self.processes = [
            context.Process(
                target=rank_process,
                args=(r, world, port, commands[r], self.logs[r], timeout, before),
            )
            for r in range(world)
        ]
        for process in self.processes:
            process.start()

    def codes(self, seconds=240):
        """Wait for the ranks; return their exit codes (minus the signal if killed)."""
        end = time.monotonic() + seconds
        for process in self.processes:
            process.join(max(0.1, end - time.monotonic()))
            process.kill()
            process.join()
        return [process.exitcode for process in self.processes]

    def stderr(self):
        """Return what each rank has written to stderr."""
        return [log.read_text() for log in self.logs]

    def ended(self, *codes):
        """Wait until the ranks end with these exit codes; return what each wrote to stderr."""
        assert self.codes() == list(codes), self.stderr()
        return self.stderr()

    def wait_for(self, path, seconds=120):
        end = time.monotonic() + seconds
        while not path.exists() and time.monotonic() < end:
            time.sleep(0.02)
        assert path.exists(), self.stderr()


def train_in_ranks(folder, run, world, *assignments, name="system", before=None):
    """Train a system with this number of ranks; return the ranks."""
    argv = arguments(run, *assignments, name=name)
    together = Together(folder / name, world, argv, before=before)
    together.ended(*[0] * world)
    return together


def weights(run, name, step):
    """Weights in a checkpoint: the averages, and those that are trained."""
    checkpoint = run.system(name).checkpoints / f"step-{step:08d}"
    tensors = load_file(checkpoint / "optimizer.safetensors")
    raw = {key: tensor for key, tensor in tensors.items() if key.startswith(RAW)}
    return load_file(checkpoint / "model.safetensors") | raw


def largest_difference(a, b):
    assert a.keys() == b.keys()
    return max(float((a[key].double() - b[key].double()).abs().max()) for key in a)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A run with a system trained by 1, 2 and 3 ranks; the ranks by their number."""
    before = dict(os.environ)
    # Read when the server starts; the command sets the second itself.
    os.environ |= {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    folder = tmp_path_factory.mktemp("ranks")
    run = make_run(folder / "run")
    yield run, {n: train_in_ranks(folder, run, n, name=f"of{n}") for n in (1, 2, 3)}
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def run(base):
    return base[0]


@pytest.mark.parametrize("world", [2, 3])
def test_ranks_train_the_weights_and_averages_of_one_process(world, run):
    alone = [weights(run, "of1", step) for step in (3, 6)]
    for step, expected in zip((3, 6), alone, strict=True):
        assert largest_difference(expected, weights(run, f"of{world}", step)) < 1e-5
    assert largest_difference(*alone) > 1e-3  # the comparison can fail


MEASURED = ("loss", "nll", "grad_norm", "tgt_tokens", "padding", "epoch", "dev_loss", "dev_bleu")


@pytest.mark.parametrize("world", [2, 3])
def test_only_rank_0_writes_files_and_logs(base, world):
    run, together = base
    system = run.system(f"of{world}")
    lines = metrics(run, name=system.name)
    kinds = " ".join(f"{line['kind']} {line['step']}" for line in lines)
    assert kinds == "train 2 dev 3 train 4 train 6 dev 6"
    for line, of_one in zip(lines, metrics(run, name="of1"), strict=True):
        for key in MEASURED:
            expected = pytest.approx(of_one[key], rel=1e-4) if key in of_one else None
            assert line.get(key) == expected
    assert [line["processes"] for line in lines if line["kind"] == "train"] == [world] * 3
    first, *others = together[world].stderr()
    assert f"{world} processes" in first and others == [""] * (world - 1)
    records = lines_of(run.path / "history.jsonl")
    assert [r["processes"] for r in records if r["system"] == f"of{world}"] == [world]
    assert {p.name for p in system.checkpoints.iterdir()} == {"step-00000003", "step-00000006"}
    assert system.config.read_text() == run.system("of1").config.read_text()


def test_sigterm_to_one_rank_stops_all_and_other_numbers_of_ranks_resume(tmp_path, run):
    """2 ranks, then 3, then 1. All ranks end after the same step with exit code 75."""
    system = run.system("changing")
    argv = arguments(run, "train.checkpoint_every=1", name="changing")
    for world in (2, 3):
        there = len(checkpoints.candidates(system.checkpoints))
        together = Together(tmp_path / str(world), world, argv)
        together.wait_for(system.checkpoints / f"step-{there + 1:08d}")
        os.kill(together.processes[world - 1].pid, signal.SIGTERM)
        first, *others = together.ended(*[75] * world)
        assert "stopped by SIGTERM after step" in first
        assert others == [""] * (world - 1)
    assert "3 processes (2 before, with the same batches)" in first
    assert 2 <= len(checkpoints.candidates(system.checkpoints)) < 6
    (alone,) = train_in_ranks(
        tmp_path, run, 1, "train.checkpoint_every=1", name="changing"
    ).stderr()
    assert "1 process (3 before, with the same batches)\n" in alone
    assert largest_difference(weights(run, "of1", 6), weights(run, "changing", 6)) < 1e-5


ENDLESS = ("train.max_steps=1000000", "train.validate_every=1000000", "train.checkpoint_every=5")


def sleep_on_request():
    """Let SIGUSR2 stop the main thread alone."""
    signal.signal(signal.SIGUSR2, lambda *_: time.sleep(600))


@pytest.fixture
def start(tmp_path, run):
    """A function: ranks that have trained some updates of an endless training, and its system."""

    def started(name, world, **values):
        argv = arguments(run, *ENDLESS, name=name)
        together = Together(tmp_path / "logs", world, argv, before=sleep_on_request, **values)
        together.wait_for(run.system(name).checkpoints / "step-00000005")
        return together, run.system(name)

    return started


def named(rank, world, pid):
    return f"rank {rank} of {world} (process {pid} on {socket.gethostname()})"


@pytest.mark.parametrize("lost", [0, 1])
def test_killed_rank_ends_the_others_and_is_named(start, lost):
    together, system = start(f"killed{lost}", 3)
    begun, pid = time.monotonic(), together.processes[lost].pid
    os.kill(pid, signal.SIGKILL)
    logs = together.ended(*[-9 if rank == lost else 3 for rank in range(3)])
    assert time.monotonic() - begun < 60
    log = logs[1 if lost == 0 else 0]
    assert f"rank {lost}" in log
    assert "the same command continues from the last checkpoint" in log
    if lost:  # else the store went with it, and no other rank can say more
        assert f"{named(1, 3, pid)} has died" in log and logs[2] == ""
    assert checkpoints.find_checkpoints(system)
    assert not list(system.checkpoints.glob("step-*/*.tmp"))


@pytest.mark.parametrize(
    ("still", "number", "message"),
    [
        (0, signal.SIGSTOP, "or its launcher is gone: the store does not answer"),
        (1, signal.SIGUSR2, "lives but does not answer"),
    ],
)
def test_rank_that_stands_still_ends_the_others_within_the_timeout(start, still, number, message):
    together, _ = start(f"still{still}", 2, timeout=3)
    begun, pid = time.monotonic(), together.processes[still].pid
    os.kill(pid, number)
    together.processes[1 - still].join(60)
    assert time.monotonic() - begun < 60
    os.kill(pid, signal.SIGKILL)
    assert together.codes()[1 - still] == 3, together.stderr()
    assert f"{named(still, 2, pid)} {message}" in together.stderr()[1 - still]


def test_killed_rank_ends_a_rank_that_waits_for_its_gpu(start):
    """A main thread that does not return stands for one that waits for its GPU."""
    together, _ = start("gpu", 2, timeout=3)
    first, second = (process.pid for process in together.processes)
    os.kill(first, signal.SIGUSR2)
    os.kill(second, signal.SIGKILL)
    assert together.codes(60) == [3, -9], together.stderr()
    assert f"{named(1, 2, second)} has died" in together.stderr()[0]


def test_error_of_one_rank_at_the_start_ends_all_and_is_logged_once(tmp_path, run):
    bad = arguments(run, "train.lr=fast", name="bad")
    good = arguments(run, name="bad")
    for commands in ([bad, bad], [good, bad], [bad, good]):
        first, second = Together(tmp_path / "logs", 2, commands).ended(2, 2)
        assert "train.lr" in first and second == ""
        assert ("rank 1: " in first) == (commands[0] is good)
    assert not run.system("bad").checkpoints.exists()


def test_ranks_with_different_settings_do_not_start(tmp_path, run):
    commands = [arguments(run, name="other"), arguments(run, "train.lr=0.5", name="other")]
    logs = Together(tmp_path / "logs", 2, commands).ended(3, 3)
    assert "rank 1 does not begin with the settings of rank 0" in logs[0]


@pytest.mark.parametrize(
    ("fact", "other", "mine"),
    [
        ("number type", "torch.float16", "float32"),
        ("nmtkit", "0.0.1", nmtkit.__version__),
        ("torch", "2.0.1", torch.__version__),
    ],
)
def test_ranks_with_different_number_types_or_versions_do_not_start(fact, other, mine):
    class Different(Ranks):
        def gather_values(self, value):
            return [value, {key: other if key == fact else value[key] for key in value}]

    plan, state = SimpleNamespace(model_dump=dict), SimpleNamespace(step=0)
    autocast = {"device_type": "cpu", "dtype": torch.bfloat16, "enabled": False}
    message = f"rank 1 does not begin with the {fact} of rank 0 ({other}, not {mine})"
    with pytest.raises(EnvironmentProblem, match=re.escape(message)):
        check_ranks_agree(Different(), plan, state, torch.nn.Linear(1, 1), autocast)


def test_error_names_a_rank_that_does_not_start(tmp_path, run):
    together = Together(tmp_path / "logs", 2, arguments(run, name="missing"), timeout=2)
    together.processes[1].kill()
    assert together.codes()[0] == 3
    assert "of 2 ranks, these have not started after 2 s: 1" in together.stderr()[0]


def log_the_meeting():
    store = ranks.TCPStore

    def logging_store(*arguments, **options):
        os.write(2, b"meets the others")
        return store(*arguments, **options)

    ranks.TCPStore = logging_store


@pytest.mark.parametrize(("waiting", "number"), [(0, signal.SIGTERM), (1, signal.SIGINT)])
def test_signal_ends_a_rank_that_waits_for_the_others(tmp_path, waiting, number, run):
    argv = arguments(run, name="waiting")
    together = Together(tmp_path / "logs", 2, argv, before=log_the_meeting)
    together.processes[1 - waiting].kill()
    end = time.monotonic() + 60
    while not together.logs[waiting].read_text() and time.monotonic() < end:
        time.sleep(0.02)
    os.kill(together.processes[waiting].pid, number)
    assert together.codes(10)[waiting] == -number


def test_port_of_another_program_ends_all_ranks(tmp_path, run):
    with socket.create_server(("", 0)) as silent:
        port = silent.getsockname()[1]
        argv = arguments(run, name="port")
        first, second = Together(tmp_path / "logs", 2, argv, timeout=2, port=port).ended(3, 3)
    assert "address already in use" in first and "MASTER_PORT" in first
    assert f"127.0.0.1:{port} does not answer" in second and "MASTER_PORT" in second


def without_interface(rank):
    if os.environ["RANK"] == rank:
        os.environ["GLOO_SOCKET_IFNAME"] = "nowhere0"


@pytest.mark.parametrize("rank", [0, 1])
def test_rank_without_a_network_interface_ends_all_ranks(tmp_path, rank, run):
    argv, begun = arguments(run, name="interface"), time.monotonic()
    before = functools.partial(without_interface, str(rank))
    first, _ = Together(tmp_path / "logs", 2, argv, before=before).ended(3, 3)
    assert time.monotonic() - begun < 40
    assert "Unable to find address for: nowhere0" in first and "GLOO_SOCKET_IFNAME" in first


def test_torchrun_trains_the_weights_of_one_process(run):
    """By the command of the README. The `--` keeps torchrun from reading nmtkit's options."""
    launcher = "-m torch.distributed.run --standalone --nproc-per-node 2 -m -- nmtkit"
    done = subprocess.run(
        [sys.executable, *launcher.split(), *arguments(run, name="torchrun")],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert largest_difference(weights(run, "of1", 6), weights(run, "torchrun", 6)) < 1e-5
    assert done.stderr.count("at step 6 of 6") == 1


def short_of_memory():
    """In the second rank memory holds no batch of more than 30 positions."""
    original = losses.backward

    def backward(logits_of, hidden, batch, *rest):
        if os.environ["RANK"] == "1" and batch.src.numel() + batch.tgt_out.numel() > 30:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return original(logits_of, hidden, batch, *rest)

    losses.backward = backward


def test_batches_are_cut_for_the_ranks_and_for_the_memory_of_one_rank(tmp_path, run):
    """One batch an update, three ranks, and one of them short of memory: all cut the same
    batches in parts, and the update is the same.
    """
    settings = ("train.update_size=0", "model.dropout=0", "train.dev_bleu=false", "train.samples=0")
    train_in_ranks(tmp_path, run, 1, *settings, name="whole")
    together = train_in_ranks(tmp_path, run, 3, *settings, name="cut", before=short_of_memory)
    assert largest_difference(*(weights(run, name, 6) for name in ("whole", "cut"))) < 1e-5
    assert 30 < state_of(run, "cut")["split_from"] < 90
    assert "positions does not fit into memory" in together.stderr()[0]


# Without processes


def test_rank_whose_main_thread_hangs_writes_its_checkpoint_before_it_ends(monkeypatch):
    done, writer, group = [], saving.Writer(), ranks.Group.__new__(ranks.Group)
    monkeypatch.setattr(ranks.os, "_exit", done.append)
    monkeypatch.setattr(ranks, "SILENCE", 0)
    group.rank, group._closed, group.before_exit = 1, threading.Event(), writer.wait
    writer.begin(lambda: time.sleep(0.2) or done.append("written"))
    group._exit(ranks.Cause(1, "has died"))
    assert done == ["written", 3]


class Unconnected(Ranks):
    """A rank that talks to no other."""

    def __init__(self, world, rank=1):
        self.world, self.rank = world, rank


@pytest.mark.parametrize("world", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_each_pair_is_computed_by_exactly_one_rank(world, count):
    update = [np.arange(start, start + 20) for start in range(0, 20 * count, 20)]
    model = Case("transformer").build()
    gradients = Gradients(model, None, TrainSettings(), {}, TrainState(), Unconnected(world))
    parts = gradients.parts(update)
    assert np.concatenate(parts).tolist() == list(range(20 * count))
    if count >= world:
        assert [part.tolist() for part in parts] == [rows.tolist() for rows in update]
    else:
        most = max(sum(len(part) for part in parts[rank::world]) for rank in range(world))
        assert most <= 20
        assert count > 1 or len(parts) == world
    shares = [Unconnected(world, rank).share(list(enumerate(parts))) for rank in range(world)]
    assert sorted(number for share in shares for number, _ in share) == list(range(len(parts)))


@pytest.mark.parametrize(
    "wrong",
    [
        {"RANK": "2"},
        {"RANK": None},
        {"MASTER_ADDR": None},
        {"MASTER_PORT": "70000"},
        {"WORLD_SIZE": "many"},
        {torchrun.TIMEOUT: "inf"},
    ],
)
def test_environment_of_torchrun_that_is_not_consistent_is_refused(monkeypatch, wrong):
    right = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29999"}
    for name, value in {**right, torchrun.TIMEOUT: "1", **wrong}.items():
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    with pytest.raises(torchrun.ConfigError, match="do not fit together"), torchrun.joined():
        pass
