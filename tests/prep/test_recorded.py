"""Outputs of the classical tools as others recorded them, through the whole path that a user's text
takes: every line that differs is explained.

The relations between the files of ../shared/data and where each is tested (further ones, of scores:
tests/score/test_recorded.py):

- tokenizer.perl in six languages: test_moses.py::test_moses_own_regression_test
- Multi30k's tok/ from raw/, in three languages: test_moses.py::test_multi30k_as_recorded; with
  prep.lowercase, here
- IWSLT14's tok/ from IWSLT16's XML, tokenizer alone: test_moses.py::test_iwslt14_as_recorded; XML
  to BPE with `code`, here
- IWSLT15's .tc.en: test_truecase.py::test_iwslt15_as_recorded; its .tc.zh: test_chinese.py; .zh,
  .en and .doc from the XML, and the three references of TVsub: tests/corpora/test_readers.py
- subword-nmt's own reference, merges and segmentation:
  test_subwords.py::test_subword_nmt_reference_data
- HAN's test set, IWSLT15's Vietnamese, compare-mt's detokenized outputs, here
"""

import re
import tarfile
from collections import Counter
from pathlib import PurePosixPath
from types import SimpleNamespace

import pytest

from nmtkit.corpora import table
from nmtkit.corpora.unpack import SetReader
from nmtkit.text.bpe import Bpe
from nmtkit.text.moses import Moses
from nmtkit.text.side import TextSide
from tests.prep.real import lines, multi30k, real, segments

IWSLT14 = ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")
IWSLT15 = ("tst2010", "tst2011", "tst2012", "tst2013")


def side(lang, **settings):
    return TextSide(
        lang,
        SimpleNamespace(
            **{"normalize": True, "aggressive_hyphens": False, "escape": True} | settings
        ),
    )


def test_iwslt14_from_xml_to_bpe(shared, tmp_path):
    """Ten files, 6,750 lines a language, as `nmtkit prep iwslt14-deen` takes and makes them, but
    for Moses' escapes.

    The recipe took XML's entities for text (`&amp;` became `&amp; amp ;`): these lines differ, and
    no other.
    """
    dataset = table.find("iwslt14-deen")
    one = next(chosen for chosen in dataset.choose() if chosen.split == "test")
    xml = shared / "data/iwslt16_deen"
    here = {
        file: {0: real(xml / PurePosixPath(file.member).name.replace("IWSLT14", "IWSLT16"))}
        for file in one.files()
    }
    rows = list(SetReader(one, dataset, here).rows())
    assert (len(rows), sum(starts for _, starts in rows)) == (6750, 57)
    folder = shared / "data/iwslt14_deen_tok"
    (tmp_path / "codes").write_text(
        "\n".join(lines(folder / "code")) + "\n", encoding="utf-8", newline="\n"
    )
    bpe = Bpe(tmp_path / "codes")
    for number, (lang, entities) in enumerate((("de", 3), ("en", 5))):
        whole = lines(folder / f"tok/test.{lang}")
        assert whole == [
            line for part in IWSLT14 for line in lines(folder / f"tok/IWSLT14.{part}.de-en.{lang}")
        ]
        ours = [
            side(lang, normalize=False, lowercase=True).tokenized(row[0][number].decode())
            for row in rows
        ]
        differ = [(a, b) for a, b in zip(ours, whole, strict=True) if a != b]
        assert len(differ) == entities
        assert all(a == re.sub("&amp; (amp|gt|lt|quot) ;", r"&\1;", b) for a, b in differ)
        for part in ("test", "valid"):
            text, pieces = (lines(folder / f"{kind}/{part}.{lang}") for kind in ("tok", "bpe10k"))
            assert [" ".join(bpe.segment(line.split())) for line in text] == pieces


@pytest.mark.parametrize(("lang", "ends", "inside"), [("en", 0, 3), ("de", 13, 65), ("fr", 42, 10)])
def test_multi30k_in_lowercase(shared, lang, ends, inside):
    """tok/ was lowercased before it was tokenized, which hides where sentences begin: `spagat.
    auf`; prep.lowercase lowercases the tokens.

    Counted over all 32,014 lines: last full stops after an abbreviation, which that time's scripts
    left on its word, and full stops inside.
    """
    text, found = side(lang, lowercase=True), Counter()
    for raw, recorded in multi30k(shared / "data/multi30k", lang):
        ours, tokens = text.tokenized(raw), " ".join(recorded.split())
        if ours != tokens:
            assert ours.replace(" .", ".") == tokens.replace(" .", ".")
            found["end" if ours == tokens[:-1] + " ." else "inside"] += 1
    assert (found["end"], found["inside"]) == (ends, inside)


