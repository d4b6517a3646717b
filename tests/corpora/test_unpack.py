"""From files to parallel lines: every convention for documents on real files, held-out rows,
tokenized text, and what does not match.
"""

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
    """A data set of one source `x` whose files lie in a folder; dev and test are the training
    set unless given.
    """
    sets = sets if len(sets) > 1 else sets | {"again": sets["train"]}
    dev, *tests = [name for name in sets if name != "train"]
    entry = dict.fromkeys(["title", "licence", "citation"], "x")
    entry |= {"name": "x-{src}{tgt}", "languages": list(languages), "sets": sets}
    entry |= {"dev": dev, "test": tests or [dev]}
    source = {"files": {name: {} for name in files}}
    values = {"sources": {"x": source}, "datasets": {"x": entry}}
    return table.expand(values)[f"x-{languages[0]}{languages[1]}"]


def read(one, folder, paths, chosen=None):
    """Unpack: {set: (src lines, tgt lines, starts or None)}."""
    result = {}
    for files in files_of(one, folder, paths, chosen):
        sides = files.sides.values()
        starts = [int(line) for line in text_lines(files.docs)] if files.docs else None
        texts = ([line for path in side for line in text_lines(path)] for side in sides)
        result[files.name] = (*texts, starts)
    return result


def files_of(one, folder, paths, chosen=None):
    found = {f"x/{name}": path for name, path in paths.items()}
    return unpack(one, chosen or one.choose(), found, folder / "raw")


def train_of(tmp_path, contents, **options):
    """Unpack a training set of small texts, {file name: text}; `files` etc. as in the table."""
    paths = {name: tmp_path / name for name in contents}
    for name, content in contents.items():
        paths[name].write_text(content, "utf-8")
    languages = ("zh", "en") if "a.zh" in contents else ("en", "de")
    one = dataset({"train": {"files": ["x/a.{lang}"]} | options}, languages, contents)
    return read(one, tmp_path, paths)["train"]


XY = {"a.en": "1\n2\n3\n4\n5\n", "a.de": "eins\nzwei\ndrei\nvier\nfünf\n"}


# the conventions, on real files


def separated(folder, paths, between):
    """A set of the user's own, English and German: src lines, tgt lines, starts."""
    files = separate(
        SetFiles("dev", "dev", {"src": (paths[0],), "ref": (paths[1],)}, between=between),
        ("en", "de"),
        folder,
    )
    return lines(files.src[0]), lines(files.tgt[0]), [int(line) for line in text_lines(files.docs)]


def of_size(sentences, documents, *of_set):
    """What `separated` returns of a set, with so many sentences and documents."""
    src, tgt, starts = separated(*of_set)
    assert (len(src), len(tgt), len(starts)) == (sentences, sentences, documents)
    return src, tgt, starts


def test_convention_starts(shared):
    """HAN's .doc files: 0-based line numbers."""
    base = shared / "data" / "iwslt15_zhen" / "IWSLT15.TED.dev2010.zh-en"
    path = base.with_name(f"{base.name}.doc")
    starts = read_starts(path, len(lines(path.with_suffix(".zh"))))
    assert starts == [0, 152, 218, 397, 517, 552, 724, 817]


@pytest.mark.parametrize(
    ("part", "sentences", "documents"), [("test/wmt", 2998, 122), ("dev/ost-small.tok", 4997, 4)]
)
def test_convention_blank_line(shared, tmp_path, part, sentences, documents):
    paths = [shared / "data" / "doclevel_ende" / f"{part}.{lang}.xz" for lang in ("en", "de")]
    src, tgt, starts = of_size(sentences, documents, tmp_path, paths, "blank")
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
    src, tgt, starts = of_size(sentences, documents, tmp_path, paths, "marker")
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
    train = {"files": {"zh": ["x/zh"], "en": ["x/trg.sgm.xz"]}, "tokenized": ["en"]}
    one = dataset({"train": train}, ("zh", "en"), paths)
    src, *references, starts = read(one, tmp_path, paths)["train"]
    assert src == lines(paths["zh"])
    assert starts == [0, 330]
    moses = Moses("en", normalize=False, escape=False)
    for number, reference in enumerate(references, 1):
        other = shared / "data" / "han_outputs" / "sub_zh-en" / f"test_tgt_{number}"
        plain = map(html.unescape, lines(other))
        assert reference == [moses.detokenize(line.split()) for line in plain]
        assert " 't" not in " ".join(reference) and "@-@" not in " ".join(reference)
    assert len(references) == 3
    back = dataset({"train": one.entry.sets["train"].model_dump()}, ("en", "zh"), paths)
    src, tgt, _ = read(back, tmp_path / "back", paths)["train"]
    assert (src, tgt) == (references[0], lines(paths["zh"]))  # the source is the first reference


