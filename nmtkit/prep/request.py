"""The user's request to prep: own files, a generated data set or a downloaded one, and the
settings.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from nmtkit import files, settings
from nmtkit.corpora import generated, published, table
from nmtkit.corpora.corpus import (
    Corpus,
    SetFiles,
    assigned,
    language_doubts,
    own_files,
    own_tests,
    suffix_doubts,
    with_parses,
)
from nmtkit.corpora.document_starts import (
    BLANK,
    MARKER,
    MARKER_LINE,
    document_doubts,
    with_documents,
)
from nmtkit.corpora.table import Dataset
from nmtkit.errors import ConfigError, check_known, nearest
from nmtkit.options import flag
from nmtkit.prep.learn import whole_words
from nmtkit.prep.options import PrepOptions, file_list
from nmtkit.prep.parse_spans import PARSERS
from nmtkit.prep.text_model import text_model
from nmtkit.settings import PrepSettings
from nmtkit.text.sentencepiece import load_package

MANY_PAIRS = 500_000
"""Own files with fewer training pairs get the preset `small`, all others `base`."""
WITHOUT_EFFECT = {
    "bpe": ("vocab_size", "prep.merges is the size"),
    "sentencepiece": ("vocab_threshold", "only BPE has merges to undo"),
    "none": ("vocab_threshold", "only BPE has merges to undo"),
}
"""For a value of `prep.subwords` a setting that has no effect, and why."""
USES = {"from_dir": "data sets that are downloaded", "seed": "generated corpora such as demo"}
"""Options that not every corpus has a use for, and which corpora do."""


class Request:
    """The corpus to prepare, and how.

    Args:
        options: of the command.
    Attributes:
        dataset: None if all files are the user's own.
        drawn: size and seed of a generated data set; otherwise empty.
        own_corpus: the user's own files: a whole corpus, or test sets in addition to a data set.
        text_model: of `--like`, `--codes` and `--vocab`, or `--spm`; empty if all is learnt.
        preset: the default preset of systems that will be trained.
        settings: of prep.
        doubts: warnings of possible mistakes, one a line.
        note: the preset that was chosen for own files, and why.
    Raises: ConfigError if files or languages are missing, for a name that is wrong or taken, an
        option that has no effect here, or a setting that does not exist, is not one of prep, or
        contradicts the text model; DataError if own training text cannot be read.
    """

    def __init__(self, options: PrepOptions) -> None:
        self.options = options
        self.note = ""
        self.text_model = text_model(options)
        preset = options.preset
        if preset is None and self.text_model.preset:
            preset = self.text_model.preset
            self.note = f"preset {preset}, as in {options.like}; another one: --preset NAME"
        documents = assigned(options.docs, "--docs")
        trees = assigned(options.parses, "--parses")
        self.parses = {name: Path(file) for name, file in trees.items()}
        self.drawn: dict[str, int] = {}
        if options.train is not None or options.dev is not None:
            self.dataset: Dataset | None = None
            self.own_corpus = self._own_corpus(documents)
            self.preset = preset or self._preset_by_size()
        else:
            self.dataset = _dataset(options)
            if self.dataset.entry.generator:
                size = options.size or self.dataset.entry.train_pairs
                self.drawn = {"size": size, "seed": options.seed}
            self.own_corpus = _further_tests(self.dataset, options.test, documents)
            self.preset = preset or self.dataset.entry.preset
        self.text_model.check_languages((self.own_corpus.src, self.own_corpus.tgt))
        for path in self.parses.values():
            files.check_file(path, where="--parses")
        self.doubts = suffix_doubts(self.own_corpus) + document_doubts(self.own_corpus)
        if options.shard is not None and options.shard >= (options.shards or 0):
            hint = "a job of an array needs both: --shards N --shard K, with K from 0 to N - 1"
            raise ConfigError("--shard needs --shards, and must be below it", "--shard", hint)
        if options.parser is not None:
            unknown = f"unknown parser '{options.parser}'"
            check_known(options.parser, PARSERS, unknown, "--parser")
        self.settings = self._settings()
        if self.dataset is None:
            self.doubts += language_doubts(self.own_corpus, self.settings)

    def _settings(self) -> PrepSettings:
        """Return the settings. Later layers replace earlier ones: defaults, data set, preset, data
        set with this preset, --config, --set, text model.
        """
        assignments = settings.parse_set(self.options.assignments)
        for section, values in assignments.items():
            if section != "prep":
                hint = "give it to the stage it is for (train, translate)"
                name = f"{section}.{next(iter(values))}"
                raise ConfigError(f"prep doesn't read {name}", where="--set", hint=hint)
        entry, config = self.dataset and self.dataset.entry, self.options.config
        by_user = settings.merge(settings.load_config(config) if config else {}, assignments)
        layers = [
            {"prep": entry.prep if entry else {}},
            settings.load_preset(self.preset),
            {"prep": entry.presets.get(self.preset, {}) if entry else {}},
            by_user,
        ]
        values = settings.merge(*layers).get("prep", {})
        without_model = settings.build(PrepSettings, values, "prep")
        result = settings.build(PrepSettings, values | self.text_model.settings, "prep")
        self.text_model.check(without_model, by_user.get("prep", {}))
        subwords = "none" if whole_words(result) else result.subwords
        key, why = WITHOUT_EFFECT[subwords]
        if by_user.get("prep", {}).get(key):
            choice = f"subwords={subwords}" if subwords == result.subwords else "merges=0"
            self.doubts.append(f"prep.{key} has no effect with prep.{choice}: {why}")
        if result.subwords == "sentencepiece":
            load_package()
        return result

    def identity(self, known: files.JsonObject) -> files.JsonObject:
        """Return all that decides which text is prepared: two requests with equal identities and
        settings give the same corpus.

        Args:
            known: the manifest's `inputs`, the facts of files that were read before.
        Raises: ConfigError for sets that cannot be chosen or have a name that is taken; DataError
            for a file that cannot be read.
        """
        corpus, dataset, options = self.own_corpus, self.dataset, self.options
        identity: files.JsonObject = {"dataset": corpus.name, "src": corpus.src, "tgt": corpus.tgt}
        if dataset:
            _refuse_taken_names(dataset, self.settings, corpus)
            _check_named_files(corpus)
        if corpus.sets:
            identity["sets"] = [_set_identity(text, known) for text in corpus.sets]
        if dataset and not self.drawn:
            identity["resources"] = published.identity(dataset, self.settings)
        elif self.settings.dev or self.settings.test:
            name = corpus.name if dataset else "own files"
            raise ConfigError(
                f"prep.dev and prep.test have no effect on {name}",
                where="--set",
                hint="they choose among the sets of a data set that is downloaded; own files: --dev"
                " SRC TGT --test SRC,TGT",
            )
        if options.size is not None:
            identity["size"] = options.size
        identity |= self.drawn
        used = {"given": self.text_model.paths(self.settings), "parses": self.parses}
        for key, paths in used.items():
            if paths:
                identity[key] = {name: _known_sha256(path, known) for name, path in paths.items()}
        return identity | ({"parser": options.parser} if options.parser else {})

    def locate(self) -> Callable[[Path], Corpus]:
        """Find or download the files.

        Returns: a function that writes the text of a data set into a folder, and returns the
            corpus.
        """
        dataset = self.dataset
        if dataset is None:
            return lambda folder: self.own_corpus
        if self.drawn:
            return lambda folder: self._with_own(generated.corpus(dataset, folder, **self.drawn))
        read = published.find(dataset, self.settings, self.options.from_dir)
        return lambda folder: _with_first(self._with_own(read(folder)), self.options.size)

    def _with_own(self, corpus: Corpus) -> Corpus:
        """Add the user's own test sets and parses to a corpus."""
        return with_parses(replace(corpus, sets=corpus.sets + self.own_corpus.sets), self.parses)

    def _own_corpus(self, documents: Mapping[str, str]) -> Corpus:
        options = self.options
        if options.dataset in table.registered():
            raise ConfigError(
                f"'{options.dataset}' is a registered data set",
                where="--train, --dev",
                hint="for own files take another name; for the data set leave them out (--test adds"
                " your test sets)",
            )
        train, dev = (
            None if value is None else file_list(value, option)
            for value, option in ((options.train, "--train"), (options.dev, "--dev"))
        )
        tests = [file_list(value, "--test") for value in options.test]
        corpus = own_files(options.dataset, train, dev, tests, options.src, options.tgt)
        corpus = with_documents(corpus, documents)
        _check_named_files(corpus)
        corpus = _with_first(with_parses(corpus, self.parses), options.size)
        _refuse_ignored("own files are taken as they are", options, "from_dir", "seed")
        return corpus

    def _preset_by_size(self) -> str:
        """Return the preset for the size of the user's training text, and note why."""
        pairs = f"{MANY_PAIRS:,} training pairs"
        if _few_pairs(self.own_corpus.sets[0]):
            preset, why = "small", f"fewer than {pairs}"
        else:
            preset, why = "base", f"{pairs} or more"
        self.note = f"preset {preset}, for {why}; another one: --preset NAME"
        return preset


