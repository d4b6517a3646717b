"""The formats: against the real files, read a second time by the plainest means; and the
oddities each format allows.
"""

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


def rows(stream):
    return list(stream.rows)


def texts(stream):
    return [line.decode() for line, _ in stream.rows]


def starts(stream):
    return [number for number, (_, first) in enumerate(stream.rows) if first]


def xml_oracle(path):
    """Texts and document starts by an XML parser, outer spaces removed."""
    found, where = [], []
    data = lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()
    for doc in ElementTree.fromstring(data).iter("doc"):
        where.append(len(found))
        found += [" ".join(seg.text.split("\n")).strip() for seg in doc.iter("seg")]
    return found, where


# IWSLT's XML

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


@pytest.mark.parametrize(
    "name", [name.format(part) for name, parts in IWSLT.items() for part in parts.split()]
)
def test_iwslt_xml(shared, name):
    for lang in name.rpartition(".")[2].split("-"):
        path = real(shared / "data" / f"{name}.{lang}.xml")
        (stream,) = readers.markup(path, lang)
        assert stream.documents
        assert (texts(stream), starts(stream)) == xml_oracle(path)
        if size := SIZES.get(name.partition("/")[2]):
            assert (len(rows(stream)), len(starts(stream))) == size


@pytest.mark.parametrize("part", ["dev2010", "tst2010", "tst2011", "tst2012", "tst2013"])
def test_iwslt_xml_is_the_text_and_the_talks_that_others_took_from_it(shared, part):
    """HAN's extraction of the same files: text, and line numbers where talks start."""
    base = shared / "data" / "iwslt15_zhen" / f"IWSLT15.TED.{part}.zh-en"
    for lang in ("zh", "en"):
        (stream,) = readers.markup(real(base.with_name(f"{base.name}.{lang}.xml")), lang)
        assert texts(stream) == [
            html.unescape(line) for line in lines(base.with_name(f"{base.name}.{lang}"))
        ]
        assert starts(stream) == [int(line) for line in lines(base.with_name(f"{base.name}.doc"))]


# mteval's SGM


def test_sgm_of_news(shared):
    folder = shared / "data" / "moses_nc5k"
    (src,), (ref,) = (
        readers.markup(folder / "test-src.fr.sgm", "fr"),
        readers.markup(folder / "test-ref.en.sgm", "en"),
    )
    for stream, name in ((src, "test-src.fr.sgm"), (ref, "test-ref.en.sgm")):
        plain = re.findall(
            r'^<seg id="\d+">\s*(.*?)\s*</seg>', "\n".join(lines(folder / name)), re.M
        )
        assert texts(stream) == [html.unescape(text) for text in plain]
        assert len(starts(stream)) == "\n".join(lines(folder / name)).count("<doc ")
    assert starts(src) == starts(ref)


def test_sgm_with_three_references_and_without_quotes(shared):
    """TVsub's test set; the same references lie beside HAN's outputs as plain text."""
    streams = readers.markup(
        real(shared / "data" / "tvsub_zhen" / "processed" / "test" / "test_trg.sgm"), "en"
    )
    assert len(streams) == 3
    for number, stream in enumerate(streams, 1):
        assert texts(stream) == [
            html.unescape(line)
            for line in lines(shared / "data" / "han_outputs" / "sub_zh-en" / f"test_tgt_{number}")
        ]
        assert (len(rows(stream)), starts(stream)) == (1154, [0, 330])


def test_sgm_of_a_system(shared):
    folder = shared / "data" / "han_outputs" / "sub_zh-en"
    (stream,) = readers.markup(real(folder / "sub_zh-en_baseline.en.sgm"), "en")
    assert texts(stream) == [
        html.unescape(line).strip() for line in lines(folder / "sub_zh-en_baseline.en")
    ]


# WMT's XML


