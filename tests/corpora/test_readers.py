"""Read SGM, XML, TED text and episodes as published; refuse malformed markup."""

import gzip
import html
import io
import lzma
import re
import tarfile
from xml.etree import ElementTree

import pytest

from nmtkit.corpora import readers
from nmtkit.errors import DataError
from tests.prep.real import lines, real
from tests.refused import refused


@pytest.fixture
def data(shared):
    return shared / "data"


def texts(stream):
    return [line.decode() for line, _ in stream]


def starts(stream):
    """Return the numbers of the lines that start a document."""
    return [number for number, (_, first) in enumerate(stream) if first]


def unescaped(path):
    """Return the lines of a text file without entities and outer spaces."""
    return [html.unescape(line).strip() for line in lines(path)]


def parsed(path, inside="."):
    """Return texts and document starts as Python's XML parser reads them.

    Args:
        inside: the element of a document that holds the segments.
    """
    segments, first = [], []
    with (lzma.open if path.suffix == ".xz" else open)(path, "rb") as stream:
        tree = ElementTree.parse(stream)
    for doc in tree.iter("doc"):
        first.append(len(segments))
        segments += [seg.text.replace("\n", " ").strip() for seg in doc.find(inside).iter("seg")]
    return segments, first


# published files

IWSLT = {
    "iwslt15_zhen/IWSLT15.{}.zh-en": "TED.dev2010 TED.tst2010 TED.tst2011 TED.tst2012 TED.tst2013",
    "iwslt15_envi/IWSLT15.{}.en-vi": "TED.dev2010 TED.tst2010 TED.tst2011 TED.tst2012",
    "iwslt16_deen/IWSLT16.{}.de-en": "TED.dev2010 TED.tst2013 TEDX.dev2012 TEDX.tst2014",
}
SIZES = {
    "IWSLT15.TED.dev2010.zh-en": (887, 8),
    "IWSLT15.TED.tst2013.zh-en": (1261, 19),
    "IWSLT15.TED.tst2012.en-vi": (1553, 14),
}
"""Lines and talks, where a paper counts them."""


@pytest.mark.parametrize(
    "name", [name.format(part) for name, parts in IWSLT.items() for part in parts.split()]
)
def test_iwslt_xml_is_read_as_by_an_xml_parser(data, name):
    for lang in name.rpartition(".")[2].split("-"):
        path = real(data / f"{name}.{lang}.xml")
        (stream,) = readers.markup(path, lang)
        assert (texts(stream), starts(stream)) == parsed(path)
        if size := SIZES.get(name.partition("/")[2]):
            assert (len(texts(stream)), len(starts(stream))) == size


@pytest.mark.parametrize("part", ["dev2010", "tst2010", "tst2011", "tst2012", "tst2013"])
def test_iwslt_xml_is_read_as_by_the_authors_of_han(data, part):
    """Their text, and the line numbers where talks start."""
    base = data / "iwslt15_zhen" / f"IWSLT15.TED.{part}.zh-en"
    for lang in ("zh", "en"):
        path = base.with_name(f"{base.name}.{lang}")
        (stream,) = readers.markup(real(path.with_name(f"{path.name}.xml")), lang)
        assert texts(stream) == [html.unescape(line) for line in lines(path)]
        assert starts(stream) == [int(line) for line in lines(path.with_suffix(".doc"))]


def test_news_sgm_has_its_segments_and_documents(data):
    found = []
    for name, lang in (("test-src.fr.sgm", "fr"), ("test-ref.en.sgm", "en")):
        path = data / "moses_nc5k" / name
        (stream,) = readers.markup(path, lang)
        sgm = "\n".join(lines(path))
        segments = re.findall(r'^<seg id="\d+">\s*(.*?)\s*</seg>', sgm, re.M)
        assert texts(stream) == [html.unescape(text) for text in segments]
        found.append(starts(stream))
        assert len(found[-1]) == sgm.count("<doc ")
    assert found[0] == found[1]


def test_tvsub_sgm_has_three_references(data):
    """HAN's authors published the references as plain text."""
    streams = readers.markup(real(data / "tvsub_zhen/processed/test/test_trg.sgm"), "en")
    assert len(streams) == 3
    for number, stream in enumerate(streams, 1):
        assert texts(stream) == unescaped(data / f"han_outputs/sub_zh-en/test_tgt_{number}")
        assert (len(texts(stream)), starts(stream)) == (1154, [0, 330])


