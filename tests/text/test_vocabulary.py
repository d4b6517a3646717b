"""The vocabulary: special symbols come first, the order is stable, and text never becomes a special
symbol.
"""

import pytest

from nmtkit.errors import DataError
from nmtkit.text.vocabulary import BOS, EOS, PAD, SPECIALS, UNK, Vocabulary, load_vocabularies
from tests.refused import refused


def test_tokens_are_ordered_by_frequency_then_code_point():
    vocabulary = Vocabulary.from_counts({"b": 2, "a": 2, "Z": 5, "rare": 1}, min_frequency=2)
    assert list(vocabulary) == [*SPECIALS, "Z", "a", "b"]
    assert "a" in vocabulary and "rare" not in vocabulary
    counts = {f"w{i}": i % 7 + 1 for i in range(100)}
    turned = dict(reversed(counts.items()))
    assert list(Vocabulary.from_counts(counts)) == list(Vocabulary.from_counts(turned))


def test_saved_vocabulary_is_loaded_in_the_same_order(tmp_path):
    vocabulary = Vocabulary.from_counts({"ein": 3, "Hund@@": 2, "\u00a0x\u2028": 1, "é": 1})
    vocabulary.save(tmp_path / "vocab.txt")
    assert list(Vocabulary.load(tmp_path / "vocab.txt")) == list(vocabulary)


def test_encode_ends_with_eos_and_decode_stops_at_it():
    vocabulary = Vocabulary.from_counts({"ein": 3, "Hund": 2})
    assert vocabulary.encode(["ein", "Hund"]) == [4, 5, EOS]
    assert vocabulary.encode([]) == [EOS]
    assert vocabulary.encode(["Katze", "ein"]) == [UNK, 4, EOS]
    assert vocabulary.decode([BOS, 4, 5, EOS, 4, PAD]) == ["ein", "Hund"]
    assert vocabulary.decode([UNK, 4]) == ["<unk>", "ein"]


def test_text_equal_to_a_special_symbol_is_unknown():
    vocabulary = Vocabulary.from_counts({"</s>": 10, "<pad>": 9, "ein": 1})
    assert list(vocabulary) == [*SPECIALS, "ein"]
    assert vocabulary.encode([*SPECIALS]) == [UNK, UNK, UNK, UNK, EOS]


@pytest.mark.parametrize("text", ["", "a\nb\n", "<pad>\n<s>\n</s>\n<unk>\na\na\n"])
def test_malformed_vocabulary_file_is_refused(tmp_path, text):
    (tmp_path / "vocab.txt").write_text(text)
    assert "vocab.txt" in str(refused(DataError, None, Vocabulary.load, tmp_path / "vocab.txt"))


def test_sides_have_a_joint_vocabulary_or_two_files(tmp_path):
    one, two = Vocabulary.from_counts({"a": 1}), Vocabulary.from_counts({"b": 1})
    refused(DataError, "not prepared", load_vocabularies, tmp_path)
    one.save(tmp_path / "vocab.src.txt")
    two.save(tmp_path / "vocab.tgt.txt")
    src, tgt = load_vocabularies(tmp_path)
    assert (list(src), list(tgt)) == (list(one), list(two))
    one.save(tmp_path / "vocab.txt")
    src, tgt = load_vocabularies(tmp_path)
    assert src is tgt