def test_wmt_xml(shared):
    path = real(shared / "data" / "wmt21_xml" / "newstest2021.de-fr.all.xml")
    tree = ElementTree.fromstring(
        "\n".join(lines(path)).removeprefix("<?xml version='1.0' encoding='utf-8'?>")
    )
    for lang, side in (("de", "src"), ("fr", "ref")):
        (stream,) = readers.markup(path, lang)
        expected, where = [], []
        for doc in tree.iter("doc"):
            where.append(len(expected))
            expected += [seg.text.strip() for seg in doc.find(side).iter("seg")]
        assert (texts(stream), starts(stream)) == (expected, where)
        assert len(where) == 61
    refused(DataError, "no segments in 'en'", readers.markup, path, "en")


# oddities


def write(tmp_path, text, name="x.sgm"):
    path = tmp_path / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def markup(tmp_path, text, lang="en"):
    return readers.markup(write(tmp_path, text), lang)


def test_quotes_case_breaks_entities_and_bare_ampersands(tmp_path):
    text = """<REFSET setid=x><DOC docid=a sysid='one'><P>
    <SEG ID=1>AT&T &amp; R&amp;amp;D &lt;b&gt; &#228;&#xE4; &#10;x &copy;</SEG><seg
    id="2" > over
    two lines </seg></P></DOC><doc sysid="one" docid="b"><hl><seg id="1"></seg></hl></doc></refset>"""
    (stream,) = markup(tmp_path, text)
    assert texts(stream) == ["AT&T & R&amp;D <b> ää  x &copy;", "over     two lines", ""]
    assert starts(stream) == [0, 2]


def test_two_documents_by_different_translators_are_one_reference(tmp_path):
    text = (
        '<doc docid="a" sysid="Ann"><seg>x</seg></doc><doc docid="b" sysid="Bob"><seg>y</seg></doc>'
    )
    assert [texts(stream) for stream in markup(tmp_path, text)] == [["x", "y"]]


def test_references_interleaved_or_one_after_the_other(tmp_path):
    docs = {
        key: f'<doc docid="{key[0]}" sysid="{key[1]}"><seg>{key}</seg></doc>'
        for key in ("a1", "a2", "b1", "b2")
    }
    for order in (["a1", "a2", "b1", "b2"], ["a1", "b1", "a2", "b2"]):
        found = markup(tmp_path, "".join(docs[key] for key in order))
        assert [texts(stream) for stream in found] == [["a1", "b1"], ["a2", "b2"]]


def test_two_translators_in_wmt_xml_and_no_output_of_a_system(tmp_path):
    doc = """<doc id="{0}"><src lang="de"><p><seg id="1">s{0}</seg></p></src><hyp system="X" language="en"><seg id="1">bad</seg></hyp>
    <ref lang="en" translator="A"><p><seg id="1">a{0}</seg></p></ref><ref lang="en" translator="B"><seg id="1">b{0}</seg></ref></doc>"""
    text = "<dataset>" + doc.format(1) + doc.format(2) + "</dataset>"
    assert [texts(stream) for stream in markup(tmp_path, text)] == [["a1", "a2"], ["b1", "b2"]]
    assert [texts(stream) for stream in markup(tmp_path, text, "de")] == [["s1", "s2"]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no segments"),
        ("just text\n", "no segments"),
        ("<tmx><tu><tuv xml:lang='en'><seg>x</seg></tuv></tu></tmx>", "no segments"),
        ("<doc docid=a></doc>", "no segments"),
        ("<doc docid=a>\n<seg id=1>x\n<seg id=2>y</seg></doc>", "not closed"),
        ("<doc docid=a>\n<seg id=1>x", "not closed"),
        ("<doc docid=a>\n" + 100_000 * "<seg>", "not closed"),
        ("\n" + 200_000 * "<doc", "no segments"),
        (f"<doc {400_000 * 'a'}>", "no segments"),
        ("<doc docid=a>\n<seg id=1>x</doc><doc docid=b><seg>y</seg></doc>", "not closed"),
        (
            (
                "<doc docid=a sysid=1><seg>x</seg></doc><doc docid=a"
                " sysid=2><seg>x</seg><seg>y</seg></doc>"
            ),
            "differ in document 'a'",
        ),
        (
            (
                "<doc docid=a sysid=1><seg>x</seg></doc><doc docid=a sysid=2><seg>x</seg></doc><doc"
                " docid=b sysid=2><seg>x</seg></doc>"
            ),
            "document 'b'",
        ),
    ],
)
def test_what_cannot_be_read(tmp_path, text, message):
    caught = refused(DataError, message, markup, tmp_path, text)
    assert "x.sgm" in caught.where
    assert caught.hint
    if message == "not closed":
        assert "line 2" in caught.where


