"""Context: the rule against its definition in words, documents never crossed, every context once
a batch.
"""

import dataclasses
import itertools
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nmtkit.data.batches import collate
from nmtkit.data.context import BREAK, contexts, stacked
from nmtkit.data.documents import ContextRule, Documents
from nmtkit.data.store import Store
from nmtkit.errors import DataError
from nmtkit.text.vocabulary import BOS, EOS, PAD
from tests.stored import pair_writer

SIZES = st.lists(st.integers(1, 6), min_size=1, max_size=8)  # sentences of each document
RULES = st.builds(
    ContextRule,
    st.sampled_from(["previous", "next", "random", "foreign", "none"]),
    st.integers(1, 5),
    st.sampled_from(["concatenate", "parallel"]),
)


def of_sizes(sizes):
    return Documents([sum(sizes[:i]) for i in range(len(sizes))], sum(sizes)), [
        d for d, size in enumerate(sizes) for _ in range(size)
    ]


@given(SIZES, RULES)
def test_the_context_of_every_sentence(sizes, rule):
    documents, document_of = of_sizes(sizes)
    assert len(documents) == len(sizes)
    for sentence, own in enumerate(document_of):
        same = [s for s, d in enumerate(document_of) if d == own and s != sentence]
        found = documents.context(sentence, rule)
        assert found == sorted(set(found))
        if rule.kind == "previous":
            assert found == [s for s in same if s < sentence][-rule.size :]
        elif rule.kind == "next":
            assert found == [s for s in same if s > sentence][: rule.size]
        elif rule.kind == "none":
            assert found == []
        else:
            pool = (
                same
                if rule.kind == "random"
                else [s for s, d in enumerate(document_of) if d != own]
            )
            assert set(found) <= set(pool) and len(found) == min(rule.size, len(pool))
        assert found == documents.context(sentence, rule)
    for size in (rule.size, 6):  # the contexts of a document are remembered for each rule
        part, of_document = dataclasses.replace(rule, size=size), {}
        for sentence, own in enumerate(document_of):
            of_document.setdefault(own, set()).update(documents.context(sentence, part))
        for sentence, own in enumerate(document_of):
            expected = sorted(of_document[own]) if documents.context(sentence, part) else []
            assert documents.context(sentence, dataclasses.replace(part, whole=True)) == expected


def test_random_contexts_vary_with_seed_and_sentence_and_take_every_sentence():
    documents, _ = of_sizes([40])
    one, two = (
        [documents.context(s, ContextRule("random", seed=seed)) for s in range(40)]
        for seed in (1, 2)
    )
    assert one != two and len({context[0] for context in one}) > 20


def test_a_part_of_a_text_has_the_random_contexts_of_the_whole():
    """`before` numbers the documents of a window as the text does."""
    rule = ContextRule("random", 2)
    whole = Documents([0, 4, 16], 28)
    window = Documents([0, 12], 24, before=1)
    for sentence in range(24):
        contexts = [i - 4 for i in whole.context(sentence + 4, rule)]
        assert window.context(sentence, rule) == contexts


def test_without_boundaries_every_sentence_is_a_document():
    documents = Documents([], 3)
    assert len(documents) == 3
    for kind in ("previous", "next", "random"):
        assert [documents.context(s, ContextRule(kind, 5)) for s in range(3)] == [[], [], []]
    assert documents.context(1, ContextRule("foreign", 5)) == [0, 2]
    assert documents.starts(1, 2) == [1, 2] and documents.starts(2, 5) == [2, 3]


@given(RULES, st.booleans())
def test_a_blank_line_has_no_context_and_is_in_none(rule, whole):
    """As in translation, which has nothing to translate there."""
    blank = {1, 2, 7}
    every = Documents([0, 4], 9)
    rule = dataclasses.replace(rule, whole=whole)
    assert any(every.context(sentence, rule) for sentence in range(9)) == (rule.kind != "none")
    documents = every.without(blank)
    contexts = [documents.context(sentence, rule) for sentence in range(9)]
    assert not any(contexts[sentence] for sentence in blank)
    assert not blank & {sentence for context in contexts for sentence in context}
    assert any(contexts) == (rule.kind != "none")


TEXT = [[5, 6, EOS], [7, EOS], [8, 9, 10, EOS], [11, EOS]]
TARGETS = [[4, EOS], [EOS], [9, 8, 7, EOS], [5, 5, EOS]]


def made(of_rows, rule, targets=False):
    """The contexts of a batch of TEXT."""
    sides = [lambda s, side=side: np.array(side[s], np.uint16) for side in (TEXT, TARGETS)]
    return contexts(of_rows, sides[0], rule, targets=sides[1] if targets else None)


def texts(context):
    return [[i for i in row if i != PAD] for row in context.ids.tolist()]


def test_contexts_of_a_batch_are_encoded_once():
    documents, rule = Documents([0, 3], 4), ContextRule("previous", 2)
    of_rows = [documents.context(s, rule) for s in (2, 1, 0, 3, 2)]
    context = made(of_rows, rule)
    assert texts(context) == [[5, 6, BREAK, 7, EOS], [5, 6, EOS]]
    assert context.lengths.tolist() == [5, 3] and context.padded
    assert context.rows.tolist() == [[0], [1], [-1], [-1], [0]]
    context = made(of_rows, ContextRule("previous", 2, "parallel"))
    assert texts(context) == [[5, 6, EOS], [7, EOS]]
    assert context.rows.tolist() == [[0, 1], [0, -1], [-1, -1], [-1, -1], [0, 1]]
    assert made([[], []], ContextRule()) is None


