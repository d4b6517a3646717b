"""Turn published files into parallel text: documents, held-out rows, detokenized text, errors."""

import gzip
import html
import itertools
import tarfile

import pytest

from nmtkit.corpora import table
from nmtkit.corpora.corpus import SetFiles
from nmtkit.corpora.document_starts import read_starts, separate
from nmtkit.corpora.unpack import unpack
from nmtkit.errors import DataError
from nmtkit.files import text_lines
from nmtkit.text.moses import Moses
from tests.corpora.lookalikes import tarball
from tests.prep.real import lines
from tests.refused import refused


def dataset(sets, languages=("en", "de"), files=()):
    """Return a data set of the source `x`; its training text is dev and test set, too, if `sets`
    has no other.
    """
    sets = sets if len(sets) > 1 else sets | {"again": sets["train"]}
    dev, *tests = [name for name in sets if name != "train"]
    entry = dict.fromkeys(["title", "licence", "citation"], "x")
    entry |= {"name": "x-{src}{tgt}", "languages": list(languages), "sets": sets}
    entry |= {"dev": dev, "test": tests or [dev]}
    source = {"files": {name: {} for name in files}}
    values = {"sources": {"x": source}, "datasets": {"x": entry}}
    return table.expand(values)[f"x-{languages[0]}{languages[1]}"]


def unpacked(corpus, folder, paths, sets=None):
    """Unpack sets of a data set from the files of its source."""
    files = {f"x/{name}": path for name, path in paths.items()}
    return unpack(corpus, sets or corpus.choose(), files, folder / "raw")


def read(corpus, folder, paths, sets=None):
    """Return {set: (source lines, target lines, …, document starts or None)}."""
    return {
        files.name: (*(read_side(side) for side in files.sides.values()), starts_of(files))
        for files in unpacked(corpus, folder, paths, sets)
    }


def read_side(paths):
    return [line for path in paths for line in text_lines(path)]


def starts_of(files):
    return [int(line) for line in text_lines(files.docs)] if files.docs else None


def train_of(tmp_path, contents, **options):
    """Unpack a training set.

    Args:
        contents: file name -> text or bytes.
        options: the training set in the table.
    """
    paths = {name: tmp_path / name for name in contents}
    for name, content in contents.items():
        paths[name].write_bytes(content if isinstance(content, bytes) else content.encode())
    languages = ("zh", "en") if "a.zh" in contents else ("en", "de")
    corpus = dataset({"train": {"files": ["x/a.{lang}"]} | options}, languages, contents)
    return read(corpus, tmp_path, paths)["train"]


XY = {"a.en": "1\n2\n3\n4\n5\n", "a.de": "eins\nzwei\ndrei\nvier\nfünf\n"}
GERMAN = XY["a.de"].split()


# documents of published files


def separated(folder, paths, between):
    """Return source lines, target lines and document starts of a user's set."""
    own = SetFiles("dev", "dev", {"src": (paths[0],), "ref": (paths[1],)}, between=between)
    files = separate(own, ("en", "de"), folder)
    src, tgt, starts = lines(files.src[0]), lines(files.tgt[0]), starts_of(files)
    assert len(src) == len(tgt)
    return src, tgt, starts


def test_doc_files_of_han_list_the_starts_of_talks(shared):
    base = shared / "data" / "iwslt15_zhen" / "IWSLT15.TED.dev2010.zh-en"
    path = base.with_name(f"{base.name}.doc")
    starts = read_starts(path, len(lines(path.with_suffix(".zh"))))
    assert starts == [0, 152, 218, 397, 517, 552, 724, 817]


@pytest.mark.parametrize(
    ("part", "sentences", "documents"), [("test/wmt", 2998, 122), ("dev/ost-small.tok", 4997, 4)]
)
def test_blank_lines_separate_documents(shared, tmp_path, part, sentences, documents):
    paths = [shared / "data" / "doclevel_ende" / f"{part}.{lang}.xz" for lang in ("en", "de")]
    src, tgt, starts = separated(tmp_path, paths, "blank")
    assert (len(src), len(starts)) == (sentences, documents)
    raw = [lines(path) for path in paths]
    assert [src, tgt] == [[line for line in side if line] for side in raw]
    blank = [i for i, line in enumerate(raw[0]) if not line]
    assert starts[1:] == [i - n for n, i in enumerate(blank) if i < len(raw[0]) - 1]


