"""Write archives that look like the published ones, with a few lines of real text.

The layouts are those of ../shared/data/sources.md. Nothing is read from datasets.toml, so a wrong
member or address there makes tests fail.
"""

import gzip
import io
import itertools
import tarfile
import zipfile
from pathlib import Path

from tests.manifests import write_json
from tests.prep.real import lines, segments

TRAIN, HELD = 150, 12
"""Pairs of training text, and of each test set in each archive."""
PATHS = {
    "de": "europarl_deen_20k/train.{}",
    "fr": "moses_nc5k/nc-5k.{}",
    "es": "wmt_newstest/newstest2012.{}",
    "ro": "wmt_newstest/newstest2016.eng-ron.{}",
    "vi": "iwslt15_envi/IWSLT15.TED.tst2010.en-vi.{}.xml",
    "zh": "iwslt15_zhen/IWSLT15.TED.tst2010.zh-en.{}",
}
CODES = {"es": ("spa", "eng"), "ro": ("ron", "eng")}


def pool(data, lang):
    """Return real parallel lines of a language and English: (other, English)."""
    read = segments if lang == "vi" else lines
    sides = CODES.get(lang, (lang, "en"))
    both = [read(data / PATHS[lang].format(side))[:600] for side in sides]
    pairs = [(a, b) for a, b in zip(*both, strict=True) if 2 <= len(b.split()) <= 40]
    return pairs[: TRAIN + 20 * HELD]


class Text:
    """Parallel lines; each call of `take` returns the next ones."""

    def __init__(self, data):
        self._data = data
        self._pairs = {}

    def take(self, lang, count):
        """Return the next lines of a language and English, as {language: lines}."""
        if lang not in self._pairs:
            self._pairs[lang] = itertools.cycle(pool(self._data, lang))
        pairs = itertools.islice(self._pairs[lang], count)
        return dict(zip((lang, "en"), map(list, zip(*pairs, strict=True)), strict=True))


def join(rows):
    return "".join(row + "\n" for row in rows).encode()


