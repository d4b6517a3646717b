"""The plan of prep: from raw text to token ids in steps. Each step is a list of tasks over shards.

1. survey  hash the pairs of every set, and count lines in another script
2. repeats compare the hashes (`prep.deduplicate`, `prep.drop_overlap`)
3. clean   tidy, tokenize and filter the training text; count the words of each shard
4. merge   add up the word counts of all shards
5. learn   learn truecasers, subwords and vocabularies from the word counts
6. encode  encode the training text by its word numbers, dev and test sets line by line
7. spans   cut the source by its parses, if there are any

A pair's way from its files to the store: `shards` reads it, `clean` filters it (`text` tidies and
tokenizes, as in translation), `words` numbers its words, `lookup` turns the numbers into token ids,
`encode` drops it if it is too long, and `data.store` writes the ids.

A task depends only on the files and the settings (`tasks`). So the output does not depend on the
engine, on the number of workers, or on how often prep was stopped.
"""

from __future__ import annotations

import platform
import shutil
from collections.abc import Sequence
from dataclasses import dataclass

from nmtkit import console, files
from nmtkit.errors import DataError, counted
from nmtkit.files import JsonObject
from nmtkit.owned_files import MANIFEST
from nmtkit.prep.fingerprint import fingerprint, tools
from nmtkit.prep.shards import SetShards
from nmtkit.prep.steps import Steps, by_frequency
from nmtkit.prep.tasks import Fact, fact_path, total
from nmtkit.prep.work import OUT
from nmtkit.records import Cleaning, Manifest, Repeats, TextSet, VocabularySizes
from nmtkit.text.tokenizer import SIDES


@dataclass
class Plan(Steps):
    """Prepares one corpus in a work folder."""

    def run_share(self, number: int, count: int) -> None:
        """Do one job of an array: clean every `count`-th shard of the training text, from shard
        `number` on. If repeated pairs are dropped, and other jobs have shards left to hash, it only
        hashes its share.
        """
        self.begin()
        shards = self.shards()
        share = self.runner.share = slice(number, None, count)
        surveyed = self.survey(shards)
        dropped = ""
        if self.drops:
            if missing := sum(map(len, shards.values())) - len(surveyed):
                console.say(
                    f"hashed; other jobs have {counted(missing, 'shard')} left to hash: when all"
                    " jobs have ended, run the array once more"
                )
                return
            self.runner.share = slice(None)
            _, dropped = self.compare(shards, surveyed)
            self.runner.share = share
        self.clean(shards["train"], dropped)

    def run(self, finish: bool = False) -> Manifest:
        """Prepare the corpus.

        Args:
            finish: True if the jobs of an array have cleaned the training text.
        Returns: the manifest, which is also written.
        Raises: DataError if no training pair is left, or with `finish` a shard is not cleaned.
        """
        self.begin()
        shards = self.shards()
        train = shards["train"]
        if finish:
            missing = [
                s.index for s in train if not fact_path(self.work, "clean", s.index).is_file()
            ]
            if missing:
                raise DataError(
                    f"{len(missing)} of {len(train)} shards are not cleaned; the first is"
                    f" {missing[0]}",
                    "--finish",
                    "run the jobs of the array again (--shards N --shard K): what is done is"
                    " kept; without --finish the rest is done here",
                )
        surveyed = self.survey(shards)
        repeats, dropped = self.compare(shards, surveyed)
        cleaned = self.clean(train, dropped)
        facts = total(fact.value for fact in cleaned)
        self.refuse_nothing(facts["kept"], facts["reasons"])
        learnt = self.learn(self.merge(cleaned))
        encoded, reasons = self.encode(train, learnt, facts["reasons"])
        sets = self._sets(shards, surveyed, encoded)
        for name, path in self.corpus.extras.items():
            (self.out / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, self.out / name)
        cleaning = Cleaning(
            self.inputs.lines(self.corpus.sets[0].src),
            encoded["lines"],
            by_frequency(reasons),
            {side: dict(sorted(counts.items())) for side, counts in facts["changes"].items()},
        )
        learnt.value["counts"] |= {f"{side}_tokens": encoded[f"{side}_tokens"] for side in SIDES}
        return self._write_manifest(sets, cleaning, repeats, learnt)

    def _sets(
        self, shards: SetShards, surveyed: Sequence[Fact], encoded: JsonObject
    ) -> list[TextSet]:
        """Encode dev and test sets, and return the manifest's entries of all sets.

        Args:
            surveyed: the facts of `survey`.
            encoded: the entry of the training text.
        """
        entries = [encoded, *self.encode_sets(shards)]
        facts = iter(surveyed)
        sets = []
        for text, entry in zip(self.corpus.sets, entries, strict=True):
            surveys = total(next(facts).value for _ in shards[text.name])
            for kind, counts in surveys.items():
                entry[kind] = {side: count for side, count in counts.items() if count}
            entry |= self.annotate(text, shards[text.name])
            references = len(text.sides) - 1
            sets.append(TextSet(name=text.name, split=text.split, references=references, **entry))
        return sets

    def _write_manifest(
        self, sets: list[TextSet], cleaning: Cleaning, repeats: Repeats, learnt: Fact
    ) -> Manifest:
        for path in self.out.rglob(".*"):
            path.unlink()  # a killed process has left it half-written
        hashes = self._file_hashes()
        corpus = self.corpus
        manifest = Manifest(
            format=1,
            dataset=corpus.name,
            src=corpus.src,
            tgt=corpus.tgt,
            preset=self.request.preset,
            source=self.identity,
            settings=self.settings,
            sets=sets,
            vocabulary=VocabularySizes(self.settings.joint_vocab, *learnt.value["vocabularies"]),
            corpus=learnt.value["counts"],
            cleaning=cleaning,
            files=hashes,
            inputs=corpus.published | self.inputs.as_json(),
            tools={"python": platform.python_version()}
            | tools(self.languages, self.settings)
            | (self.parser.tools if self.parser else {}),
            speed=self.runner.speed,
            jobs=self.jobs,
            fingerprint=fingerprint(self.languages, self.settings, hashes),
            repeats=repeats,
        )
        manifest.write(self.out / MANIFEST)
        return manifest

    def _file_hashes(self) -> dict[str, str]:
        """Return the checksum of every file of the prep folder but the manifest."""
        known = {name: sha for fact in self.runner.facts for name, sha in fact.files.items()}
        hashes = {}
        for path in sorted(self.out.rglob("*")):
            name = path.relative_to(self.out).as_posix()
            if path.is_file() and name != MANIFEST:
                hashes[name] = known.get(f"{OUT}/{name}") or files.sha256(path)
        return hashes
