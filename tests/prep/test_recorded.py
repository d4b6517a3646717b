"""Prepared text equals the outputs of the classical tools that others recorded; every line that
differs is explained.

Recorded files in ../shared/data and their tests (scores: tests/score/test_recorded.py):

- tokenizer.perl in six languages, and Multi30k's tok/ from raw/ in three: test_moses.py
- Multi30k's tok/ with prep.lowercase, IWSLT14's tok/ and BPE from IWSLT16's XML: here
- IWSLT15's .tc.en: test_truecase.py; its .tc.zh: test_chinese.py; .zh, .en and .doc from the XML,
  and the three references of TVsub: tests/corpora/test_readers.py
- merges and segmentation of subword-nmt's test data: test_subwords.py
- HAN's test set, IWSLT15's Vietnamese, compare-mt's detokenized outputs: here
"""

import re
import tarfile
from collections import Counter
from pathlib import PurePosixPath

import pytest

from nmtkit.corpora import table
from nmtkit.corpora.unpack import SetReader
from nmtkit.settings import PrepSettings
from nmtkit.text.bpe import Bpe
from nmtkit.text.moses import Moses
from nmtkit.text.side import TextSide
from tests.prep.real import lines, multi30k, real, segments

IWSLT14 = ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")
IWSLT15 = ("tst2010", "tst2011", "tst2012", "tst2013")


def side(lang, **settings):
    values = {"normalize": True, "aggressive_hyphens": False, "escape": True} | settings
    return TextSide(lang, PrepSettings(**values))


@pytest.fixture(scope="module")
def iwslt14_rows(shared):
    """The five test sets of IWSLT14, as `nmtkit prep iwslt14-deen` reads them."""
    dataset = table.find("iwslt14-deen")
    chosen = next(chosen for chosen in dataset.choose() if chosen.split == "test")
    xml = shared / "data/iwslt16_deen"
    files = {
        file: {0: real(xml / PurePosixPath(file.member).name.replace("IWSLT14", "IWSLT16"))}
        for file in chosen.files()
    }
    rows = list(SetReader(chosen, dataset, files).rows())
    assert (len(rows), sum(starts for _, starts in rows)) == (6750, 57)
    return [text for text, _ in rows]


@pytest.mark.parametrize(("number", "lang", "entities"), [(0, "de", 3), (1, "en", 5)])
def test_iwslt14_tokens_from_xml_equal_the_recorded_ones_except_for_entities(
    shared, iwslt14_rows, number, lang, entities
):
    """The recorded script took XML's entities for text: `&amp;` became `&amp; amp ;`."""
    folder = shared / "data/iwslt14_deen_tok/tok"
    whole = lines(folder / f"test.{lang}")
    parts = [lines(folder / f"IWSLT14.{part}.de-en.{lang}") for part in IWSLT14]
    assert whole == [line for part in parts for line in part]
    text = side(lang, normalize=False, lowercase=True)
    ours = [text.tokenized(row[number].decode()) for row in iwslt14_rows]
    differ = [(a, b) for a, b in zip(ours, whole, strict=True) if a != b]
    assert len(differ) == entities
    assert all(a == re.sub("&amp; (amp|gt|lt|quot) ;", r"&\1;", b) for a, b in differ)


@pytest.mark.parametrize("lang", ["de", "en"])
@pytest.mark.parametrize("part", ["test", "valid"])
def test_iwslt14_subwords_equal_the_recorded_ones(shared, tmp_path, lang, part):
    folder = shared / "data/iwslt14_deen_tok"
    codes = tmp_path / "codes"
    codes.write_text("\n".join(lines(folder / "code")) + "\n", "utf-8", newline="\n")
    bpe = Bpe(codes)
    text, pieces = (lines(folder / f"{kind}/{part}.{lang}") for kind in ("tok", "bpe10k"))
    assert [" ".join(bpe.segment(line.split())) for line in text] == pieces


