"""The Python interface: `nmtkit.load(path)` returns a trained system that translates, scores and
encodes. Its results equal the results of the commands.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral
from pathlib import Path
from typing import Any, Literal, Never, TypeVar

import torch
from torch import Tensor

from nmtkit import console, environment, files, trust
from nmtkit.analyze.sentence_vectors import by_length, encoder_states
from nmtkit.corpora.document_starts import BLANK
from nmtkit.data.batches import source_batch
from nmtkit.data.documents import Documents, are_starts
from nmtkit.errors import CheckpointError, ConfigError, DataError
from nmtkit.models.base import Model
from nmtkit.nn import hardware
from nmtkit.nn.linear import Precision, inference, product_precision_restored
from nmtkit.parallel import cores
from nmtkit.run import Run
from nmtkit.settings import SearchSettings
from nmtkit.text.vocabulary import EOS
from nmtkit.translate import workers
from nmtkit.translate.demands import LineDemand
from nmtkit.translate.scorer import ForcedLine, Scorer
from nmtkit.translate.systems import SystemGroup, choose
from nmtkit.translate.translator import Translation
from nmtkit.translate.windows import Boundaries, windowed
from nmtkit.user_classes import blamed_on

T = TypeVar("T")
Starting = Sequence[int] | Literal["blank"] | None
"""Where documents start: the numbers of their first lines, from 0; "blank" = after blank lines;
None = every line is a document.
"""


_one_thread_at_a_time = threading.RLock()
"""Held while a system computes, because threads share torch's settings and the graphs of a GPU."""


def _new_lock() -> None:
    """Replace the lock in a forked process, which lacks the thread that may hold it."""
    global _one_thread_at_a_time
    _one_thread_at_a_time = threading.RLock()


os.register_at_fork(after_in_child=_new_lock)


class NotLines(ConfigError, TypeError):
    """Raised for an argument that is not a list of lines, for example for a single string, which
    Python would treat as a list of letters.
    """


@dataclass(frozen=True)
class EncodedLine:
    """The output of a system's encoder for a line: S tokens (</s> last), and their states, a tensor
    (S, D) on the CPU.
    """

    tokens: list[str]
    states: Tensor


def load(
    path: str | Path,
    system: str | None = None,
    device: str = "auto",
    *,
    jobs: int = 1,
    allow_code: Sequence[str] = (),
    **search: Any,
) -> LoadedSystem:
    """Return a trained system, ready for use.

    While the system computes, it sets torch's number of threads and precision of matrix products.
    Then it restores them. These changes last until the process ends: denormal numbers count as
    zero, the C allocator has other settings, and after a system on a GPU torch does not use cuDNN's
    attention (see `nmtkit.nn.hardware.choose`). Several threads may use systems; only one computes
    at a time.

    Args:
        path: a run directory, or a system's folder in it (runs/mine/systems/baseline).
        system: the name of the system; None = the system trained last.
        device: auto, cpu, cuda or mps.
        jobs: number of worker processes on a CPU of Linux, each with one thread; 0 = one per core.
            Elsewhere there are none. The output does not depend on `jobs`.
        allow_code: modules that may be imported if the system names them. Read a module first, if
            somebody else has made the run: importing executes it.
        search: search settings that replace the system's own (beam=10, length_penalty=1.0,
            nbest=5, average=3, …).
    Raises: DataError if there is no run or no trained system; ConfigError for an unknown system,
        setting or value; CheckpointError if a checkpoint is damaged or has another vocabulary;
        EnvironmentProblem if the device does not exist.
    """
    trust.allow(_lines(allow_code, "allow_code"))
    _check_type("path", path, str | os.PathLike, "a folder")
    _check_type("system", system, str | None, "the name of a system")
    _check_type("device", device, str, "auto, cpu, cuda or mps")
    _check_type("jobs", jobs, Integral, "a whole number")
    if jobs < 0:
        raise ConfigError(f"{jobs} worker processes", where="jobs", hint="0 = one per core")
    run, name = _find(files.expanded_path(path), system)
    environment.room_for_products(1)
    picked = hardware.pick_device(device)
    if picked == torch.device("cuda"):  # another thread may have another current device
        picked = torch.device("cuda", torch.cuda.current_device())
    names = [] if name is None else [name]
    return LoadedSystem(choose(run, names, False, search, single=True)[0], picked, jobs or cores())


def _check_type(argument: str, value: object, kind: Any, expected: str) -> None:
    if not isinstance(value, kind):
        raise ConfigError(
            f"expected {expected}, not {type(value).__name__}",
            where=argument,
            hint="see help(nmtkit.load)",
        )


def _find(path: Path, system: str | None) -> tuple[Run, str | None]:
    """Return the run at a path, and the name of the system if the path or `system` names one."""
    path = path.absolute()
    run = Run(path)
    if path.parent.name == "systems" and not run.prep.is_dir():
        if system not in (None, path.name):
            raise ConfigError(
                f"{path} is not the folder of '{system}'",
                where="system",
                hint="leave system= out, or give the folder of the run",
            )
        run, system = Run(path.parents[1]), path.name
    run.manifest()
    return run, system