def test_target_sides_come_where_they_are_wanted():
    rule = ContextRule("previous", 2, "parallel", targets=True)
    context = made([[0, 1], [], [2]], rule, targets=True)
    assert texts(context) == [TEXT[2], TEXT[0], TEXT[1]]  # the longest first
    assert context.rows.tolist() == [[1, 2], [-1, -1], [0, -1]]
    assert context.tgt_in.tolist() == [[BOS, 9, 8, 7], [BOS, 4, PAD, PAD], [BOS, PAD, PAD, PAD]]
    assert context.tgt_lengths.tolist() == [4, 2, 1] and context.tgt_padded
    alone = made([[2]], rule, targets=True)
    assert alone.tgt_in.tolist() == [[BOS, 9, 8, 7]] and not alone.tgt_padded
    joined = made([[0, 3]], ContextRule(size=2, targets=True), targets=True)
    assert joined.tgt_in.tolist() == [[BOS, 4, BREAK, 5, 5]]
    assert made([[0]], ContextRule(), targets=True).tgt_in is None
    with pytest.raises(ValueError, match="target sides"):
        made([[0]], rule)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=30), st.booleans(), st.integers(1, 60))
def test_contexts_of_like_length_stand_together(lengths, targets, least):
    """The parts are the contexts, in their order, no wider than needed; each cut saves at least
    so much padding, and no other would.
    """
    rule = ContextRule("previous", join="parallel", targets=targets)
    with patch("nmtkit.data.context.SAVED", least):
        whole = contexts(
            [[i] for i in range(len(lengths))],
            lambda i: np.full(lengths[i], 5 + i),
            rule,
            targets=lambda i: np.full(1 + 7 * i % 11, i),
        )
    parts = whole.of_like_length()
    assert whole.lengths.tolist() == sorted(lengths, reverse=True)
    for name in ("ids", "tgt_in") if targets else ("ids",):
        # Ids stand as hidden states do, with a last axis.
        states = stacked([getattr(part, name).unsqueeze(-1) for part in parts])
        assert states.squeeze(-1).equal(getattr(whole, name))
    for name in ("lengths", "tgt_lengths") if targets else ("lengths",):
        assert torch.cat([getattr(part, name) for part in parts]).equal(getattr(whole, name))
    for part in parts:
        own = part.lengths.tolist()
        assert part.ids.size(1) == own[0] and part.padded == (own[-1] < own[0])
        assert part.rows is whole.rows
        assert all((len(own) - i) * (own[0] - own[i]) < least for i in range(len(own)))
        if targets:
            most = int(part.tgt_lengths.max())
            assert part.tgt_in.size(1) == most
            assert part.tgt_padded == bool((part.tgt_lengths < most).any())
    assert whole.ids.numel() - sum(part.ids.numel() for part in parts) >= least * (len(parts) - 1)


@given(SIZES, st.data())
def test_rounds_take_documents_sentence_by_sentence(sizes, data):
    """In each round at most one sentence of a document, after all before it; nothing behind the
    last one asked for.
    """
    documents, document_of = of_sizes(sizes)
    asked = data.draw(st.lists(st.integers(0, len(document_of) - 1)))
    needed = {
        s
        for s, own in enumerate(document_of)
        if any(document_of[a] == own and s <= a for a in asked)
    }
    found = documents.rounds(asked)
    assert sorted(s for together in found for s in together) == sorted(needed)
    for i, together in enumerate(found):
        assert (
            together
            and together == sorted(together)
            and all(s - documents.bounds(s)[0] == i for s in together)
        )
    assert Documents([], 3).rounds([2, 0]) == [[0, 2]]


def test_files_of_documents(tmp_path):
    (tmp_path / "docs").mkdir()
    path = tmp_path / "docs" / "dev.txt"
    assert len(Documents.of_set(tmp_path, "dev", 7)) == 7
    path.write_text("0\n3\n5\n")
    documents = Documents.of_set(tmp_path, "dev", 7)
    assert [documents.bounds(s) for s in range(7)] == [(0, 3)] * 3 + [(3, 5)] * 2 + [(5, 7)] * 2
    for wrong in ("1\n3\n", "0\n3\n3\n", "0\n7\n", "0\nx\n", ""):
        path.write_text(wrong)
        with pytest.raises(DataError, match="not the starts of documents"):
            Documents.of_set(tmp_path, "dev", 7)


@pytest.mark.parametrize("sizes", [[4], [1, 2, 1], [1, 1, 0, 1, 1]])
def test_a_batch_of_a_prepared_set_brings_its_contexts(tmp_path, sizes):
    """A document may cross the border of a shard."""
    sentences = iter(TEXT)
    for shard, size in enumerate(sizes):
        with pair_writer(tmp_path / "dev", shard, 20) as add:
            for ids in itertools.islice(sentences, size):
                add(ids, [4, EOS])
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "dev.txt").write_text("0\n2\n")
    store, rows, rule = Store(tmp_path / "dev"), np.array([1, 3, 0]), ContextRule()
    assert collate(store, rows).context is None
    context = collate(store, rows, rule=rule).context
    assert texts(context) == [TEXT[2], TEXT[0]] and context.rows.tolist() == [[1], [0], [-1]]
    assert collate(store, np.array([0, 2]), rule=rule).context is None
    rule = ContextRule(targets=True)
    of_the_set = collate(store, rows, rule=rule).context
    assert of_the_set.tgt_in.tolist() == [[BOS, 4]] * 2
    translated = {0: np.array([9, 8, EOS]), 2: np.array([EOS])}
    context = collate(store, rows, rule=rule, translated=translated.__getitem__).context
    assert context.tgt_in.tolist() == [[BOS, PAD, PAD], [BOS, 9, 8]]