def test_convention_a_file_for_each_document(shared, tmp_path):
    """Real episodes of TVsub, in an order that is not that of their numbers; all 700 give
    556,216 pairs (tried by hand: 9 seconds).
    """
    paths = {"train.tgz": tmp_path / "train.tgz"}
    with tarfile.open(shared / "data" / "tvsub_zhen" / "train_episodes_000-699.tar.xz") as whole:
        members = {one.name: whole.extractfile(one).read() for one in itertools.islice(whole, 30)}
    tarball(paths["train.tgz"], dict(reversed(members.items())))
    sizes = {int(name.split(".")[0]): data.count(b"\n") for name, data in members.items()}
    one = dataset({"train": {"files": ["x/train.tgz::{number}.{lang}"]}}, ("zh", "en"), paths)
    src, tgt, starts = read(one, tmp_path, paths, one.choose()[:1])["train"]
    assert len(sizes) == 15 and len(src) == len(tgt) == sum(sizes.values())
    assert starts == [sum(sizes[i] for i in range(number)) for number in range(15)]
    for side, name in ((src, "10.zh"), (tgt, "10.en")):
        assert side[starts[10]] == members[name].decode().split("\n")[0]


# the same on small texts


def test_ids_of_opus(tmp_path):
    rows = ["1 1 1", "1 1 2", "1 2 2", "2 2 2", "2 2 3"]  # documents of both sides, sentence
    ids = "".join("en/{0}.xml\tde/{1}.xml\t{2}\t{2}\n".format(*row.split()) for row in rows)
    found = train_of(tmp_path, XY | {"ids": ids}, boundaries=["x/ids"])
    assert found[2] == [0, 2, 3]


@pytest.mark.parametrize(
    ("rows", "message"),
    [(4, "bounds has 4 lines but a.en has more"), (6, "a.en has 5 lines but bounds has more")],
)
def test_boundaries_that_do_not_fit(tmp_path, rows, message):
    with pytest.raises(DataError, match=message):
        bounds = {"bounds": "a\tb\t1\t1\n" * rows}
        train_of(tmp_path, XY | bounds, boundaries=["x/bounds"])


def test_several_parts_each_with_its_boundaries(tmp_path):
    contents = XY | {"b.en": "6\n7\n", "b.de": "sechs\nsieben\n"}
    contents |= {"a.ids": "a\na\na\nb\nb\n", "b.ids": "b\nc\n"}
    files, boundaries = ["x/a.{lang}", "x/b.{lang}"], ["x/a.ids", "x/b.ids"]
    found = train_of(tmp_path, contents, files=files, boundaries=boundaries)
    german = ["eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben"]
    assert found == ([*"1234567"], german, [0, 3, 5, 6])


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
    (found,) = files_of(one, tmp_path, paths, one.choose()[:1])
    assert (found.src, found.tgt) == ((paths["a.en.gz"],), (paths["a.de.gz"],))
    assert list((tmp_path / "raw").iterdir()) == []


