"""Windows of lines: from files and streams, of whole documents, and printed in order."""

import io
import itertools
import json
import os
import sys
import threading
import time
from collections import Counter
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_run import set_stdin
from toy_translators import context_copier, random_lines, translator

from nmtkit import files
from nmtkit.data.documents import ContextRule, Documents
from nmtkit.errors import ConfigError, DataError
from nmtkit.settings import SearchSettings
from nmtkit.translate import output
from nmtkit.translate import translator as translator_module
from nmtkit.translate import windows as windows_module
from nmtkit.translate.searcher import without_blank_lines
from nmtkit.translate.windows import (
    Boundaries,
    file_windows,
    named_boundaries,
    stream_windows,
    whole_documents,
    windowed,
    windows_for,
)

MANY_LINES = "\n".join(f"line {i} é" for i in range(5000)).encode()


def test_file_windows_split_at_line_feeds_only(tmp_path, monkeypatch):
    monkeypatch.setattr(windows_module, "WINDOW", 3)
    path = tmp_path / "x.txt"
    path.write_bytes("a\u2028b\nc\x0cd\r\n\ne".encode())
    assert list(file_windows(path)) == [["a\u2028b", "c\x0cd\r", ""], ["e"]]
    assert list(windowed(range(5), 2)) == [[0, 1], [2, 3], [4]]


def pipe(blocks, pause=0.0):
    """A stream of blocks that another thread writes."""
    reader, writer = os.pipe()

    def write():
        for block in blocks:
            os.write(writer, block)
            time.sleep(pause)
        os.close(writer)

    threading.Thread(target=write, daemon=True).start()
    return os.fdopen(reader, "rb")


def test_each_line_of_a_dialogue_is_a_window(monkeypatch):
    monkeypatch.setattr(windows_module, "SILENCE", 0.01)
    reader, writer = os.pipe()
    os.set_blocking(reader, False)  # as some programs leave the pipes of their children
    with os.fdopen(reader, "rb") as stream:
        windows = stream_windows(stream)
        for line in ("first", "second"):
            os.write(writer, f"{line}\n".encode())
            assert next(windows) == [line]  # though the stream has not ended
        os.write(writer, b"la")
        end = threading.Timer(0.05, lambda: (os.write(writer, b"st"), os.close(writer)))
        end.start()
        assert list(windows) == [["last"]]
        end.join()


def test_lines_that_never_pause_come_in_several_windows(monkeypatch):
    monkeypatch.setattr(windows_module, "PATIENCE", 0.1)
    monkeypatch.setattr(windows_module, "SILENCE", 0.5)
    lines = [str(number) for number in range(40)]
    with pipe([f"{line}\n".encode() for line in lines], pause=0.01) as stream:
        windows = list(stream_windows(stream))
    assert list(itertools.chain(*windows)) == lines
    assert len(windows) > 1


def test_lines_that_follow_each_other_soon_are_one_window(monkeypatch):
    monkeypatch.setattr(windows_module, "PATIENCE", 60.0)
    monkeypatch.setattr(windows_module, "SILENCE", 60.0)
    with pipe([b"a\n", b"b\n"], pause=0.05) as stream:
        assert list(stream_windows(stream)) == [["a", "b"]]


def test_stream_windows_have_at_most_their_size(monkeypatch):
    monkeypatch.setattr(windows_module, "WINDOW", 1200)
    monkeypatch.setattr(windows_module, "SILENCE", 1.0)
    with pipe([MANY_LINES[:7], MANY_LINES[7:1001], MANY_LINES[1001:]]) as stream:
        windows = list(stream_windows(stream))
    assert "\n".join(itertools.chain(*windows)).encode() == MANY_LINES
    assert all(len(window) <= 1200 for window in windows)


@pytest.mark.parametrize(("blocks", "windows"), [([b"a\n\nb\n"], [["a", "", "b"]]), ([], [])])
def test_stream_windows_of_short_streams(blocks, windows):
    with pipe(blocks) as stream:
        assert list(stream_windows(stream)) == windows


