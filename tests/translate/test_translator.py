"""Translation of lines: order, blank and over-long lines, n-best lists, batches and workers."""

from __future__ import annotations

import itertools
import math
import multiprocessing
import os
import random
import sys
from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from toy_models import Table, recurrent
from toy_translators import LETTERS, VOCABULARY, BpeWords, random_lines, texts, translator

from nmtkit.errors import DataError, EnvironmentProblem
from nmtkit.parallel import Workers
from nmtkit.settings import SearchSettings
from nmtkit.text.vocabulary import SPECIALS, Vocabulary
from nmtkit.translate import searcher, workers
from nmtkit.translate import translator as translator_module
from nmtkit.translate.searcher import sentences_at_once
from nmtkit.translate.translator import Translator, Window
from nmtkit.translate.windows import windowed
from tests.systems import workers_only
from tests.toy_recurrent import ToyRecurrent
from tests.word_side import WordSide


class LengthRecorder(ToyRecurrent):
    """Keeps the lengths of the sentences that it encodes in `lengths`."""

    def encode(self, batch):
        self.lengths += batch.src_lengths.tolist()
        return super().encode(batch)


def recording_lengths(model):
    model.__class__, model.lengths = LengthRecorder, []
    return model


def test_translations_keep_the_order_of_lines_and_do_not_depend_on_other_lines():
    lines = random_lines(37)
    together = texts(translator().translate_window(lines))
    assert together == [translator().translate_window([line])[0].text for line in lines]
    assert len(set(together)) > 10


def test_equal_lines_have_different_samples():
    first, second = translator(sample=True, nbest=3).translate_window(["a b c"] * 2)
    assert first.candidates != second.candidates


def test_blank_lines_stay_blank_and_never_reach_the_model():
    model = recording_lengths(recurrent(1, len(VOCABULARY), eos_bias=-9.0))
    of_model = translator(model)
    translations = of_model.translate_window(["a b", "", "   ", "\u00a0\u2003", "c"])
    assert list(map(bool, texts(translations))) == [True, False, False, False, True]
    assert sorted(model.lengths) == [2, 3]
    assert of_model.counts["empty"] == 3
    assert texts(translator().translate_window(["", " "])) == ["", ""]
    assert translator().translate_window([]) == []


def test_over_long_lines_are_translated_in_pieces():
    cutting = translator(max_source=4, max_length_a=0, max_length_b=3)
    whole, short = cutting.translate_window(["a b . c d e f g , h i j", "a b"])
    pieces = cutting.translate_window(["a b .", "c d e f", "g ,", "h i j"])
    assert whole.text == " ".join(filter(None, texts(pieces)))
    for name in ("log_prob", "score"):
        total = sum(getattr(piece.candidates[0], name) for piece in pieces)
        assert getattr(whole.candidates[0], name) == pytest.approx(total)
    assert [short] == cutting.translate_window(["a b"])


def test_line_in_pieces_has_as_many_candidates_as_the_piece_with_the_fewest():
    only_a = Table([-math.inf, -math.inf, 0.0, -math.inf, 1.0])
    cutting = translator(only_a, beam=5, nbest=5, max_source=2, max_length_b=0)
    lists = [t.candidates for t in cutting.translate_window(["a b c", "a b", "c"])]
    assert list(map(len, lists)) == [3, 4, 3]
    for joined, *of_pieces in zip(*lists, strict=False):
        assert joined.subwords == of_pieces[0].subwords + of_pieces[1].subwords


# The second token of a line is </s>.
ONE_WORD = Table([0.0, 0.0, 0.0, 0.0, 9.0], [0.0, 0.0, 9.0, 0.0, 0.0])


