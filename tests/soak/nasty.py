"""Put random nasty text files through prep and translate: no line may be lost or shifted.

python -m tests.soak.nasty [--files 2000] [--seed 1] [--at-once 100]

The files of a round are test sets; together they are the source side of a training text whose
target side numbers the lines. Two systems translate the files. The first copies its source, so its
output shows a lost, doubled or shifted line. The second is a tiny Transformer with random weights,
whose output must have as many lines. `translate FILE` and the reader of stdin get the raw files,
too.
"""

import argparse
import contextlib
import io
import itertools
import json
import random
import tempfile
import time
from collections import Counter
from pathlib import Path

import torch

from nmtkit import console, trust
from nmtkit.data.store import Store
from nmtkit.errors import DataError
from nmtkit.models import checkpoints, loading
from nmtkit.models.variants import build_model
from nmtkit.prep.stage import prep
from nmtkit.text.side import TextSide
from nmtkit.text.tidy import tidy
from nmtkit.text.vocabulary import load_vocabularies
from nmtkit.toml import write_toml
from nmtkit.translate import systems
from nmtkit.translate.output import print_translations
from nmtkit.translate.stage import translate
from nmtkit.translate.windows import Boundaries, stream_windows

WORDS = (
    *("der", "Hund", "sieht", "einen", "Baum", "Mr.", "3,000", "U-Bahn", "don't", "(x)"),
    *("“R&D”", "日本", "我们", "naïve", "é", "ßüß"),
)
MARKS = (
    *("@@", "@-@", "a@@", "<s>", "</s>", "<pad>", "<unk>", "&apos;", "&amp;amp;", "&#124;", "|"),
    *("[", "]", "--", "...", "http://x.y/z?a=b"),
)
ODD = "\x00\ufeff\r\t\x0b\x0c\x1c\x1f\x7f\x85\u2028\u2029\u00a0\u3000\u200b\u202e"
BAD = [b"\xff", b"\xc3", b"\xe2\x82", b"\xed\xa0\x80", b"\xc0\xaf", b"\xf5\x80\x80\x80"]
"""Bytes that are not UTF-8; the fourth is a lone surrogate."""
ENDS = [b"\n"] * 8 + [b"\r\n"] * 3


def word(draw: random.Random) -> str:
    kind = draw.random()
    if kind < 0.6:
        return draw.choice(WORDS)
    if kind < 0.8:
        return draw.choice(MARKS)
    if kind < 0.95:
        return draw.choice(WORDS) + draw.choice(ODD) + draw.choice(WORDS)
    planes = [(32, 0x250), (0x250, 0xD800), (0xE000, 0x30000)]
    return "".join(chr(draw.randrange(*draw.choice(planes))) for _ in range(5))


def line(draw: random.Random) -> bytes:
    """One line without its LF: empty, blank, ordinary, very long, one huge word, or not UTF-8."""
    kind = draw.random()
    if kind < 0.12:
        return b""
    if kind < 0.2:
        return draw.choice(
            [" ", "   ", "\ufeff", "\u00a0", "\u2028", "\t\x00", "\x85 \u3000"]
        ).encode()
    if kind < 0.202:
        return " ".join(word(draw) for _ in range(10_000)).encode()
    if kind < 0.205:
        return ("".join(draw.choice(WORDS) for _ in range(2000))).replace(" ", "").encode()
    text = " ".join(word(draw) for _ in range(draw.randint(1, 14)))
    before = draw.choice(["", "", "", " ", "\ufeff"])
    after = draw.choice(["", "", "", " ", "\r", "\u2028"])
    raw = f"{before}{text}{after}".replace("\n", " ").encode()
    if kind < 0.23:
        at = draw.randrange(len(raw) + 1)
        raw = raw[:at] + draw.choice(BAD) + raw[at:]
    return raw


def nasty_file(draw: random.Random) -> tuple[bytes, list[bytes]]:
    """Return the bytes of a file of 1 to 12 lines, and its lines, split at LF."""
    lines = [line(draw) for _ in range(draw.randint(1, 12))]
    ends = [draw.choice(ENDS) for _ in lines]
    if draw.random() < 0.3 and lines[-1]:
        ends[-1] = b""  # no LF at the end
    content = b"".join(one + end for one, end in zip(lines, ends, strict=True))
    if draw.random() < 0.1:
        content = b"\xef\xbb\xbf" + content
    return content, content.removesuffix(b"\n").split(b"\n")