def _check_named_files(corpus: Corpus) -> None:
    """Raise an error that names the option, for a path that is not a file."""
    for text in corpus.sets:
        for path in text.files():
            files.check_file(path, where=flag(text.split))
        if text.docs is not None:
            files.check_file(text.docs, where="--docs")


def _with_first(corpus: Corpus, pairs: int | None) -> Corpus:
    """Keep only the first pairs of a corpus's training text (None: all)."""
    return replace(corpus, sets=[replace(corpus.sets[0], first=pairs), *corpus.sets[1:]])


def _refuse_ignored(subject: str, options: PrepOptions, *names: str) -> None:
    """Raise ConfigError for an option that is not at its default, because it has no effect."""
    for name in names:
        if getattr(options, name) != PrepOptions.model_fields[name].default:
            hint = f"leave it out; it is for {USES[name]}"
            raise ConfigError(f"{subject}: {flag(name)} has no effect", flag(name), hint)


def _few_pairs(train: SetFiles) -> bool:
    """True if a training text has fewer than `MANY_PAIRS` pairs. Reads only that many."""
    lines = files.byte_lines(*train.src)
    is_pair = {
        BLANK: bytes.strip,
        MARKER: lambda line: line.strip() != MARKER_LINE,
        "markup": lambda line: b"<seg" in line.lower(),
    }
    pairs = filter(is_pair[train.between], lines) if train.between else lines
    read = itertools.islice(pairs, min(MANY_PAIRS, train.first or MANY_PAIRS))
    return sum(1 for _ in read) < MANY_PAIRS