def test_translated_lines_are_counted():
    letter_translator = translator(ONE_WORD, beam=1, max_source=4)
    letter_translator.translate_window(["b zebra", "", "c d e f", "c d e f g h"])
    assert letter_translator.counts == Counter(
        lines=4, empty=1, over_long=1, pieces=2, src_tokens=16, unknown=1, tgt_tokens=8
    )
    silent = translator(Table([0.0, 0.0, 9.0, 0.0, 0.0]), beam=1)
    silent.translate_window(["b", "", "c"])
    assert silent.counts["no_output"] == silent.counts["tgt_tokens"] == 2


def test_scored_lines_are_counted():
    letter_translator = translator(max_source=4)
    letter_translator.force(["b zebra", "", "c", "c d e f g h"], ["a", "b", "", "zebra c"])
    assert letter_translator.counts == Counter(
        lines=4, empty=1, over_long=1, src_tokens=13, unknown=1, tgt_tokens=8, unknown_target=1
    )


def test_word_that_a_piece_cuts_does_not_join_the_next_piece():
    options = {"beam": 1, "max_source": 2, "max_length_a": 0, "max_length_b": 2}
    cutting = translator(Table([0.0] * 4 + [9.0]), **options)
    cutting.tgt_side, cutting.tgt_vocab = BpeWords(), Vocabulary([*SPECIALS, "a@@"])
    (translation,) = cutting.translate_window(["a b c"])
    assert translation.subwords == ["a@@", "a", "a@@", "a@@"] and translation.text == "aa aa"


def test_candidates_come_best_first_and_unfinished_ones_are_counted():
    endless = translator(recurrent(1, len(VOCABULARY), eos_bias=-9.0), nbest=3)
    (translation,) = endless.translate_window(["a b c"])
    scores = [candidate.score for candidate in translation.candidates]
    assert len(scores) == 3 and scores == sorted(scores, reverse=True)
    assert not translation.candidates[0].finished
    assert endless.counts["unfinished"] == 1
    assert endless.counts["tgt_tokens"] == len(translation.subwords)  # without </s>


def test_only_lines_whose_best_candidate_is_unfinished_count_as_unfinished():
    short = translator(nbest=3, max_length_a=0, max_length_b=3)
    lists = [t.candidates for t in short.translate_window(random_lines(20)) if t.candidates]
    best, last = (sum(not of_line[place].finished for of_line in lists) for place in (0, -1))
    assert short.counts["unfinished"] == best < last


@pytest.mark.parametrize("jobs", [2, 3])
def test_translations_are_equal_to_the_bit_for_any_number_of_workers(jobs):
    lines = random_lines(60, seed=3)
    model = recurrent(9, len(VOCABULARY), sharpness=5).float()
    alone, together = translator(model), translator(model, jobs=jobs)
    with workers.one_thread(torch.device("cpu")):
        assert alone.translate_window(lines) == together.translate_window(lines)
    assert alone.counts == together.counts


class CountingWordSide(WordSide):
    """Counts the lines that this process encodes and decodes in `calls`."""

    def __init__(self):
        self.calls = 0

    def encode(self, line):
        self.calls += 1
        return super().encode(line)

    def decode(self, subwords):
        self.calls += 1
        return super().decode(subwords)


@pytest.fixture
def reading_translator(monkeypatch):
    """A function: a translator whose workers read windows of 20 lines or more."""
    monkeypatch.setattr(translator_module, "MANY_LINES", 20)
    monkeypatch.setattr(translator_module, "SHARE", 3)

    def counting(**settings):
        letter_translator = translator(**settings)
        letter_translator.src_side = letter_translator.tgt_side = CountingWordSide()
        return letter_translator

    return counting


@workers_only
@pytest.mark.parametrize("settings", [{}, {"nbest": 2}, {"max_source": 3}])
def test_workers_encode_and_decode_large_windows_only(settings, reading_translator):
    lines = random_lines(50, seed=4)
    alone, together = reading_translator(**settings), reading_translator(**settings)
    with together.reading(2):
        assert alone.translate_window(lines) == together.translate_window(lines)
        assert alone.counts == together.counts and alone.counts["unknown"] == 0
        assert alone.src_side.calls >= 80 and together.src_side.calls == 0
        together.translate_window(lines[:9])
        assert 0 < together.src_side.calls < 40


