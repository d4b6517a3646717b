"""Lines in another script than their language's are counted as by a search in Unicode's names."""

import random
import re
import unicodedata
import zipfile

import pytest

from nmtkit.errors import DataError
from nmtkit.report.provenance import corpus
from nmtkit.text.scripts import LETTERS, ForeignLines, scripts
from tests.prep.corpora import prepare, write
from tests.prep.real import lines
from tests.refused import refused

NAMES = {
    **{"Chinese": {"CJK"}, "Japanese": {"HIRAGANA", "KATAKANA"}, "Korean": {"HANGUL"}},
    "Burmese": {"MYANMAR"},
}


def script_of(character):
    """Return the script of a letter by its Unicode name, and None for other characters."""
    words = unicodedata.name(character, "").split(" ")
    word = words[words[0] in {"FULLWIDTH", "HALFWIDTH"}]
    if not character.isalpha() or words[0] == "KATAKANA-HIRAGANA":
        return None
    return next((name for name in LETTERS if word in NAMES.get(name, {name.upper()})), None)


def slow_count(lang, rows):
    """Count the lines that have letters, but none of the language's scripts."""
    found = [set(map(script_of, row)) - {None} for row in rows]
    return sum(bool(row) and not row & {*scripts(lang)} for row in found)


def test_letters_of_a_script_have_its_name_in_unicode():
    for name, letters in LETTERS.items():
        inside = re.compile(f"[{letters}]")
        matched = [
            c for c in map(chr, range(0x30000)) if inside.match(c) and unicodedata.name(c, "")
        ]
        words = NAMES.get(name, {name.upper()})
        assert all({*re.split("[ -]", unicodedata.name(c))} & words for c in matched), name


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("en-US", ["Latin"]),
        ("zh-Latn", ["Latin"]),
        ("zho_Hans", ["Chinese"]),
        ("ja", ["Japanese", "Chinese"]),
        ("de-1996", ["Latin"]),
        ("ca-valencia", ["Latin"]),
        ("sr-Zzzz", []),  # a script that is not known
        ("tlh", []),
    ],
)
def test_scripts_of_a_language_are_those_of_its_code_or_subtag(code, expected):
    assert scripts(code) == expected


@pytest.mark.parametrize("lang", ["deu", "eng", "fra", "ron", "spa", "vie", "zho"])
@pytest.mark.parametrize("taken_for", ["en", "zh", "ja", "ru", "zho_Hans", "sr", "tlh"])
def test_foreign_lines_are_counted_as_by_a_slow_search(shared, lang, taken_for):
    rows = lines(next((shared / "data/flores101_devtest").glob(f"{lang}*")))[:200]
    rows += ["", "1,5 %", "Ελλάδα 2004", "Мир, труд.", "Ｆｕｌｌ", "こんにちは", "한국어 99", "…"]
    expected = slow_count(taken_for, rows) if scripts(taken_for) else 0
    assert ForeignLines(taken_for).count("".join(f"{row}\n" for row in rows).encode()) == expected


@pytest.fixture(scope="module")
def rows(shared):
    """Pairs (zh, en) of Tatoeba."""
    with zipfile.ZipFile(shared / "data/tatoeba_anki/cmn-eng.zip") as archive:
        text = archive.read("cmn-eng/cmn.txt").decode()
    pairs = [tuple(row.split("\t")[1::-1]) for row in text.split("\n")[:-1]]
    return random.Random(1).sample(pairs, 300)


def prepared(folder, train, dev, languages=("zh", "en"), settings=("joint_vocab=false",), **more):
    sets = {"train": train, "dev": dev}
    files = {name: write(folder / "in", name, rows, languages) for name, rows in sets.items()}
    return prepare(folder, files, settings=settings, **more)


def test_share_of_foreign_lines_is_a_warning(tmp_path, rows, stderr):
    train = [*rows[:190], *[(en, zh) for zh, en in rows[190:200]]]
    run = prepared(tmp_path, train, rows[200:])
    printed = stderr()
    assert "5.0% of the lines of the source of train ('zh') have no Chinese letters" in printed
    assert "of the target of train ('en') have no Latin letters" in printed
    assert not re.search("lines of the .* of dev", printed)
    train_set, dev_set = run.manifest().sets
    src, tgt = ([pair[side] for pair in train] for side in (0, 1))
    assert train_set.foreign == {"src": slow_count("zh", src), "ref": slow_count("en", tgt)}
    assert dev_set.foreign == {}
    notes = " ".join(corpus(run.manifest()).notes)
    assert "lines of train (src) without a letter of their language's script: 10" in notes


@pytest.mark.parametrize(
    ("wrong", "side", "hint"),
    [
        (lambda zh, en: (en, zh), "source of dev has hardly a line with Chinese", "first"),
        (lambda zh, en: (zh, zh), "target of dev has hardly a line with Latin", "first"),
        (lambda zh, en: ("Мир, труд", en), "source of dev has hardly a", "--src, with a script"),
    ],
)
def test_side_in_another_script_is_refused(tmp_path, rows, wrong, side, hint):
    dev = [wrong(*pair) for pair in rows[200:]]
    error = refused(DataError, side, prepared, tmp_path, rows[:200], dev)
    assert hint in error.hint
    assert not (tmp_path / "run").exists()


def test_language_code_with_a_script_allows_that_script(tmp_path, rows, stderr):
    """Few lines or a language without known scripts are no evidence."""
    latin = [(en, en.upper()) for _, en in rows]
    prepared(tmp_path, latin[:200], latin[200:], ("zh", "en"), src="zh-Latn", settings=())
    prepared(tmp_path / "few", rows, [("Yes.", "Yes.")], settings=())
    printed = stderr()
    assert "100.0% of the lines of the source of dev ('zh') have no Chinese letters" in printed
    assert printed.count("share no script") == 1


@pytest.mark.parametrize(("languages", "joint", "is_doubted"), [
    (("zh", "en"), "true", True),
    (("zh", "en"), "false", False),
    (("zh", "ja"), "true", False),
    (("xx", "en"), "true", False),
])  # fmt: skip
def test_joint_vocabulary_of_two_scripts_is_a_warning(
    tmp_path, rows, languages, joint, is_doubted, stderr
):
    same = [(zh, zh if languages[1] == "ja" else en) for zh, en in rows]
    settings = [f"joint_vocab={joint}", "src_tokenizer=characters"]
    prepared(tmp_path, same[:200], same[200:], languages, settings)
    warnings = [line for line in stderr().split("\n") if "share no script" in line]
    assert len(warnings) == is_doubted
    assert all("--set prep.joint_vocab=false" in line for line in warnings)


def test_file_suffix_of_a_third_language_is_a_warning(tmp_path, rows, stderr):
    latin = [(en, en.upper()) for _, en in rows]
    files = {
        "train": write(tmp_path / "in", "train", latin[:200]),
        "dev": write(tmp_path / "in", "dev", latin[200:], ("fr", "ja")),
    }
    prepare(tmp_path, files)
    printed = stderr()
    assert "its suffix says 'fr'" in printed
    assert "its suffix says 'ja'" in printed