class LoadedSystem:
    """A trained system, as `load` returns it.

    Args:
        group: the system with its search settings.
        device: the device to compute on.
        jobs: number of worker processes on a CPU.
    """

    def __init__(self, group: SystemGroup, device: torch.device, jobs: int) -> None:
        self._group, self.device, self._jobs = group, device, jobs
        self.name = group.name
        self.run = group.run
        self._loaded: dict[Precision, Scorer] = {}
        self._checkpoints = group.checkpoints()
        self._searches = self._scorer(forced=False)
        if self._searches.context_rule is not None:
            console.say(f"'{self.name}' reads context: mark with documents= where documents start")

    def __repr__(self) -> str:
        return f"<system '{self.name}' of {self.run.path} on {self.device}>"

    def __reduce__(self) -> Never:
        raise ConfigError(
            "a loaded system cannot be pickled or copied",
            where=self.name,
            hint="call nmtkit.load again, in the process that needs it",
        )

    @property
    def settings(self) -> SearchSettings:
        """The search settings."""
        return self._group.settings

    @property
    def model(self) -> Model:
        """The model itself, in evaluation mode; its weights are float32 and must not be changed."""
        return self._scores.models[0]

    def translate(
        self,
        lines: Sequence[str],
        documents: Starting = None,
        *,
        prefix: Sequence[str] | None = None,
        constraints: Sequence[Sequence[str]] | None = None,
    ) -> list[str]:
        """Return the best translation of each line as plain text ("" for a blank line), as `nmtkit
        translate FILE` prints it. Samples depend on the seed and on the line's place in the call.

        Args:
            lines: (N) raw lines.
            documents: where documents start, for a system that reads context.
            prefix: (N) the whole words that each translation begins with; "" = no prefix.
            constraints: (N) lists of phrases that each translation contains; empty phrases are
                ignored. With SentencePiece the last word of a prefix or phrase may go on.
        Raises: NotLines for anything but a list of strings; ConfigError if `documents` is an
            unknown word; DataError for wrong line numbers, or for a prefix or phrase that no
            translation can have.
        """
        translations = self.translations(lines, documents, prefix=prefix, constraints=constraints)
        return [translation.text for translation in translations]

    def translations(
        self,
        lines: Sequence[str],
        documents: Starting = None,
        *,
        prefix: Sequence[str] | None = None,
        constraints: Sequence[Sequence[str]] | None = None,
    ) -> list[Translation]:
        """Return the `nbest` candidates of each line: text, subwords, log-probability, score, and
        True if finished. The arguments are as in `translate`.
        """
        lines = _lines(lines, "lines")
        prefixes = [""] * len(lines) if prefix is None else _lines(prefix, "prefix")
        _check_counts(prefixes, lines, "prefixes")
        of_lines = [()] * len(lines) if constraints is None else _items(constraints, "constraints")
        phrases = [tuple(filter(str.strip, _lines(line, "constraints"))) for line in of_lines]
        _check_counts(phrases, lines, "lists of phrases")
        demands = map(LineDemand, itertools.count(), prefixes, phrases)
        with self._computing():
            boundaries = _boundaries(documents, len(lines))
            windows = self._searches.windows(windowed(lines), boundaries, demands)
            return list(itertools.chain.from_iterable(self._searches.translate_windows(windows)))

    def score(
        self, src: Sequence[str], tgt: Sequence[str], documents: Starting = None
    ) -> list[float]:
        """Return the natural log-probability of each target, </s> included, as `nmtkit translate
        FILE --force-target FILE` prints it.

        Args:
            src: (N) raw source lines. No line is cut; a blank line is an empty sentence.
            tgt: (N) raw target lines, one for each source line.
            documents: where documents start among the source lines, for a system that reads
                context.
        Raises: as `translate`; DataError if the numbers of lines differ.
        """
        return [line.log_prob for line in self.token_scores(src, tgt, documents)]

    def token_scores(
        self, src: Sequence[str], tgt: Sequence[str], documents: Starting = None
    ) -> list[ForcedLine]:
        """Return each target's tokens (</s> last) and their log-probabilities; see `score`."""
        src, tgt = _lines(src, "src"), _lines(tgt, "tgt")
        _check_counts(tgt, src, "targets")
        with self._computing():
            windows = self._scores.windows(windowed(src), _boundaries(documents, len(src)))
            return list(self._scores.force_windows(windows, iter(tgt)))

    def encode(self, src: Sequence[str]) -> list[EncodedLine]:
        """Return the tokens of each line, and the encoder states that the decoder reads. No context
        is read, even if the system reads context elsewhere.

        Args:
            src: (N) raw source lines. No line is cut; a blank line is an empty sentence.
        Raises: NotLines, as `translate`; DataError if the model has no state per source position.
        """
        side, vocabulary = self._scores.src_side, self._scores.src_vocab
        subwords = [side.encode(line) for line in _lines(src, "src")]
        ids = [vocabulary.encode(line) for line in subwords]
        encoded: dict[int, EncodedLine] = {}
        with self._computing():
            for rows in by_length(list(map(len, ids))):
                batch = source_batch([ids[i] for i in rows], self.device)
                with inference([self.model]):
                    states = encoder_states(self.model, batch, layer=0)
                for row, i in enumerate(rows):
                    # Copied outside of inference mode, so that autograd can use the tensor.
                    of_line = states[row, : len(ids[i])].cpu().clone()
                    encoded[i] = EncodedLine([*subwords[i], vocabulary[EOS]], of_line)
        return [encoded[i] for i in range(len(ids))]

    @cached_property
    def _scores(self) -> Scorer:
        """The scorer for scores and states; if the search is float32 too, the search's scorer."""
        return self._scorer(forced=True)

    def _scorer(self, forced: bool) -> Scorer:
        products = product_precision_restored()
        # Ctrl-C at the end of a torch.no_grad block can leave gradients off.
        gradients = torch.set_grad_enabled(torch.is_grad_enabled())
        with blamed_on(), _one_thread_at_a_time, products, gradients, self._current_device():
            machine = self._group.hardware(self.device, forced)
            if not self._loaded:
                self._matmul = machine.matmul
            # A scorer that is loaded later uses the same precision of matrix products.
            torch.set_float32_matmul_precision(self._matmul)
            if machine.precision not in self._loaded:
                try:
                    scorer = self._group.scorer(self.device, machine.precision, self._jobs)
                finally:  # a training may have removed the checkpoints, or ended in between
                    self._check_unchanged()
                self._loaded[machine.precision] = scorer
        return self._loaded[machine.precision]

    def _check_unchanged(self) -> None:
        """Raise CheckpointError if the weights on disk are no longer those of the search."""
        try:
            unchanged = self._group.checkpoints() == self._checkpoints
        except CheckpointError:
            unchanged = False
        if not unchanged:
            raise CheckpointError(
                f"the checkpoints of '{self.name}' have changed since it was loaded, or are gone",
                where=self.run.path,
                hint="call nmtkit.load again",
            )

    @contextlib.contextmanager
    def _computing(self) -> Iterator[None]:
        """Compute as the commands do, so that results are identical to the last bit: one thread per
        process, and the precision of products chosen for the device. Another thread waits.
        """
        with blamed_on(), _one_thread_at_a_time, product_precision_restored():
            torch.set_float32_matmul_precision(self._matmul)
            with self._current_device(), workers.one_thread(self.device):
                yield

    def _current_device(self) -> contextlib.AbstractContextManager[object]:
        """Return a context in which the system's GPU is the current device of this thread, which
        Triton's kernels and CUDA graphs use.
        """
        gpu = self.device.type == "cuda"
        return torch.cuda.device(self.device) if gpu else contextlib.nullcontext()