def test_bytes_that_are_not_utf8_raise_data_error_after_the_lines_before():
    with pipe([b"good\nbad \xc3\n"]) as stream:
        windows = stream_windows(stream)
        assert next(windows) == ["good"]
        with pytest.raises(DataError, match="not UTF-8") as error:
            next(windows)
    assert "stdin, line 2, byte 9" in str(error.value.where)


def test_endless_line_raises_data_error_after_the_lines_before(monkeypatch):
    monkeypatch.setattr(files, "LONGEST", 9)
    monkeypatch.setattr(windows_module, "SILENCE", 1.0)
    with pipe([b"123456789\nb\nan", b"d so on without"]) as stream:
        windows = stream_windows(stream)
        assert next(windows) == ["123456789", "b"]
        with pytest.raises(DataError, match="^line 3 has more than 16 MiB") as error:
            next(windows)
    assert error.value.where == "stdin" and error.value.hint.startswith("split it")


@given(
    st.lists(st.booleans(), max_size=30),
    st.integers(1, 7),
    st.sampled_from(["blank", "marker", "every line", "known"]),
)
def test_windows_of_whole_documents_have_all_lines_and_document_starts(marks, size, kind):
    """Some lines are marks, blank or <d>, which only boundaries of these kinds read."""
    count = len(marks)
    known = [i for i in range(count) if i == 0 or i % 4 == 3]
    boundaries, expected = {
        "blank": (Boundaries(kind), [i for i in range(count) if i == 0 or marks[i - 1]]),
        "marker": (Boundaries(kind), [i for i in range(count) if i == 0 or marks[i]]),
        "every line": (Boundaries(), list(range(count))),
        "known": (Boundaries(known=Documents(known, count)), known),
    }[kind]
    mark = "<d>" if kind == "marker" else ""
    text = [mark if marks[i] else f"x{i}" for i in range(count)]
    lines, starts = [], []
    for window, documents in whole_documents(windowed(text, size), boundaries):
        bounds = map(documents.bounds, range(len(window)))
        starts += [len(lines) + i for i, (start, _) in enumerate(bounds) if start == i]
        lines += window
    assert lines == text and starts == expected
    assert boundaries.sentences(lines) == ["" if line == "<d>" else line for line in text]


def test_each_line_of_a_long_document_is_searched_for_boundaries_once():
    searched = []

    class WatchedBoundaries(Boundaries):
        def starts(self, lines, first):
            searched.append((first, len(lines)))
            return []

    windows = whole_documents([["x"]] * 100, WatchedBoundaries())
    assert [len(window) for window, _ in windows] == [100]
    assert searched == [(i, 1) for i in range(100)]


def contexts_in(lines, size, boundaries, rule):
    """Yield each sentence with its context, read in windows of this size."""
    for window, documents in windows_for(rule, windowed(lines, size), boundaries):
        sentences = boundaries.sentences(window)
        documents = without_blank_lines(documents, sentences)
        for i, line in enumerate(window):
            if sentences[i]:
                yield line, [window[other] for other in documents.context(i, rule)]


@given(
    st.lists(st.sampled_from(["", *"xxxxx"]), min_size=1, max_size=40),
    st.integers(1, 7),
    st.builds(
        ContextRule, st.sampled_from(["previous", "next", "random", "foreign"]), st.integers(1, 3)
    ),
)
def test_contexts_do_not_depend_on_windows_nor_on_how_documents_are_given(text, size, rule):
    """Blank lines between documents, or known starts in the text without blank lines."""
    lines = [word and f"{word}{i}" for i, word in enumerate(text)]
    sentences = list(filter(None, lines))
    after_blank = [line for before, line in zip(["", *lines], lines, strict=False) if not before]
    starts = [i for i, line in enumerate(sentences) if line in after_blank]
    documents = Documents(starts, len(sentences))
    expected = [
        (line, [sentences[other] for other in documents.context(i, rule)])
        for i, line in enumerate(sentences)
    ]
    assert list(contexts_in(lines, size, Boundaries("blank"), rule)) == expected
    assert list(contexts_in(sentences, size, Boundaries(known=documents), rule)) == expected


