"""From files to parallel lines: every convention for documents on real files, held-out rows,
tokenized text, and what does not match.
"""

import gzip
import html
import io
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
from tests.prep.real import lines


def dataset(sets, languages=("en", "de"), files=()):
    """A data set of one source `x` whose files lie in a folder; dev and test are the training
    set unless given.
    """
    entry = {
        "name": "x-{src}{tgt}",
        "title": "t",
        "languages": list(languages),
        "licence": "l",
        "citation": "c",
    }
    others = [name for name in sets if name != "train"]
    entry |= {
        "dev": others[0] if others else "again",
        "test": others[1:] or [others[0] if others else "again"],
    }
    if not others:
        sets = sets | {"again": sets["train"]}
    values = {
        "sources": {"x": {"files": {name: {} for name in files}}},
        "datasets": {"x": entry | {"sets": sets}},
    }
    return table.expand(values)[f"x-{languages[0]}{languages[1]}"]


def read(one, folder, paths, chosen=None):
    """Unpack: {set: (src lines, tgt lines, starts or None)}."""
    found = {f"x/{name}": path for name, path in paths.items()}
    result = {}
    for files in unpack(one, chosen or one.choose(), found, folder / "raw"):
        sides = [
            [line for path in side for line in text_lines(path)]
            for side in (files.src, files.tgt, *files.references)
        ]
        result[files.name] = (
            *sides,
            [int(line) for line in text_lines(files.docs)] if files.docs else None,
        )
    return result


def train_of(tmp_path, contents, **options):
    """Unpack a training set of small texts, {file name: text}; `files` etc. as in the table."""
    paths = {}
    for name, content in contents.items():
        paths[name] = tmp_path / name
        paths[name].write_bytes(content.encode() if isinstance(content, str) else content)
    return read(dataset({"train": options}, files=contents), tmp_path, paths)["train"]


XY = {"a.en": "1\n2\n3\n4\n5\n", "a.de": "eins\nzwei\ndrei\nvier\nfünf\n"}


# the conventions, on real files


def separated(folder, paths, between):
    """A set of the user's own, English and German: src lines, tgt lines, starts."""
    files = separate(
        SetFiles("dev", "dev", (paths[0],), (paths[1],), between=between), ("en", "de"), folder
    )
    return lines(files.src[0]), lines(files.tgt[0]), [int(line) for line in text_lines(files.docs)]


def test_convention_starts(shared):
    """HAN's .doc files: 0-based line numbers."""
    base = shared / "data" / "iwslt15_zhen" / "IWSLT15.TED.dev2010.zh-en"
    starts = read_starts(
        base.with_name(f"{base.name}.doc"), len(lines(base.with_name(f"{base.name}.zh")))
    )
    assert starts == [0, 152, 218, 397, 517, 552, 724, 817]


@pytest.mark.parametrize(
    ("part", "sentences", "documents"), [("test/wmt", 2998, 122), ("dev/ost-small.tok", 4997, 4)]
)
def test_convention_blank_line(shared, tmp_path, part, sentences, documents):
    paths = [shared / "data" / "doclevel_ende" / f"{part}.{lang}.xz" for lang in ("en", "de")]
    src, tgt, starts = separated(tmp_path, paths, "blank")
    assert (len(src), len(tgt), len(starts)) == (sentences, sentences, documents)
    raw = [lines(path) for path in paths]
    assert src == [line for line in raw[0] if line] and tgt == [line for line in raw[1] if line]
    blank = [i for i, line in enumerate(raw[0]) if not line]
    assert starts[1:] == [i - n for n, i in enumerate(blank) if i < len(raw[0]) - 1]


@pytest.mark.parametrize(
    ("part", "sentences", "documents"),
    [
        ("Europarl7/concatenated_en2de_dev", 3587, 240),
        ("IWSLT2017/concatenated_en2de_test", 2271, 23),
        ("NC-2016/concatenated_en2de_test", 2999, 155),
    ],
)
def test_convention_marker_line(shared, tmp_path, part, sentences, documents):
    paths = [
        shared / "data" / "doc_d_marker_ende" / f"{part}_{lang}.txt.xz" for lang in ("en", "de")
    ]
    src, tgt, starts = separated(tmp_path, paths, "marker")
    assert (len(src), len(tgt), len(starts)) == (sentences, sentences, documents)
    assert not any("<d>" in line for line in src + tgt)
    raw = lines(paths[0])  # two of the three sets have CRLF
    assert [src[i] for i in starts] == [
        raw[i + 1] for i, line in enumerate(raw) if line.strip() == "<d>"
    ]