@pytest.mark.parametrize(
    ("part", "sentences", "documents"),
    [
        ("Europarl7/concatenated_en2de_dev", 3587, 240),  # with CRLF
        ("IWSLT2017/concatenated_en2de_test", 2271, 23),
        ("NC-2016/concatenated_en2de_test", 2999, 155),
    ],
)
def test_marker_lines_start_documents(shared, tmp_path, part, sentences, documents):
    folder = shared / "data" / "doc_d_marker_ende"
    paths = [folder / f"{part}_{lang}.txt.xz" for lang in ("en", "de")]
    src, tgt, starts = separated(tmp_path, paths, "marker")
    assert (len(src), len(starts)) == (sentences, documents)
    assert not any("<d>" in line for line in src + tgt)
    raw = lines(paths[0])
    first = [raw[i + 1] for i, line in enumerate(raw) if line.strip() == "<d>"]
    assert [src[i] for i in starts] == first


def test_source_with_several_versions_of_a_document_is_refused(tmp_path):
    path = tmp_path / "a.sgm"
    path.write_text("".join(f"<doc docid=a sysid={i}><seg>x</seg></doc>" for i in (1, 2)))
    message = r"the source has several versions of a document \(dev set\)"
    refused(DataError, message, separated, tmp_path, [path, path], "markup")


@pytest.fixture
def tvsub(shared):
    """TVsub's test set: plain source, and SGM with documents and tokenized references."""
    base = shared / "data" / "tvsub_zhen"
    return {
        "zh": base / "original" / "test" / "test.orignal.zh",
        "trg.sgm.xz": base / "processed" / "test" / "test_trg.sgm.xz",
    }


TVSUB = {"files": {"zh": ["x/zh"], "en": ["x/trg.sgm.xz"]}, "tokenized": ["en"]}


def test_tokenized_references_are_detokenized_and_have_documents(shared, tmp_path, tvsub):
    """Oracle: the references as HAN's authors published them, by Moses' detokenizer."""
    corpus = dataset({"train": TVSUB}, ("zh", "en"), tvsub)
    src, *references, starts = read(corpus, tmp_path, tvsub)["train"]
    assert (src, starts, len(references)) == (lines(tvsub["zh"]), [0, 330], 3)
    moses = Moses("en", normalize=False, escape=False)
    for number, reference in enumerate(references, 1):
        path = shared / "data" / "han_outputs" / "sub_zh-en" / f"test_tgt_{number}"
        plain = map(html.unescape, lines(path))
        assert reference == [moses.detokenize(line.split()) for line in plain]
        assert " 't" not in " ".join(reference) and "@-@" not in " ".join(reference)


def test_first_reference_is_the_source_of_the_other_direction(tmp_path, tvsub):
    zh, back = (
        read(dataset({"train": TVSUB}, pair, tvsub), tmp_path / pair[0], tvsub)["train"]
        for pair in (("zh", "en"), ("en", "zh"))
    )
    assert back[:2] == (zh[1], zh[0])


def test_numbered_files_are_documents_in_the_order_of_their_numbers(shared, tmp_path):
    """Episodes of TVsub, in another order in the archive."""
    with tarfile.open(shared / "data" / "tvsub_zhen" / "train_episodes_000-699.tar.xz") as whole:
        infos = itertools.islice(whole, 30)
        members = {info.name: whole.extractfile(info).read() for info in infos}
    reverse = dict(reversed(members.items()))
    paths = {"train.tgz": tarball(tmp_path / "train.tgz", reverse)}
    sizes = {int(name.split(".")[0]): data.count(b"\n") for name, data in members.items()}
    corpus = dataset({"train": {"files": ["x/train.tgz::{number}.{lang}"]}}, ("zh", "en"), paths)
    src, tgt, starts = read(corpus, tmp_path, paths, corpus.choose()[:1])["train"]
    assert len(sizes) == 15 and len(src) == len(tgt) == sum(sizes.values())
    assert starts == [sum(sizes[i] for i in range(number)) for number in range(15)]
    for side, name in ((src, "10.zh"), (tgt, "10.en")):
        assert side[starts[10]] == members[name].decode().split("\n")[0]


def test_ids_of_opus_start_a_document_where_a_file_of_either_side_changes(tmp_path):
    rows = ["1 1 1", "1 1 2", "1 2 2", "2 2 2", "2 2 3"]  # files of both sides, sentence
    ids = "".join("en/{0}.xml\tde/{1}.xml\t{2}\t{2}\n".format(*row.split()) for row in rows)
    assert train_of(tmp_path, XY | {"ids": ids}, boundaries=["x/ids"])[2] == [0, 2, 3]


def test_each_part_has_its_own_boundaries(tmp_path):
    contents = XY | {"b.en": "6\n7\n", "b.de": "sechs\nsieben\n"}
    contents |= {"a.ids": "a\na\na\nb\nb\n", "b.ids": "b\nc\n"}
    files, boundaries = ["x/a.{lang}", "x/b.{lang}"], ["x/a.ids", "x/b.ids"]
    text = train_of(tmp_path, contents, files=files, boundaries=boundaries)
    assert text == ([*"1234567"], [*GERMAN, "sechs", "sieben"], [0, 3, 5, 6])