@given(st.lists(st.integers(0, 5), max_size=12), st.integers(1, 7))
def test_random_contexts_in_marked_documents_do_not_depend_on_windows(sizes, size):
    """Documents may be empty."""
    lines = [line for i, n in enumerate(sizes) for line in ["<d>", *(f"{i} {j}" for j in range(n))]]
    boundaries, rule = Boundaries("marker"), ContextRule("random", 1)
    whole = list(contexts_in(lines, len(lines) + 1, boundaries, rule))
    assert list(contexts_in(lines, size, boundaries, rule)) == whole


def test_random_contexts_of_the_last_document_are_those_of_its_number():
    lines = [*"abcd", "", *(f"x{i}" for i in range(12))]
    documents, rule = Documents([0, 5], 17).without({4}), ContextRule("random", 2)
    expected = [(lines[i], [lines[n] for n in documents.context(i, rule)]) for i in range(17)]
    found = list(contexts_in(lines, 3, Boundaries("blank"), rule))
    assert found == [of_line for of_line in expected if of_line[0]]


def test_named_boundaries_of_marks_and_files(tmp_path):
    text, docs = tmp_path / "text", tmp_path / "docs"
    text.write_text("a\nb\nc\n")
    assert named_boundaries(str(text), None) is None
    assert named_boundaries("-", "blank") == Boundaries("blank")
    docs.write_text("0\n2\n")
    assert named_boundaries(str(text), str(docs)).starts(["a", "b", "c"], 0) == [0, 2, 3]
    with pytest.raises(ConfigError, match="stdin have no numbers"):
        named_boundaries("-", str(docs))
    with pytest.raises(ConfigError, match="prepared sets are known"):
        named_boundaries(None, "blank")
    docs.write_text("0\n3\n")
    with pytest.raises(DataError):
        named_boundaries(str(text), str(docs))


def print_translations(scorer, source, boundaries):
    group = SimpleNamespace(name="toy", settings=scorer.settings)
    output.print_translations(scorer, group, source, boundaries)


@pytest.mark.parametrize(
    ("text", "docs", "printed", "warning"),
    [
        (" <d>\na b\nc\n", "marker", "<d>\n\na b\n", ""),
        ("a b\nc\n", "marker", "\na b\n", "no line was <d>"),
        ("a\n\nb\nc\n", "blank", "\n\n\nb\n", ""),
        ("<d>\na\n", "blank", "\n<unk>\n", "were translated as sentences"),
        ("", "marker", "", ""),
    ],
)
def test_marks_of_documents_are_printed_and_missing_marks_warned_of(
    text, docs, printed, warning, monkeypatch, capsys
):
    set_stdin(monkeypatch, text.encode())
    print_translations(context_copier(ContextRule()), "-", Boundaries(docs))
    captured = capsys.readouterr()
    assert captured.out == printed
    assert ("warning" in captured.err) == bool(warning) and warning in captured.err


@pytest.fixture
def windows_of_five_lines(tmp_path, monkeypatch, stdout):
    """A file of 14 lines, the same lines on stdin, and the number of lines printed when each window
    of stdin is read.
    """
    path, printed = tmp_path / "text", []
    path.write_text("".join(line + "\n" for line in random_lines(14, seed=4)))

    def stdin_windows(stream):
        for window in windowed(path.read_text().split("\n")[:-1], 5):
            printed.append(stdout().count("\n"))
            yield window

    monkeypatch.setattr(translator_module, "MANY_LINES", 2)
    monkeypatch.setattr(windows_module, "WINDOW", 5)
    monkeypatch.setattr(output, "stream_windows", stdin_windows)
    set_stdin(monkeypatch, b"")
    return path, printed


