"""Archives that look like the published ones, made on the fly of real text: layouts as
../shared/data/sources.md describes them, few lines.

Nothing here is derived from the table of data sets, so that a wrong member or a wrong address there
is found.
"""

import gzip
import io
import json
import re
import tarfile
import zipfile
from pathlib import Path

from tests.prep.real import lines, segments

TRAIN, HELD = 150, 12


def pool(data, lang):
    """Real parallel lines of a language with English: (other, English), a long run of them."""
    folder = data / "wmt_newstest"
    if lang == "de":
        both = [lines(data / "europarl_deen_20k" / f"train.{side}")[:600] for side in ("de", "en")]
    elif lang == "fr":
        both = [lines(data / "moses_nc5k" / f"nc-5k.{side}")[:600] for side in ("fr", "en")]
    elif lang == "es":
        both = [lines(folder / f"newstest2012.{side}")[:600] for side in ("spa", "eng")]
    elif lang == "ro":
        both = [lines(folder / f"newstest2016.eng-ron.{side}")[:600] for side in ("ron", "eng")]
    elif lang == "vi":
        both = [
            segments(_real(data / "iwslt15_envi" / f"IWSLT15.TED.tst2010.en-vi.{side}.xml"))[:600]
            for side in ("vi", "en")
        ]
    else:
        both = [
            lines(data / "iwslt15_zhen" / f"IWSLT15.TED.tst2010.zh-en.{side}")[:600]
            for side in ("zh", "en")
        ]
    return [(a, b) for a, b in zip(*both, strict=True) if 2 <= len(b.split()) <= 40][
        : TRAIN + 20 * HELD
    ]


def _real(path):
    return path if path.exists() else path.with_name(path.name + ".xz")


class Text:
    """Parallel lines to hand out, a fresh stretch each time."""

    def __init__(self, data):
        self._data = data
        self._pools = {}
        self._at = {}

    def take(self, lang, count):
        """The next lines of a language with English, as {language: lines}."""
        pairs = self._pools.setdefault(lang, pool(self._data, lang))
        start = self._at.get(lang, 0)
        self._at[lang] = start + count
        chosen = [pairs[i % len(pairs)] for i in range(start, start + count)]
        return {lang: [pair[0] for pair in chosen], "en": [pair[1] for pair in chosen]}


def join(rows):
    return "".join(row + "\n" for row in rows).encode()