def _set_identity(text: SetFiles, known: files.JsonObject) -> files.JsonObject:
    documents = text.between or (text.docs and _known_sha256(text.docs, known))
    sides = {
        side: [_known_sha256(path, known) for path in paths] for side, paths in text.sides.items()
    }
    identity = {"name": text.name, "split": text.split, **sides}
    return identity | ({"docs": documents} if documents else {})


def _known_sha256(path: Path, known: files.JsonObject) -> str:
    """Return the checksum of a file; read the file only if its size or time has changed."""
    facts = known.get(str(path))
    if facts and "sha256" in facts and path.is_file():
        status = path.stat()
        if [status.st_size, status.st_mtime_ns] == [facts["size"], facts.get("mtime_ns")]:
            return str(facts["sha256"])
    return files.sha256(path)


def _dataset(options: PrepOptions) -> Dataset:
    """Return the registered data set that the options name."""
    name = options.dataset
    if name is None:
        raise ConfigError(
            "nothing to prepare",
            where="nmtkit prep",
            hint="name a data set (nmtkit datasets lists them), or own files: --train SRC TGT --dev"
            " SRC TGT",
        )
    dataset = table.find(name)
    if dataset.entry.evaluation:
        hint = f"analyses read it; `nmtkit datasets --fetch {name}` brings it here"
        problem = f"'{name}' is an evaluation set, nothing to train on"
        raise ConfigError(problem, where="nmtkit prep", hint=hint)
    src, tgt = dataset.src, dataset.tgt
    if (options.src or src, options.tgt or tgt) != (src, tgt):
        hint = "these are for own files; the name of a data set says its direction"
        raise ConfigError(f"'{name}' is {src}-{tgt}", where="--src, --tgt", hint=hint)
    if dataset.entry.generator:
        _refuse_ignored(f"'{name}' is generated", options, "from_dir")
    else:
        _refuse_ignored(f"'{name}' is not generated", options, "seed")
    return dataset


def _further_tests(dataset: Dataset, test: Sequence[str], documents: Mapping[str, str]) -> Corpus:
    """Return a corpus of only the test sets that the user adds to a data set.

    Raises: ConfigError for documents of any other set.
    """
    tests = [file_list(value, "--test") for value in test]
    sets = own_tests(tests, [dataset.src, dataset.tgt])
    own_corpus = Corpus(dataset.name, dataset.src, dataset.tgt, sets)
    names = [text.name for text in own_corpus.sets]
    published_with = "the documents it was published with"
    for name in documents:
        if not names:
            raise ConfigError(
                f"'{dataset.name}' is a registered data set: --docs has no effect",
                "--docs",
                "leave it out; it is for own files (--test SRC,TGT adds test sets), a data set has"
                f" {published_with}",
            )
        if name not in names:
            hint = f"{nearest(name, names)}; each set of '{dataset.name}' has {published_with}"
            raise ConfigError(f"'{name}' is none of your test sets", "--docs", hint)
    return with_documents(own_corpus, documents)


def _refuse_taken_names(dataset: Dataset, prep_settings: PrepSettings, own_corpus: Corpus) -> None:
    """Raise ConfigError if one of the user's test sets has the name of a set of the data set."""
    sets = [text.name for text in dataset.choose(prep_settings.dev, prep_settings.test)]
    for text in own_corpus.sets:
        if text.name in (sets or ["train", "dev", "test"]):
            names = " and ".join(path.name for path in (*text.src, *text.tgt))
            raise ConfigError(
                f"'{dataset.name}' has a set '{text.name}' already",
                where="--test",
                hint=f"give {names} other names: a test set is called by what the names of its"
                " files share (news.de,news.en: news), else test",
            )
