"""Lines in, lines out: order, blank and over-long lines, workers, windows, errors."""

from __future__ import annotations

import functools
import io
import itertools
import math
import multiprocessing
import os
import sys
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from toy_models import Gossip, Heir, Table, recurrent

from nmtkit import files
from nmtkit.data.batches import collate
from nmtkit.data.documents import ContextRule, Documents
from nmtkit.data.pairs import GivenPairs
from nmtkit.errors import ConfigError, DataError, EnvironmentProblem
from nmtkit.parallel import Workers
from nmtkit.settings import SearchSettings
from nmtkit.text.bpe import Bpe
from nmtkit.text.vocabulary import SPECIALS, Vocabulary
from nmtkit.translate import output, searcher, workers
from nmtkit.translate import translator as translator_module
from nmtkit.translate import windows as windows_module
from nmtkit.translate.scorer import Scorer
from nmtkit.translate.searcher import sentences_at_once, without_blank_lines
from nmtkit.translate.translator import Translator, Window
from nmtkit.translate.windows import (
    Boundaries,
    file_windows,
    named_boundaries,
    stream_windows,
    whole_documents,
    windowed,
    windows_for,
)
from tests.spaces import Spaces
from tests.toy_recurrent import ToyRecurrent

VOCABULARY = Vocabulary([*SPECIALS, *"abcdefghij", ".", ","])


class Watched(ToyRecurrent):
    """Says how long the sentences are that it is given."""

    lengths: list[int]

    def encode(self, batch):
        self.lengths += batch.src_lengths.tolist()
        return super().encode(batch)


def make(model=None, jobs=1, **options):
    model = model or recurrent(9, len(VOCABULARY), eos_bias=0.0, sharpness=5)
    settings = SearchSettings.model_validate(
        {"beam": 3, "max_length_b": 4, "batch_size": 4, **options}
    )
    return Scorer([model], Spaces(), Spaces(), VOCABULARY, VOCABULARY, settings, jobs=jobs)


def texts(translations):
    return [translation.text for translation in translations]