def test_sgm_of_a_systems_output_is_its_plain_text(data):
    path = data / "han_outputs/sub_zh-en/sub_zh-en_baseline.en"
    (stream,) = readers.markup(real(path.with_name(f"{path.name}.sgm")), "en")
    assert texts(stream) == unescaped(path)


def test_wmt_xml_is_read_as_by_an_xml_parser(data):
    path = real(data / "wmt21_xml" / "newstest2021.de-fr.all.xml")
    for lang, side in (("de", "src"), ("fr", "ref")):
        (stream,) = readers.markup(path, lang)
        assert (texts(stream), starts(stream)) == parsed(path, side)
        assert len(starts(stream)) == 61
    refused(DataError, "no segments in 'en'", readers.markup, path, "en")


# markup that the formats allow


def markup(tmp_path, text, lang="en"):
    path = tmp_path / "x.sgm"
    path.write_text(text, "utf-8")
    return readers.markup(path, lang)


def test_sgm_may_vary_in_quotes_case_line_breaks_and_entities(tmp_path):
    text = """<REFSET setid=x><DOC docid=a sysid='one'><P>
    <SEG ID=1>AT&T &amp; R&amp;amp;D &lt;b&gt; &#228;&#xE4; &#10;x &copy;</SEG><seg
    id="2" > over
    two lines </seg></P></DOC>
    <doc sysid="one" docid="b"><hl><seg id="1"></seg></hl></doc></refset>"""
    (stream,) = markup(tmp_path, text)
    assert texts(stream) == ["AT&T & R&amp;D <b> ää  x &copy;", "over     two lines", ""]
    assert starts(stream) == [0, 2]


@pytest.mark.parametrize(
    ("documents", "references"),
    [
        (["a1", "b2"], [["a1", "b2"]]),  # each document by another translator
        (["a1", "a2", "b1", "b2"], [["a1", "b1"], ["a2", "b2"]]),
        (["a1", "b1", "a2", "b2"], [["a1", "b1"], ["a2", "b2"]]),
    ],
)
def test_repeated_documents_of_sgm_are_further_references(tmp_path, documents, references):
    text = "".join(
        f'<doc docid="{doc}" sysid="{translator}"><seg>{doc}{translator}</seg></doc>'
        for doc, translator in documents
    )
    assert [texts(stream) for stream in markup(tmp_path, text)] == references


def test_wmt_xml_has_a_stream_for_each_translator_and_none_for_systems(tmp_path):
    doc = """<doc id="{0}"><src lang="de"><p><seg id="1">s{0}</seg></p></src>
    <hyp system="X" language="en"><seg id="1">bad</seg></hyp>
    <ref lang="en" translator="A"><p><seg id="1">a{0}</seg></p></ref>
    <ref lang="en" translator="B"><seg id="1">b{0}</seg></ref></doc>"""
    text = "<dataset>" + doc.format(1) + doc.format(2) + "</dataset>"
    assert [texts(stream) for stream in markup(tmp_path, text)] == [["a1", "a2"], ["b1", "b2"]]
    assert [texts(stream) for stream in markup(tmp_path, text, "de")] == [["s1", "s2"]]


A, B = ("<doc docid=a sysid={}><seg>x</seg></doc>", "<doc docid=b sysid={}><seg>x</seg></doc>")
A_OF_TWO_SEGMENTS = "<doc docid=a sysid=2><seg>x</seg><seg>y</seg></doc>"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no segments"),
        ("just text\n", "no segments"),
        ("<tmx><tu><tuv xml:lang='en'><seg>x</seg></tuv></tu></tmx>", "no segments"),
        ("<doc docid=a></doc>", "no segments"),
        ("\n" + 200_000 * "<doc", "no segments"),
        (f"<doc {400_000 * 'a'}>", "no segments"),
        ("<doc docid=a>\n<seg id=1>x\n<seg id=2>y</seg></doc>", "not closed"),
        ("<doc docid=a>\n<seg id=1>x", "not closed"),
        ("<doc docid=a>\n" + 100_000 * "<seg>", "not closed"),
        ("<doc docid=a>\n<seg id=1>x</doc><doc docid=b><seg>y</seg></doc>", "not closed"),
        (A.format(1) + A_OF_TWO_SEGMENTS, "differ in document 'a'"),
        (A.format(1) + A.format(2) + B.format(2), "document 'b'"),
    ],
)
def test_malformed_markup_is_refused_with_its_place(tmp_path, text, message):
    error = refused(DataError, message, markup, tmp_path, text)
    assert ("x.sgm, line 2" if message == "not closed" else "x.sgm") in error.where
    assert error.hint