def test_test_sets_of_han_are_those_of_iwslt15_and_tvsub(shared):
    """TED: the concatenated tst2010 to tst2013; in 11 lines the reference was made by a
    tokenizer that left a last full stop after `U.S` on it.
    """
    ted, han = shared / "data/iwslt15_zhen", shared / "data/han_outputs"
    joined = {
        lang: [line for part in IWSLT15 for line in lines(ted / f"IWSLT15.TED.{part}.tc.{lang}")]
        for lang in ("zh", "en")
    }
    assert joined["zh"] == lines(han / "TED_zh-en/IWSLT15.TED.tst.tc.zh")
    pairs = zip(joined["en"], lines(han / "TED_zh-en/IWSLT15.TED.tst.tc.en"), strict=True)
    other = [(ours, theirs) for ours, theirs in pairs if ours != theirs]
    assert len(other) == 11
    assert all(ours == theirs[:-1] + " ." for ours, theirs in other)
    assert lines(shared / "data/tvsub_zhen/processed/test/test_src") == lines(
        han / "sub_zh-en/test_src"
    )


def test_tvsub_s_references_tokenized_again(shared):
    """Published tokenized, hyphens apart, and in lowercase; prep makes them raw and tokenizes them
    anew: three references of 1,154 lines.

    Moses would leave the full stop in `no problems. it` on its word for the small letter that
    follows, in 462 lines; it is split here for want of capitals. Of the rest, stops: full stops
    that the publisher's tokenizer left (`kids.great.`, `together. oh`); dialogue: hyphens where
    another speaks, which come back glued (`-you`).
    """
    subtitles, moses, found = (
        side("en", lowercase=True, aggressive_hyphens=True),
        Moses("en", normalize=False),
        Counter(),
    )
    for number in (1, 2, 3):
        for published in lines(shared / f"data/han_outputs/sub_zh-en/test_tgt_{number}"):
            tokens = " ".join(published.split())
            ours = subtitles.tokenized(moses.detokenize(tokens.split()))
            if ours != tokens:
                found[
                    "stops" if ours.replace(" .", ".") == tokens.replace(" .", ".") else "dialogue"
                ] += 1
                assert ours.replace(" .", ".").replace("-", "@-@ ").replace(
                    ".@", ". @"
                ) == tokens.replace(" .", ".")
    assert found == {"stops": 4, "dialogue": 10}


@pytest.mark.parametrize(("lang", "ends", "commas", "marks"), [("en", 5, 0, 0), ("vi", 0, 1, 3)])
def test_iwslt15_vietnamese_as_the_stanford_release_has_it(shared, lang, ends, commas, marks):
    """1,553 lines of tst2012; a tokenizer before 2018 left a last full stop after `U.S`, and a
    last comma after a number. It split combining marks from their letters.
    """
    folder = shared / "data/iwslt15_envi"
    with tarfile.open(folder / "dev-2012-en-vi.tgz") as archive:
        member = next(one for one in archive if one.name.endswith(f"tst2012.{lang}"))
        recorded = archive.extractfile(member).read().decode().split("\n")[:-1]
    moses, found = Moses(lang, normalize=False), Counter()
    for raw, tokens in zip(
        segments(real(folder / f"IWSLT15.TED.tst2012.en-vi.{lang}.xml")), recorded, strict=True
    ):
        ours = moses.tokenize(raw)
        if ours != tokens:
            split = re.sub("([\u0300-\u036f])", r" \1 ", ours).split()
            assert ours == f"{tokens[:-1]} {tokens[-1]}" or split == tokens.split()
            found["marks" if split == tokens.split() else tokens[-1]] += 1
    assert found == Counter({".": ends, ",": commas, "marks": marks})


def test_outputs_of_compare_mt_detokenized_as_recorded(shared):
    """detokenizer.perl on 7,335 lines of a reference and two systems: no line differs."""
    folder, moses = shared / "data/metrics_comparemt", Moses("en")
    for name in ("ref", "sys1", "sys2"):
        assert [
            moses.detokenize(line.split()) for line in lines(folder / f"ted.{name}.eng")
        ] == lines(folder / f"ted.{name}.detok.eng")