def lines(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    letters = "abcdefghij"
    lengths = torch.randint(0, 9, (count,), generator=generator).tolist()
    return [
        " ".join(letters[i] for i in torch.randint(10, (n,), generator=generator).tolist())
        for n in lengths
    ]


def test_each_line_is_where_it_was():
    text = lines(37)
    together = [t.text for t in make().translate_window(text)]
    assert together == [make().translate_window([line])[0].text for line in text]
    assert len(set(together)) > 10


def test_blank_lines_stay_blank_and_never_meet_the_model():
    model = recurrent(1, len(VOCABULARY), eos_bias=-9.0)
    model.__class__ = Watched
    model.lengths = []
    translator = make(model)
    out = [t.text for t in translator.translate_window(["a b", "", "   ", "\u00a0\u2003", "c"])]
    assert [bool(text) for text in out] == [True, False, False, False, True]
    assert sorted(model.lengths) == [2, 3]
    assert translator.counts["empty"] == 3
    assert [t.text for t in make().translate_window(["", " "])] == ["", ""]
    assert make().translate_window([]) == []


def test_over_long_lines_are_translated_in_pieces_and_counted():
    translator = make(max_source=4, max_length_a=0, max_length_b=3)
    whole, short = translator.translate_window(["a b . c d e f g , h i j", "a b"])
    parts = [t.text for t in translator.translate_window(["a b .", "c d e f", "g ,", "h i j"])]
    assert whole.text == " ".join(part for part in parts if part)
    assert translator.counts["over_long"] == 1
    assert translator.counts["pieces"] == 4
    assert short == translator.translate_window(["a b"])[0]


class BpeWords(Spaces):
    splitter = Bpe.__new__(Bpe)  # its codes are not read

    def decode(self, subwords):
        return " ".join(self.splitter.join(subwords))


def test_a_word_that_is_cut_at_the_end_of_a_piece_does_not_join_the_next_piece():
    options = {"beam": 1, "max_source": 2, "max_length_a": 0, "max_length_b": 2}
    translator = make(Table([0.0] * 4 + [9.0]), **options)
    translator.tgt_side, translator.tgt_vocab = BpeWords(), Vocabulary([*SPECIALS, "a@@"])
    (found,) = translator.translate_window(["a b c"])
    assert found.subwords == ["a@@", "a", "a@@", "a@@"] and found.text == "aa aa"


def test_nbest_and_unfinished_are_reported():
    translator = make(recurrent(1, len(VOCABULARY), eos_bias=-9.0), nbest=3)
    (found,) = translator.translate_window(["a b c"])
    assert len(found.candidates) == 3
    assert found.candidates[0].score >= found.candidates[1].score >= found.candidates[2].score
    assert not found.candidates[0].finished
    assert translator.counts["unfinished"] == 1
    assert translator.counts["tgt_tokens"] == len(found.subwords)  # without </s>
    translator = make(nbest=3, max_length_a=0, max_length_b=3)
    found = [t.candidates for t in translator.translate_window(lines(20)) if t.candidates]
    best, last = (sum(not of_line[place].finished for of_line in found) for place in (0, -1))
    assert translator.counts["unfinished"] == best < last


@pytest.mark.parametrize("jobs", [2, 3])
def test_output_is_the_same_to_the_bit_for_any_number_of_workers(jobs):
    text = lines(60, seed=3)
    model = recurrent(9, len(VOCABULARY), sharpness=5).float()
    alone, together = make(model), make(model, jobs=jobs)
    with workers.one_thread(torch.device("cpu")):
        assert alone.translate_window(text) == together.translate_window(text)
    assert alone.counts == together.counts


class CountingSpaces(Spaces):
    """Counts what this process encodes and decodes."""

    def __init__(self):
        self.calls = 0

    def encode(self, line):
        self.calls += 1
        return super().encode(line)

    def decode(self, subwords):
        self.calls += 1
        return super().decode(subwords)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux has workers")
@pytest.mark.parametrize("options", [{}, {"nbest": 2}, {"max_source": 3}])
def test_workers_read_many_lines(options, monkeypatch):
    """This process reads few lines, and all lines later. A killed worker is reported."""
    monkeypatch.setattr(translator_module, "MANY_LINES", 20)
    monkeypatch.setattr(translator_module, "SHARE", 3)
    text = lines(50, seed=4)
    alone, together = make(**options), make(**options)
    for translator in (alone, together):
        translator.src_side = translator.tgt_side = CountingSpaces()
    before = set(multiprocessing.active_children())
    with together.reading(2):
        assert alone.translate_window(text) == together.translate_window(text)
        assert alone.counts == together.counts and alone.counts["unknown"] == 0
        assert alone.src_side.calls >= 80 and together.src_side.calls == 0
        together.translate_window(text[:9])
        assert 0 < together.src_side.calls < 40
        children = set(multiprocessing.active_children()) - before
        assert len(children) == 2
        for child in children:
            child.kill()
        with pytest.raises(EnvironmentProblem, match="a worker process was killed"):
            together.translate_window(text)
    assert set(multiprocessing.active_children()) <= before
    assert together.translate_window(text) == alone.translate_window(text)
    with together.reading(1):
        together.translate_window(text)
        assert set(multiprocessing.active_children()) <= before


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux has workers")
def test_workers_read_and_write_during_a_search(monkeypatch):
    """During a search workers read the next window, and write the translations of the last one."""
    monkeypatch.setattr(translator_module, "MANY_LINES", 2)
    events: list[str] = []
    begin, search = Workers.begin, Translator._search_pieces

    def begun(workers, shares):
        events.append({Translator._pieces: "read", Translator._text: "write"}[shares[0][0]])
        return begin(workers, shares)

    def searched(*arguments):
        events.append("search")
        return search(*arguments)

    monkeypatch.setattr(Workers, "begin", begun)
    monkeypatch.setattr(Translator, "_search_pieces", searched)
    translator, text = make(), lines(14, seed=4)
    text[3] = ""
    with translator.reading(2):
        windows = map(Window, windowed(text, 5))
        found = list(itertools.chain.from_iterable(translator.translate_windows(windows)))
        assert " ".join(events) == "read read search write read search write search write"
        events.clear()
        windows, expected = map(Window, windowed(text, 5)), iter(found)
        for of_window in translator.translate_windows(windows, ahead=False):
            assert events == ["read", "search", "write"]
            assert of_window == list(itertools.islice(expected, len(of_window)))
            events.clear()
    assert found == make().translate_window(text)


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
def test_the_last_sentences_of_the_batches_are_searched_together(options, monkeypatch):
    text, batches, progress = lines(150), [], []
    for at_once in (math.inf, 2):
        monkeypatch.setattr(searcher, "BATCHES_TO_LEAVE_FROM", at_once)
        model = recurrent(4, len(VOCABULARY), eos_bias=2.0, sharpness=3)
        model.__class__, model.lengths = Watched, []
        translator = make(model, batch_size=16, max_length_b=30, **options)
        progress.append([])
        translator.done = progress[-1].append
        translations = translator.translate_window(text)
        scores = [h.score for translation in translations for h in translation.candidates]
        batches.append((len(model.lengths), scores, texts(translations), translator.counts))
    (alone, wanted, *texts_alone), (together, found, *texts_together) = batches
    assert alone < together < 1.2 * alone
    assert found == pytest.approx(wanted, rel=1e-12) and texts_together == texts_alone
    assert [sum(amounts) for amounts in progress] == pytest.approx([150, 150])


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
def test_the_sentences_of_a_batch(device, beam, lines, count):
    place = torch.device(device)
    assert sentences_at_once(SearchSettings(beam=beam), place, lines) == count
    assert sentences_at_once(SearchSettings(beam=beam, batch_size=7), place, lines) == 7
    samples = SearchSettings(sample=True, mbr=32)
    assert sentences_at_once(samples, place, 3) == (512 if device == "cuda" else 128) // 4


def test_greedy_search_of_many_lines_has_larger_batches(monkeypatch):
    translator = make(beam=1, batch_size=0)
    sizes = []
    for most in (300, 301):
        monkeypatch.setattr(searcher, "MANY_LINES", most)
        sizes.append([len(batch) for batch in translator._batches([5] * 300)])
    assert sizes == [[256, 44], [128, 128, 44]]


def test_a_gpu_with_much_memory_takes_twice_as_many_positions(monkeypatch):
    memory = {"cpu": 0, "cuda:0": 16 << 30, "cuda:1": 80 << 30}
    monkeypatch.setattr(
        torch.cuda,
        "get_device_properties",
        lambda on: SimpleNamespace(total_memory=memory[str(on)]),
    )
    positions = searcher.positions_at_once
    automatic = [positions(SearchSettings(), torch.device(device)) for device in memory]
    assert automatic == [128 * 64, 512 * 64, 2 * 512 * 64]
    chosen = [positions(SearchSettings(batch_size=7), torch.device(device)) for device in memory]
    assert chosen == [7 * 64] * 3


@pytest.mark.parametrize("replayed", [False, True])
def test_sources_get_few_lengths_where_steps_are_replayed(replayed, monkeypatch):
    monkeypatch.setattr(searcher, "graphs_fit", lambda device: replayed)
    widths, of = [], searcher.source_batch
    monkeypatch.setattr(
        searcher, "source_batch", lambda *a: widths.append(of(*a).src.shape[1]) or of(*a)
    )
    found = texts(make().translate_window(lines(40)))
    assert all(width % 8 == 0 for width in widths) == replayed
    monkeypatch.setattr(searcher, "graphs_fit", lambda device: False)
    assert found == texts(make().translate_window(lines(40)))


def test_long_sentences_come_in_smaller_batches():
    translator = make(batch_size=4)
    batches = translator._batches([300, 2, 3, 100, 90, 5, 4, 3])
    assert sorted(i for batch in batches for i in batch) == list(range(8))
    assert batches[0] == [0]
    assert batches[1] == [3, 4]
    assert [len(batch) for batch in batches] == [1, 2, 4, 1]


def forced_alone(translator, source, target):
    return next(iter(translator.force([source], [target]))).log_prob


def test_alternatives_come_in_batches_of_bounded_rows_and_positions(monkeypatch):
    """Rows and target positions of every batch, padding included, as the limits on searches say;
    scores as of each pair by itself.
    """
    translator = make(batch_size=6)
    draw = torch.Generator().manual_seed(3)

    def line(words):
        return " ".join(
            "abcdefghij"[i] for i in torch.randint(10, (words,), generator=draw).tolist()
        )

    source_lengths = [3, 400, 2, 30, 2, 1, 4, 90, 5, 3, 2, 64]
    target_lengths = [5, 2, 4, 70, 200, 1, 4, 60, 3, 3, 2, 64]
    sources = [line(length) for length in source_lengths]
    targets = [
        [line(max(1, length - k)) for k in range(2 + (i % 3 == 0))]
        for i, length in enumerate(target_lengths)
    ]
    seen = []

    def watched(work):
        seen.append(
            (
                len(work),
                len(work[0][1]),
                max(len(src) for src, *_ in work),
                max(len(ids) for _, tgt, *_ in work for ids in tgt),
            )
        )
        return whole(work)

    whole = translator._score
    monkeypatch.setattr(translator, "_score", watched)
    found = translator.alternatives(sources, targets)
    monkeypatch.undo()
    for source, own, scores in zip(sources, targets, found, strict=True):
        assert scores == pytest.approx(
            [forced_alone(translator, source, target) for target in own], abs=1e-10
        )
    assert sum(count for count, *_ in seen) == len(sources)
    for count, alternatives, source, target in seen:
        assert count == 1 or (
            count * alternatives <= 6 and count * alternatives * max(source, target) <= 6 * 64
        )
    # Of 2 targets: 401 and 201 positions alone, 91 with 65, then as full as rows allow. Of 3: 71
    # positions alone, then the same.
    assert [count for count, alternatives, *_ in seen if alternatives == 2] == [1, 1, 2, 3, 1]
    assert [count for count, alternatives, *_ in seen if alternatives == 3] == [1, 2, 1]


def test_an_error_in_a_worker_is_an_error_here():
    def fail(chunk):
        if chunk == 2:
            raise DataError("this chunk is bad", where="chunk 2", hint="change it")
        return chunk

    with pytest.raises(DataError, match="this chunk is bad") as caught:
        list(workers.mapped(fail, [0, 1, 2, 3], 2))
    assert (caught.value.where, caught.value.hint) == ("chunk 2", "change it")


def test_a_killed_worker_is_an_error_here():
    with pytest.raises(EnvironmentProblem, match="killed"):
        list(workers.mapped(lambda chunk: os._exit(9), [0, 1], 2))


def test_one_thread_is_put_back():
    before = torch.get_num_threads()
    with workers.one_thread(torch.device("cpu")):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before


def test_forced_lines_must_be_as_many():
    with pytest.raises(ValueError, match="longer|shorter"):
        list(make().force(["a", "b"], ["a"]))


def test_windows_of_a_file_keep_odd_characters(tmp_path):
    path = tmp_path / "x.txt"
    path.write_bytes("a\u2028b\nc\x0cd\r\n\ne".encode())
    assert list(file_windows(str(path), 3)) == [["a\u2028b", "c\x0cd\r", ""], ["e"]]
    assert list(windowed(range(5), 2)) == [[0, 1], [2, 3], [4]]


def pipe(writes):
    """A pipe that another thread writes to."""
    out, into = os.pipe()

    def write():
        for item in writes:
            os.write(into, item)
        os.close(into)

    threading.Thread(target=write, daemon=True).start()
    return os.fdopen(out, "rb")


def test_a_dialogue_is_answered_line_by_line():
    out, into = os.pipe()
    os.set_blocking(out, False)  # as some programs that start others leave it
    with os.fdopen(out, "rb") as stream:
        windows = stream_windows(stream, silence=0.01)
        for line in (b"first\n", b"second\n"):
            os.write(into, line)
            assert next(windows) == [line.decode().strip()]  # though nothing more has come
        os.write(into, b"la")
        last = threading.Timer(0.05, lambda: (os.write(into, b"st"), os.close(into)))
        last.start()
        assert list(windows) == [["last"]]
        last.join()


def test_lines_that_come_all_the_time_are_answered(monkeypatch):
    monkeypatch.setattr(windows_module, "PATIENCE", 0.1)
    out, into = os.pipe()

    def write():
        for number in range(40):
            os.write(into, f"{number}\n".encode())
            time.sleep(0.01)
        os.close(into)

    thread = threading.Thread(target=write)
    with os.fdopen(out, "rb") as stream:
        thread.start()
        windows = list(stream_windows(stream, silence=0.5))
        thread.join()
    assert list(itertools.chain(*windows)) == [str(number) for number in range(40)]
    assert len(windows) > 1


def test_a_stream_is_read_in_windows_and_whole():
    text = [f"line {i} é" for i in range(5000)]
    raw = "\n".join(text).encode()
    with pipe([raw[:7], raw[7:1001], raw[1001:]]) as stream:
        windows = list(stream_windows(stream, size=1200, silence=1.0))
    assert [line for window in windows for line in window] == text
    assert all(len(window) <= 1200 for window in windows)
    with pipe([b"a\n\nb\n"]) as stream:
        assert list(stream_windows(stream)) == [["a", "", "b"]]
    with pipe([]) as stream:
        assert list(stream_windows(stream)) == []


def test_bad_bytes_on_stdin_come_after_what_was_good():
    with pipe([b"good\nbad \xc3\n"]) as stream:
        windows = stream_windows(stream)
        assert next(windows) == ["good"]
        with pytest.raises(DataError, match="not UTF-8") as caught:
            next(windows)
    assert "stdin, line 2, byte 9" in str(caught.value.where)


def test_a_line_without_end_on_stdin_comes_after_what_was_good(monkeypatch):
    monkeypatch.setattr(files, "LONGEST", 9)
    with pipe([b"123456789\nb\nan", b"d so on without"]) as stream:
        windows = stream_windows(stream, silence=1.0)
        assert next(windows) == ["123456789", "b"]
        with pytest.raises(DataError, match="^line 3 has more than 16 MiB") as caught:
            next(windows)
    assert caught.value.where == "stdin" and caught.value.hint.startswith("split it")


def gossip(rule, **options):
    return make(Gossip(len(VOCABULARY), rule), max_length_a=0, max_length_b=30, **options)


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_line_is_read_with_the_context_of_its_document(jobs):
    text = ["a b", "", "c", "d e", "f", "g"]
    documents = Documents([0, 3], 6)

    def said(rule):
        return texts(gossip(rule, jobs=jobs).translate_window(text, documents=documents))

    assert said(ContextRule("previous")) == [
        "",
        "",
        "a b",
        "",
        "d e",
        "f",
    ]  # a blank line is no context: it is passed over
    assert said(ContextRule("previous", 2)) == ["", "", "a b", "", "d e", "d e f"]
    assert said(ContextRule("previous", 2, "parallel")) == ["", "", "a b", "", "d e", "d e f"]
    assert said(ContextRule("next")) == ["c", "", "", "f", "g", ""]
    assert said(ContextRule("none")) == [""] * 6


def test_lines_without_context_are_counted_and_without_documents_all_are():
    searched, scored = gossip(ContextRule()), gossip(ContextRule())
    documents = Documents([0, 3], 4)
    searched.translate_window(["a", "b", "", "c"], documents=documents)
    scored.force(["a", "b", "", "c"], ["a"] * 4, documents)
    assert searched.counts["no_context"] == scored.counts["no_context"] == 2
    assert texts(searched.translate_window(["a", "b"])) == ["", ""]
    assert len(scored.force(["a", "b"], ["a", "b"])) == 2
    assert searched.counts["no_context"] == scored.counts["no_context"] == 4


@pytest.mark.parametrize("jobs", [1, 2])
def test_given_targets_are_scored_with_the_context_of_their_document(jobs):
    text, targets, documents = (
        ["a b", "", "c", "d e", "f", "g"],
        ["a b", "a", "a b", "d e", "d e", "c"],
        Documents([0, 3], 6),
    )

    def sure(rule):
        """Of which targets every word is what the model says; one without context says nothing."""
        return [
            min(line.log_probs) > -0.1
            for line in gossip(rule, jobs=jobs).force(text, targets, documents)
        ]

    assert sure(ContextRule("previous")) == [False, False, True, False, True, False]
    assert sure(ContextRule("previous", 2)) == [False, False, True, False, True, False]
    assert sure(ContextRule("next")) == [False] * 6 and not any(sure(ContextRule("none")))


def heir(size=1, join="parallel", **options):
    return make(
        Heir(len(VOCABULARY), ContextRule("previous", size, join, targets=True)),
        max_length_a=0,
        max_length_b=30,
        **options,
    )


LETTERS, DOCUMENTS = ["a b", "", "c", "d e", "f", "g", "h i"], Documents([0, 3, 6], 7)


@pytest.mark.parametrize("jobs", [1, 2])
def test_what_was_translated_before_is_read_with_a_line(jobs):
    """Documents are translated side by side, line after line; a blank line says nothing, and
    nothing crosses into another document.
    """
    done = []

    def said(**options):
        translator = heir(jobs=jobs, batch_size=1, **options)
        translator.done = done.append
        return texts(translator.translate_window(LETTERS, documents=DOCUMENTS))

    assert said() == ["a", "", "c a", "d", "f d", "g f d", "h"]
    assert (
        said(size=2)
        == said(size=2, join="concatenate")
        == ["a", "", "c a", "d", "f d", "g d f d", "h"]
    )
    assert sum(done) == pytest.approx(3 * len(LETTERS))
    assert texts(heir(jobs=jobs).translate_window(LETTERS)) == ["a", "", *"cdfgh"]
    one = Documents([0], 2)
    assert texts(heir(max_source=2).translate_window(["a b c d e", "f"], documents=one)) == [
        "a c e",
        "f a",
    ]


def test_given_targets_are_what_was_said_before():
    """Of pairs, the targets of the lines before; of alternatives, the first of these, or what
    the system says where there is none.
    """
    targets = ["b", "", "c b", "d e", "f d e", "g e", "h"]
    sure = [min(line.log_probs) > -0.1 for line in heir().force(LETTERS, targets, DOCUMENTS)]
    assert sure == [
        False,
        True,
        True,
        False,
        True,
        False,
        True,
    ]  # a blank line is scored as an empty one
    translator = heir()
    lines, documents = ["a b", "c", "d", "e"], Documents([0, 2], 4)
    scores = translator.alternatives(
        lines, [[], ["c", "c a"], ["b", "d"], ["e b", "e d"]], documents
    )
    assert [max(own) > -0.1 for own in scores if own] == [True] * 3
    assert [own.index(max(own)) for own in scores if own] == [1, 1, 0]


@pytest.mark.parametrize("jobs", [1, 2])
def test_alternatives_are_scored_with_the_context_that_the_same_targets_alone_are(jobs):
    text, documents = ["a b", "c", "d e", "f", "g h i"], Documents([0, 2], 5)
    targets = [[], ["a b", "c"], [], ["f", "d e", "g"], ["f", "a b"]]
    found = gossip(ContextRule(), jobs=jobs).alternatives(text, targets, documents)
    for number, own in enumerate(targets):
        alone = [
            gossip(ContextRule()).force(text, [target] * 5, documents)[number].log_prob
            for target in own
        ]
        assert found[number] == pytest.approx(alone, abs=1e-9)
    assert [max(range(len(own)), key=own.__getitem__) for own in found if own] == [0, 1, 0]


class Listener(Gossip):
    """Keeps the contexts that it is given."""

    def __init__(self, rule):
        super().__init__(len(VOCABULARY), rule)
        self.heard = []

    def encode(self, batch):
        self.heard.append(batch.context)
        return super().encode(batch)


@given(
    st.lists(st.integers(1, 4), min_size=2, max_size=4),
    st.builds(
        ContextRule,
        st.sampled_from(["previous", "next", "random", "foreign"]),
        st.integers(1, 3),
        st.sampled_from(["concatenate", "parallel"]),
    ),
)
def test_scored_lines_have_the_context_tensors_of_training(sizes, rule):
    names = "abcdefghij"
    text = [
        " ".join(names[i % 10] for i in range(n, n + 1 + n % 3)) + " ." * (n // 10)
        for n in range(sum(sizes))
    ]
    documents = Documents([sum(sizes[:i]) for i in range(len(sizes))], len(text))
    ids = [VOCABULARY.encode(line.split()) for line in text]
    pairs = GivenPairs(ids, ids)
    pairs.documents = documents
    for number in range(len(text)):
        wanted = collate(pairs, np.array([number]), "cpu", rule).context
        targets = [["a", "b"] if i == number else [] for i in range(len(text))]
        listener = Listener(rule)
        make(listener).alternatives(text, targets, documents)
        (heard,) = listener.heard
        assert (heard is None) == (wanted is None)
        if wanted is not None:
            assert all(
                torch.equal(getattr(heard, name), getattr(wanted, name))
                for name in ("ids", "lengths", "rows")
            )
            assert heard.padded == wanted.padded


def test_the_context_of_an_over_long_line_is_its_first_piece():
    translated = gossip(ContextRule(), max_source=3).translate_window(
        ["a b c d e f g", "h"], documents=Documents([0], 2)
    )
    assert translated[1].text == "a b c"


class Parsed(ToyRecurrent):
    """Keeps the spans that it is given."""

    reads_spans = True

    def encode(self, batch):
        self.spans = None if batch.spans is None else batch.spans.tolist()
        return super().encode(batch)


def test_spans_that_do_not_fit_a_line_are_not_read():
    model = recurrent(1, len(VOCABULARY))
    model.__class__ = Parsed
    translator = make(model)
    lines, spans = ["a b c", "d e"], [[2, 2], [1, 1]]
    list(translator.translate_windows([Window(lines, spans)]))
    assert model.spans == [[2, 2], [0, 0]]
    assert translator.counts["no_spans"] == 1
    model.spans = None
    translator.force(lines, lines, spans=spans)
    assert model.spans == [[2, 2], [0, 0]]
    assert translator.counts["no_spans"] == 2


def test_a_model_without_context_joins_one_with_context():
    rule, documents = ContextRule(), Documents([0], 2)
    models = [Gossip(len(VOCABULARY), rule), recurrent(1, len(VOCABULARY), eos_bias=-9)]
    settings = SearchSettings()
    joint = Translator(models, Spaces(), Spaces(), VOCABULARY, VOCABULARY, settings)
    assert texts(joint.translate_window(["a b", "c"], documents=documents))[1] == "a b"


def test_an_ensemble_reads_one_context():
    models = [Gossip(len(VOCABULARY), rule) for rule in (ContextRule(), ContextRule("next"))]
    with pytest.raises(ConfigError, match=r"different contexts\n.*\n.*model.context_size"):
        Translator(models, Spaces(), Spaces(), VOCABULARY, VOCABULARY, SearchSettings())


@given(
    st.lists(st.sampled_from(["", "x"]), max_size=30),
    st.integers(1, 7),
    st.sampled_from(["blank", "marker", "everywhere", "known"]),
)
def test_windows_of_whole_documents(text, size, way):
    """With lines <d>, each in the place of the first line of a document, and blank where a model
    reads it.
    """
    numbered = [f"{word}{i}" if word else "<d>" * (way == "marker") for i, word in enumerate(text)]
    known = [i for i in range(len(text)) if i == 0 or i % 4 == 3]
    boundaries = {
        "everywhere": Boundaries(),
        "known": Boundaries(known=Documents(known, len(text))),
    }.get(way) or Boundaries(way)
    expected = {
        "blank": [i for i in range(len(text)) if i == 0 or not text[i - 1]],
        "marker": [i for i in range(len(text)) if i == 0 or not text[i]],
        "everywhere": list(range(len(text))),
        "known": known,
    }[way]
    lines, found, first = [], [], 0
    for window, documents in whole_documents(windowed(numbered, size), boundaries):
        lines += window
        found += [first + i for i in range(len(window)) if documents.bounds(i)[0] == i]
        first += len(window)
    assert lines == numbered and found == expected
    read = boundaries.sentences(lines)
    assert read == [f"{word}{i}" if word else "" for i, word in enumerate(text)]


def test_a_long_document_is_looked_at_once():
    """As it comes from a pipe, a line at a time."""
    asked = []

    class Asked(Boundaries):
        def starts(self, lines, first):
            asked.append((first, len(lines)))
            return []

    assert [len(window) for window, _ in whole_documents([["x"]] * 100, Asked())] == [100]
    assert asked == [(i, 1) for i in range(100)]


@given(
    st.lists(st.sampled_from(["", *"xxxxx"]), min_size=1, max_size=40),
    st.integers(1, 7),
    st.builds(
        ContextRule, st.sampled_from(["previous", "next", "random", "foreign"]), st.integers(1, 3)
    ),
)
def test_contexts_do_not_depend_on_windows_nor_on_how_documents_are_given(text, size, rule):
    """Blank lines between documents, or a file that says where they start in the text without
    these: every sentence has the same context.
    """
    numbered = [word and f"{word}{i}" for i, word in enumerate(text)]
    kept = [line for line in numbered if line]
    starts = [
        kept.index(line)
        for i, line in enumerate(numbered)
        if line and (not kept.index(line) or not numbered[i - 1])
    ]
    whole = Documents(starts, len(kept))
    expected = {
        line: [kept[other] for other in whole.context(i, rule)] for i, line in enumerate(kept)
    }

    def found(lines, starting):
        for window, documents in windows_for(rule, windowed(lines, size), starting):
            real = without_blank_lines(documents, window)
            yield from (
                (line, [window[other] for other in real.context(i, rule)])
                for i, line in enumerate(window)
                if line
            )

    assert dict(found(numbered, Boundaries("blank"))) == expected
    assert dict(found(kept, Boundaries(known=whole))) == expected


@given(st.lists(st.integers(0, 5), max_size=12), st.integers(1, 7))
def test_random_contexts_of_marked_documents_do_not_depend_on_windows(sentences, size):
    """Also if documents have no sentence."""
    lines = [
        line for i, n in enumerate(sentences) for line in ["<d>", *(f"{i} {j}" for j in range(n))]
    ]
    boundaries, rule = Boundaries("marker"), ContextRule("random", 1)

    def contexts(size):
        for window, documents in windows_for(rule, windowed(lines, size), boundaries):
            real = without_blank_lines(documents, boundaries.sentences(window))
            for i in range(len(window)):
                yield [window[other] for other in real.context(i, rule)]

    assert list(contexts(size)) == list(contexts(len(lines) + 1))


def test_what_is_said_of_documents(tmp_path):
    text, docs = tmp_path / "text", tmp_path / "docs"
    text.write_text("a\nb\nc\n")
    assert named_boundaries(str(text), None) is None
    assert named_boundaries("-", "blank") == Boundaries("blank")
    docs.write_text("0\n2\n")
    assert named_boundaries(str(text), str(docs)).starts(["a", "b", "c"], 0) == [0, 2, 3]
    docs.write_text("0\n3\n")
    for source, said, error in (
        (str(text), str(docs), DataError),
        (None, "blank", ConfigError),
        ("-", str(docs), ConfigError),
    ):
        with pytest.raises(error):
            named_boundaries(source, said)


@pytest.mark.parametrize(
    ("text", "docs", "printed", "warning"),
    [
        (" <d>\na b\nc\n", "marker", "<d>\n\na b\n", ""),
        ("a b\nc\n", "marker", "\na b\n", "no line was <d>"),
        ("a\n\nb\nc\n", "blank", "\n\n\nb\n", ""),
        ("<d>\na\n", "blank", "\n<unk>\n", "were translated as sentences"),
    ],
)
def test_lines_that_mark_documents_are_printed_again_or_missed(
    text, docs, printed, warning, monkeypatch, capsys
):
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(text.encode())))
    scorer = gossip(ContextRule())
    output.print_translations(scorer, named_group(scorer), "-", Boundaries(docs))
    captured = capsys.readouterr()
    assert captured.out == printed
    assert ("warning" in captured.err) == bool(warning) and warning in captured.err