def test_convention_markup_and_three_references(shared, tmp_path):
    """TVsub: the source is plain text, documents and references come from the SGM of the other
    side, which is tokenized.
    """
    base = shared / "data" / "tvsub_zhen"
    paths = {
        "zh": base / "original" / "test" / "test.orignal.zh",
        "trg.sgm.xz": base / "processed" / "test" / "test_trg.sgm.xz",
    }
    one = dataset(
        {"train": {"files": {"zh": ["x/zh"], "en": ["x/trg.sgm.xz"]}, "tokenized": ["en"]}},
        ("zh", "en"),
        paths,
    )
    src, *references, starts = read(one, tmp_path, paths)["train"]
    assert src == lines(paths["zh"])
    assert starts == [0, 330]
    moses = Moses("en", normalize=False, escape=False)
    for number, reference in enumerate(references, 1):
        plain = [
            html.unescape(line)
            for line in lines(shared / "data" / "han_outputs" / "sub_zh-en" / f"test_tgt_{number}")
        ]
        assert reference == [moses.detokenize(line.split()) for line in plain]
        assert " 't" not in " ".join(reference) and "@-@" not in " ".join(reference)
    assert len(references) == 3
    src, tgt, _ = read(
        dataset({"train": one.entry.sets["train"].model_dump()}, ("en", "zh"), paths),
        tmp_path / "back",
        paths,
    )["train"]
    assert (src, tgt) == (
        references[0],
        lines(paths["zh"]),
    )  # the other way round the first reference is the source


def test_convention_a_file_for_each_document(shared, tmp_path):
    """Real episodes of TVsub, in an order that is not that of their numbers; all 700 give
    556,216 pairs (tried by hand: 9 seconds).
    """
    sizes, paths = {}, {"train.tgz": tmp_path / "train.tgz"}
    with (
        tarfile.open(shared / "data" / "tvsub_zhen" / "train_episodes_000-699.tar.xz") as whole,
        tarfile.open(paths["train.tgz"], "w:gz") as some,
    ):
        members = [(one, whole.extractfile(one).read()) for one in itertools.islice(whole, 30)]
        for one, data in reversed(members):
            sizes[int(one.name.split(".")[0])] = data.count(b"\n")
            some.addfile(one, io.BytesIO(data))
    one = dataset({"train": {"files": ["x/train.tgz::{number}.{lang}"]}}, ("zh", "en"), paths)
    src, tgt, starts = read(one, tmp_path, paths, one.choose()[:1])["train"]
    assert len(sizes) == 15 and len(src) == len(tgt) == sum(sizes.values())
    assert starts == [sum(sizes[i] for i in range(number)) for number in range(15)]
    assert (src[starts[10]], tgt[starts[10]]) == tuple(
        data.decode().split("\n")[0]
        for name in ("10.zh", "10.en")
        for m, data in members
        if m.name == name
    )


# the same on small texts


def test_ids_of_opus(tmp_path):
    ids = "en/1.xml\tde/1.xml\t1\t1\nen/1.xml\tde/1.xml\t2\t2\nen/1.xml\tde/2.xml\t2\t2\nen/2.xml\tde/2.xml\t2\t2\nen/2.xml\tde/2.xml\t3\t3\n"
    found = train_of(
        tmp_path, XY | {"ids": ids}, files=["x/a.{lang}"], documents="ids", boundaries=["x/ids"]
    )
    assert found[2] == [0, 2, 3]


@pytest.mark.parametrize(
    ("rows", "message"),
    [(4, "bounds has 4 lines but a.en has more"), (6, "a.en has 5 lines but bounds has more")],
)
def test_boundaries_that_do_not_fit(tmp_path, rows, message):
    with pytest.raises(DataError, match=message):
        train_of(
            tmp_path,
            XY | {"bounds": "a\tb\t1\t1\n" * rows},
            files=["x/a.{lang}"],
            documents="ids",
            boundaries=["x/bounds"],
        )


def test_several_parts_each_with_its_boundaries(tmp_path):
    contents = XY | {
        "b.en": "6\n7\n",
        "b.de": "sechs\nsieben\n",
        "a.ids": "a\na\na\nb\nb\n",
        "b.ids": "b\nc\n",
    }
    found = train_of(
        tmp_path,
        contents,
        files=["x/a.{lang}", "x/b.{lang}"],
        documents="ids",
        boundaries=["x/a.ids", "x/b.ids"],
    )
    assert found == (
        ["1", "2", "3", "4", "5", "6", "7"],
        ["eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben"],
        [0, 3, 5, 6],
    )