def test_translations_are_printed_in_order_and_before_more_of_stdin_is_read(
    windows_of_five_lines, stdout
):
    path, printed_before = windows_of_five_lines

    def printed(source, jobs):
        scorer = translator(nbest=2)
        with scorer.reading(jobs):
            print_translations(scorer, source, Boundaries())
        return stdout()

    expected = printed(str(path), 1)
    assert printed(str(path), 2) == expected and expected.count("\n") == 14
    last_window = printed("-", 2)
    assert expected.endswith(last_window) and last_window.count("\n") == 4
    assert printed_before == [0, 5, 5]


def test_translations_of_stdin_leave_this_process_before_more_is_read(monkeypatch):
    pipe, printed = io.BytesIO(), []

    def stdin_windows(stream):
        for window in (["a b"], ["c"]):
            printed.append(pipe.getvalue().count(b"\n"))
            yield window

    monkeypatch.setattr(output, "stream_windows", stdin_windows)
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(pipe, "utf-8"))
    set_stdin(monkeypatch, b"")
    print_translations(translator(), "-", Boundaries())
    assert printed == [0, 1]


@pytest.mark.parametrize("is_terminal", [False, True])
def test_progress_does_not_mix_with_translations_on_a_terminal(tmp_path, monkeypatch, is_terminal):
    path, begun, progress = tmp_path / "text", [], output.console.progress
    path.write_text("a b\n")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    monkeypatch.setattr(output.console, "progress", lambda *of: begun.append(of) or progress(*of))
    print_translations(translator(), str(path), Boundaries())
    assert begun == [("toy", 1)] * (not is_terminal)


@pytest.mark.parametrize(("is_terminal", "printed"), [(False, "a\u200eb\n"), (True, "a\\u200eb\n")])
def test_translation_is_printed_without_control_characters_on_a_terminal_only(
    is_terminal, printed, monkeypatch, stdout
):
    translation = SimpleNamespace(text="a\u200eb")
    scorer = SimpleNamespace(
        settings=SearchSettings(),
        counts=Counter(),
        windows=lambda *_: None,
        translate_windows=lambda windows, ahead: [[translation]],
    )
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    set_stdin(monkeypatch, b"a\n")
    print_translations(scorer, "-", Boundaries())
    assert stdout() == printed


def test_forced_scores_have_marks_as_blank_lines_and_visible_control_characters(tmp_path, stdout):
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_text("<d>\na b\n")
    target.write_text("<d>\nc\u200e b\n")
    scorer = translator()
    group = SimpleNamespace(name="toy", settings=scorer.settings)
    output.print_forced(scorer, group, str(source), Boundaries("marker"), target, None)
    printed = stdout()
    tokens = [json.loads(line)["tokens"] for line in printed.splitlines()]
    assert tokens == [["</s>"], ["c\u200e", "b", "</s>"]]
    assert "\\u200e" in printed and "\u200e" not in printed


def test_documents_are_not_mentioned_for_systems_without_context(tmp_path, stderr):
    path = tmp_path / "a"
    path.write_text("a\n")
    assert output.checked_boundaries(translator(), str(path), None) == Boundaries()
    assert stderr() == ""


@pytest.mark.parametrize(
    ("name", "text", "warning"),
    [("a", "a\n", ""), ("a", "<d>\na\n", "begins with <d>"), ("a.sgm", "a\n", "SGM or XML")],
)
def test_files_with_marks_or_tags_print_a_warning(name, text, warning, tmp_path, stderr):
    path = tmp_path / name
    path.write_text(text)
    boundaries = output.checked_boundaries(context_copier(ContextRule()), str(path), None)
    assert boundaries == Boundaries()
    printed = stderr()
    assert "every line is a document of its own" in printed
    assert ("warning" in printed) == bool(warning) and warning in printed


def test_docs_marker_for_a_file_without_marks_is_refused(tmp_path):
    path = tmp_path / "a"
    path.write_text("a\n")
    scorer = context_copier(ContextRule())
    with pytest.raises(DataError, match="no line is <d>"):
        output.checked_boundaries(scorer, str(path), Boundaries("marker"))
