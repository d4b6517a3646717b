"""Probing files: SentEval's and X-Probe's formats, splits, and refusals."""

from collections import Counter

import pytest

from nmtkit.errors import ConfigError, DataError
from nmtkit.measures.probes import find, read, select
from tests.refused import refused
from tests.score.conftest import write

SENTEVAL = [
    'tr\tNN\t" I never gave Iain the serum . "',
    'tr\tNNS\t" Who paid all the expenses ?',
    'va\tNNS\t" " My Lord , " it hissed .',
    "te\tNN\tThe screams\u2028grew louder .\r",
]


def parts(task):
    return {
        part: [(task.labels[i], task.sentences[i]) for i in rows]
        for part, rows in task.parts.items()
    }


def test_senteval_file_with_unbalanced_quotes_is_read(tmp_path):
    write(tmp_path / "obj_number.txt", SENTEVAL)
    task = task_of(tmp_path, "obj_number")
    assert parts(task) == {
        "tr": [
            ("NN", '" I never gave Iain the serum . "'),
            ("NNS", '" Who paid all the expenses ?'),
        ],
        "va": [("NNS", '" " My Lord , " it hissed .')],
        "te": [("NN", "The screams\u2028grew louder .")],
    }
    assert (task.classes, task.category) == (["NN", "NNS"], "semantic")
    assert (task.split, task.seen) == ("", 0)
    write(tmp_path / "own.txt", [*SENTEVAL, "tr\tNN\tsame", "te\tNNS\tsame"])
    task = task_of(tmp_path, "own")
    assert (task.category, task.seen) == ("other", 1)


def rows(count, labels, start=0):
    return [f'" sentence {start + i} "" said\t{labels[i % len(labels)]}' for i in range(count)]


def task_of(folder, name):
    return read(name, find(folder)[name])


def sizes(task):
    return {part: len(rows) for part, rows in task.parts.items()}


def test_xprobe_folder_with_all_parts_is_read(tmp_path):
    names = ("tr", "va", "te")
    for i, part in enumerate(names):
        write(tmp_path / "tree_depth" / f"{part}.txt", rows(4, "56", 4 * i))
    assert parts(task_of(tmp_path, "tree_depth")) == {
        part: [("56"[i % 2], f'" sentence {4 * n + i} "" said') for i in range(4)]
        for n, part in enumerate(names)
    }
    assert find(tmp_path / "tree_depth") == find(tmp_path)


def test_first_file_is_split_if_the_training_part_is_missing(tmp_path):
    folder = tmp_path / "past_present"
    write(folder / "va.txt", rows(200, ["Past", "Past", "Past", "Pres"]))
    write(folder / "te.txt", rows(30, ["Past", "Pres"], 200))
    task = task_of(tmp_path, "past_present")
    assert sizes(task) == {"tr": 180, "va": 20, "te": 30}
    # A tenth of each label.
    assert Counter(label for label, _ in parts(task)["va"]) == {"Past": 15, "Pres": 5}
    assert {s for _, s in parts(task)["te"]} == {f'" sentence {i} "" said' for i in range(200, 230)}
    assert sorted([*task.parts["tr"], *task.parts["va"]]) == list(range(200))
    assert task.split == "va.txt split into tr, va" and task.seen == 0
    assert parts(task_of(tmp_path, "past_present")) == parts(task)
    assert parts(read("past_present", find(tmp_path)["past_present"], seed=2)) != parts(task)


def test_equal_parts_are_split_so_that_no_test_sentence_is_trained_on(tmp_path):
    for part in ("va", "te"):  # as X-Probe has its tree depth
        write(tmp_path / "tree_depth" / f"{part}.txt", rows(100, "3456"))
    task = task_of(tmp_path, "tree_depth")
    assert sizes(task) == {"tr": 84, "va": 8, "te": 8}
    sentences = [sentence for own in parts(task).values() for _, sentence in own]
    assert sorted(sentences) == sorted(line.split("\t")[0] for line in rows(100, "3456"))
    assert task.seen == 0 and task.split == "va.txt split into tr, va, te"


def test_folder_without_probing_files_is_refused(tmp_path):
    refused(DataError, "not a folder of probing files", find, tmp_path / "nowhere")
    refused(DataError, "no probing files", find, tmp_path)


def test_other_files_of_a_folder_are_skipped(tmp_path, stderr):
    texts = {name: SENTEVAL for name in ("own.txt", "own.csv", "._own.txt")}
    for name, lines in {**texts, "notes.txt": ["no tab"]}.items():
        write(tmp_path / name, lines)
    assert find(tmp_path) == {"own": [tmp_path / "own.txt"]}
    assert "notes.txt is not a probing file (no tab in its first line): skipped" in stderr()


def test_tasks_with_the_same_name_are_refused(tmp_path):
    for name in ("tense.de.txt", "tense.en.txt"):
        write(tmp_path / name, SENTEVAL)
    words = "two probing tasks have the same name before the first dot: 'tense'"
    refused(DataError, words, find, tmp_path)


@pytest.mark.parametrize(
    ("lines", "message", "line"),
    [
        (["tr\tNN\ta b", "A sentence .\tNN"], "2 columns instead of 3", 2),
        (["tr\tNN\ta\tb"], "4 columns instead of 3", 1),
        (["tr\tNN\ta b", "train\tNN\ta b"], "its part is 'train'", 2),
        (["tr\tNN\t "], "without a sentence", 1),
        (
            ["tr\tNN\ta", "tr\tNNS\tb", "va\tNN\tc", "te\tNNP\td"],
            "'NNP' of part te is not in part tr\n.*\n.*'NN",
            4,
        ),
        (SENTEVAL[:3], "no sentences in its part te", 1),
        (["tr\tNN\ta", "va\tNN\tb", "te\tNN\tc"], "one label only", 1),
    ],
)
def test_malformed_probing_file_is_refused_with_its_line(tmp_path, lines, message, line):
    write(tmp_path / "task.txt", lines)
    error = refused(DataError, message, read, "task", [tmp_path / "task.txt"])
    assert error.where.endswith(f"task.txt, line {line}") and error.hint


def test_tasks_are_selected_by_name_in_the_order_of_the_paper(tmp_path):
    for name in ("bigram_shift", "mine", "past_present", "sentence_length"):
        write(tmp_path / f"{name}.txt", SENTEVAL)
    found = find(tmp_path)
    assert list(found) == ["sentence_length", "bigram_shift", "past_present", "mine"]
    assert list(select(found, "mine, past_present")) == ["past_present", "mine"]
    error = refused(ConfigError, "no probing task 'bigram_shif'", select, found, "bigram_shif")
    assert "'bigram_shift'" in error.hint


def test_published_xprobe_files_are_read(shared):
    folder = shared / "data" / "xprobe_en"
    assert len(find(folder)) == 9
    shift = task_of(folder, "bigram_shift")
    assert sizes(shift) == {"tr": 9001, "va": 999, "te": 10000}
    first = shift.parts["te"][0]
    assert shift.labels[first] == "I"
    assert shift.sentences[first].startswith("Gronouski served a as navi")
    depth = task_of(folder, "tree_depth")
    assert depth.classes == list("34567") and sum(sizes(depth).values()) == 10000 and depth.split