def escape(text):
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def talks(rows):
    """Split rows into three documents of about equal size."""
    size = -(-len(rows) // 3)
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def markup(kind, setid, rows, before, attributes=""):
    """Return lines in mteval's markup.

    Args:
        before: the lines before the segments of each document.
    """
    out = [f'<{kind} setid="{setid}" srclang="any">']
    for number, talk in enumerate(talks(rows), 1):
        out += [f'<doc docid="{number}"{attributes} genre="any">', *before]
        out += [f'<seg id="{i}"> {escape(row)} </seg>' for i, row in enumerate(talk, 1)]
        out.append("</doc>")
    return [*out, f"</{kind}>"]


def sgm(kind, setid, rows):
    """Return mteval's SGM, as WMT publishes it."""
    return join(markup(kind, setid, rows, ["<p>"], ' sysid="ref"' * (kind == "refset")))


def ted_set(name, rows, kind):
    """Return a test set in WIT3's XML."""
    before = ["<url>http://x</url>", "<description>R&amp;D</description>", "<title>Title</title>"]
    head = ['<?xml version="1.0" encoding="UTF-8"?>', "<mteval>"]
    return join([*head, *markup(kind, name, rows, before), "</mteval>"])


def ted_train(lang, rows):
    """Return WIT3's training text: lines of metadata, then the sentences of a talk."""
    out = []
    for number, talk in enumerate(talks(rows), 1):
        out += [
            f"<url>http://www.ted.com/talks/{number}</url>",
            "<keywords>talks, TEDx</keywords>",
            "<speaker>Tan Le</speaker>",
            f"<talkid>{number}</talkid>",
            f"<title>Title {number} {lang}</title>",
            f"<description>TED Talk {number}: R&amp;D.</description>",
            *(f" {escape(row)} " for row in talk),
        ]
        if lang != "en":
            out.append(f'<reviewer href="http://www.ted.com/profiles/{number}">A B</reviewer>')
    return join(out)


COMPRESSIONS = {".tar": "", ".xz": "xz", ".bz2": "bz2"}


def tarball(path, members):
    """Write a tarball, compressed as its suffix says (else gzip), and return its path.

    Args:
        members: name -> bytes, or a TarInfo for a link or a device.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, f"w:{COMPRESSIONS.get(path.suffix, 'gz')}") as archive:
        for name in sorted({str(Path(name).parent) for name in members} - {"."}):
            folder = tarfile.TarInfo(name)
            folder.type = tarfile.DIRTYPE
            archive.addfile(folder)
        for name, content in members.items():
            if isinstance(content, tarfile.TarInfo):
                archive.addfile(content)
                continue
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def zipped(path, members):
    """Write a zip and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


NEWS = "training/news-commentary-v{}.{{lang}}-en.{{side}}"
WMT_TRAINING = {
    "wmt13/training-parallel-europarl-v7.tgz": ("training/europarl-v7.{lang}-en.{side}", "de fr"),
    "wmt13/training-parallel-commoncrawl.tgz": ("commoncrawl.{lang}-en.{side}", "de fr"),
    "wmt13/training-parallel-un.tgz": ("un/undoc.2000.{lang}-en.{side}", "fr"),
    "wmt14/training-parallel-nc-v9.tgz": (NEWS.format(9), "de fr"),
    "wmt17/training-parallel-nc-v12.tgz": (NEWS.format(12), "de"),
    "wmt17/rapid2016.tgz": ("rapid2016.{lang}-en.{side}", "de"),
    "wmt10/training-giga-fren.tar": ("giga-fren.release2.fixed.{side}.gz", "fr"),
}
"""Archive -> pattern of its members, and its languages."""


def wmt_training(folder, text):
    pairs = {lang: text.take(lang, TRAIN // 3) for lang in ("de", "fr")}
    for archive, (pattern, langs) in WMT_TRAINING.items():
        pack = gzip.compress if pattern.endswith(".gz") else bytes
        members = {
            pattern.format(lang=lang, side=side): pack(join(rows))
            for lang in langs.split()
            for side, rows in pairs[lang].items()
        }
        if "commoncrawl" in archive:
            members["commoncrawl.de-en.annotation"] = b"x\n"
        tarball(folder / archive, members)


def wmt_tests(folder, text):
    for year in range(2008, 2014):
        path = f"{'' if year == 2011 else 'test/'}newstest{year}-src.{{side}}.sgm"
        members = wmt_test(text, ("de", "fr", "es"), {"srcset": path})
        tarball(folder / f"wmt{year - 2000:02}/test.tgz", members)
    path = "test-full/newstest2014-{lang}en-"
    patterns = {"srcset": path + "src.{side}.sgm", "refset": path + "ref.{side}.sgm"}
    tarball(folder / "wmt14/test-full.tgz", wmt_test(text, ("de", "fr"), patterns))
    for year in (2015, 2017):  # each direction has its own set
        members = {}
        for src, tgt in (("en", "de"), ("de", "en")):
            rows = text.take("de", HELD)
            path = f"test/newstest{year}-{src}{tgt}-"
            members[f"{path}src.{src}.sgm"] = sgm("srcset", f"newstest{year}", rows[src])
            members[f"{path}ref.{tgt}.sgm"] = sgm("refset", f"newstest{year}", rows[tgt])
        tarball(folder / f"wmt{year - 2000}/test.tgz", members)


def wmt_test(text, langs, patterns):
    """Return the members of an archive of test sets; patterns: kind of markup -> member."""
    return {
        pattern.format(lang=lang, side=side): sgm(kind, "newstest", rows)
        for lang in langs
        for side, rows in text.take(lang, HELD).items()
        for kind, pattern in patterns.items()
    }


EARLY = [f"TED.{name}" for name in ("dev2010", "tst2010", "tst2011", "tst2012")]


def ted(text, lang, pair, year, sets, train=True):
    """Return the members of WIT3's archive of a language pair."""
    members = {f"{pair}/README": b"WIT3\n"}
    if train:
        for side, rows in text.take(lang, TRAIN).items():
            members[f"{pair}/train.tags.{pair}.{side}"] = ted_train(side, rows)
    for name in sets:
        for side, rows in text.take(lang, HELD).items():
            kind = "srcset" if pair.startswith(side) else "refset"
            path = f"{pair}/IWSLT{year}.{name}.{pair}.{side}.xml"
            members[path] = ted_set(name, rows, kind)
    return members


def wit3(folder, text):
    """Write TED archives; some are only inside the release of their year."""
    root = folder / "wit3"
    german = ted(text, "de", "de-en", 14, [*EARLY, "TEDX.dev2012"])
    tarball(root / "2014-01/texts/de/en/de-en.tgz", german)
    tarball(root / "2014-01/texts/en/es/en-es.tgz", ted(text, "es", "en-es", 14, EARLY))
    for lang in ("es", "ro"):
        path = root / f"2014-01-test/texts/en/{lang}/en-{lang}.tgz"
        tarball(path, ted(text, lang, f"en-{lang}", 14, ["TED.tst2014"], train=False))
    later = [f"TED.tst{year}" for year in (2013, 2014, 2015)]
    releases = {}
    for lang, pair, year, sets in (
        ("ro", "en-ro", 14, EARLY),
        ("vi", "en-vi", 15, [*EARLY, later[0]]),
        ("fr", "en-fr", 15, [*EARLY, later[0]]),
        ("zh", "zh-en", 15, [*EARLY, later[0]]),
    ):
        name = f"20{year}-01/texts/{pair.replace('-', '/')}/{pair}.tgz"
        inner = tarball(folder / "tmp.tgz", ted(text, lang, pair, year, sets))
        releases.setdefault(year, {})[name] = inner.read_bytes()
    inner.unlink()
    for year, members in releases.items():
        tarball(folder / f"20{year}-01.tgz", members)
    french = ted(text, "fr", "en-fr", 17, [*EARLY, *later])
    tarball(root / "2017-01-trnted/texts/en/fr/en-fr.tgz", french)


def opus(folder, text):
    """Write OPUS's zips: OpenSubtitles with .ids, News Commentary without."""
    news = text.take("es", TRAIN)
    members = {f"News-Commentary.en-es.{side}": join(rows) for side, rows in news.items()}
    zipped(folder / "OPUS-News-Commentary/v11/moses/en-es.txt.zip", members)
    subtitles = text.take("es", 2300)
    members = {f"OpenSubtitles.en-es.{side}": join(rows) for side, rows in subtitles.items()}
    ids = [f"en/2009/{i // 70}/1.xml.gz\tes/2009/{i // 70}/2.xml.gz\t{i}\t{i}" for i in range(2300)]
    members |= {"OpenSubtitles.en-es.ids": join(ids), "README": b"x"}
    zipped(folder / "OPUS-OpenSubtitles/v2018/moses/en-es.txt.zip", members)


def tvsub(folder, data):
    """Write the repository at one commit, with the first lines of real episodes and all real dev
    and test sets.
    """
    commit = "76a07be477ea311d7ab3becfe7b264936992b20d"
    root = f"tvsub-{commit}/data"
    members = {}
    with tarfile.open(data / "tvsub_zhen" / "train_episodes_000-699.tar.xz") as episodes:
        for info in episodes:
            number, lang = info.name.split(".")
            if int(number) > 10:
                break
            if int(number) in {0, 1, 2, 10}:
                rows = episodes.extractfile(info).read().split(b"\n")[:60]
                path = f"{root}/orignal/train/separated/{number}"
                members[f"{path}.{lang}"] = b"".join(row + b"\n" for row in rows)
                members[f"{path}.np.tk.qb.es.{lang}"] = b"not this one\n"
    for part in ("dev", "test"):
        names = [f"original/{part}/{part}.orignal.{lang}" for lang in ("zh", "en")]
        names += [f"processed/{part}/{part}_src", f"processed/{part}/{part}_trg.sgm"]
        for name in names:
            end = ["</refset>"] * name.endswith(".sgm")
            path = name.replace("original/", "orignal/")
            members[f"{root}/{path}"] = join(lines(data / "tvsub_zhen" / name) + end)
    tarball(folder / f"tvsub-{commit}.tar.gz", members)


TASKS = (
    "bigram_shift coordination_inversion obj_number odd_man_out past_present sentence_length"
    " subj_number top_constituents tree_depth word_content"
)


def evaluation(folder):
    """Write Lingeval97 and the probing files, with one item and three lines."""
    error = {"type": "subj_verb_agreement", "contrastive": "Der Hund schlafen ."}
    item = {
        "source": "The dog sleeps .",
        "reference": "Der Hund schläft .",
        "origin": "newstest2009",
        "errors": [error | {"distance": 1, "frequency": 7}],
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "lingeval97.json", [item])
    for task in TASKS.split():
        (folder / f"{task}.txt").write_text(f'tr\tI\t" {task}\nva\tO\tx\nte\tI\ty\n', "utf-8")


def build(folder, data):
    """Write every archive, in folders as published or without folders."""
    text = Text(data)
    wmt_training(folder, text)
    wmt_tests(folder, text)
    wit3(folder, text)
    opus(folder, text)
    tvsub(folder, data)
    evaluation(folder / "probing")
    for lang in ("en", "de", "fr"):
        for name in ("train", "val", "test_2016_flickr", "test_2017_flickr"):
            rows = lines(data / "multi30k" / "raw" / f"{name}.{lang}.gz")
            rows = rows[: TRAIN if name == "train" else HELD]
            (folder / f"{name}.{lang}.gz").write_bytes(gzip.compress(join(rows)))


def find(folder, name):
    """Return the look-alike of a published file, SOURCE/PATH."""
    for path in folder.rglob(Path(name).name):
        if str(path).endswith(name) or path.parent in {folder, folder / "probing"}:
            return path
    raise AssertionError(f"no look-alike of {name}")
