"""A text model that is given instead of learnt: --like, --codes and --vocab."""

import shutil

import pytest

from nmtkit.prep.clean import Cleaner
from nmtkit.prep.learn import learn
from nmtkit.settings import PrepSettings
from tests.prep.corpora import pairs

LANGUAGES = ("en", "de")
KINDS = [{}, {"joint_vocab": False, "vocab_threshold": 9}, {"vocab_threshold": 9}, {"merges": 0}]


def counts(count, seed):
    """The words of some pairs, counted as the first pass of prep does."""
    text = zip(*pairs(count, seed), strict=True)
    settings = PrepSettings()
    return Cleaner(LANGUAGES, settings)(["".join(f"{s}\n" for s in side).encode() for side in text])


@pytest.mark.parametrize("values", KINDS, ids=lambda v: "-".join(v) or "joint")
def test_files_that_are_there_are_read_and_not_learnt(tmp_path, small_chunks, values):
    settings = PrepSettings(**{"merges": 40, **values})
    folders = [tmp_path / name for name in ("first", "second", "other")]
    folders[0].mkdir()
    few, many = counts(100, 3).counts, counts(200, 5).counts
    first = learn(few, LANGUAGES, settings, folders[0], 1)
    shutil.copytree(folders[0], folders[1])
    again = learn(few, LANGUAGES, settings, folders[1], 1)
    words = [
        [pieces.counts(side.counts) for pieces, side in zip(m.segmented, m.words, strict=True)]
        for m in (first, again)
    ]
    assert words[0] == words[1]
    assert first.counts == again.counts
    assert [*first.vocabularies[0]] == [*again.vocabularies[0]]
    shutil.copytree(folders[0], folders[2])
    learn(many, LANGUAGES, settings, folders[2], 1)
    files = [{p.name: p.read_bytes() for p in folder.iterdir()} for folder in folders]
    assert files[0] == files[1] == files[2]
    (tmp_path / "anew").mkdir()
    learn(many, LANGUAGES, settings, tmp_path / "anew", 1)
    anew = {p.name: p.read_bytes() for p in (tmp_path / "anew").iterdir()}
    assert anew.keys() == files[0].keys()
    assert all(anew[name] != files[0][name] for name in anew)