@pytest.mark.parametrize(("lang", "ends", "inside"), [("en", 0, 3), ("de", 13, 65), ("fr", 42, 10)])
def test_multi30k_with_lowercase_differs_from_the_published_text_in_full_stops(
    shared, lang, ends, inside
):
    """tok/ was lowercased before it was tokenized, which hides where sentences begin: `spagat.
    auf`. prep.lowercase lowercases the tokens.

    Differences in 32,014 lines: last full stops after an abbreviation, which the scripts of that
    time left on its word, and full stops inside.
    """
    text, found = side(lang, lowercase=True), Counter()
    for raw, recorded in multi30k(shared / "data/multi30k", lang):
        ours, tokens = text.tokenized(raw), " ".join(recorded.split())
        if ours != tokens:
            assert ours.replace(" .", ".") == tokens.replace(" .", ".")
            found["end" if ours == tokens[:-1] + " ." else "inside"] += 1
    assert (found["end"], found["inside"]) == (ends, inside)


def test_test_sets_of_han_equal_those_of_iwslt15_and_tvsub(shared):
    """TED is tst2010 to tst2013; in 11 lines of HAN's reference the tokenizer left a last full stop
    on `U.S`.
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


def test_tvsub_references_are_tokenized_as_published(shared):
    """Published tokenized, hyphens apart, in lowercase: three references of 1,154 lines. Prep
    detokenizes them and tokenizes them anew.

    Differences in "stops": full stops that the publisher's tokenizer left (`kids.great.`,
    `together. oh`); in "dialogue": hyphens of a second speaker, which come back glued (`-you`).
    """
    subtitles = side("en", lowercase=True, aggressive_hyphens=True)
    moses, found = Moses("en", normalize=False), Counter()
    for number in (1, 2, 3):
        for published in lines(shared / f"data/han_outputs/sub_zh-en/test_tgt_{number}"):
            tokens = " ".join(published.split())
            ours = subtitles.tokenized(moses.detokenize(tokens.split()))
            if ours != tokens:
                ours, tokens = (text.replace(" .", ".") for text in (ours, tokens))
                found["stops" if ours == tokens else "dialogue"] += 1
                assert ours.replace("-", "@-@ ").replace(".@", ". @") == tokens
    assert found == {"stops": 4, "dialogue": 10}


@pytest.mark.parametrize(("lang", "ends", "commas", "marks"), [("en", 5, 0, 0), ("vi", 0, 1, 3)])
def test_iwslt15_vietnamese_equals_the_stanford_release(shared, lang, ends, commas, marks):
    """1,553 lines of tst2012. The tokenizer of the release left a last full stop on `U.S` and a last
    comma on a number, and split combining marks from their letters.
    """
    folder = shared / "data/iwslt15_envi"
    with tarfile.open(folder / "dev-2012-en-vi.tgz") as archive:
        member = next(one for one in archive if one.name.endswith(f"tst2012.{lang}"))
        recorded = archive.extractfile(member).read().decode().split("\n")[:-1]
    moses, found = Moses(lang, normalize=False), Counter()
    text = segments(real(folder / f"IWSLT15.TED.tst2012.en-vi.{lang}.xml"))
    for raw, tokens in zip(text, recorded, strict=True):
        ours = moses.tokenize(raw)
        if ours != tokens:
            split = re.sub("([\u0300-\u036f])", r" \1 ", ours).split()
            assert ours == f"{tokens[:-1]} {tokens[-1]}" or split == tokens.split()
            found["marks" if split == tokens.split() else tokens[-1]] += 1
    assert found == Counter({".": ends, ",": commas, "marks": marks})


def test_detokenized_outputs_equal_those_of_compare_mt(shared):
    """By detokenizer.perl: 7,335 lines of a reference and two systems."""
    folder, moses = shared / "data/metrics_comparemt", Moses("en")
    for name in ("ref", "sys1", "sys2"):
        tokenized, recorded = (lines(folder / f"ted.{name}.{end}") for end in ("eng", "detok.eng"))
        assert [moses.detokenize(line.split()) for line in tokenized] == recorded