def test_text_is_printed_in_order_when_workers_are_ahead(tmp_path, monkeypatch, capsys):
    """Lines of stdin are answered before more of them are read."""
    text, seen = lines(14, seed=4), []
    path = tmp_path / "text"
    path.write_text("".join(line + "\n" for line in text))

    def waiting(stream):
        for window in windowed(text, 5):
            seen.append(capsys.readouterr().out.count("\n"))
            yield window

    monkeypatch.setattr(translator_module, "MANY_LINES", 2)
    monkeypatch.setattr(output, "file_windows", functools.partial(file_windows, size=5))
    monkeypatch.setattr(output, "stream_windows", waiting)
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=None, close=lambda: None))

    def printed(source, jobs):
        scorer = make(nbest=2)
        with scorer.reading(jobs):
            output.print_translations(scorer, named_group(scorer), source, Boundaries())
        return capsys.readouterr().out

    expected = printed(str(path), 1)
    assert printed(str(path), 2) == expected and expected.count("\n") == 14
    last = printed("-", 2)
    assert expected.endswith(last) and seen == [0, 5, 5] and last.count("\n") == 4


def named_group(scorer):
    return SimpleNamespace(name="gossip", settings=scorer.settings)


@pytest.mark.parametrize(
    ("name", "text", "note"),
    [("a", "a\n", ""), ("a", "<d>\na\n", "begins with <d>"), ("a.sgm", "a\n", "SGM or XML")],
)
def test_a_file_whose_lines_are_not_only_sentences_is_noted(name, text, note, tmp_path, capsys):
    path = tmp_path / name
    path.write_text(text)
    scorer = gossip(ContextRule())
    assert output.checked_boundaries(scorer, str(path), None) == Boundaries()
    said = capsys.readouterr().err
    assert "every line is a document of its own" in said
    assert ("warning" in said) == bool(note) and note in said
    path.write_text("a\n")
    with pytest.raises(DataError, match="no line is <d>"):
        output.checked_boundaries(scorer, str(path), Boundaries("marker"))
