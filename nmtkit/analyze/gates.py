"""Analysis `gates`: how much a content-adaptive gate lets in, by word, by frequency and by part of speech."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nmtkit import console, files
from nmtkit.analyze.analysis import Finding
from nmtkit.analyze.shared import recording
from nmtkit.data.batches import Batch
from nmtkit.data.store import Store
from nmtkit.errors import ConfigError, DataError
from nmtkit.models import loading
from nmtkit.models.base import Model, Vocabularies
from nmtkit.models.variants import VARIANTS, build_model, load_variant
from nmtkit.nn.gated import Gate
from nmtkit.run import Run
from nmtkit.score.resampling import Resampling, estimate
from nmtkit.tables import figures
from nmtkit.tables.table import Column, Estimate, Table, named_bars
from nmtkit.text.bpe import JOINER
from nmtkit.text.side import TextSide
from nmtkit.text.vocabulary import EOS, UNK, load_vocabularies

Side = Literal["src", "tgt"]
ENDING, OF_CONTEXT = "_gate", ".gate"
TOP = 20
"""Types shown, the most frequent ones, as in the paper."""
OUTSIDE = -1
"""How often a word is in the training text that has a part outside the vocabulary: nobody knows."""
CLASSES = (
    *((1000, "1,000 times or more"), (100, "100–999 times"), (10, "10–99 times"), (1, "1–9 times"), (0, "never")),
    (OUTSIDE, "outside the vocabulary"),
)
"""Of words by how often training has seen them: at least so often."""
PAIRS = 50_000
"""Of the training set whose words are counted at once."""
RESAMPLES, SEED = 1000, 1
TINY = {"d_model": 8, "d_ff": 8, "heads": 1, "encoder_layers": 1, "decoder_layers": 1}
SIDES: dict[Side, str] = {"src": "source", "tgt": "target"}


@dataclass(frozen=True)
class Words:
    """The words of one side of a set as a model reads them: tokenized and truecased, but whole."""

    lines: list[list[str]]
    owners: list[NDArray[np.int64]]
    """Of each subword of a line the word it belongs to; </s> left out."""

    @cached_property
    def flat(self) -> list[str]:
        """All words (N)."""
        return [word for line in self.lines for word in line]

    @cached_property
    def offsets(self) -> NDArray[np.int64]:
        """Where each line begins among all words, and the end."""
        return np.cumsum([0, *map(len, self.lines)])

    @cached_property
    def sentences(self) -> NDArray[np.int64]:
        """The line of each word (N), from 0."""
        return np.repeat(np.arange(len(self.lines)), np.diff(self.offsets))


@dataclass(frozen=True)
class Group:
    """Words that are counted together: `members` (N) says which."""

    section: str
    label: str
    members: NDArray[np.bool_]


def read_words(run: Run, chosen: str, side: Side, lengths: NDArray[np.int64]) -> Words:
    """The words of a set's sources, or of its first references.

    Args:
        lengths: subwords of each prepared line, </s> included.
    Raises: DataError naming the first line that is not what was prepared, or for a set whose text is not kept.
    """
    text = TextSide.load(run.prep, side)
    path = run.source(chosen) if side == "src" else run.references(chosen)[0]
    if not path.is_file():  # the training set's is not kept
        having = ", ".join(one.name for one in run.sets() if run.source(one.name).is_file())
        raise DataError(f"the run keeps no text of the set '{chosen}'", where="--set-name", hint=f"one of: {having}")
    lines, owners = [], []
    for line in files.text_lines(path):
        words = text.tokens(line)
        counts = [len(text.bpe.segment([word])) if text.bpe else 1 for word in words]
        lines.append(words)
        owners.append(np.repeat(np.arange(len(words)), counts))
    if len(lines) != len(lengths):
        raise DataError(f"{len(lines):,} lines, but {len(lengths):,} were prepared", where=path, hint="prepare again: nmtkit prep … --force")
    for number, (own, length) in enumerate(zip(owners, lengths.tolist(), strict=True), 1):
        if len(own) + 1 != length:
            what = f"{len(own)} subwords, but {length - 1} were prepared"
            raise DataError(what, where=f"{path}, line {number}", hint="prepare again: nmtkit prep … --force")
    return Words(lines, owners)


def read_tags(path: Path, words: Words, side: Side) -> list[str]:
    """One tag for each word, a line of them for each sentence, separated by spaces.

    Returns: (N).
    Raises: DataError naming the first line with another number of tags than words, or another number of lines.
    """
    hint = f"the words to tag are those of tokens.{side}.txt, which this analysis writes beside its table"
    lines = list(files.text_lines(path))
    for number, (line, own) in enumerate(zip(lines, words.lines, strict=False), 1):
        if len(line.split()) != len(own):
            what = f"{len(line.split())} tags for {len(own)} words: {' '.join(own)[:60]}"
            raise DataError(what, where=f"{path}, line {number}", hint=hint)
    if len(lines) != len(words.lines):
        what = f"{len(lines):,} lines of tags for {len(words.lines):,} sentences"
        raise DataError(what, where=f"{path}, line {min(len(lines), len(words.lines)) + 1}", hint=hint)
    return [tag for line in lines for tag in line.split()]


def seen_in_training(run: Run, side: Side, words: Words, store: Store) -> NDArray[np.int64]:
    """How often each word of a set is in the training set, as it was prepared: counted there by its subwords, which tell words apart.

    Args:
        words: of a side of the set; store: the set.
    Returns: (N), OUTSIDE for a word with an unknown part.
    """
    item, training = Store.src if side == "src" else Store.tgt, Store(run.prep / "train")
    ids = [item(store, row)[:-1] for row in range(len(store))]
    owned = [(own, owners) for own, owners in zip(ids, words.owners, strict=True) if len(owners)]
    pieces = [part for own, owners in owned for part in np.split(own, np.flatnonzero(np.diff(owners)) + 1)]
    keys = [part.tobytes() for part in pieces]
    counts = dict.fromkeys(keys, 0)
    joined = np.zeros(0, dtype=bool)
    if TextSide.load(run.prep, side).bpe is not None:
        joined = np.array([token.endswith(JOINER) for token in load_vocabularies(run.prep)[side == "tgt"]])
    for start in range(0, len(training), PAIRS):
        text = np.concatenate([item(training, row) for row in range(start, min(start + PAIRS, len(training)))])
        goes_on = joined[text] if len(joined) else np.zeros(len(text), dtype=bool)
        goes_on &= np.append(text[1:] != EOS, False)
        ends = np.flatnonzero(~goes_on) + 1
        begins = np.append(0, ends[:-1])
        for length in {len(part) for part in pieces}:
            own = np.ascontiguousarray(text[begins[ends - begins == length, None] + np.arange(length)])  # (words, length)
            size = length * text.itemsize
            whole = own.view(f"<u{size}" if size in (2, 4, 8) else np.dtype((np.void, size))).ravel()  # numbers are sorted faster
            for key, count in zip(*np.unique(whole, return_counts=True), strict=True):
                if (word := key.tobytes()) in counts:
                    counts[word] += int(count)
    return np.array([OUTSIDE if UNK in part else counts[key] for part, key in zip(pieces, keys, strict=True)], dtype=np.int64)


def groups(words: Words, times: NDArray[np.int64], tags: Sequence[str] | None) -> list[Group]:
    """All words, the most frequent types of the set, classes of frequency in training, and parts of speech where there are tags.

    Args:
        times: of each word (N), from `seen_in_training`.
    """
    flat = np.array(words.flat, dtype=object)
    counts = Counter(words.flat)
    found = [Group("all", "all", np.ones(len(flat), dtype=bool))]
    found += [Group("word", word, flat == word) for word, _ in counts.most_common(TOP)]
    above: float = np.inf
    for least, label in CLASSES:
        found.append(Group("frequency", label, (times >= least) & (times < above)))
        above = least
    if tags is not None:
        found += [Group("tag", tag, np.array(tags, dtype=object) == tag) for tag, _ in Counter(tags).most_common()]
    return [group for group in found if group.members.any()]


def gates_of(model: Model, where: torch.device) -> dict[str, Side]:
    """The gates that a model records: name of the site -> the side whose subwords it is of."""
    found: dict[str, Side] = {}
    for stack, seen in recording.look(model, recording.probe(model, where)).items():
        for site, value in seen.items():
            if site.endswith((ENDING, OF_CONTEXT)):
                found[site] = "src" if value.dim() == 3 or (stack == "encoder" and site.endswith(OF_CONTEXT)) else "tgt"
    return found


def of_subwords(opened: Tensor, batch: Batch, site: str, side: Side) -> list[NDArray[np.float64]]:
    """How open a gate is for each subword of each sentence, </s> left out; NaN where it never has a say.

    Args:
        opened: (B, T, S), of source positions: the mean over the steps at which the gate has a say; (B, S), of these too; or (B, T), of what
            stands between the word before (at t = 1 the first) and the context: for that word; of a step that reads other sentences: for the
            word that it writes.
        site: where it was recorded; side: which of them it is of.
    Source: Im & Chan 2024, as models.md 4.9 reads it.
    """
    assert batch.tgt_lengths is not None
    opened = opened.double()
    if opened.dim() == 3:
        real = torch.arange(opened.size(1), device=opened.device) < batch.tgt_lengths[:, None]
        opened = opened.masked_fill(~real.unsqueeze(-1), torch.nan).nanmean(1)
    if side == "src":
        return [row[: length - 1] for row, length in zip(opened.cpu().numpy(), batch.src_lengths.tolist(), strict=True)]
    first = 0 if site.endswith(OF_CONTEXT) else 1
    return [row[first : first + length - 1] for row, length in zip(opened.cpu().numpy(), batch.tgt_lengths.tolist(), strict=True)]


def measured(
    run: Run, name: str, store: Store, words: Mapping[Side, Words], model: Model, gates: Mapping[str, Side]
) -> dict[str, NDArray[np.float64]]:
    """How open each gate of a system is for each word of the set (N), the mean over its subwords."""
    found = {site: np.full(len(words[side].flat), np.nan) for site, side in gates.items()}
    with console.progress(f"{name}: sentences", len(store)) as done:
        for batch in recording.batches(store, recording.device(), model.context_rule):
            recorded = recording.look(model, batch)
            seen = recorded["encoder"] | recorded["decoder"]
            for site, side in gates.items():
                if site not in seen:  # no sentence of the batch has a context
                    continue
                for row, values in zip(batch.rows.tolist(), of_subwords(seen[site], batch, site, side), strict=True):
                    owners, start = words[side].owners[row], words[side].offsets[row]
                    if len(owners):
                        means = np.bincount(owners, weights=values) / np.bincount(owners)
                        found[site][start : start + len(means)] = means
            done(len(batch.rows))
    return found


def means(values: NDArray[np.float64], words: Words, wanted: Sequence[Group], draws: Resampling) -> list[Estimate]:
    """The mean of each group over its occurrences, with the interval over resamples of the sentences."""
    known = np.isfinite(values)
    columns = []
    for group in wanted:
        members = group.members & known
        sentences = words.sentences[members]
        columns.append(np.bincount(sentences, weights=values[members], minlength=draws.sentences))
        columns.append(np.bincount(sentences, minlength=draws.sentences).astype(np.float64))
    own = np.stack(columns, axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        totals, resampled = own.sum(0), draws.sums(own)
        values, spread = totals[::2] / totals[1::2], resampled[:, ::2] / resampled[:, 1::2]
    return [estimate(float(value) if np.isfinite(value) else None, column) for value, column in zip(values, spread.T, strict=True)]


def having(recorded: Callable[[Model, torch.device], Any]) -> str:
    """The variants of the table that record something, by their default settings, for people."""
    found = []
    for name in VARIANTS:
        model = build_model(name, load_variant(name).adapt(TINY), Vocabularies(8, 8, shared=True)).eval()
        found += [name] if recorded(model, torch.device("cpu")) else []
    return ", ".join(found)


def run(run: Run, systems: Sequence[str], *, set_names: Sequence[str] = (), src_tags: str = "", tgt_tags: str = "") -> Finding:
    """How open the gates of each system are that has some.

    Args:
        run: the run; systems: those without a gate are left out. set_names: one set, read with its references (default: the first test set).
        src_tags, tgt_tags: files with a part of speech for each word of the set's sources and of its first references.
    Raises: ConfigError for tags of a side that no gate is of; DataError if no system has a gate, or tags do not fit.
    """
    chosen = recording.one_set(run, set_names, "the gates")
    for side, file in (("src", src_tags), ("tgt", tgt_tags)):  # before the long work
        if file and not Path(file).is_file():
            raise DataError("there is no such file", where=f"--{side}-tags {file}", hint="a line of tags, separated by spaces, for each sentence")
    store = Store(run.prep / chosen)
    loaded = {name: loading.load_system(run, run.find_system(name), recording.device()) for name in systems}
    gates = {name: own for name, model in loaded.items() if (own := gates_of(model, recording.device()))}
    if without := [name for name in systems if name not in gates]:
        what, hint = f"no gate to look at: {', '.join(without)}", f"variants that have one: {having(gates_of)}"
        if not gates:
            raise DataError(what, where=run.path, hint=hint)
        console.say(f"left out, for there is {what} ({hint})")
    sites = {site: side for own in gates.values() for site, side in own.items()}
    lengths = {"src": store.src_lengths, "tgt": store.tgt_lengths}
    words = {side: read_words(run, chosen, side, lengths[side]) for side in dict.fromkeys(sites.values())}
    tags: dict[Side, list[str]] = {}
    given: dict[Side, str] = {"src": src_tags, "tgt": tgt_tags}
    for side, file in given.items():
        if file and side not in words:
            raise ConfigError(f"no gate is of words of the {SIDES[side]}", where=f"--{side}-tags", hint="leave it out")
        if file:
            tags[side] = read_tags(Path(file), words[side], side)
    times = {side: seen_in_training(run, side, own, store) for side, own in words.items()}
    draws = Resampling(len(store), RESAMPLES, seed=SEED)
    found = {name: measured(run, name, store, words, loaded[name], own) for name, own in gates.items()}
    rows: list[list[Any]] = []
    for site, side in sites.items():
        wanted = groups(words[side], times[side], tags.get(side))
        each = {name: means(own[site], words[side], wanted, draws) for name, own in found.items() if site in own}
        nothing = [Estimate(None)] * len(wanted)
        estimates = zip(*(each.get(name, nothing) for name in gates), strict=True)
        rows += [[site, SIDES[side], g.section, g.label, int(g.members.sum()), *own] for g, own in zip(wanted, estimates, strict=True)]
    drawn = {site: [row for row in rows if row[0] == site and row[2] == "word"] for site in sites}
    drawing = {site: _figure(site, shown, list(gates)) for site, shown in drawn.items()} if figures.available() else {}
    first, *others = sites
    return Finding(
        name="gates",
        title="how open gates are, by word",
        table=_table(rows, {name: opens_of(loaded[name]) for name in gates}, chosen),
        text="0 keeps what was there, 1 puts the new in its place: if a gate has learned what carries content, nouns and verbs stand apart from "
        "articles, prepositions and punctuation. Compare words inside a column; the level of a whole column is the model's own. Where other "
        "sentences are read (NAME.gate) it is the other way round: 1 keeps the word's own state, and what hangs on context stands low.",
        figure=drawing.get(first),
        bars="\n\n".join(_bars(site, name, drawn[site], 5 + i) for site in sites for i, name in enumerate(gates) if site in gates[name]),
        facts={
            **{"set": chosen, "sentences": len(store), "seed": SEED, "resamples": RESAMPLES, "gates": gates, "left_out": without},
            **{"tags": {side: file for side, file in given.items() if file}},
        },
        attachments={
            **{f"tokens.{side}.txt": "".join(" ".join(line) + "\n" for line in own.lines) for side, own in words.items()},
            **{f"figure.{site}.svg": drawing[site] for site in others if site in drawing},
        },
    )


def opens_of(model: Model) -> list[str]:
    """What it means that the gates of a model's attention are open."""
    return [module.opens for module in model.modules() if isinstance(module, Gate)]