@pytest.mark.parametrize(
    ("contents", "options", "expected"),
    [
        (
            {"a.en": "it\u2019s \u2018so\u2019\n", "a.de": "geht\u2019s\n"},
            {"plain_apostrophes": True},
            ("it's \u2018so'", "geht's"),
        ),
        (
            {"a.en": "it\u2019s \u2018so\u2019\n", "a.de": "geht\u2019s\n"},
            {},
            ("it\u2019s \u2018so\u2019", "geht\u2019s"),
        ),
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
def test_text_becomes_raw_where_the_table_says_so(tmp_path, contents, options, expected):
    src, tgt = expected
    assert train_of(tmp_path, contents, **options) == ([src], [tgt], None)


def test_bytes_that_are_not_utf8_pass_through(tmp_path):
    """What to do with them is a setting of prep."""
    raw = b"Gr\xfc\xdfe , sagte sie .\n"
    paths = {"a.en": tmp_path / "a.en", "a.de": tmp_path / "a.de"}
    for path in paths.values():
        path.write_bytes(raw)
    for tokenized, expected in ((["en"], b"Gr\xfc\xdfe, sagte sie.\n"), ([], raw)):
        one = dataset({"train": {"files": ["x/a.{lang}"], "tokenized": tokenized}}, files=paths)
        (found,) = files_of(one, tmp_path / f"{len(tokenized)}", paths, one.choose()[:1])
        assert found.src[0].read_bytes() == expected


# held-out rows


def held_out(tmp_path, chosen, count=100, docs=True, **rows):
    """A training set of numbered lines in documents of 7, and sets taken out of it."""
    paths = {name: tmp_path / name for name in ("a.en", "a.de", "doc")}
    texts = (range(count), (f"d{i}" for i in range(count)), (i // 7 for i in range(count)))
    for path, values in zip(paths.values(), texts, strict=True):
        path.write_text("".join(f"{value}\n" for value in values))
    whole = {"files": ["x/a.{lang}"]}
    bounds = {"boundaries": ["x/doc"]} if docs else {}
    sets = {"train": whole | bounds} | {name: {"rows": value} for name, value in rows.items()}
    one = dataset(sets | {"own": whole}, files=paths)
    return read(one, tmp_path, paths, one.choose(*chosen))


@pytest.mark.parametrize("docs", [True, False])
def test_blocks_at_the_end(tmp_path, docs):
    found = held_out(tmp_path, ("dev", ["test"]), docs=docs, dev="-20:-10", test="-10:")
    numbers = {"train": range(80), "dev": range(80, 90), "test": range(90, 100)}
    starts = {"train": [*range(0, 80, 7)], "dev": [0, 4], "test": [0, 1, 8]}  # 77..83 goes on
    assert found == {
        name: ([*map(str, lines)], [f"d{i}" for i in lines], starts[name] if docs else None)
        for name, lines in numbers.items()
    }


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
    with pytest.raises(DataError, match="the last set has no line") as caught:
        held_out(tmp_path, ("own", ["last"]), count=5, last="50:")
    assert "prep.dev" in caught.value.hint


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
        (
            {
                "a.en.sgm": "<doc docid=A><seg>1</seg></doc><doc docid=B><seg>2</seg></doc>",
                "a.de.sgm": "<doc docid=B><seg>2</seg></doc><doc docid=A><seg>1</seg></doc>",
            },
            {"files": ["x/a.{lang}.sgm"]},
            "the documents A and B are side by side in a.en.sgm and a.de.sgm",
        ),
    ],
)
def test_sides_that_do_not_match(tmp_path, contents, options, message):
    caught = refused(DataError, message, train_of, tmp_path, contents, **options)
    assert caught.hint and "train set" in caught.message


def test_a_side_without_ids_of_documents_matches_any(tmp_path):
    plain, with_ids = "<doc><seg>1</seg></doc>" * 2, "<doc docid=A><seg>1</seg></doc>" * 2
    contents = {"a.en.sgm": plain, "a.de.sgm": with_ids}
    assert train_of(tmp_path, contents, files=["x/a.{lang}.sgm"])


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
def test_a_missing_member_is_named(tmp_path, members, name, message):
    paths = {"x.tgz": tmp_path / "x.tgz"}
    tarball(paths["x.tgz"], dict.fromkeys(members, b"x\n"))
    with pytest.raises(DataError, match=message):
        read(dataset({"train": {"files": [f"x/x.tgz::{name}"]}}, files=paths), tmp_path, paths)
