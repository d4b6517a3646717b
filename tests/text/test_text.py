"""`TextSide`: a raw line becomes subwords and comes back, by settings or by the files of a run."""

import shutil
import time
from collections import Counter

import pytest

from nmtkit.errors import DataError
from nmtkit.settings import PrepSettings
from nmtkit.text.bpe import Bpe, learn_bpe
from nmtkit.text.side import TextSide
from nmtkit.text.truecase import Truecaser, learn_truecaser
from nmtkit.text.vocabulary import SPECIALS
from tests.manifests import write_json
from tests.prep.real import lines
from tests.text.evidence import evidence

DEFAULTS = {"normalize": True, "aggressive_hyphens": False, "escape": True, "lowercase": False}


def english(**settings):
    return TextSide("en", PrepSettings(**DEFAULTS | settings))


TEXT = [
    "The tall engineer looks up the number, doesn't he?",
    "An engineer's number (of 3,000.50) is known.",
    "Peter and Anna, they know the number!",
    "The well-known half of it costs 100%.",
] * 3


def write_manifest(folder, vocab_threshold=0):
    settings = {**DEFAULTS, "vocab_threshold": vocab_threshold}
    write_json(folder / "manifest.json", {"src": "en", "tgt": "zh", "settings": settings})


@pytest.fixture(scope="module")
def prep(tmp_path_factory):
    """Return a prep folder for en -> zh with a truecaser and merges of the English `TEXT`."""
    folder = tmp_path_factory.mktemp("prep")
    plain = english()
    counts = Counter(word for line in TEXT for word in evidence(plain.tokens(line)))
    side = TextSide("en", PrepSettings(**DEFAULTS), learn_truecaser(counts, folder / "truecase.en"))
    counts = Counter(token for line in TEXT for token in side.tokens(line))
    learn_bpe([*counts], [*counts.values()], 25, folder / "codes.bpe")
    bpe = Bpe(folder / "codes.bpe")
    pieces = Counter(piece for line in TEXT for piece in bpe.segment(side.tokens(line)))
    listed = "".join(f"{piece} {count}\n" for piece, count in pieces.items())
    (folder / "bpe-vocab.src.txt").write_text(listed, "utf-8")
    write_manifest(folder)
    return folder


def test_text_comes_back_and_is_truecased_by_the_learnt_model(prep):
    side = TextSide.load(prep, "src")
    for line in TEXT:
        subwords = side.encode(line)
        assert any(piece.endswith("@@") for piece in subwords)
        assert side.decode(subwords) == line
        assert side.surface(subwords) == " ".join(side.tokens(line))
        assert side.cased_surface(subwords) == side.cased(line)
    assert side.tokens(TEXT[1])[0] == "An"  # never seen inside a sentence: unchanged
    tokens = "the tall engineer looks up the number , doesn &apos;t he ?"
    assert " ".join(side.tokens(TEXT[0])) == tokens


def test_encode_inside_keeps_the_case_of_known_words(prep):
    side = TextSide.load(prep, "src")
    assert side.encode_inside("the number") == side.encode("the number")
    assert side.tokens("The number")[0] == "the"
    assert side.surface(side.encode_inside("Peter's number")) == "Peter &apos;s number"
    assert side.surface(side.encode_inside("NUMBER")) == "number"  # unknown: the usual case
    assert side.encode_inside(" ") == []
    two_forms = TextSide("en", PrepSettings(), Truecaser({"may": "may"}, frozenset({"may", "May"})))
    assert (two_forms.encode_inside("May"), two_forms.encode("May")) == (["May"], ["may"])
    joins = [side.splitter.joins_next(piece) for piece in ("a@@", "a")]
    assert joins == [True, False] and not TextSide.load(prep, "tgt").splitter.joins_next("a")


QUOTED = "A well-known “R&D”\tteam"


@pytest.mark.parametrize(
    ("settings", "line", "tokens"),
    [
        ({"normalize": False, "escape": False}, QUOTED, "A well-known “ R & D ” team"),
        (
            {"aggressive_hyphens": True},
            QUOTED,
            "A well @-@ known &quot; R &amp; D &quot; team",
        ),
        # lowercased after tokenization: Moses would leave `ends. another`
        ({"lowercase": True}, "It ends. Another begins.", "it ends . another begins ."),
        # text without capitals, as captions often are
        ({"lowercase": True}, "it ends. another begins.", "it ends . another begins ."),
        ({}, "it ends. another begins.", "it ends. another begins ."),
    ],
)
def test_each_setting_switches_its_step(settings, line, tokens):
    assert " ".join(english(**settings).tokens(line)) == tokens


