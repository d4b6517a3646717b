"""Contexts: the rules against their definitions, documents, and the context tensors of a batch."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nmtkit.data import context as context_module
from nmtkit.data.batches import collate
from nmtkit.data.context import BREAK, contexts, packed_contexts, stacked
from nmtkit.data.documents import ContextRule, Documents
from nmtkit.data.store import Store
from nmtkit.errors import DataError
from nmtkit.text.vocabulary import BOS, EOS, PAD
from tests.pair_writer import pair_writer

SIZES = st.lists(st.integers(1, 6), min_size=1, max_size=8)  # sentences of each document
KINDS = ["previous", "next", "random", "foreign", "none"]
RULES = st.builds(
    ContextRule,
    st.sampled_from(KINDS),
    st.integers(1, 5),
    st.sampled_from(["concatenate", "parallel"]),
)


def documents_of(sizes):
    """Documents of these sizes, and the document of each sentence."""
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    document_of = [document for document, size in enumerate(sizes) for _ in range(size)]
    return Documents(starts, sum(sizes)), document_of


@given(SIZES, RULES)
def test_context_of_every_sentence_follows_the_rule(sizes, rule):
    documents, document_of = documents_of(sizes)
    assert len(documents) == len(sizes)
    for sentence, document in enumerate(document_of):
        others = [s for s, d in enumerate(document_of) if d == document and s != sentence]
        foreign = [s for s, d in enumerate(document_of) if d != document]
        context = documents.context(sentence, rule)
        assert context == documents.context(sentence, rule) == sorted(set(context))
        if rule.kind == "previous":
            assert context == [s for s in others if s < sentence][-rule.size :]
        elif rule.kind == "next":
            assert context == [s for s in others if s > sentence][: rule.size]
        elif rule.kind == "none":
            assert context == []
        else:
            pool = others if rule.kind == "random" else foreign
            assert set(context) <= set(pool) and len(context) == min(rule.size, len(pool))


@given(SIZES, RULES)
def test_whole_context_is_that_of_all_sentences_of_the_document(sizes, rule):
    documents, document_of = documents_of(sizes)
    for size in (rule.size, 6):  # contexts of a document are remembered for each rule
        part, of_document = dataclasses.replace(rule, size=size), {}
        for sentence, document in enumerate(document_of):
            of_document.setdefault(document, set()).update(documents.context(sentence, part))
        whole = dataclasses.replace(part, whole=True)
        for sentence, document in enumerate(document_of):
            has_context = documents.context(sentence, part)
            expected = sorted(of_document[document]) if has_context else []
            assert documents.context(sentence, whole) == expected


def test_random_contexts_differ_by_seed_and_by_sentence():
    documents, _ = documents_of([40])
    first, second = (
        [documents.context(s, ContextRule("random", seed=seed)) for s in range(40)]
        for seed in (1, 2)
    )
    assert first != second and len({context[0] for context in first}) > 20


def test_random_contexts_are_those_of_earlier_versions():
    documents, rule = Documents([0, 4, 16], 28), ContextRule("random", 2)
    assert [documents.context(s, rule) for s in (0, 5, 20)] == [[2, 3], [11, 13], [19, 26]]
    foreign = ContextRule("foreign", 2)
    assert [documents.context(s, foreign) for s in (0, 5, 20)] == [[24, 27], [21, 23], [5, 14]]


def test_random_contexts_of_a_window_equal_those_of_the_whole_text():
    rule = ContextRule("random", 2)
    whole = Documents([0, 4, 16], 28)
    window = Documents([0, 12], 24, before=1)
    for sentence in range(24):
        expected = [i - 4 for i in whole.context(sentence + 4, rule)]
        assert window.context(sentence, rule) == expected


def test_every_sentence_is_a_document_without_starts():
    documents = Documents([], 3)
    assert len(documents) == 3
    for kind in ("previous", "next", "random"):
        assert [documents.context(s, ContextRule(kind, 5)) for s in range(3)] == [[], [], []]
    assert documents.context(1, ContextRule("foreign", 5)) == [0, 2]
    assert documents.starts(1, 2) == [1, 2] and documents.starts(2, 5) == [2, 3]
    assert documents.rounds([2, 0]) == [[0, 2]]


@given(RULES, st.booleans())
def test_blank_lines_have_no_context_and_are_in_none(rule, whole):
    blank = {1, 2, 7}
    documents = Documents([0, 4], 9)
    rule = dataclasses.replace(rule, whole=whole)
    # A first use must not be remembered.
    assert any(documents.context(s, rule) for s in range(9)) == (rule.kind != "none")
    without_blank = documents.without(blank)
    of_sentences = [without_blank.context(s, rule) for s in range(9)]
    assert not any(of_sentences[sentence] for sentence in blank)
    assert blank.isdisjoint(itertools.chain(*of_sentences))
    assert any(of_sentences) == (rule.kind != "none")


TEXT = [[5, 6, EOS], [7, EOS], [8, 9, 10, EOS], [11, EOS]]
TARGETS = [[4, EOS], [EOS], [9, 8, 7, EOS], [5, 5, EOS]]


def contexts_of(of_rows, rule):
    """The context tensors of a batch whose contexts are these sentences of TEXT."""
    src, tgt = (lambda s, side=side: np.array(side[s], np.uint16) for side in (TEXT, TARGETS))
    return contexts(of_rows, src, rule, tgt)


def sentences_of(context):
    return [[i for i in row if i != PAD] for row in context.ids.tolist()]


@pytest.mark.parametrize(
    ("join", "sentences", "rows"),
    [
        ("concatenate", [[5, 6, BREAK, 7, EOS], TEXT[0]], [[0], [1], [-1], [-1], [0]]),
        ("parallel", TEXT[:2], [[0, 1], [0, -1], [-1, -1], [-1, -1], [0, 1]]),
    ],
)
def test_contexts_of_a_batch_occur_once(join, sentences, rows):
    documents, rule = Documents([0, 3], 4), ContextRule("previous", 2, join)
    context = contexts_of([documents.context(s, rule) for s in (2, 1, 0, 3, 2)], rule)
    assert sentences_of(context) == sentences
    assert context.lengths.tolist() == list(map(len, sentences)) and context.padded
    assert context.rows.tolist() == rows
    assert contexts_of([[], []], rule) is None


def test_target_sides_are_in_the_contexts_if_the_rule_reads_them():
    rule = ContextRule("previous", 2, "parallel", targets=True)
    context = contexts_of([[0, 1], [], [2]], rule)
    assert sentences_of(context) == [TEXT[2], TEXT[0], TEXT[1]]  # the longest first
    assert context.rows.tolist() == [[1, 2], [-1, -1], [0, -1]]
    assert context.tgt_in.tolist() == [[BOS, 9, 8, 7], [BOS, 4, PAD, PAD], [BOS, PAD, PAD, PAD]]
    assert context.tgt_lengths.tolist() == [4, 2, 1] and context.tgt_padded
    alone = contexts_of([[2]], rule)
    assert alone.tgt_in.tolist() == [[BOS, 9, 8, 7]] and not alone.tgt_padded
    joined = contexts_of([[0, 3]], ContextRule(size=2, targets=True))
    assert joined.tgt_in.tolist() == [[BOS, 4, BREAK, 5, 5]]
    assert contexts_of([[0]], ContextRule()).tgt_in is None


@st.composite
def contexts_with_parts(draw):
    """Contexts of 1 to 40 tokens, and the least padding that a cut into parts must save."""
    lengths = draw(st.lists(st.integers(1, 40), min_size=1, max_size=30))
    rule = ContextRule("previous", join="parallel", targets=draw(st.booleans()))
    least = draw(st.integers(1, 60))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(context_module, "SAVED", least)
        context = contexts(
            [[i] for i in range(len(lengths))],
            lambda i: np.full(lengths[i], 5 + i),
            rule,
            targets=lambda i: np.full(1 + 7 * i % 11, i),
        )
    assert context.lengths.tolist() == sorted(lengths, reverse=True)
    return context, least


@given(contexts_with_parts())
def test_parts_of_contexts_are_the_contexts_in_order_without_needless_padding(problem):
    whole, _ = problem
    parts = whole.of_like_length()
    sides = [("ids", "lengths", "padded"), ("tgt_in", "tgt_lengths", "tgt_padded")]
    for ids, lengths, padded in sides[: 1 if whole.tgt_in is None else 2]:
        # `stacked` takes hidden states, which have one more axis.
        states = stacked([getattr(part, ids).unsqueeze(-1) for part in parts])
        assert states.squeeze(-1).equal(getattr(whole, ids))
        of_parts = [getattr(part, lengths) for part in parts]
        assert torch.cat(of_parts).equal(getattr(whole, lengths))
        for part, of_part in zip(parts, of_parts, strict=True):
            longest = int(of_part.max())
            assert getattr(part, ids).size(1) == longest
            assert getattr(part, padded) == bool((of_part < longest).any())


@given(contexts_with_parts())
def test_contexts_are_cut_wherever_enough_padding_is_saved(problem):
    whole, least = problem
    parts = whole.of_like_length()
    for part in parts:
        lengths = part.lengths.tolist()
        saved = [(len(lengths) - i) * (lengths[0] - n) for i, n in enumerate(lengths)]
        assert max(saved) < least
        assert part.rows is whole.rows
    saved = whole.ids.numel() - sum(part.ids.numel() for part in parts)
    assert saved >= least * (len(parts) - 1)


def test_contexts_are_cut_for_a_gpu_only_if_much_padding_is_saved():
    lengths, rule = [200, 190, *[5] * 20], ContextRule("previous", join="parallel")
    parts = {
        (device, count): len(
            contexts(
                [[i] for i in range(count)],
                lambda i: [5] * lengths[i % 22],
                rule,
                lambda i: [],
                device,
            ).of_like_length()
        )
        for device in ("cpu", "cuda")
        for count in (22, 220)
    }
    assert parts == {("cpu", 22): 2, ("cpu", 220): 3, ("cuda", 22): 1, ("cuda", 220): 2}


@pytest.mark.parametrize(
    ("join", "few_shapes", "copies"),
    [("parallel", False, 2), ("parallel", True, 3), ("concatenate", True, 1)],
)
@pytest.mark.parametrize("targets", [False, True])
def test_packed_contexts_have_one_copy_of_the_row_for_each_context(
    join, few_shapes, copies, targets
):
    """As many as the rule allows, if few shapes may occur."""
    rule, lengths = ContextRule("previous", 3, join, targets=targets), np.array([3, 1, 2])
    sides = TEXT.__getitem__, TARGETS.__getitem__
    read = packed_contexts([[0], [], [0, 1]], sides, rule, [lengths] * 2, 4, few_shapes)
    has = [[True, False, True], [False, False, True], [False] * 3][:copies]
    for of_side in [read.copies, read.tgt_copies][: 1 + targets]:
        assert of_side.has.tolist() == np.repeat(has, lengths, axis=1).tolist()
    assert read.ids.shape[1] % (2 * copies * 4) == 0
    assert not targets or read.tgt_in.shape == read.ids.shape


@given(SIZES, st.data())
def test_rounds_have_one_sentence_of_each_document_up_to_the_last_needed(sizes, data):
    documents, document_of = documents_of(sizes)
    sentences = data.draw(st.lists(st.integers(0, len(document_of) - 1)))
    needed = [
        s
        for s, document in enumerate(document_of)
        if any(document_of[other] == document and s <= other for other in sentences)
    ]
    rounds = documents.rounds(sentences)
    assert sorted(itertools.chain(*rounds)) == needed
    for i, of_round in enumerate(rounds):
        assert of_round and of_round == sorted(of_round)
        assert all(s - documents.bounds(s)[0] == i for s in of_round)


def write_documents(prep, text):
    (prep / "docs").mkdir(exist_ok=True)
    (prep / "docs" / "dev.txt").write_text(text)


def test_documents_of_a_set_start_where_its_file_says(tmp_path):
    assert len(Documents.of_set(tmp_path, "dev", 7)) == 7
    write_documents(tmp_path, "0\n3\n5\n")
    documents = Documents.of_set(tmp_path, "dev", 7)
    assert [documents.bounds(s) for s in range(7)] == [(0, 3)] * 3 + [(3, 5)] * 2 + [(5, 7)] * 2


@pytest.mark.parametrize("text", ["1\n3\n", "0\n3\n3\n", "0\n7\n", "0\nx\n", ""])
def test_damaged_document_starts_raise_data_error(tmp_path, text):
    write_documents(tmp_path, text)
    with pytest.raises(DataError, match="not the starts of documents"):
        Documents.of_set(tmp_path, "dev", 7)


@pytest.mark.parametrize("sizes", [[4], [1, 2, 1], [1, 1, 0, 1, 1]])
def test_batches_of_a_prepared_set_have_contexts_from_all_shards(tmp_path, sizes):
    sentences = iter(TEXT)
    for shard, size in enumerate(sizes):
        with pair_writer(tmp_path / "dev", shard, 20) as add:
            for ids in itertools.islice(sentences, size):
                add(ids, [4, EOS])
    write_documents(tmp_path, "0\n2\n")
    store, rows, rule = Store(tmp_path / "dev"), np.array([1, 3, 0]), ContextRule()
    assert collate(store, rows).context is None
    context = collate(store, rows, rule=rule).context
    assert sentences_of(context) == [TEXT[2], TEXT[0]]
    assert context.rows.tolist() == [[1], [0], [-1]]
    assert collate(store, np.array([0, 2]), rule=rule).context is None
    rule = ContextRule(targets=True)
    of_the_set = collate(store, rows, rule=rule).context
    assert of_the_set.tgt_in.tolist() == [[BOS, 4]] * 2
    translated = {0: np.array([9, 8, EOS]), 2: np.array([EOS])}
    context = collate(store, rows, rule=rule, translated=translated.__getitem__).context
    assert context.tgt_in.tolist() == [[BOS, PAD, PAD], [BOS, 9, 8]]
