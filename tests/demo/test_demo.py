"""The files of the demo data set: splits, documents, "it", contrastive pairs, probing files."""

import hashlib
import itertools
import re
from collections import Counter

import pytest

from nmtkit.demo import generate, separable_expressions
from nmtkit.demo.contrast import with_gender
from nmtkit.demo.corpus import Pair, Writer
from nmtkit.demo.lexicon import entries
from nmtkit.demo.probing import LABELS
from tests.manifests import read_json

SPLITS = {"train": 1500, "dev": 200, "test": 200}
TASKS = list(LABELS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A small demo data set."""
    path = tmp_path_factory.mktemp("demo")
    generate(path, size=1500, dev=200, test=200, seed=5)
    return path


def lines(path):
    return path.read_text("utf-8").splitlines()


def documents(folder, name):
    """The documents of a split, as lists of pairs of sentences."""
    starts = [int(line) for line in lines(folder / f"{name}.docs")]
    pairs = list(zip(lines(folder / f"{name}.en"), lines(folder / f"{name}.de"), strict=True))
    return [pairs[start:end] for start, end in zip(starts, [*starts[1:], len(pairs)], strict=True)]


def test_data_set_has_its_files_and_documents_of_6_to_12_sentences(folder):
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    expected = {f"{name}.{end}" for name in SPLITS for end in ("en", "de", "docs")}
    expected |= {"agreement.en-de.json", "pronouns.en-de.json"}
    assert files == expected | {f"probing/{task}.txt" for task in TASKS}
    for name, size in SPLITS.items():
        lengths = [len(document) for document in documents(folder, name)]
        assert lines(folder / f"{name}.docs")[0] == "0"
        assert sum(lengths) == size and set(lengths) <= set(range(6, 13))
    assert len(set(map(len, documents(folder, "train")))) == 7


def contents(folder):
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder): path.read_bytes() for path in files}


def test_equal_arguments_give_equal_files(folder, tmp_path):
    generate(tmp_path, size=1500, dev=200, test=200, seed=5)
    assert contents(tmp_path) == contents(folder)


def test_another_seed_gives_other_sentences(folder, tmp_path):
    generate(tmp_path, size=60, dev=20, test=20, seed=6)
    assert lines(tmp_path / "test.de") != lines(folder / "test.de")[:20]


def test_files_have_the_bytes_of_earlier_versions(folder):
    """Published results use these bytes: a change of the grammar makes a new data set."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    digests = "".join(hashlib.sha256(path.read_bytes()).hexdigest() for path in files)
    assert hashlib.sha256(digests.encode()).hexdigest().startswith("4e3d01d2beba632a")


def test_dev_and_test_do_not_depend_on_the_size_of_train(folder, tmp_path):
    generate(tmp_path, size=700, dev=200, test=200, seed=5)
    for name in ("dev.en", "test.de"):
        assert lines(tmp_path / name) == lines(folder / name)
    assert len(lines(tmp_path / "train.en")) == 700


def test_small_sets_have_their_sizes(tmp_path):
    generate(tmp_path, size=1, dev=12, test=13)
    for name, count in {"train": 1, "dev": 12, "test": 13}.items():
        assert sum(map(len, documents(tmp_path, name))) == count


def test_dev_and_test_sentences_are_not_in_train(folder):
    for language in ("en", "de"):
        splits = [set(lines(folder / f"{name}.{language}")) for name in SPLITS]
        assert all(a.isdisjoint(b) for a, b in itertools.combinations(splits, 2))
    train = set(lines(folder / "train.en"))
    for name in ("agreement", "pronouns"):
        records = read_json(folder / f"{name}.en-de.json")
        assert not train & {record["source"] for record in records}


def test_sentences_are_written_text_of_usual_lengths(folder):
    for name in SPLITS:
        for sentence in lines(folder / f"{name}.en") + lines(folder / f"{name}.de"):
            assert re.fullmatch(r"[A-ZÄÖÜ][^.?]*[.?]", sentence), sentence
            assert not re.search(r"  | [,.?]|,,|@", sentence)
    words = [len(sentence.split()) for sentence in lines(folder / "train.en")]
    assert 9 <= sum(words) / len(words) <= 16
    assert max(words) >= 25


# --- "it" -----------------------------------------------------------------------------------------


def thing_genders():
    """English singular -> gender, of every noun that "it" can stand for."""
    adjectives = {adjective.en for adjective in entries("adjectives")}  # "a secret map"
    return {
        noun.en[0]: noun.gender
        for noun in entries("nouns")
        if not noun.classes & {"person", "animal"} and noun.en[0] not in adjectives
    }


def it_pairs(folder, name):
    """Yield every pair with "it" of a split, after the pair before it in its document."""
    for document in documents(folder, name):
        for before, pair in zip([None, *document], document, strict=False):
            if re.search(r"\b[Ii]t\b", pair[0]):
                yield before, pair


GERMAN_IT = {"m": {"er", "ihn"}, "f": {"sie"}, "n": {"es"}}


@pytest.mark.parametrize("name", SPLITS)
def test_it_has_the_gender_of_the_only_thing_in_the_sentence_before(folder, name):
    genders, count = thing_genders(), Counter()
    for before, (source, target) in it_pairs(folder, name):
        assert before is not None, "a document begins with it"
        things = [word for word in re.findall(r"\w+", before[0]) if word in genders]
        assert len(things) == 1, before[0]
        gender = genders[things[0]]
        words = {word.lower() for word in re.findall(r"\w+", target)}
        assert words & GERMAN_IT[gender], (before, source, target)
        if "es" in words:
            assert gender == "n"
        if "ihn" in words:
            assert gender == "m"
        count[gender] += 1
    assert max(count.values()) - min(count.values()) <= 1
    assert sum(count.values()) > 0.12 * SPLITS[name]


def without_pronouns(german):
    return re.sub(r"\b([Ee]r|[Ss]ie|[Ee]s|ihn)\b", "_", german)


def test_sentences_about_it_differ_by_gender_only_in_german_pronouns():
    """The sentences of the three genders are drawn with the same choices."""
    writers = {gender: Writer(9, 1, set()) for gender in "mfn"}
    for _ in range(300):
        for writer in writers.values():
            writer.open_document()
        pairs = {gender: Pair(writer.about_it(gender)) for gender, writer in writers.items()}
        assert len({pair.source for pair in pairs.values()}) == 1
        assert len({without_pronouns(pair.target) for pair in pairs.values()}) == 1
        assert len({pair.target for pair in pairs.values()}) == 3
        assert with_gender(pairs["m"], "f") == pairs["f"].target
        assert pairs["m"].target == Pair(pairs["m"].clause).target  # it is restored


def test_contrastive_pronouns_have_another_gender(folder):
    records = read_json(folder / "pronouns.en-de.json")
    count = Counter(record["gender"] for record in records)
    assert len(records) >= 30 and max(count.values()) - min(count.values()) <= 1
    genders = thing_genders()
    forms = {"masculine": {"er", "ihn"}, "feminine": {"sie"}, "neuter": {"es"}}
    keys = {"source", "reference", "origin", "context_src", "context_ref", "gender", "errors"}
    for record in records:
        assert set(record) == keys
        gender, reference = record["gender"], record["reference"]
        thing = next(word for word in re.findall(r"\w+", record["context_src"]) if word in genders)
        assert gender[0] == genders[thing]
        wrong = {error["type"]: error["contrastive"] for error in record["errors"]}
        assert list(wrong) == [f"{other}_for_{gender}" for other in forms if other != gender]
        for kind, contrastive in wrong.items():
            words = (re.findall(r"\w+", text.lower()) for text in (reference, contrastive))
            pairs = {(a, b) for a, b in zip(*words, strict=True) if a != b}
            assert pairs and {a for a, _ in pairs} <= forms[gender]
            assert {b for _, b in pairs} <= forms[kind.split("_")[0]]
            assert without_pronouns(contrastive) == without_pronouns(reference)


# --- contrastive pairs ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def agreement(folder):
    """The agreement pairs."""
    return read_json(folder / "agreement.en-de.json")


def changed(reference, contrastive):
    """Positions of the words that differ."""
    left, right = reference.split(), contrastive.split()
    return [i for i, (a, b) in enumerate(zip(left, right, strict=True)) if a != b]


def wrong_words(agreement, kind):
    """Yield the words of the reference, the index of the wrong word, and the error of this kind."""
    for record in agreement:
        for error in record["errors"]:
            if error["type"] == kind:
                words = [word.strip(",.?") for word in record["reference"].split()]
                yield words, changed(record["reference"], error["contrastive"])[0], error


def test_agreement_pairs_have_lingeval97s_format(agreement):
    kinds = """
    subj_verb_agreement np_agreement polarity_particle_nicht_del polarity_particle_kein_del
    auxiliary verb_particle
    """
    types = {error["type"] for record in agreement for error in record["errors"]}
    assert types == set(kinds.split())
    for record in agreement:
        assert set(record) == {"source", "reference", "origin", "errors"}
        for error in record["errors"]:
            required = {"type", "contrastive"}
            assert required <= set(error) <= required | {"distance", "frequency"}
            assert error["contrastive"] != record["reference"]
            if error["type"] == "polarity_particle_nicht_del":
                assert len(error["contrastive"].split()) == len(record["reference"].split()) - 1
            else:
                assert len(changed(record["reference"], error["contrastive"])) == 1


def test_distances_of_subject_and_verb_are_1_to_16_and_equally_frequent(agreement):
    counts = Counter(
        error["distance"] for *_, error in wrong_words(agreement, "subj_verb_agreement")
    )
    assert sorted(counts) == list(range(1, 17)) and len(set(counts.values())) == 1


def test_distance_is_the_difference_of_word_positions(agreement):
    """At this distance before or after the wrong verb, the text has a noun in the nominative."""
    nominatives = {form for noun in entries("nouns") for form in noun.de["n"]}
    for words, verb, error in wrong_words(agreement, "subj_verb_agreement"):
        places = verb - error["distance"], verb + error["distance"]
        assert nominatives & {words[i] for i in places if 0 <= i < len(words)}, words
    for _, particle, error in wrong_words(agreement, "verb_particle"):
        assert 0 <= particle - error["distance"] < particle


def test_frequency_is_the_count_of_the_noun_in_the_training_text(folder, agreement):
    forms = Counter(re.findall(r"\w+", (folder / "train.de").read_text("utf-8")))
    nouns = [{form for pair in noun.de.values() for form in pair} for noun in entries("nouns")]
    errors = list(wrong_words(agreement, "np_agreement"))
    assert len(errors) >= 5
    for words, article, error in errors:
        all_forms = next(noun for noun in nouns if words[article + error["distance"]] in noun)
        assert error["frequency"] == sum(forms[form] for form in all_forms)


# --- probing --------------------------------------------------------------------------------------


def probing(folder, task):
    """The rows of a probing file: partition, label, tokens."""
    rows = [line.split("\t") for line in lines(folder / "probing" / f"{task}.txt")]
    assert all(len(row) == 3 for row in rows)
    return [(part, label, sentence.split(" ")) for part, label, sentence in rows]


@pytest.mark.parametrize("task", TASKS)
def test_probing_files_are_balanced_and_disjoint(folder, task):
    rows = probing(folder, task)
    parts = [part for part, _, _ in rows]
    assert parts == sorted(parts, key=["tr", "va", "te"].index)
    sentences = [{" ".join(words) for p, _, words in rows if p == part} for part in set(parts)]
    assert all(a.isdisjoint(b) for a, b in itertools.combinations(sentences, 2))
    labels = Counter(label for part, label, _ in rows if part == "tr")
    assert len(rows) > 150
    assert min(labels.values()) >= 0.5 * max(labels.values())
    assert {label for part, label, _ in rows if part != "tr"} <= set(labels)


def test_probing_labels_fit_the_words(folder):
    bins = ((5, 8), (9, 12), (13, 16), (17, 20), (21, 25), (26, 28))
    for _, label, words in probing(folder, "sentence_length"):
        assert bins[int(label)][0] <= len(words) <= bins[int(label)][1]
    targets = {label for _, label, _ in probing(folder, "word_content")}
    for _, label, words in probing(folder, "word_content"):
        assert [word for word in words if word in targets] == [label]
    plurals = {noun.en[1] for noun in entries("nouns")}
    for _, label, words in probing(folder, "obj_number"):
        assert any(word in plurals for word in words) or label == "NN"
    shifted = [words for _, label, words in probing(folder, "bigram_shift") if label == "I"]
    assert all(words[0][0].isupper() and words[-1] in {".", "?"} for words in shifted)


# --- lexicon --------------------------------------------------------------------------------------


def test_separable_expressions_have_their_english_verbs():
    verbs = dict(name.split(" = ") for _, _, name in separable_expressions())
    expected = {"look up": "nachschlagen", "think about": "nachdenken", "get up": "aufstehen"}
    assert expected.items() <= verbs.items() and verbs["take part in"] == "teilnehmen"
    assert len(verbs) >= 45


def test_writer_without_new_sentences_raises_an_error():
    class Everything(set):
        def isdisjoint(self, items):
            return False

    with pytest.raises(RuntimeError, match="run out"):
        Writer(1, 1, Everything()).document(6)