@workers_only
def test_killed_reading_worker_is_reported_and_reading_ends_its_workers(reading_translator):
    lines, reader = random_lines(50, seed=4), reading_translator()
    before = set(multiprocessing.active_children())
    with reader.reading(2):
        expected = reader.translate_window(lines)
        children = set(multiprocessing.active_children()) - before
        assert len(children) == 2
        for child in children:
            child.kill()
        with pytest.raises(EnvironmentProblem, match="a worker process was killed"):
            reader.translate_window(lines)
    assert set(multiprocessing.active_children()) <= before
    assert reader.translate_window(lines) == expected
    with reader.reading(1):
        reader.translate_window(lines)
        assert set(multiprocessing.active_children()) <= before


@pytest.fixture
def events(monkeypatch):
    """The searches, and the beginnings of reading and writing by workers, in their order."""
    monkeypatch.setattr(translator_module, "MANY_LINES", 2)
    names, begin, search = [], Workers.begin, Translator._search_pieces

    def begun(workers, shares):
        names.append({Translator._pieces: "read", Translator._text: "write"}[shares[0][0]])
        return begin(workers, shares)

    def searched(*arguments):
        names.append("search")
        return search(*arguments)

    monkeypatch.setattr(Workers, "begin", begun)
    monkeypatch.setattr(Translator, "_search_pieces", searched)
    return names


@workers_only
def test_workers_read_the_next_window_and_write_the_last_one_during_a_search(events):
    letter_translator, lines = (
        translator(),
        [*random_lines(3, seed=4), "", *random_lines(10, seed=5)],
    )
    with letter_translator.reading(2):
        windows = letter_translator.translate_windows(map(Window, windowed(lines, 5)))
        translations = list(itertools.chain.from_iterable(windows))
        assert " ".join(events) == "read read search write read search write search write"
        events.clear()
        expected = iter(translations)
        for window in letter_translator.translate_windows(
            map(Window, windowed(lines, 5)), ahead=False
        ):
            assert events == ["read", "search", "write"]
            assert window == list(itertools.islice(expected, len(window)))
            events.clear()
    together = translator().translate_window(lines)
    assert texts(translations) == texts(together)
    scores = [[c.score for t in lines for c in t.candidates] for lines in (translations, together)]
    assert scores[0] == pytest.approx(scores[1], rel=1e-12)


@workers_only
def test_workers_end_when_the_reader_of_translations_fails(events):
    letters, before = translator(), set(multiprocessing.active_children())
    windows = map(Window, windowed(random_lines(20, seed=4), 5))
    with pytest.raises(BrokenPipeError), letters.reading(2):
        for _ in letters.translate_windows(windows):
            assert events.count("search") == 2  # the second window is ahead
            raise BrokenPipeError
    assert set(multiprocessing.active_children()) <= before


@pytest.mark.parametrize(
    "options",
    [
        {"beam": 1},
        {"nbest": 2},
        {"sample": True, "nbest": 2},
        {"beam": 4, "diverse_groups": 2, "diversity": 0.5},
        {"sample": True, "mbr": 3},
    ],
)
def test_last_sentences_of_batches_are_searched_together_with_the_same_results(
    options, monkeypatch
):
    results = []
    for batches_to_leave_from in (math.inf, 2):
        monkeypatch.setattr(searcher, "BATCHES_TO_LEAVE_FROM", batches_to_leave_from)
        model = recording_lengths(recurrent(4, len(VOCABULARY), eos_bias=2.0))
        letter_translator, done = translator(model, batch_size=16, max_length_b=30, **options), []
        letter_translator.done = done.append
        translations = letter_translator.translate_window(random_lines(150))
        scores = [h.score for translation in translations for h in translation.candidates]
        results.append((len(model.lengths), scores, texts(translations), letter_translator.counts))
        assert sum(done) == pytest.approx(150)
    (searched, scores, *expected), (searched_with_left, scores_with_left, *rest) = results
    assert searched < searched_with_left < 1.2 * searched
    assert scores_with_left == pytest.approx(scores, rel=1e-12) and rest == expected


