"""How often the training set has the words of another set."""

from collections import Counter

from nmtkit.data.store import Store
from nmtkit.measures.words import OUTSIDE, read_words, training_counts
from nmtkit.text.side import TextSide
from tests.prep.corpora import own_files, pairs, prepare


def test_words_are_counted_in_their_side_of_the_training_set(tmp_path):
    """Source and target have vocabularies of their own."""
    lines = pairs(80)
    run = prepare(tmp_path, own_files(tmp_path, lines), settings=["merges=40", "joint_vocab=false"])
    assert len(Store(run.prep / "train")) == len(lines)
    store = Store(run.prep / "dev")
    for side, texts in zip(("src", "tgt"), zip(*lines, strict=True), strict=True):
        words = read_words(run, store, side)
        counts = training_counts(run, side, words, store).tolist()
        tokens = TextSide.load(run.prep, side).tokens
        expected = Counter(word for line in texts for word in tokens(line))
        known = {w: n for w, n in zip(words.flat, counts, strict=True) if n != OUTSIDE}
        assert known == {word: expected[word] for word in known} and max(known.values()) > 1