def test_no_compressed_bomb(tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "LARGEST", 1 << 20)
    path = tmp_path / "x.sgm.gz"
    path.write_bytes(gzip.compress(bytes(readers.LARGEST + 1), 1))
    refused(DataError, "more than 1 MiB", readers.markup, path, "en")


def test_no_entity_bomb(tmp_path):
    """Entities of a document type are never expanded."""
    laughs = (
        '<!DOCTYPE d [<!ENTITY a "haha"><!ENTITY b "&a;&a;&a;&a;">]><doc'
        ' docid="a"><seg>&b;&b;</seg></doc>'
    )
    assert texts(markup(tmp_path, laughs)[0]) == ["&b;&b;"]


# TED training text


def train_tags(path):
    """A real XML set as WIT3 publishes training text: metadata with tags, sentences bare.
    Returns text, and sentences by talk.
    """
    out, talks = [], []
    for line in lines(path):
        if line.startswith(
            (
                "<url>",
                "<keywords>",
                "<talkid>",
                "<title>",
                "<description>",
                "<reviewer",
                "<translator",
                "<speaker",
            )
        ):
            out.append(line)
        elif line.startswith("<doc"):
            talks.append([])
        elif found := re.match(r'<seg id="\d+">\s*(.*?)\s*</seg>', line):
            out.append(found[1])
            talks[-1].append(html.unescape(found[1]))
    return "\n".join(out) + "\n", talks


@pytest.mark.parametrize("lang", ["zh", "en"])
def test_ted_without_its_metadata(shared, tmp_path, lang):
    text, talks = train_tags(
        shared / "data" / "iwslt15_zhen" / f"IWSLT15.TED.tst2013.zh-en.{lang}.xml"
    )
    path = write(tmp_path, text)
    stream = readers.ted(path)
    assert stream.documents
    assert texts(stream) == [line for talk in talks for line in talk]
    assert starts(readers.ted(path)) == [sum(map(len, talks[:i])) for i in range(len(talks))]
    kept = texts(readers.ted(path, ["title", "description"]))
    assert len(kept) == sum(map(len, talks)) + 2 * len(talks)
    assert not any(line.startswith("<") for line in kept)


def test_ted_titles_begin_their_talk(tmp_path):
    talk = (
        '<doc docid="1">\n<url>u</url>\n<title>T &amp; t</title>\n<reviewer href="x">r</reviewer>\n'
        " a \n\nb\n</doc>\n"
    )
    path = write(tmp_path, talk + "<url>u</url>\n<i>c</i>\n<title></title>\nd")
    assert rows(readers.ted(path)) == [
        (b"a", True),
        (b"", False),
        (b"b", False),
        (b"<i>c</i>", True),
        (b"d", True),
    ]
    kept = rows(readers.ted(path, ["title"]))
    assert kept == [
        (b"T & t", True),
        (b"a", False),
        (b"", False),
        (b"b", False),
        (b"<i>c</i>", True),
        (b"", True),
        (b"d", False),
    ]


# episodes


def test_episodes_are_documents(shared, tmp_path):
    sizes, paths = [], []
    with tarfile.open(
        fileobj=io.BytesIO(
            lzma.decompress(
                (shared / "data" / "tvsub_zhen" / "train_episodes_000-699.tar.xz").read_bytes()
            )
        )
    ) as one:
        for number in range(0, 700, 50):
            data = one.extractfile(f"{number}.zh").read()
            paths.append(write(tmp_path, data, f"{number}.zh"))
            sizes.append(data.count(b"\n"))
    stream = readers.document_files(paths)
    assert stream.documents
    found = rows(stream)
    assert len(found) == sum(sizes)
    assert [i for i, (_, first) in enumerate(found) if first] == [
        sum(sizes[:i]) for i in range(len(sizes))
    ]


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
def test_unescape_once(text, expected):
    assert readers.unescape(text.encode()).decode() == expected