@pytest.mark.parametrize(
    ("device", "beam", "lines", "count"),
    [
        ("cpu", 5, 9999, 128),
        ("cpu", 1, 3999, 128),
        ("cpu", 1, 4000, 256),
        ("cuda", 5, 3, 512),
        ("cuda", 1, 9999, 512),
    ],
)
def test_batch_size_depends_on_device_beam_and_number_of_lines(device, beam, lines, count):
    device = torch.device(device)
    assert sentences_at_once(SearchSettings(beam=beam), device, lines) == count
    assert sentences_at_once(SearchSettings(beam=beam, batch_size=7), device, lines) == 7
    samples = SearchSettings(sample=True, mbr=32)
    assert sentences_at_once(samples, device, 3) == (512 if device.type == "cuda" else 128) // 4


def test_batches_of_greedy_search_grow_with_many_lines(monkeypatch):
    sizes = []
    for many_lines in (300, 301):
        monkeypatch.setattr(searcher, "MANY_LINES", many_lines)
        batches = translator(beam=1, batch_size=0)._batches([5] * 300)
        sizes.append(list(map(len, batches)))
    assert sizes == [[256, 44], [128, 128, 44]]


def test_gpu_with_much_memory_takes_twice_as_many_positions(monkeypatch):
    memory = {"cpu": 0, "cuda:0": 16 << 30, "cuda:1": 80 << 30}
    monkeypatch.setattr(
        torch.cuda,
        "get_device_properties",
        lambda device: SimpleNamespace(total_memory=memory[str(device)]),
    )

    def positions(**values):
        settings = SearchSettings(**values)
        return [searcher.positions_at_once(settings, torch.device(name)) for name in memory]

    assert positions() == [128 * 64, 512 * 64, 2 * 512 * 64]
    assert positions(batch_size=7) == [7 * 64] * 3


@pytest.mark.parametrize("replayed", [False, True])
def test_sources_are_padded_to_few_lengths_if_steps_are_replayed(replayed, monkeypatch):
    lines, widths, source_batch = random_lines(40), [], searcher.source_batch
    expected = texts(translator().translate_window(lines))
    monkeypatch.setattr(searcher, "graphs_fit", lambda device: replayed)
    monkeypatch.setattr(
        searcher,
        "source_batch",
        lambda *a: widths.append(source_batch(*a).src.shape[1]) or source_batch(*a),
    )
    assert texts(translator().translate_window(lines)) == expected
    assert all(width % 8 == 0 for width in widths) == replayed


def test_long_sentences_come_first_and_in_smaller_batches():
    batches = translator(batch_size=4)._batches([300, 2, 3, 100, 90, 5, 4, 3])
    assert sorted(itertools.chain(*batches)) == list(range(8))
    assert batches[:2] == [[0], [3, 4]]
    assert list(map(len, batches)) == [1, 2, 4, 1]


def lines_of_lengths(lengths):
    draw = random.Random(3)
    return [" ".join(draw.choices(LETTERS, k=length)) for length in lengths]


@pytest.fixture
def alternatives():
    """Twelve sources, each with two targets, or three for every third source."""
    sources = lines_of_lengths([3, 400, 2, 30, 2, 1, 4, 90, 5, 3, 2, 64])
    lengths = [5, 2, 4, 70, 200, 1, 4, 60, 3, 3, 2, 64]
    targets = [
        lines_of_lengths(max(1, length - k) for k in range(2 if i % 3 else 3))
        for i, length in enumerate(lengths)
    ]
    return sources, targets