def test_a_part_without_documents_leaves_the_set_without(tmp_path):
    contents = XY | {
        f"b.{lang}.sgm": f"<doc docid=a><seg>{lang}</seg></doc>" for lang in ("en", "de")
    }
    assert train_of(tmp_path, contents, files=["x/a.{lang}", "x/b.{lang}.sgm"]) == (
        [*"12345", "en"],
        [*XY["a.de"].split(), "de"],
        None,
    )


def test_plain_text_is_used_as_it_lies(tmp_path):
    paths = {}
    for name, text in XY.items():
        paths[f"{name}.gz"] = tmp_path / f"{name}.gz"
        paths[f"{name}.gz"].write_bytes(gzip.compress(text.encode()))
    one = dataset({"train": {"files": ["x/a.{lang}.gz"]}}, files=paths)
    found = unpack(
        one, one.choose()[:1], {f"x/{name}": path for name, path in paths.items()}, tmp_path / "raw"
    )
    assert (found[0].src, found[0].tgt) == ((paths["a.en.gz"],), (paths["a.de.gz"],))
    assert list((tmp_path / "raw").iterdir()) == []


def test_typographic_apostrophes_become_plain_where_the_table_says_so(tmp_path):
    contents = {"a.en": "it\u2019s \u2018so\u2019\n", "a.de": "geht\u2019s\n"}
    assert train_of(tmp_path, contents, files=["x/a.{lang}"], plain_apostrophes=True) == (
        ["it's \u2018so'"],
        ["geht's"],
        None,
    )
    assert train_of(tmp_path, contents, files=["x/a.{lang}"]) == (
        ["it\u2019s \u2018so\u2019"],
        ["geht\u2019s"],
        None,
    )


def test_tokenized_text_becomes_raw(tmp_path):
    contents = {
        "a.en": "it &apos;s a well @-@ known &quot; fact &quot; .\n",
        "a.de": "das ist , so &amp; so , bekannt .\n",
    }
    found = train_of(tmp_path, contents, files=["x/a.{lang}"], tokenized=["en"])
    assert found == (['it\'s a well-known "fact".'], ["das ist , so &amp; so , bekannt ."], None)


def test_tokenized_chinese_becomes_raw(tmp_path):
    contents = {"a.zh": "我 只能 说出 &quot; 乔伊 &quot; , OK go 。\n", "a.en": "x\n"}
    paths = {name: tmp_path / name for name in contents}
    for name, text in contents.items():
        paths[name].write_text(text, "utf-8")
    one = dataset({"train": {"files": ["x/a.{lang}"], "tokenized": ["zh"]}}, ("zh", "en"), paths)
    assert read(one, tmp_path, paths)["train"][0] == ['我只能说出"乔伊", OK go。']


def test_bytes_that_are_not_utf8_pass_through(tmp_path):
    """What to do with them is a setting of prep."""
    raw = b"Gr\xfc\xdfe , sagte sie .\n"
    paths = {"a.en": tmp_path / "a.en", "a.de": tmp_path / "a.de"}
    for path in paths.values():
        path.write_bytes(raw)
    for tokenized, expected in ((["en"], b"Gr\xfc\xdfe, sagte sie.\n"), ([], raw)):
        one = dataset({"train": {"files": ["x/a.{lang}"], "tokenized": tokenized}}, files=paths)
        found = unpack(
            one,
            one.choose()[:1],
            {f"x/{name}": path for name, path in paths.items()},
            tmp_path / f"raw{len(tokenized)}",
        )
        assert found[0].src[0].read_bytes() == expected


# held-out rows


def held_out(tmp_path, chosen, count=100, docs=True, **rows):
    """A training set of numbered lines in documents of 7, and sets taken out of it."""
    (tmp_path / "a.en").write_text("".join(f"{i}\n" for i in range(count)))
    (tmp_path / "a.de").write_text("".join(f"d{i}\n" for i in range(count)))
    (tmp_path / "doc").write_text("".join(f"{i // 7}\n" for i in range(count)))
    bounds = {"documents": "ids", "boundaries": ["x/doc"]} if docs else {}
    paths = {name: tmp_path / name for name in ("a.en", "a.de", "doc")}
    sets = (
        {"train": {"files": ["x/a.{lang}"]} | bounds}
        | {name: {"rows": value} for name, value in rows.items()}
        | {"own": {"files": ["x/a.{lang}"]}}
    )
    one = dataset(sets, files=paths)
    return read(one, tmp_path, paths, one.choose(*chosen))