def test_lowercased_text_gets_no_capitals_when_decoded():
    lower = english(lowercase=True)
    assert lower.decode(lower.encode("Hello, World!")) == "hello, world!"


def test_blank_lines_have_no_subwords(prep):
    for which in ("src", "tgt"):
        side = TextSide.load(prep, which)
        for line in ("", " ", "\ufeff", "\u2028\t", "\u00a0", "\u3000"):
            assert side.encode(line) == []
        assert side.decode([]) == ""
        assert side.surface([]) == ""


def test_vocab_threshold_undoes_merges_to_rare_subwords(prep, tmp_path):
    shutil.copytree(prep, tmp_path, dirs_exist_ok=True)
    write_manifest(tmp_path, vocab_threshold=6)
    plain, filtered = (TextSide.load(folder, "src") for folder in (prep, tmp_path))
    counts = dict(line.split() for line in lines(prep / "bpe-vocab.src.txt"))
    allowed = {piece for piece, count in counts.items() if int(count) >= 6}
    encoded = [filtered.encode(line) for line in TEXT]
    pieces = {piece for line in encoded for piece in line if len(piece.removesuffix("@@")) > 1}
    assert pieces <= allowed
    assert encoded != [plain.encode(line) for line in TEXT]
    assert 6 in map(int, counts.values())
    splitter = Bpe(prep / "codes.bpe", allowed)
    assert encoded == [splitter.segment(filtered.tokens(line)) for line in TEXT]
    assert [filtered.decode(line) for line in encoded] == TEXT
    unseen = [word[:size] for word in TEXT[0].split() for size in range(2, len(word))]
    assert plain.splitter.segment(unseen) == Bpe(prep / "codes.bpe").segment(unseen)


def test_special_symbols_in_the_text_are_text(prep):
    for escape in (True, False):
        side = TextSide(
            "en", PrepSettings(**DEFAULTS | {"escape": escape}), None, Bpe(prep / "codes.bpe")
        )
        subwords = side.encode("a <pad> </s> <unk> @@ b@@ c")
        assert not {*SPECIALS} & {*subwords, *side.tokens("a <pad> </s> <unk>")}
        assert side.surface(subwords).endswith("@ @ b @ @ c")


def test_codes_of_a_side_win_over_joint_codes(prep, tmp_path):
    shutil.copytree(prep, tmp_path, dirs_exist_ok=True)
    (tmp_path / "codes.src.bpe").write_text("#version: 0.2\n", encoding="utf-8")
    assert TextSide.load(tmp_path, "src").encode("tall") == ["t@@", "a@@", "l@@", "l"]


def test_damaged_prep_folder_is_refused(prep, tmp_path):
    with pytest.raises(DataError, match="no such file"):
        TextSide.load(tmp_path, "src")
    (tmp_path / "manifest.json").write_text('{"src": "en"}')
    with pytest.raises(DataError, match="damaged: 'tgt' is missing"):
        TextSide.load(tmp_path, "src")
    write_manifest(tmp_path, vocab_threshold=2)
    shutil.copy(prep / "codes.bpe", tmp_path)
    (tmp_path / "bpe-vocab.src.txt").write_text("good 3\nbad\n")
    with pytest.raises(DataError, match="line 2"):
        TextSide.load(tmp_path, "src")


def test_real_text_comes_back_except_for_spaces_around_quotes(shared, prep):
    """On Multi30k's dev set: 2 of 1,014 lines differ."""
    side = TextSide.load(prep, "src")
    text = lines(shared / "data/multi30k/raw/val.en.gz")
    back = [side.decode(side.encode(line)) for line in text]
    differ = [(a, b) for a, b in zip(text, back, strict=True) if a.strip() != b]
    assert len(differ) == 2
    assert all(a.replace(" ", "").casefold() == b.replace(" ", "").casefold() for a, b in differ)


def test_line_of_a_hundred_thousand_tokens_comes_back(prep):
    start = time.process_time()  # other work on the machine does not count
    side = TextSide.load(prep, "src")
    subwords = side.encode("The engineer's number, well-known @@ &apos; " * 17_000)
    assert len(side.surface(subwords).split()) > 100_000
    assert side.decode(subwords).count("engineer's number") == 17_000
    assert time.process_time() - start < 20  # in quadratic time it would take many minutes