def test_alternatives_are_scored_as_single_targets(alternatives):
    sources, targets = alternatives
    letter_translator = translator(batch_size=6)
    for source, of_source, scores in zip(
        sources, targets, letter_translator.alternatives(sources, targets), strict=True
    ):
        alone = [letter_translator.force([source], [target])[0].log_prob for target in of_source]
        assert scores == pytest.approx(alone, abs=1e-10)


def test_alternatives_come_in_batches_of_bounded_rows_and_positions(alternatives, monkeypatch):
    """The bounds are those of a search: 6 rows, and 6 · 64 positions with padding."""
    letter_translator, batches = translator(batch_size=6), []
    score = letter_translator._score
    monkeypatch.setattr(
        letter_translator, "_score", lambda work: batches.append(work) or score(work)
    )
    letter_translator.alternatives(*alternatives)
    sizes = {2: [], 3: []}
    for work in batches:
        longest = max(max(len(src), *map(len, tgt)) for src, tgt, *_ in work)
        count = len(work[0][1])
        rows = len(work) * count
        assert len(work) == 1 or (rows <= 6 and rows * longest <= 6 * 64)
        sizes[count].append(len(work))
    # Of 2 targets: 401 and 201 positions alone, 91 with 65, then as full as rows allow. Of 3: 71
    # positions alone, then the same.
    assert sizes == {2: [1, 1, 2, 3, 1], 3: [1, 2, 1]}


def test_scored_lines_with_long_targets_come_in_smaller_batches(monkeypatch):
    letter_translator, sizes = translator(batch_size=6), []
    score = letter_translator._score
    monkeypatch.setattr(
        letter_translator, "_score", lambda work: sizes.append(len(work)) or score(work)
    )
    letter_translator.force(["a"] * 5, lines_of_lengths([1, 250, 1, 200, 1]))
    assert sizes == [1, 1, 3]


def test_force_needs_as_many_targets_as_sources():
    with pytest.raises(ValueError, match="longer|shorter"):
        translator().force(["a", "b"], ["a"])


def test_error_in_a_worker_is_raised_with_its_place_and_hint():
    def fail(chunk):
        if chunk == 2:
            raise DataError("this chunk is bad", where="chunk 2", hint="change it")
        return chunk

    with pytest.raises(DataError, match="this chunk is bad") as error:
        list(workers.mapped(fail, [0, 1, 2, 3], 2))
    assert (error.value.where, error.value.hint) == ("chunk 2", "change it")


@workers_only
def test_killed_worker_raises_environment_problem():
    with pytest.raises(EnvironmentProblem, match="killed"):
        list(workers.mapped(lambda chunk: os._exit(9), [0, 1], 2))


def test_one_thread_restores_the_number_of_threads():
    before = torch.get_num_threads()
    with workers.one_thread(torch.device("cpu")):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before


@workers_only
def test_workers_have_one_thread_each_and_a_single_chunk_has_no_worker():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        threads = [*workers.mapped(lambda chunk: torch.get_num_threads(), [0, 1], 2)]
    finally:
        torch.set_num_threads(before)
    assert threads == [1, 1]
    assert [*workers.mapped(lambda chunk: os.getpid(), [0], 4)] == [os.getpid()]


@pytest.mark.parametrize(
    ("device", "platform", "daemon", "jobs"),
    [
        ("cpu", "linux", False, 4),
        ("cuda", "linux", False, 1),
        ("cpu", "darwin", False, 1),
        ("cpu", "linux", True, 1),
    ],
)
def test_workers_are_forked_on_linux_for_a_cpu_only(device, platform, daemon, jobs, monkeypatch):
    """A worker of a pool may have no workers."""
    monkeypatch.setattr(sys, "platform", platform)
    process = SimpleNamespace(daemon=daemon)
    monkeypatch.setattr(multiprocessing, "current_process", lambda: process)
    assert workers.usable_jobs(torch.device(device), 4) == jobs
