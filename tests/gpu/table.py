"""Measure the training speed of every variant, relative to its arithmetic, and the search speed.

    python -m tests.gpu.table FOLDER [--seconds 240] [--tiny] [--systems amn,han]

The command writes table.json and table.md to the folder.

Corpora have random tokens. nmtkit's own stage trains each model for a few updates. The speed is the
median of the later lines of metrics.jsonl during which no CUDA graph was recorded. The most
important rows come first; the others are left out if time runs out. `over MACs` is the time of a
target token relative to that of the Transformer, over the ratio of their multiply-accumulates.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.util
import json
import platform
import shutil
import statistics
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from nmtkit.analyze.timing import Endless
from nmtkit.data.store import Store
from nmtkit.export.stage import export
from nmtkit.measures.macs import Macs, count_macs
from nmtkit.models.loading import build_untrained
from nmtkit.models.variants import VARIANTS, load_variant
from nmtkit.run import Run
from nmtkit.text.vocabulary import load_vocabularies
from nmtkit.train.graphs import Graphs
from nmtkit.train.reporting import Reporter
from nmtkit.train.stage import train
from nmtkit.translate.beam import Beams
from nmtkit.translate.systems import SystemGroup
from nmtkit.translate.translator import Translator
from tests.device import DEVICE, ON_GPU
from tests.gpu.corpus import DOCUMENT, Corpus, make
from tests.word_side import WordSide

BASE, IWSLT, SMALL = (
    Corpus("base", 33_000, 28, 20_000),
    Corpus("dc-iwslt", 21_000, 24, 20_000),
    Corpus("small", 8_000, 14, 20_000),
)
LINES = {BASE: (2, 120), IWSLT: (5, 80), SMALL: (20, 70)}
"""Updates of a line of the log, and lines of a training. Lines are short, so that some of the later
lines have no batch of a new shape, for which a graph is recorded."""
MINUTES = 0.8
"""The limit of a training; a slow system writes fewer lines."""
TINY = {"d_model": 16, "d_ff": 32, "heads": 2, "encoder_layers": 1, "decoder_layers": 1}
FEW = ("transformer", "han", "caru")
"""The variants of a tiny table."""
BASELINE = "transformer"
COMPILED = "-compiled"
"""The end of the name of a system that is trained with --compile."""
BEAMS = (5, 1)
SEARCHES = {"nmtkit": "auto", "nmtkit, bfloat16": "bfloat16"}
"""Name of each measured search -> its precision."""
TOGETHER = 512 if ON_GPU else 64
"""Sentences of a batch of CTranslate2 and Hugging Face."""
COLUMNS = {
    "preset": "preset",
    "system": "system",
    "measure": "measure",
    "speed": "tokens/s",
    "sentences": "sentences/s",
    "waits": "waits a step",
    "time": "time",
    "macs": "MACs",
    "over_macs": "over MACs",
    "share_of_peak": "of the bf16 peak",
    "graphs": "graphs",
    "memory_gib": "GiB",
    "error": "error",
}
Row = dict[str, Any]
Measurement = tuple[Corpus, str, str, Callable[[], Row]]
"""The corpus, the system, what is measured, and the function that measures and returns the row."""


@dataclass
class Bench:
    """The corpora and the measured rows.

    Args:
        folder: for the run directories.
        tiny: measure models of a few numbers, to try the code.
    """

    folder: Path
    tiny: bool
    rows: list[Row] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._speeds: dict[tuple[str, str], float] = {}
        self.peak = _peak() if ON_GPU else None
        self.run = functools.cache(self.run)
        self.macs = functools.cache(self.macs)

    def run(self, corpus: Corpus) -> Run:
        """Return the run directory of a corpus, which is made once."""
        if self.tiny:
            corpus = Corpus(corpus.preset, 200, 6, 300)
        return make(corpus, self.folder / corpus.preset)

    def macs(self, corpus: Corpus, name: str) -> Macs:
        """Return the multiply-accumulates of a trained system for sentences of the mean length."""
        run = self.run(corpus)
        model = build_untrained(run, run.system(name))
        store = Store(run.prep / "train")
        lengths = [round(float(side.mean())) for side in (store.src_lengths, store.tgt_lengths)]
        rule = model.context_rule
        contexts = (DOCUMENT - 1) / DOCUMENT * rule.size if rule is not None else 0.0
        return count_macs(model, *lengths, contexts)

    def training(self, corpus: Corpus, name: str) -> Row:
        """Train a few updates and return the row; a name that ends in COMPILED is compiled."""
        run, variant = self.run(corpus), name.removesuffix(COMPILED)
        if ON_GPU:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        with graphs_at_lines() as graphs:
            options = {"assignments": self.settings(corpus, variant), "device": DEVICE}
            train(run, variant=variant, name=name, compile_model=name != variant, **options)
        if name != BASELINE:
            shutil.rmtree(run.system(name).checkpoints)
        lines = [json.loads(line) for line in run.system(name).metrics.read_text().splitlines()]
        later = range(len(lines) // 2, len(lines))  # most shapes of batches have a CUDA graph then
        replayed = [i for i in later if graphs[i] == graphs[i - 1]] or later
        speed = statistics.median(lines[i]["tgt_tokens_per_s"] for i in replayed)
        self._speeds[corpus.preset, name] = speed
        row = {"speed": speed, "graphs": graphs[-1], "memory_gib": lines[-1]["memory_gib"]}
        if self.peak:
            row["share_of_peak"] = 2 * self.macs(corpus, name).train * speed / self.peak
        return row | self._over_macs(corpus, name)

    def settings(self, corpus: Corpus, variant: str) -> list[str]:
        """Return the assignments of a training."""
        log_every, lines_of_log = (2, 6) if self.tiny else LINES[corpus]
        settings = [f"train.max_steps={log_every * lines_of_log}", f"train.log_every={log_every}"]
        settings += ["train.checkpoint_every=1000000", "train.log_to=none"]
        settings += [f"train.max_minutes={MINUTES}"]
        if self.tiny:
            settings += ["train.batch_size=200", "train.update_size=400"]
            sizes = load_variant(variant).adapt(TINY)
            settings += [f"model.{key}={value}" for key, value in sizes.items()]
        return settings

    def _over_macs(self, corpus: Corpus, name: str) -> Row:
        baseline = self._speeds.get((corpus.preset, BASELINE))
        if baseline is None:
            return {}
        slower = baseline / self._speeds[corpus.preset, name]
        macs = self.macs(corpus, name).train / self.macs(corpus, BASELINE).train
        return {"time": slower, "macs": macs, "over_macs": slower / macs}

    def searching(self, corpus: Corpus, beam: int, precision: str = "auto") -> Row:
        """Translate with the trained baseline; every translation has the mean length."""
        run = self.run(corpus)
        settings = run.system(BASELINE).searching()
        limits = {
            "beam": beam,
            "nbest": 1,
            "precision": precision,
            "max_length_a": 0.0,
            "max_length_b": self.length(corpus),
        }
        group = SystemGroup(run, [run.system(BASELINE)], settings.model_copy(update=limits))
        device = torch.device(DEVICE)
        models = group.load(device, group.hardware(device).precision)
        sides, vocabularies = (WordSide(), WordSide()), load_vocabularies(run.prep)
        endless = [Endless(model).eval() for model in models]
        translator = Translator(endless, *sides, *vocabularies, group.settings, device)
        lines = [" ".join(line) for line in self.sources(corpus)]
        row = self.timed(corpus, lambda: translator.translate_window(lines))
        if ON_GPU:
            row["waits"] = waits_a_step(lambda: translator.translate_window(lines))
        return row

    def length(self, corpus: Corpus) -> int:
        """Return the subwords of every translation."""
        return 5 if self.tiny else round(corpus.mean)

    def sources(self, corpus: Corpus) -> list[list[str]]:
        """Return the subwords of some sources."""
        run = self.run(corpus)
        store, vocabulary = Store(run.prep / "train"), load_vocabularies(run.prep)[0]
        return [
            vocabulary.decode(store.src(i)[:-1].tolist()) for i in range(8 if self.tiny else 512)
        ]

    def timed(self, corpus: Corpus, work: Callable[[], Any], times: int = 3) -> Row:
        """Return the speed of a search: the median time after a first one for warming up."""
        seconds = []
        for _ in range(times + 1):
            start = time.perf_counter()
            work()
            seconds.append(time.perf_counter() - start)
        sentences = len(self.sources(corpus)) / statistics.median(seconds[1:])
        return {"sentences": sentences, "speed": sentences * self.length(corpus)}

    def ctranslate2(self, corpus: Corpus, compute: str, beam: int) -> Row:
        """Translate as `searching` does, with CTranslate2 and the same weights."""
        import ctranslate2

        engine = ctranslate2.Translator(
            str(self.exported(corpus, "ctranslate2")), device=DEVICE, compute_type=compute
        )
        length, sources = self.length(corpus), self.sources(corpus)
        options = {"beam_size": beam, "max_batch_size": TOGETHER, "length_penalty": 0}
        options |= {"min_decoding_length": length, "max_decoding_length": length}
        return self.timed(corpus, lambda: engine.translate_batch(sources, **options))

    def hugging_face(self, corpus: Corpus, compute: str, beam: int) -> Row:
        """Translate as `searching` does, with Hugging Face and the same weights."""
        from transformers import AutoModelForSeq2SeqLM

        folder = self.exported(corpus, "huggingface")
        number = getattr(torch, compute)
        model = AutoModelForSeq2SeqLM.from_pretrained(folder).eval().to(DEVICE, number)
        vocabulary = load_vocabularies(self.run(corpus).prep)[0]
        ids = sorted((torch.tensor(vocabulary.encode(s)) for s in self.sources(corpus)), key=len)
        length = self.length(corpus)
        options = {"num_beams": beam, "min_new_tokens": length, "max_new_tokens": length}

        def work() -> None:
            for start in range(0, len(ids), TOGETHER):
                part = ids[start : start + TOGETHER]
                padded = torch.nn.utils.rnn.pad_sequence(part, batch_first=True).to(DEVICE)
                model.generate(padded, attention_mask=(padded != 0).long(), **options).cpu()

        return self.timed(corpus, work, times=1)

    def exported(self, corpus: Corpus, engine: str) -> Path:
        """Return the trained baseline in the form of another engine."""
        return export(self.run(corpus), BASELINE, engine, check=False)

    def add(self, corpus: Corpus, system: str, measure: str, work: Callable[[], Row]) -> None:
        """Measure a row; an error becomes a row with its message."""
        row: Row = {"preset": corpus.preset, "system": system, "measure": measure}
        start = time.monotonic()
        try:
            row |= work()
        except Exception as error:
            traceback.print_exc()
            row["error"] = f"{type(error).__name__}: {error}".splitlines()[0]
        self.rows.append(row | {"seconds": round(time.monotonic() - start, 1)})
        print(json.dumps(self.rows[-1]), flush=True)

    def work(self, systems: Sequence[str] = ()) -> Iterator[Measurement]:
        """Yield everything to measure, the most important first.

        Args:
            systems: only their trainings and that of the baseline; none = everything. A name may
                end in `COMPILED`.
        """
        if systems:
            for name in dict.fromkeys((BASELINE, *systems)):
                yield self._training(IWSLT, name)
            return
        for corpus in (BASE, IWSLT, SMALL):
            yield self._training(corpus, BASELINE)
        for beam in BEAMS:
            for label, precision in SEARCHES.items():
                search = functools.partial(self.searching, BASE, beam, precision)
                yield BASE, label, f"beam {beam}", search
        yield from self._peers()
        for corpus in [IWSLT] if self.tiny else [IWSLT, SMALL, BASE]:
            for variant in FEW if self.tiny else VARIANTS:
                if variant != BASELINE:
                    yield self._training(corpus, variant)
            if ON_GPU and corpus is IWSLT:
                yield self._training(BASE, BASELINE + COMPILED)

    def _training(self, corpus: Corpus, name: str) -> Measurement:
        return corpus, name, "training", functools.partial(self.training, corpus, name)

    def _peers(self) -> Iterator[Measurement]:
        """Yield the searches of the installed engines."""
        peers = (
            ("ctranslate2", "CTranslate2", self.ctranslate2),
            ("transformers", "Hugging Face", self.hugging_face),
        )
        compute = "float16" if ON_GPU else "float32"
        for package, name, measure in peers:
            if importlib.util.find_spec(package) is not None:
                for beam in BEAMS:
                    search = functools.partial(measure, BASE, compute, beam)
                    yield BASE, f"{name}, {compute}", f"beam {beam}", search


@contextlib.contextmanager
def graphs_at_lines() -> Iterator[list[int]]:
    """Yield how many graphs a training has recorded at each line of its log."""
    counts: list[int] = []
    recorded = 0
    record, report = Graphs._record, Reporter.record

    def counting(graphs: Graphs, *of_batch: Any) -> Any:
        nonlocal recorded
        recorded += 1
        return record(graphs, *of_batch)

    def reporting(reporter: Reporter, kind: str, *values: Any) -> None:
        if kind == "train":
            counts.append(recorded)
        report(reporter, kind, *values)

    with (
        mock.patch.object(Graphs, "_record", counting),
        mock.patch.object(Reporter, "record", reporting),
    ):
        yield counts


def waits_a_step(search: Callable[[], Any]) -> float:
    """Return how often the host waits for the GPU in a step of a search, including its batches."""
    before = torch.cuda.get_sync_debug_mode()
    note = Beams.note
    with (
        mock.patch.object(Beams, "note", autospec=True, side_effect=note) as steps,
        warnings.catch_warnings(record=True) as waits,
    ):
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            search()
        finally:
            torch.cuda.set_sync_debug_mode(before)
    synchronizing = [w for w in waits if "synchronizing" in str(w.message)]
    return len(synchronizing) / steps.call_count


def _peak() -> float:
    """Return the operations a second of large bfloat16 products on the GPU."""
    a, b = (torch.randn(8192, 8192, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))
    seconds = []
    for _ in range(12):
        torch.cuda.synchronize()
        start = time.perf_counter()
        a @ b
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return 2 * 8192**3 / min(seconds)


def device_name() -> str:
    """Return the name of the device that is measured."""
    return torch.cuda.get_device_name() if ON_GPU else f"CPU ({platform.machine()})"


def markdown(rows: list[Row]) -> list[str]:
    """Return rows as a Markdown table with the columns that any row has."""
    keys = [key for key in COLUMNS if any(key in row for row in rows)]
    lines = [[COLUMNS[key] for key in keys], ["---"] * len(keys)]
    lines += [[_text(key, row.get(key)) for key in keys] for row in rows]
    return [f"| {' | '.join(line)} |" for line in lines]


def _text(key: str, value: Any) -> str:
    if value is None:
        return ""
    if key == "share_of_peak":
        return f"{value:.1%}"
    if not isinstance(value, float):
        return str(value).replace("|", "/")
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def main() -> None:
    """Measure until the time is over; end with 1 if a row has an error."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=240)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--systems", default="", help="variants, with commas between them")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + given.seconds
    with tempfile.TemporaryDirectory(prefix="nmtkit-gpu-") as scratch:
        bench = Bench(Path(scratch), given.tiny)
        left_out = 0
        for measurement in bench.work(list(filter(None, given.systems.split(",")))):
            if time.monotonic() < end:
                bench.add(*measurement)
            else:
                left_out += 1
            write(given.folder, bench, left_out)
    raise SystemExit(any("error" in row for row in bench.rows))


def write(folder: Path, bench: Bench, left_out: int) -> None:
    """Write the rows so far."""
    facts = {"device": device_name(), "torch": torch.__version__, "tiny": bench.tiny}
    facts |= {"bf16_peak": bench.peak, "rows_left_out": left_out, "rows": bench.rows}
    (folder / "table.json").write_text(json.dumps(facts, indent=1) + "\n", "utf-8")
    text = markdown(bench.rows)
    if left_out:
        text += ["", f"There was no time for {left_out} further rows."]
    (folder / "table.md").write_text("\n".join(text) + "\n", "utf-8")


if __name__ == "__main__":
    main()