@pytest.mark.parametrize("docs", [True, False])
def test_blocks_at_the_end(tmp_path, docs):
    found = held_out(tmp_path, ("dev", ["test"]), docs=docs, dev="-20:-10", test="-10:")
    assert [list(map(int, found[name][0])) for name in ("train", "dev", "test")] == [
        [*range(80)],
        [*range(80, 90)],
        [*range(90, 100)],
    ]
    assert all(side[1] == [f"d{i}" for i in side[0]] for side in found.values())
    if docs:
        assert found["train"][2] == [*range(0, 80, 7)]
        assert found["dev"][2] == [0, 84 - 80]  # 77..83 goes on, 84..90 starts
        assert found["test"][2] == [0, 1, 8]
    else:
        assert [found[name][2] for name in ("train", "dev", "test")] == [None] * 3


def test_every_third_line_and_its_documents(tmp_path):
    found = held_out(tmp_path, ("third", ["own"]), count=30, third="2::3")
    assert list(map(int, found["dev"][0])) == [*range(2, 30, 3)]
    left = [i for i in range(30) if i % 3 != 2]
    assert list(map(int, found["train"][0])) == left
    assert found["dev"][2] is None
    assert [left[i] // 7 for i in found["train"][2]] == [0, 1, 2, 3, 4]
    assert len(found["own"][0]) == 30


def test_what_is_held_out_is_held_out_also_when_another_set_is_chosen(tmp_path):
    assert len(held_out(tmp_path, ("own", ["own"]), dev="-20:-10", test="-10:")["train"][0]) == 80


def test_dev_and_test_may_be_the_same_rows(tmp_path):
    found = held_out(tmp_path, ("last", ["last"]), last="-10:")
    assert (found["dev"], len(found["train"][0])) == (found["last"], 90)
    assert list(map(int, found["last"][0])) == [*range(90, 100)]


def test_rows_that_the_training_text_has_not(tmp_path):
    with pytest.raises(DataError, match="the last set has no line"):
        held_out(tmp_path, ("own", ["last"]), count=5, last="50:")


# what does not match


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
        ({"a.en": "", "a.de": ""}, {"tokenized": ["de"]}, "has no sentence"),
        (
            {"a.en": "<url>\n1\n2\n", "a.de": "<url>\n1\n<url>\n2\n"},
            {"format": "ted"},
            "documents start at different lines of a.en and a.de",
        ),
        (
            {
                "a.en.sgm": "<doc><seg>1</seg></doc>",
                "a.de.sgm": "<doc><seg>1</seg><seg>2</seg></doc>",
            },
            {"files": ["x/a.{lang}.sgm"]},
            "a.en.sgm has 1 line but a.de.sgm has more",
        ),
    ],
)
def test_sides_that_do_not_match(tmp_path, contents, options, message):
    with pytest.raises(DataError, match=message) as caught:
        train_of(tmp_path, contents, **{"files": ["x/a.{lang}"], **options})
    assert caught.value.hint and "train set" in caught.value.message


def test_episodes_of_one_side_only(tmp_path):
    with tarfile.open(tmp_path / "x.tgz", "w:gz") as one:
        for name in ("1.en", "2.en", "1.de", "3.de"):
            info = tarfile.TarInfo(name)
            info.size = 2
            one.addfile(info, io.BytesIO(b"x\n"))
    paths = {"x.tgz": tmp_path / "x.tgz"}
    with pytest.raises(
        DataError, match=r"\{number\}.en and \{number\}.de are there with different numbers"
    ):
        read(
            dataset({"train": {"files": ["x/x.tgz::{number}.{lang}"]}}, files=paths),
            tmp_path,
            paths,
        )


def test_a_missing_member_is_named(tmp_path):
    with tarfile.open(tmp_path / "x.tgz", "w:gz") as one:
        one.addfile(tarfile.TarInfo("train/a.de"))
    paths = {"x.tgz": tmp_path / "x.tgz"}
    with pytest.raises(DataError, match="x.tgz has no train/a.en"):
        read(
            dataset({"train": {"files": ["x/x.tgz::train/a.{lang}"]}}, files=paths), tmp_path, paths
        )