def test_markup_that_decompresses_to_too_much_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "LARGEST", 1 << 20)
    path = tmp_path / "x.sgm.gz"
    path.write_bytes(gzip.compress(bytes(readers.LARGEST + 1), 1))
    refused(DataError, "more than 1 MiB", readers.markup, path, "en")


def test_entities_of_a_document_type_are_not_expanded(tmp_path):
    declared = '<!DOCTYPE d [<!ENTITY a "haha"><!ENTITY b "&a;&a;&a;&a;">]>'
    (stream,) = markup(tmp_path, declared + '<doc docid="a"><seg>&b;&b;</seg></doc>')
    assert texts(stream) == ["&b;&b;"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a & b; &x; &nbsp; &lt", "a & b; &x; &nbsp; &lt"),
        ("&lt;&gt;&amp;&quot;&apos;", "<>&\"'"),
        ("&amp;amp; &amp;lt;", "&amp; &lt;"),
        ("&#228;&#x1F600;&#xe4;", "ä😀ä"),
        ("a&#10;b&#0;c", "a b c"),
        ("&#1114112;&#xD800;", "\ufffd?"),
    ],
)
def test_entities_of_xml_are_unescaped_once(text, expected):
    assert readers.unescape(text.encode()).decode() == expected


# TED training text, and episodes

METADATA = re.compile("<(url|keywords|talkid|title|description|reviewer|translator|speaker)")


@pytest.mark.parametrize("lang", ["zh", "en"])
def test_ted_text_has_the_sentences_of_each_talk_and_metadata_on_request(data, tmp_path, lang):
    """A test set in XML, written as WIT3 publishes training text: metadata and bare sentences."""
    text, talks = [], []
    for line in lines(data / "iwslt15_zhen" / f"IWSLT15.TED.tst2013.zh-en.{lang}.xml"):
        if METADATA.match(line):
            text.append(line)
        elif line.startswith("<doc"):
            talks.append([])
        elif segment := re.match(r'<seg id="\d+">\s*(.*?)\s*</seg>', line):
            text.append(segment[1])
            talks[-1].append(html.unescape(segment[1]))
    path = tmp_path / "train.tags"
    path.write_text("\n".join(text) + "\n", "utf-8")
    stream = readers.ted(path)
    assert texts(stream) == [line for talk in talks for line in talk]
    assert starts(readers.ted(path)) == [sum(map(len, talks[:i])) for i in range(len(talks))]
    with_metadata = texts(readers.ted(path, ["title", "description"]))
    assert len(with_metadata) == sum(map(len, talks)) + 2 * len(talks)
    assert not any(line.startswith("<") for line in with_metadata)


@pytest.mark.parametrize(
    ("keep", "expected", "documents"),
    [
        ([], ["a", "", "b", "<i>c</i>", "d"], [0, 3, 4]),
        (["title"], ["T & t", "a", "", "b", "<i>c</i>", "", "d"], [0, 4, 5]),
    ],
)
def test_metadata_of_ted_starts_a_document_and_titles_may_stay(tmp_path, keep, expected, documents):
    path = tmp_path / "train.tags"
    path.write_text(
        '<doc docid="1">\n<url>u</url>\n<title>T &amp; t</title>\n<reviewer href="x">r</reviewer>\n'
        " a \n\nb\n</doc>\n<url>u</url>\n<i>c</i>\n<title></title>\nd"
    )
    assert texts(readers.ted(path, keep)) == expected
    assert starts(readers.ted(path, keep)) == documents


def test_each_episode_is_a_document(data, tmp_path):
    sizes, paths = [], []
    packed = (data / "tvsub_zhen" / "train_episodes_000-699.tar.xz").read_bytes()
    with tarfile.open(fileobj=io.BytesIO(lzma.decompress(packed))) as archive:
        for number in range(0, 700, 50):
            content = archive.extractfile(f"{number}.zh").read()
            paths.append(tmp_path / f"{number}.zh")
            paths[-1].write_bytes(content)
            sizes.append(content.count(b"\n"))
    stream = readers.document_files(paths)
    assert len(texts(stream)) == sum(sizes)
    assert starts(readers.document_files(paths)) == [
        sum(sizes[:number]) for number in range(len(sizes))
    ]