def test_parts_with_different_numbers_of_references_are_refused(tmp_path):
    twice = "".join(f"<doc docid=a sysid={i}><seg>x</seg></doc>" for i in (1, 2))
    contents = XY | {"b.en.sgm": "<doc docid=a><seg>x</seg></doc>", "b.de.sgm": twice}
    files = ["x/a.{lang}", "x/b.{lang}.sgm"]
    message = "parts of the train set have 1 and 2 references"
    refused(DataError, message, train_of, tmp_path, contents, files=files)


def test_set_has_no_documents_if_a_part_has_none(tmp_path):
    sgm = "<doc docid=a><seg>{}</seg></doc>"
    contents = XY | {f"b.{lang}.sgm": sgm.format(lang) for lang in ("en", "de")}
    text = train_of(tmp_path, contents, files=["x/a.{lang}", "x/b.{lang}.sgm"])
    assert text == ([*"12345", "en"], [*GERMAN, "de"], None)


def test_documents_match_if_one_side_has_no_ids(tmp_path):
    plain, with_ids = "<doc><seg>1</seg></doc>" * 2, "<doc docid=A><seg>1</seg></doc>" * 2
    contents = {"a.en.sgm": plain, "a.de.sgm": with_ids}
    assert train_of(tmp_path, contents, files=["x/a.{lang}.sgm"])


# the text


def test_plain_text_is_used_without_a_copy(tmp_path):
    paths = {f"{name}.gz": tmp_path / f"{name}.gz" for name in XY}
    for path in paths.values():
        path.write_bytes(gzip.compress(XY[path.stem].encode()))
    corpus = dataset({"train": {"files": ["x/a.{lang}.gz"]}}, files=paths)
    (train,) = unpacked(corpus, tmp_path, paths, corpus.choose()[:1])
    assert (train.src, train.tgt) == ((paths["a.en.gz"],), (paths["a.de.gz"],))
    assert list((tmp_path / "raw").iterdir()) == []


TYPOGRAPHIC = {"a.en": "it\u2019s \u2018so\u2019\n", "a.de": "geht\u2019s\n"}


@pytest.mark.parametrize(
    ("contents", "options", "expected"),
    [
        (TYPOGRAPHIC, {"plain_apostrophes": True}, ("it's \u2018so'", "geht's")),
        (TYPOGRAPHIC, {}, ("it\u2019s \u2018so\u2019", "geht\u2019s")),
        (
            {
                "a.en": "it &apos;s a well @-@ known &quot; fact &quot; .\n",
                "a.de": "das ist , so &amp; so , bekannt .\n",
            },
            {"tokenized": ["en"]},
            ('it\'s a well-known "fact".', "das ist , so &amp; so , bekannt ."),
        ),
        (
            {"a.zh": "我 只能 说出 &quot; 乔伊 &quot; , OK go 。\n", "a.en": "x\n"},
            {"tokenized": ["zh"]},
            ('我只能说出"乔伊", OK go。', "x"),
        ),
    ],
)
def test_apostrophes_and_tokens_become_raw_text_where_the_table_asks_for_it(
    tmp_path, contents, options, expected
):
    src, tgt = expected
    assert train_of(tmp_path, contents, **options) == ([src], [tgt], None)


def test_detokenizing_keeps_bytes_that_are_not_utf8(tmp_path):
    """A setting of prep says what becomes of them."""
    paths = {"a.en": tmp_path / "a.en", "a.de": tmp_path / "a.de"}
    for path in paths.values():
        path.write_bytes(b"Gr\xfc\xdfe , sagte sie .\n")
    corpus = dataset({"train": {"files": ["x/a.{lang}"], "tokenized": ["en"]}}, files=paths)
    (train,) = unpacked(corpus, tmp_path, paths, corpus.choose()[:1])
    assert train.src[0].read_bytes() == b"Gr\xfc\xdfe, sagte sie.\n"


# held-out rows