def _table(rows: list[list[Any]], systems: Mapping[str, list[str]], chosen: str) -> Table:
    """The table; `systems` with what `_opens` says of each."""
    columns = [Column(key, key, left=True) for key in ("gate", "side", "group")] + [
        Column("label", "", left=True),
        Column("occurrences", "occurrences"),
    ]
    columns += [Column(name, f"{name} [95%]", decimals=3, interval=True) for name in systems]
    notes = [
        "how open a gate is: mean over its numbers, 0 to 1, with the reference given; of a source word the mean over all target steps at which "
        "the gate has a say, of a target word its value at the step after it, where it lets the context in",
        f"a word counts as the mean over its subwords, a row as the mean over its occurrences; words: the {TOP} most frequent types of this set, "
        "tokenized and truecased; </s> and the like take no part; frequency: how often the type occurs in the training text, as prepared",
        f"[95%]: percentile interval over {RESAMPLES} resamples of the sentences, seed {SEED}",
        *(f"{opens} ({', '.join(own)})" for opens, own in by_meaning(systems).items()),
        "tokens.src.txt and tokens.tgt.txt beside this table are the words that --src-tags and --tgt-tags give a tag each",
    ]
    return Table("gates", f"How open gates are, by word ({chosen})", columns, rows, notes)


def by_meaning(systems: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """What an open gate does -> the systems of which this is true."""
    found: dict[str, list[str]] = {}
    for name, meanings in systems.items():
        for opens in dict.fromkeys(meanings):
            found.setdefault(opens, []).append(name)
    return found


def _figure(site: str, rows: Sequence[Sequence[Any]], systems: Sequence[str]) -> str:
    series = {name: [row[5 + i] for row in rows] for i, name in enumerate(systems)}
    series = {name: values for name, values in series.items() if any(v.value is not None for v in values)}
    side = rows[0][1] if rows else ""
    return figures.grouped_bars([row[3] for row in rows], series, f"most frequent {side} words", f"{site}, 0 to 1", upright=True)


def _bars(site: str, name: str, rows: Sequence[Sequence[Any]], place: int) -> str:
    asked = [(row[3], row[place].value, f" ({row[4]:,})") for row in rows if row[place].value is not None]  # of the others the gate is never asked
    return "\n".join([f"{name}: {site}, the most frequent {rows[0][1] if asked else ''} words", *named_bars(asked)])
