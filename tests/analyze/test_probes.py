"""Probing files: both forms, quotes that do not balance, splits, and what is said of files that
are none.
"""

from collections import Counter

import pytest

from nmtkit.analyze.shared.probes import find, read, select
from nmtkit.errors import ConfigError, DataError
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


def test_sentevals_form_with_unbalanced_quotes(tmp_path):
    write(tmp_path / "obj_number.txt", SENTEVAL)
    task = read("obj_number", find(tmp_path)["obj_number"])
    assert parts(task) == {
        "tr": [
            ("NN", '" I never gave Iain the serum . "'),
            ("NNS", '" Who paid all the expenses ?'),
        ],
        "va": [("NNS", '" " My Lord , " it hissed .')],
        "te": [("NN", "The screams\u2028grew louder .")],
    }
    assert (task.classes, task.category, task.split, task.seen) == (
        ["NN", "NNS"],
        "semantic",
        "",
        0,
    )


def rows(count, labels, start=0):
    return [f'" sentence {start + i} "" said\t{labels[i % len(labels)]}' for i in range(count)]


def test_xprobes_form_with_all_parts(tmp_path):
    for i, part in enumerate(("tr", "va", "te")):
        write(tmp_path / "tree_depth" / f"{part}.txt", rows(4, "56", 4 * i))
    task = read("tree_depth", find(tmp_path)["tree_depth"])
    assert parts(task) == {
        part: [("56"[i % 2], f'" sentence {4 * n + i} "" said') for i in range(4)]
        for n, part in enumerate(("tr", "va", "te"))
    }
    assert find(tmp_path / "tree_depth") == {
        "tree_depth": find(tmp_path)["tree_depth"]
    }  # the folder of one task alone


def test_the_first_file_is_split_where_there_is_no_training_part(tmp_path):
    write(tmp_path / "past_present" / "va.txt", rows(200, ["Past", "Past", "Past", "Pres"]))
    write(tmp_path / "past_present" / "te.txt", rows(30, ["Past", "Pres"], 200))
    task = read("past_present", find(tmp_path)["past_present"])
    assert {part: len(rows) for part, rows in task.parts.items()} == {"tr": 180, "va": 20, "te": 30}
    assert Counter(label for label, _ in parts(task)["va"]) == {
        "Past": 15,
        "Pres": 5,
    }  # a tenth of each label
    assert {s for _, s in parts(task)["te"]} == {f'" sentence {i} "" said' for i in range(200, 230)}
    assert sorted([*task.parts["tr"], *task.parts["va"]]) == list(range(200))
    assert task.split == "va.txt split into tr, va" and task.seen == 0
    again = read("past_present", find(tmp_path)["past_present"])
    assert parts(again) == parts(task)
    assert parts(read("past_present", find(tmp_path)["past_present"], seed=2)) != parts(task)


def test_nothing_is_trained_on_the_sentences_it_is_tested_with(tmp_path):
    for part in ("va", "te"):  # as X-Probe has its tree depth
        write(tmp_path / "tree_depth" / f"{part}.txt", rows(100, "3456"))
    task = read("tree_depth", find(tmp_path)["tree_depth"])
    assert {part: len(rows) for part, rows in task.parts.items()} == {"tr": 84, "va": 8, "te": 8}
    assert sorted(s for own in parts(task).values() for _, s in own) == sorted(
        line.split("\t")[0] for line in rows(100, "3456")
    )
    assert task.seen == 0 and task.split == "va.txt split into tr, va, te"


def test_sentences_of_both_parts_are_counted(tmp_path):
    write(tmp_path / "own.txt", [*SENTEVAL, "tr\tNN\tsame", "te\tNNS\tsame"])
    task = read("own", find(tmp_path)["own"])
    assert (task.seen, task.category) == (1, "other")


def test_what_is_no_probing_file_is_said_with_its_line(tmp_path):
    with pytest.raises(DataError, match="no such folder of probing files"):
        find(tmp_path / "nowhere")
    with pytest.raises(DataError, match="no probing files"):
        find(tmp_path)
    for lines, message, line in (
        (["tr\tNN\ta b", "A sentence .\tNN"], "2 columns instead of 3", 2),
        (["tr\tNN\ta\tb"], "4 columns instead of 3", 1),
        (["tr\tNN\ta b", "train\tNN\ta b"], "its part is 'train'", 2),
        (["tr\tNN\t "], "without a sentence", 1),
        (
            ["tr\tNN\ta", "tr\tNNS\tb", "va\tNN\tc", "te\tNNP\td"],
            "'NNP' of part te is not in part tr",
            4,
        ),
    ):
        write(tmp_path / "a" / "task.txt", lines)
        with pytest.raises(DataError, match=message) as error:
            read("task", [tmp_path / "a" / "task.txt"])
        assert error.value.where.endswith(f"task.txt, line {line}")
    assert "'NNS'" in error.value.hint or "'NN'" in error.value.hint
    write(tmp_path / "a" / "task.txt", SENTEVAL[:3])
    with pytest.raises(DataError, match="no sentences in its part te"):
        read("task", [tmp_path / "a" / "task.txt"])
    write(tmp_path / "a" / "task.txt", ["tr\tNN\ta", "va\tNN\tb", "te\tNN\tc"])
    with pytest.raises(DataError, match="one label only"):
        read("task", [tmp_path / "a" / "task.txt"])
    write(tmp_path / "b" / "task" / "va.txt", rows(20, "56"))
    write(tmp_path / "b" / "task" / "te.txt", [*rows(2, "56", 20), "word\t7"])
    with pytest.raises(DataError, match="'7' of part te") as error:
        read("task", find(tmp_path / "b")["task"])
    assert error.value.where.endswith("te.txt, line 3")


def test_tasks_are_chosen_by_name_and_come_in_the_papers_order(tmp_path):
    for name in ("bigram_shift", "mine", "past_present", "sentence_length"):
        write(tmp_path / f"{name}.txt", SENTEVAL)
    found = find(tmp_path)
    assert list(found) == ["sentence_length", "bigram_shift", "past_present", "mine"]
    assert list(select(found, "mine, past_present")) == ["past_present", "mine"]
    with pytest.raises(ConfigError, match="no probing task 'bigram_shif'") as error:
        select(found, "bigram_shif")
    assert "'bigram_shift'" in error.value.hint


def test_real_xprobe_files(shared):
    folder = shared / "data" / "xprobe_en"
    found = find(folder)
    assert len(found) == 9
    shift = read("bigram_shift", found["bigram_shift"])
    assert {part: len(rows) for part, rows in shift.parts.items()} == {
        "tr": 9001,
        "va": 999,
        "te": 10000,
    }
    assert (shift.labels[shift.parts["te"][0]], shift.sentences[shift.parts["te"][0]][:26]) == (
        "I",
        "Gronouski served a as navi",
    )
    depth = read("tree_depth", found["tree_depth"])
    assert (
        depth.classes == ["3", "4", "5", "6", "7"]
        and sum(map(len, depth.parts.values())) == 10000
        and depth.split
    )
    words = read("word_content", found["word_content"])
    assert len(words.classes) == 1000 and len(words.parts["va"]) == 1000