def held_out(tmp_path, dev, test, /, count=100, docs=True, **rows):
    """Unpack a training set of numbered lines in documents of 7, and sets taken out of it.

    Args:
        dev, test: names of sets; `own` is the whole text from a file of its own.
        rows: name of a set -> its rows of the training text.
    """
    paths = {name: tmp_path / name for name in ("a.en", "a.de", "doc")}
    texts = (range(count), (f"d{i}" for i in range(count)), (i // 7 for i in range(count)))
    for path, values in zip(paths.values(), texts, strict=True):
        path.write_text("".join(f"{value}\n" for value in values))
    whole = {"files": ["x/a.{lang}"]}
    sets = {"train": whole | ({"boundaries": ["x/doc"]} if docs else {}), "own": whole}
    sets |= {name: {"rows": value} for name, value in rows.items()}
    corpus = dataset(sets, files=paths)
    return read(corpus, tmp_path, paths, corpus.choose(dev, [test]))


def numbers(text):
    return list(map(int, text[0]))


@pytest.mark.parametrize("docs", [True, False])
def test_held_out_blocks_leave_the_training_text_with_their_documents(tmp_path, docs):
    texts = held_out(tmp_path, "dev", "test", docs=docs, dev="-20:-10", test="-10:")
    rows = {"train": range(80), "dev": range(80, 90), "test": range(90, 100)}
    starts = {"train": [*range(0, 80, 7)], "dev": [0, 4], "test": [0, 1, 8]}  # 77..83 goes on
    assert texts == {
        name: ([*map(str, lines)], [f"d{i}" for i in lines], starts[name] if docs else None)
        for name, lines in rows.items()
    }


def test_held_out_scattered_rows_have_no_documents_but_the_training_text_has(tmp_path):
    texts = held_out(tmp_path, "third", "own", count=30, third="2::3")
    assert numbers(texts["dev"]) == [*range(2, 30, 3)]
    left = [i for i in range(30) if i % 3 != 2]
    assert numbers(texts["train"]) == left
    assert texts["dev"][2] is None
    assert [left[i] // 7 for i in texts["train"][2]] == [0, 1, 2, 3, 4]
    assert len(texts["own"][0]) == 30


def test_rows_of_sets_that_are_not_chosen_leave_the_training_text_too(tmp_path):
    texts = held_out(tmp_path, "own", "own", dev="-20:-10", test="-10:")
    assert numbers(texts["train"]) == [*range(80)]


def test_dev_and_test_may_be_the_same_rows(tmp_path):
    texts = held_out(tmp_path, "last", "last", last="-10:")
    assert texts["dev"] == texts["last"] and len(texts["train"][0]) == 90
    assert numbers(texts["last"]) == [*range(90, 100)]


def test_rows_beyond_the_training_text_are_refused(tmp_path):
    message = "the last set has no line"
    error = refused(DataError, message, held_out, tmp_path, "own", "last", count=5, last="50:")
    assert "prep.dev" in error.hint


# sides that do not match


SGM = {"files": ["x/a.{lang}.sgm"]}
A, B = "<doc docid=A><seg>1</seg></doc>", "<doc docid=B><seg>2</seg></doc>"
BOUNDS = {"boundaries": ["x/bounds"]}


@pytest.mark.parametrize(
    ("contents", "options", "message"),
    [
        (
            {"a.en": "1\n2\n", "a.de": "1\n"},
            {"tokenized": ["de"]},
            "a.de has 1 line but a.en has more",
        ),
        (
            {"a.en": "1\n", "a.de": "1\n2\n"},
            {"tokenized": ["en"]},
            "a.en has 1 line but a.de has more",
        ),
        (XY | {"bounds": "a\tb\t1\t1\n" * 4}, BOUNDS, "bounds has 4 lines but a.en has more"),
        (XY | {"bounds": "a\tb\t1\t1\n" * 6}, BOUNDS, "a.en has 5 lines but bounds has more"),
        ({"a.en": "", "a.de": ""}, {"tokenized": ["de"]}, "has no sentence"),
        (
            {"a.en": "<url>\n1\n2\n", "a.de": "<url>\n1\n<url>\n2\n"},
            {"format": "ted"},
            "documents start at different lines of a.en and a.de",
        ),
        (
            {"a.en.sgm": A, "a.de.sgm": A.replace("</doc>", "<seg>2</seg></doc>")},
            SGM,
            "a.en.sgm has 1 line but a.de.sgm has more",
        ),
        (
            {"a.en.sgm": A + B, "a.de.sgm": B + A},
            SGM,
            "the documents A and B are side by side in a.en.sgm and a.de.sgm",
        ),
    ],
)
def test_sides_that_do_not_match_are_refused(tmp_path, contents, options, message):
    error = refused(DataError, message, train_of, tmp_path, contents, **options)
    assert error.hint and "train set" in error.message


@pytest.mark.parametrize(
    ("members", "name", "message"),
    [
        (
            ["1.en", "2.en", "1.de", "3.de"],
            "{number}.{lang}",
            r"\{number\}.en and \{number\}.de are there with different numbers",
        ),
        (["train/a.de"], "train/a.{lang}", "x.tgz has no train/a.en"),
    ],
)
def test_archive_without_a_member_of_a_side_is_refused(tmp_path, members, name, message):
    paths = {"x.tgz": tarball(tmp_path / "x.tgz", dict.fromkeys(members, b"x\n"))}
    corpus = dataset({"train": {"files": [f"x/x.tgz::{name}"]}}, files=paths)
    refused(DataError, message, read, corpus, tmp_path, paths)