def escape(text):
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def sgm(kind, setid, lang, rows, docs=3):
    """mteval's SGM with documents of about equal size."""
    size = -(-len(rows) // docs)
    out = [
        f'<{kind} setid="{setid}" srclang="any"'
        + (f' trglang="{lang}">' if kind == "refset" else ">")
    ]
    for start in range(0, len(rows), size):
        out += [
            (
                "<doc"
                f' {"sysid=" + chr(34) + "ref" + chr(34) + " " if kind == "refset" else ""}docid="paper/{start}"'
                ' genre="news" origlang="en">'
            ),
            "<p>",
        ]
        out += [
            f'<seg id="{i}">{escape(row)}</seg>'
            for i, row in enumerate(rows[start : start + size], 1)
        ] + ["</p>", "</doc>"]
    return join([*out, f"</{kind}>"])


def talks(rows, docs=3):
    size = -(-len(rows) // docs)
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def ted_train(lang, rows):
    """WIT3's training text: lines of metadata, then the sentences of a talk."""
    out = []
    for number, talk in enumerate(talks(rows), 1):
        out += [
            f"<url>http://www.ted.com/talks/{number}</url>",
            "<keywords>talks, TEDx</keywords>",
            "<speaker>Tan Le</speaker>",
            f"<talkid>{number}</talkid>",
        ]
        out += [
            f"<title>Title {number} {lang}</title>",
            f"<description>TED Talk {number}: R&amp;D.</description>",
        ]
        out += [f" {escape(row)} " for row in talk] + [
            f'<reviewer href="http://www.ted.com/profiles/{number}">A B</reviewer>'
        ] * (lang != "en")
    return join(out)


def ted_set(name, lang, rows, kind):
    out = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        "<mteval>",
        f'<{kind} setid="{name}" srclang="x">',
    ]
    for number, talk in enumerate(talks(rows), 1):
        out += [
            f'<doc docid="{number}" genre="lectures">',
            f"<url>http://x/{number}</url>",
            "<description>R&amp;D</description>",
            f"<talkid>{number}</talkid>",
        ]
        out += (
            [f"<title>Title {number}</title>"]
            + [f'<seg id="{i}"> {escape(row)} </seg>' for i, row in enumerate(talk, 1)]
            + ["</doc>"]
        )
    return join([*out, f"</{kind}>", "</mteval>"])


def tarball(path, members):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w" if path.suffix == ".tar" else "w:gz") as one:
        folders = sorted({str(Path(name).parent) for name in members} - {"."})
        for name in folders:
            info = tarfile.TarInfo(name)
            info.type = tarfile.DIRTYPE
            one.addfile(info)
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            one.addfile(info, io.BytesIO(data))


def zipped(path, members):
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as one:
        for name, data in members.items():
            one.writestr(name, data)


def wmt(folder, text):
    """Training text and test sets of WMT."""
    pairs = {lang: text.take(lang, TRAIN // 3) for lang in ("de", "fr")}

    def members(pattern):
        return {
            pattern.format(lang=lang, side=side): join(pairs[lang][side])
            for lang in pairs
            for side in (lang, "en")
        }

    tarball(
        folder / "wmt13/training-parallel-europarl-v7.tgz",
        members("training/europarl-v7.{lang}-en.{side}"),
    )
    tarball(
        folder / "wmt13/training-parallel-commoncrawl.tgz",
        members("commoncrawl.{lang}-en.{side}") | {"commoncrawl.de-en.annotation": b"x\n"},
    )
    tarball(
        folder / "wmt13/training-parallel-un.tgz",
        {f"un/undoc.2000.fr-en.{side}": join(pairs["fr"][side]) for side in ("fr", "en")},
    )
    tarball(
        folder / "wmt14/training-parallel-nc-v9.tgz",
        members("training/news-commentary-v9.{lang}-en.{side}"),
    )
    tarball(
        folder / "wmt17/training-parallel-nc-v12.tgz",
        {f"training/news-commentary-v12.de-en.{s}": join(pairs["de"][s]) for s in ("de", "en")},
    )
    tarball(
        folder / "wmt17/rapid2016.tgz",
        {f"rapid2016.de-en.{s}": join(pairs["de"][s]) for s in ("de", "en")},
    )
    giga = {
        f"giga-fren.release2.fixed.{side}.gz": gzip.compress(join(pairs["fr"][side]))
        for side in ("fr", "en")
    }
    tarball(folder / "wmt10/training-giga-fren.tar", giga)
    for year in range(2008, 2014):
        members = {}
        for lang in ("de", "fr", "es"):
            for side, rows in text.take(lang, HELD).items():
                members[f"{'' if year == 2011 else 'test/'}newstest{year}-src.{side}.sgm"] = sgm(
                    "srcset", f"newstest{year}", side, rows
                )
        tarball(folder / f"wmt{year - 2000:02}/test.tgz", members)
    members = {}
    for lang in ("de", "fr"):
        for side, rows in text.take(lang, HELD).items():
            members[f"test-full/newstest2014-{lang}en-src.{side}.sgm"] = sgm(
                "srcset", "newstest2014", side, rows
            )
            members[f"test-full/newstest2014-{lang}en-ref.{side}.sgm"] = sgm(
                "refset", "newstest2014", side, rows
            )
    tarball(folder / "wmt14/test-full.tgz", members)
    for year in (2015, 2017):
        members = {}
        for src, tgt in (("en", "de"), ("de", "en")):
            rows = text.take("de", HELD)
            members[f"test/newstest{year}-{src}{tgt}-src.{src}.sgm"] = sgm(
                "srcset", f"newstest{year}", src, rows[src]
            )
            members[f"test/newstest{year}-{src}{tgt}-ref.{tgt}.sgm"] = sgm(
                "refset", f"newstest{year}", tgt, rows[tgt]
            )
        tarball(folder / f"wmt{year - 2000}/test.tgz", members)


def wit3(folder, text):
    """TED archives; some only inside the whole release of their year, some flat."""

    def archive(lang, pair, year, sets, train=True):
        members = {}
        if train:
            members |= {
                f"{pair}/train.tags.{pair}.{side}": ted_train(side, rows)
                for side, rows in text.take(lang, TRAIN).items()
            }
        for name in sets:
            for side, rows in text.take(lang, HELD).items():
                kind = "srcset" if pair.startswith(side) else "refset"
                members[f"{pair}/IWSLT{year}.{name}.{pair}.{side}.xml"] = ted_set(
                    name, side, rows, kind
                )
        return {f"{pair}/README": b"WIT3\n"} | members

    early = [f"TED.{name}" for name in ("dev2010", "tst2010", "tst2011", "tst2012")]
    root = folder / "wit3"
    tarball(
        root / "2014-01/texts/de/en/de-en.tgz", archive("de", "de-en", 14, [*early, "TEDX.dev2012"])
    )
    tarball(root / "2014-01/texts/en/es/en-es.tgz", archive("es", "en-es", 14, early))
    tarball(
        root / "2014-01-test/texts/en/es/en-es.tgz",
        archive("es", "en-es", 14, ["TED.tst2014"], train=False),
    )
    tarball(
        root / "2014-01-test/texts/en/ro/en-ro.tgz",
        archive("ro", "en-ro", 14, ["TED.tst2014"], train=False),
    )
    inner = {}
    for lang, pair, year, sets in (
        ("ro", "en-ro", 14, early),
        ("vi", "en-vi", 15, [*early, "TED.tst2013"]),
        ("fr", "en-fr", 15, [*early, "TED.tst2013"]),
        ("zh", "zh-en", 15, [*early, "TED.tst2013"]),
    ):
        name = f"20{year}-01/texts/{pair.replace('-', '/')}/{pair}.tgz"
        tarball(folder / "tmp.tgz", archive(lang, pair, year, sets))
        inner.setdefault(year, {})[name] = (folder / "tmp.tgz").read_bytes()
    (folder / "tmp.tgz").unlink()
    for year, members in inner.items():
        tarball(folder / f"20{year}-01.tgz", members)
    tarball(
        root / "2017-01-trnted/texts/en/fr/en-fr.tgz",
        archive("fr", "en-fr", 17, [*early, "TED.tst2013", "TED.tst2014", "TED.tst2015"]),
    )


def opus(folder, text):
    """OPUS's zips: OpenSubtitles with .ids, News Commentary without."""
    rows = text.take("es", TRAIN)
    zipped(
        folder / "OPUS-News-Commentary/v11/moses/en-es.txt.zip",
        {f"News-Commentary.en-es.{side}": join(rows[side]) for side in ("en", "es")},
    )
    pairs = pool(text._data, "es")
    sides = {
        "es": [pairs[i % len(pairs)][0] for i in range(2300)],
        "en": [pairs[i % len(pairs)][1] for i in range(2300)],
    }
    ids = [f"en/2009/{i // 70}/1.xml.gz\tes/2009/{i // 70}/2.xml.gz\t{i}\t{i}" for i in range(2300)]
    members = {f"OpenSubtitles.en-es.{side}": join(sides[side]) for side in sides} | {
        "OpenSubtitles.en-es.ids": join(ids),
        "README": b"x",
    }
    zipped(folder / "OPUS-OpenSubtitles/v2018/moses/en-es.txt.zip", members)


def tvsub(folder, data):
    """The repository at one commit; real episodes, cut short, and the real dev and test sets."""
    commit = "76a07be477ea311d7ab3becfe7b264936992b20d"
    members = {}
    with tarfile.open(data / "tvsub_zhen" / "train_episodes_000-699.tar.xz") as one:
        for info in one:
            number, lang = info.name.split(".")
            if int(number) > 10:
                break
            if int(number) in {0, 1, 2, 10}:
                rows = one.extractfile(info).read().split(b"\n")[:60]
                members[f"data/orignal/train/separated/{number}.{lang}"] = b"".join(
                    row + b"\n" for row in rows
                )
                members[f"data/orignal/train/separated/{number}.np.tk.qb.es.{lang}"] = (
                    b"not this one\n"
                )
    for part in ("dev", "test"):
        for lang in ("zh", "en"):
            members[f"data/orignal/{part}/{part}.orignal.{lang}"] = join(
                lines(data / "tvsub_zhen" / "original" / part / f"{part}.orignal.{lang}")
            )
        members[f"data/processed/{part}/{part}_src"] = join(
            lines(data / "tvsub_zhen" / "processed" / part / f"{part}_src")
        )
        members[f"data/processed/{part}/{part}_trg.sgm"] = join(
            lines(data / "tvsub_zhen" / "processed" / part / f"{part}_trg.sgm") + ["</refset>"]
        )
    tarball(
        folder / f"tvsub-{commit}.tar.gz",
        {f"tvsub-{commit}/{name}": content for name, content in members.items()},
    )


def evaluation(folder):
    """Lingeval97 and the probing files, a line or two of each."""
    errors = [
        {
            "type": "subj_verb_agreement",
            "contrastive": "Der Hund schlafen .",
            "distance": 1,
            "frequency": 7,
        }
    ]
    item = {
        "source": "The dog sleeps .",
        "reference": "Der Hund schläft .",
        "origin": "newstest2009",
        "errors": errors,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "lingeval97.json").write_text(json.dumps([item]), "utf-8")
    tasks = (
        "bigram_shift coordination_inversion obj_number odd_man_out past_present sentence_length"
        " subj_number top_constituents tree_depth word_content"
    )
    for task in tasks.split():
        (folder / f"{task}.txt").write_text(f'tr\tI\t" {task}\nva\tO\tx\nte\tI\ty\n', "utf-8")


def build(folder, data):
    """Every archive, in folders as published or flat."""
    text = Text(data)
    wmt(folder, text)
    wit3(folder, text)
    opus(folder, text)
    tvsub(folder, data)
    evaluation(folder / "probing")
    for lang in ("en", "de", "fr"):
        for name in ("train", "val", "test_2016_flickr", "test_2017_flickr"):
            rows = gzip.decompress(
                (data / "multi30k" / "raw" / f"{name}.{lang}.gz").read_bytes()
            ).split(b"\n")[: TRAIN if name == "train" else HELD]
            (folder / f"{name}.{lang}.gz").write_bytes(
                gzip.compress(b"".join(row + b"\n" for row in rows))
            )
    assert not re.search(r"tmp", " ".join(p.name for p in folder.iterdir()))