def _boundaries(documents: Starting, count: int) -> Boundaries:
    """Return where documents start among `count` lines."""
    if documents is None:
        return Boundaries()
    if isinstance(documents, str):
        if documents != BLANK:
            raise ConfigError(
                f"'{documents}' does not say where documents start",
                where="documents",
                hint="give 'blank', or line numbers from 0",
            )
        return Boundaries(BLANK)
    starts: list[Any] = list(documents) if isinstance(documents, Iterable) else [None]
    whole = all(isinstance(start, Integral) for start in starts)
    if not whole or not are_starts(starts, count):
        raise DataError(
            "wrong line numbers of document starts",
            where="documents",
            hint=f"give rising line numbers; the first is 0, all are below {count:,}",
        )
    return Boundaries(known=Documents(starts, count))


def _check_counts(lines: Sequence[object], sources: Sequence[str], name: str) -> None:
    """Raise DataError unless there is one line for each source."""
    if len(lines) != len(sources):
        raise DataError(
            f"{len(lines):,} {name} for {len(sources):,} sources",
            where=name,
            hint="give one line for each source line",
        )


def _items(values: Iterable[T], argument: str) -> list[T]:
    """Return the items of an argument with one item for each line.

    Raises: NotLines for a single string, or anything else that is not a list.
    """
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise NotLines(
            f"expected a list of lines, not {type(values).__name__}",
            where=argument,
            hint='put one line into a list, too: ["A dog runs."]',
        )
    return list(values)


def _lines(values: Iterable[str], argument: str) -> list[str]:
    """Return the lines of an argument.

    Raises: NotLines for anything but a list of strings.
    """
    lines = _items(values, argument)
    for number, line in enumerate(lines):
        if not isinstance(line, str):
            raise NotLines(
                f"a line must be a string, not {type(line).__name__}",
                where=f"{argument}[{number}]",
                hint="give strings",
            )
    return lines