def write_numbers(path: Path, count: int) -> None:
    """Write lines with their numbers, which show a shifted line."""
    path.write_text("".join(f"Zeile {i}\n" for i in range(count)), "utf-8")


def first_bad(lines: list[bytes]) -> int | None:
    """Return the number of the first line that is not UTF-8, from 1."""
    return next((i for i, raw in enumerate(lines, 1) if not valid(raw)), None)


def has_text(drawn: tuple[bytes, list[bytes]]) -> bool:
    """True if a line is not blank: prep refuses a test set without text."""
    return any(tidy(line.decode("utf-8", "replace")).strip() for line in drawn[1])


def make_systems(run) -> None:
    """Save a system that copies its source, and a tiny Transformer."""
    trust.allow(["tests.soak.copying"])
    vocabularies = loading.vocabulary_sizes(run)
    sizes = {"d_model": 16, "d_ff": 32, "heads": 2, "encoder_layers": 1, "decoder_layers": 1}
    for name, variant, values in (
        ("copy", "tests.soak.copying:Copying", {}),
        ("tiny", "transformer", sizes),
    ):
        system = run.system(name)
        system.path.mkdir(parents=True)
        # The Transformer never predicts </s>, so its length is limited to few tokens.
        search = {
            "beam": 2,
            "max_length_a": 1.0 if name == "copy" else 0.0,
            "max_length_b": 2,
            "batch_size": 32,
            "max_source": 120,
        }
        write_toml(system.config, {"variant": variant, "model": values, "search": search})
        torch.manual_seed(1)
        about = {"variant": variant, "vocabulary": loading.vocabulary_hashes(run)}
        weights = loading.weights_of(build_model(variant, values, vocabularies))
        checkpoints.save(system.checkpoints, 1, weights, {}, {}, about)


