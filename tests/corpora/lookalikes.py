"""Archives that look like the published ones, made on the fly of real text: layouts as
../shared/data/sources.md describes them, few lines.

Nothing here is derived from the table of data sets, so that a wrong member or a wrong address there
is found.
"""

import gzip
import io
import tarfile
import zipfile
from pathlib import Path

from tests.manifests import write_json
from tests.prep.real import lines, segments

TRAIN, HELD = 150, 12


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
    """Real parallel lines of a language with English: (other, English), a long run of them."""
    read = segments if lang == "vi" else lines
    sides = CODES.get(lang, (lang, "en"))
    both = [read(data / PATHS[lang].format(side))[:600] for side in sides]
    pairs = [(a, b) for a, b in zip(*both, strict=True) if 2 <= len(b.split()) <= 40]
    return pairs[: TRAIN + 20 * HELD]


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
        stretch = [pairs[i % len(pairs)] for i in range(start, start + count)]
        return {lang: [pair[0] for pair in stretch], "en": [pair[1] for pair in stretch]}


def join(rows):
    return "".join(row + "\n" for row in rows).encode()


def escape(text):
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def talks(rows):
    """Three documents of about equal size."""
    size = -(-len(rows) // 3)
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def markup(kind, setid, rows, before, attributes=""):
    """A set in mteval's markup; `before`: the lines before the segments of each document."""
    out = [f'<{kind} setid="{setid}" srclang="any">']
    for number, talk in enumerate(talks(rows), 1):
        out += [f'<doc docid="{number}"{attributes} genre="any">', *before]
        out += [f'<seg id="{i}"> {escape(row)} </seg>' for i, row in enumerate(talk, 1)]
        out.append("</doc>")
    return [*out, f"</{kind}>"]


def sgm(kind, setid, rows):
    """mteval's SGM, as WMT publishes it."""
    return join(markup(kind, setid, rows, ["<p>"], ' sysid="ref"' * (kind == "refset")))


def ted_set(name, rows, kind):
    """WIT3's XML."""
    before = ["<url>http://x</url>", "<description>R&amp;D</description>", "<title>Title</title>"]
    head = ['<?xml version="1.0" encoding="UTF-8"?>', "<mteval>"]
    return join([*head, *markup(kind, name, rows, before), "</mteval>"])


def ted_train(lang, rows):
    """WIT3's training text: lines of metadata, then the sentences of a talk."""
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
    """Write a zip and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as one:
        for name, data in members.items():
            one.writestr(name, data)
    return path


def wmt(folder, text):
    """Training text and test sets of WMT."""
    pairs = {lang: text.take(lang, TRAIN // 3) for lang in ("de", "fr")}

    def train(archive, pattern, langs=("de", "fr"), pack=bytes, more=None):
        """An archive of training text, in both languages of each pair."""
        members = {
            pattern.format(lang=lang, side=side): pack(join(rows))
            for lang in langs
            for side, rows in pairs[lang].items()
        }
        tarball(folder / archive, members | (more or {}))

    def test(archive, langs, **patterns):
        """An archive of test sets: kind=the pattern of its members."""
        members = {}
        for lang in langs:
            for side, rows in text.take(lang, HELD).items():
                for kind, pattern in patterns.items():
                    members[pattern.format(lang=lang, side=side)] = sgm(kind, "newstest", rows)
        tarball(folder / archive, members)

    train("wmt13/training-parallel-europarl-v7.tgz", "training/europarl-v7.{lang}-en.{side}")
    annotation = {"commoncrawl.de-en.annotation": b"x\n"}
    crawl = "wmt13/training-parallel-commoncrawl.tgz"
    train(crawl, "commoncrawl.{lang}-en.{side}", more=annotation)
    train("wmt13/training-parallel-un.tgz", "un/undoc.2000.{lang}-en.{side}", ["fr"])
    news = "training/news-commentary-v{}.{{lang}}-en.{{side}}"
    train("wmt14/training-parallel-nc-v9.tgz", news.format(9))
    train("wmt17/training-parallel-nc-v12.tgz", news.format(12), ["de"])
    train("wmt17/rapid2016.tgz", "rapid2016.{lang}-en.{side}", ["de"])
    giga = "giga-fren.release2.fixed.{side}.gz"
    train("wmt10/training-giga-fren.tar", giga, ["fr"], gzip.compress)
    for year in range(2008, 2014):
        path = f"{'' if year == 2011 else 'test/'}newstest{year}-src.{{side}}.sgm"
        test(f"wmt{year - 2000:02}/test.tgz", ("de", "fr", "es"), srcset=path)
    path = "test-full/newstest2014-{lang}en-"
    sides = {"srcset": path + "src.{side}.sgm", "refset": path + "ref.{side}.sgm"}
    test("wmt14/test-full.tgz", ("de", "fr"), **sides)
    for year in (2015, 2017):
        members = {}
        for src, tgt in (("en", "de"), ("de", "en")):
            rows = text.take("de", HELD)
            path = f"test/newstest{year}-{src}{tgt}-"
            members[f"{path}src.{src}.sgm"] = sgm("srcset", f"newstest{year}", rows[src])
            members[f"{path}ref.{tgt}.sgm"] = sgm("refset", f"newstest{year}", rows[tgt])
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
                path = f"{pair}/IWSLT{year}.{name}.{pair}.{side}.xml"
                members[path] = ted_set(name, rows, kind)
        return {f"{pair}/README": b"WIT3\n"} | members

    early = [f"TED.{name}" for name in ("dev2010", "tst2010", "tst2011", "tst2012")]
    root, tests = folder / "wit3", ["TED.tst2014"]
    german = archive("de", "de-en", 14, [*early, "TEDX.dev2012"])
    tarball(root / "2014-01/texts/de/en/de-en.tgz", german)
    tarball(root / "2014-01/texts/en/es/en-es.tgz", archive("es", "en-es", 14, early))
    for lang in ("es", "ro"):
        path = root / f"2014-01-test/texts/en/{lang}/en-{lang}.tgz"
        tarball(path, archive(lang, f"en-{lang}", 14, tests, train=False))
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
    french = archive("fr", "en-fr", 17, [*early, *(f"TED.tst{y}" for y in (2013, 2014, 2015))])
    tarball(root / "2017-01-trnted/texts/en/fr/en-fr.tgz", french)


def opus(folder, text):
    """OPUS's zips: OpenSubtitles with .ids, News Commentary without."""
    news = text.take("es", TRAIN)
    members = {f"News-Commentary.en-es.{side}": join(rows) for side, rows in news.items()}
    zipped(folder / "OPUS-News-Commentary/v11/moses/en-es.txt.zip", members)
    subtitles = text.take("es", 2300)
    members = {f"OpenSubtitles.en-es.{side}": join(rows) for side, rows in subtitles.items()}
    ids = [f"en/2009/{i // 70}/1.xml.gz\tes/2009/{i // 70}/2.xml.gz\t{i}\t{i}" for i in range(2300)]
    members |= {"OpenSubtitles.en-es.ids": join(ids), "README": b"x"}
    zipped(folder / "OPUS-OpenSubtitles/v2018/moses/en-es.txt.zip", members)


def tvsub(folder, data):
    """The repository at one commit; real episodes, cut short, and the real dev and test sets."""
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
    """Lingeval97 and the probing files, a line or two of each."""
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
    """Every archive, in folders as published or flat."""
    text = Text(data)
    wmt(folder, text)
    wit3(folder, text)
    opus(folder, text)
    tvsub(folder, data)
    evaluation(folder / "probing")
    for lang in ("en", "de", "fr"):
        for name in ("train", "val", "test_2016_flickr", "test_2017_flickr"):
            rows = lines(data / "multi30k" / "raw" / f"{name}.{lang}.gz")
            rows = rows[: TRAIN if name == "train" else HELD]
            (folder / f"{name}.{lang}.gz").write_bytes(gzip.compress(join(rows)))