class Round:
    """One training text and its test sets, prepared and translated."""

    def __init__(self, folder: Path, draw: random.Random, count: int, counts: Counter) -> None:
        self.counts = counts
        drawn = (nasty_file(draw) for _ in itertools.count())
        self.files = list(itertools.islice(filter(has_text, drawn), count))
        self.raw = [folder / f"nasty{i}.en" for i in range(count)]
        for path, (content, _) in zip(self.raw, self.files, strict=True):
            path.write_bytes(content)
        self.train = [one for _, lines in self.files for one in lines]
        train = folder / "train.en", folder / "train.de"
        train[0].write_bytes(b"\n".join(self.train) + b"\n")
        write_numbers(train[1], len(self.train))
        for path, (_, lines) in zip(self.raw, self.files, strict=True):
            write_numbers(path.with_suffix(".de"), len(lines))
        self.strict_is_refused(folder, train)
        tests = [f"{path},{path.with_suffix('.de')}" for path in self.raw]
        options = {"preset": "tiny", "jobs": 1, "run_dir": folder / "run"}
        values = ["prep.merges=300", "prep.on_bad_utf8=replace", "prep.max_ratio=1000000"]
        # Use Moses even for lines that look segmented.
        values += ["prep.src_tokenizer=moses", "prep.tgt_tokenizer=moses"]
        self.run = prep("nasty", train=train, dev=train, test=tests, assignments=values, **options)
        make_systems(self.run)
        self.src, self.tgt = (TextSide.load(self.run.prep, side) for side in ("src", "tgt"))
        self.vocabularies = load_vocabularies(self.run.prep)

    def strict_is_refused(self, folder: Path, train: tuple[Path, Path]) -> None:
        """Check that prep without on_bad_utf8 names the first bad line and writes nothing."""
        bad = first_bad(self.train)
        if bad is None:
            return
        try:
            prep("nasty", train=train, dev=train, preset="tiny", jobs=1, run_dir=folder / "strict")
            raise AssertionError("bytes that are not UTF-8 were taken")
        except DataError as error:
            assert f"train.en, line {bad}, byte " in str(error.where), (error.where, bad)
            assert not (folder / "strict").exists()
            self.counts["strict preps refused at the right line"] += 1

    def ids(self, text: str) -> list[int]:
        return self.vocabularies[0].encode(self.src.encode(text))

    def check_training(self) -> None:
        """Check that the pairs are lines with their numbers, in order; that each missing line is
        empty or above a limit; and that missing lines are counted.
        """
        store, manifest = Store(self.run.prep / "train"), self.run.manifest().model_dump()
        settings = manifest["settings"]
        kept = 0
        for number, raw in enumerate(self.train):
            text = raw.decode("utf-8", "replace")
            words = self.src.tokens(text)
            pieces = self.ids(text)
            fits = (
                1 <= len(words) <= settings["max_words"]
                and len(pieces) <= settings["max_subwords"] + 1
            )
            if kept < len(store) and fits and store.src(kept).tolist() == pieces:
                assert store.tgt(kept).tolist() == self.vocabularies[1].encode(
                    self.tgt.encode(f"Zeile {number}")
                ), f"line {number} has shifted"
                kept += 1
            else:
                assert not fits or max(map(len, words)) > 1000, (
                    f"line {number} of the training text is lost: {raw[:80]!r}"
                )
                self.counts["training lines dropped, as counted"] += 1
        assert kept == len(store)
        dropped = sum(reason["pairs"] for reason in manifest["cleaning"]["dropped"].values())
        assert dropped == len(self.train) - kept
        self.counts["training lines kept"] += kept

    def copied(self, text: str) -> str:
        """Return the translation of a line by the copying system."""
        return self.tgt.decode(self.vocabularies[1].decode(self.ids(text))) if text.strip() else ""

    def check_sets(self) -> None:
        """Check that prepared texts and translations have every line in its place."""
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            translate(self.run, jobs=1)
        assert printed.getvalue() == ""
        for i, (_, lines) in enumerate(self.files):
            expected = [tidy(one.decode("utf-8", "replace")) for one in lines]
            name = f"nasty{i}"
            assert read(self.run.source(name)) == expected
            store = Store(self.run.prep / name)
            assert [store.src(j).tolist() for j in range(len(store))] == [
                self.ids(text) for text in expected
            ]
            assert read(self.run.system("copy").translation(name) / "hyp.txt") == [
                self.copied(text) for text in expected
            ]
            hyp = read(self.run.system("tiny").translation(name) / "hyp.txt")
            assert len(hyp) == len(lines)
            assert not any(out for out, text in zip(hyp, expected, strict=True) if not text.strip())
            self.counts["lines of test sets translated twice"] += len(lines)

    def check_files(self) -> None:
        """Check `translate FILE` of the raw files, and the reader of stdin."""
        (group,) = systems.choose(self.run, ["copy"], ensemble=False, search={}, single=True)
        scorer = group.scorer(torch.device("cpu"), "float32")
        for path, (content, lines) in zip(self.raw, self.files, strict=True):
            bad = first_bad(lines)
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                try:
                    print_translations(scorer, group, str(path), Boundaries())
                    assert bad is None
                except DataError as error:
                    assert bad is not None, error
                    assert f"{path}, line {bad}, byte " in str(error.where)
                    self.counts["raw files refused at the right line"] += 1
            if bad is None:
                out = printed.getvalue().split("\n")
                assert out.pop() == ""
                assert out == [self.copied(one.decode()) for one in lines]
                self.counts["lines of raw files translated"] += len(lines)
                assert [
                    one for window in stream_windows(io.BytesIO(content)) for one in window
                ] == [one.decode() for one in lines]


def valid(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def read(path: Path) -> list[str]:
    text = path.read_bytes().decode().split("\n")
    assert text.pop() == "", f"{path} does not end in LF"
    return text


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=100)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    console.set_quiet(True)
    counts: Counter = Counter()
    start, draw = time.monotonic(), random.Random(chosen.seed)
    while counts["files"] < chosen.files:
        count = min(chosen.at_once, chosen.files - counts["files"])
        with tempfile.TemporaryDirectory() as folder:
            one = Round(Path(folder), draw, count, counts)
            one.check_training()
            one.check_sets()
            one.check_files()
        counts["files"] += count
        counts["lines"] += len(one.train)
        counts["cpu_seconds"] = round(time.process_time())
        counts["seconds"] = round(time.monotonic() - start)
        print(json.dumps(counts), flush=True)
    print("no line lost, none shifted")


if __name__ == "__main__":
    main()
