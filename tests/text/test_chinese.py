"""Chinese: jieba's words equal recorded ones, detokenized text has no spaces, and jieba prints
nothing and writes only into nmtkit's cache.
"""

import os
import re
import tarfile
import zipfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nmtkit.settings import PrepSettings
from nmtkit.text import chinese
from nmtkit.text.side import TextSide
from nmtkit.text.tidy import tidy
from tests.prep.real import lines
from tests.processes import python

TED = ("dev2010", "tst2010", "tst2011", "tst2012", "tst2013")


@pytest.fixture(scope="module")
def cut_by_jieba(tmp_path_factory):
    """Return a function that cuts a line as jieba 0.39 does, whose blocks hold no hyphen."""
    module = chinese._jieba()
    tokenizer = module.Tokenizer()
    tokenizer.tmp_dir = str(tmp_path_factory.mktemp("jieba"))
    tokenizer.initialize()
    blocks = re.compile("([\u4e00-\u9fd5a-zA-Z0-9+#&\\._%]+)")

    def cut(line):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "re_han_default", blocks)
            return " ".join(tokenizer.cut(line)).split()

    return cut


def texts(shared):
    """Raw Chinese of six kinds."""
    data = shared / "data"
    with zipfile.ZipFile(data / "tatoeba_anki/cmn-eng.zip") as archive:
        tatoeba = [
            line.split("\t")[1]
            for line in archive.read("cmn-eng/cmn.txt").decode().split("\n")[:-1]
        ]
    with tarfile.open(data / "tvsub_zhen/train_episodes_000-699.tar.xz") as archive:
        first = next(member for member in archive if member.name.endswith(".zh"))
        subtitles = archive.extractfile(first).read().decode().split("\n")[:-1]
    return {
        "news": lines(data / "wmt_newstest/newstest2018.zho-eng.zho")[:400],
        "wikipedia": lines(data / "flores101_devtest/zho_simpl.devtest")[:300],
        "captions": lines(data / "3am_enzh/val.zh")[:300],
        "tatoeba": tatoeba[-600:],
        "talks": lines(data / "iwslt15_zhen/IWSLT15.TED.tst2012.zh-en.zh")[:500],
        "subtitles": subtitles,
    }


def test_segmentation_of_five_ted_sets_as_recorded(shared):
    """*.tc.zh are words of jieba 0.39 in 6,360 lines; 4,006 lines hold the text's spaces as words
    too.
    """
    folder, with_spaces = shared / "data/iwslt15_zhen", 0
    for part in TED:
        text = lines(folder / f"IWSLT15.TED.{part}.zh-en.zh")
        ours = [" ".join(chinese.segment(tidy(line))) for line in text]
        recorded = lines(folder / f"IWSLT15.TED.{part}.tc.zh")
        assert ours == [" ".join(line.split()) for line in recorded]
        with_spaces += sum(line != words for line, words in zip(ours, recorded, strict=True))
    assert with_spaces == 4006


def test_segmentation_of_real_text_equals_jieba(shared, cut_by_jieba):
    for kind, text in texts(shared).items():
        assert list(map(chinese.segment, text)) == list(map(cut_by_jieba, text)), kind


MADE_UP = st.text(
    st.one_of(
        st.sampled_from("中国人民的一了是不在aB1.%+#&_- \u3000，。—…·"),
        st.characters(exclude_categories=["Cs"]),
    ),
    max_size=30,
)


@settings(deadline=None, max_examples=300)
@given(MADE_UP)
def test_segmentation_of_generated_text_equals_jieba(cut_by_jieba, line):
    assert chinese.segment(line) == cut_by_jieba(line)


WIDE = "[\u2e80-\ua4cf\uf900-\ufaff\ufe30-\ufe4f\uff00-\uff60]"
BESIDE_WIDE = re.compile(f"(?<={WIDE}) +| +(?={WIDE})")


def test_real_text_comes_back_without_spaces_beside_chinese_characters(shared):
    """A few lines differ: jieba cuts numbers with letters apart (`802.11 n`), and only the writer
    knows the spaces around dashes, brackets and quotes (`- 9`, `” “`).
    """
    differ, spaces = {}, {}
    for kind, text in texts(shared).items():
        wanted = [BESIDE_WIDE.sub("", tidy(line)) for line in text]
        ours = [chinese.detokenize(chinese.segment(tidy(line))) for line in text]
        unspaced = [["".join(line.split()) for line in side] for side in (ours, wanted)]
        assert unspaced[0] == unspaced[1]
        differ[kind] = sum(a != b for a, b in zip(ours, wanted, strict=True))
        spaces[kind] = sum(line.count(" ") for line in ours)
        assert not any(BESIDE_WIDE.search(line) for line in ours)
    assert list(differ.values()) == [1, 4, 2, 1, 1, 1]
    assert list(spaces.values()) == [16, 80, 12, 0, 5, 0]


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        ("我用 Steve Lopez 说 : hello world ! 好 。", "我用Steve Lopez说: hello world!好。"),
        ("大约 10 , 000 日元 ， 8 : 30 到 。", "大约10,000日元，8:30到。"),
        ("他 ( Laura Muir ) 来 了 — — 真的 … …", "他(Laura Muir)来了——真的……"),
        ("iPhone ( 2007 ) , iPad", "iPhone (2007), iPad"),
        ("他 说 OK . 3 点", "他说OK. 3点"),
        ("Wi - Fi 的 “ nota ” 和 wallstreetcn . com", "Wi-Fi的“nota”和wallstreetcn.com"),
        ("20 % - 30 % 的 R & D", "20%-30%的R&D"),
        ("Beyonc é 和 M ü ller", "Beyoncé和Müller"),
        ("Jos é Mar í a 在 S ã o Paulo", "José María在São Paulo"),
        ("П р и в е т ， М о с к в а", "Привет，Москва"),
        ("ไ ท ย 和 न म स ् त े", "ไทย和नमस्ते"),
        ("29 ¾ km ² 和 5 μ m T ō ky ō 2020", "29¾ km²和5 μm Tōkyō 2020"),
        ("", ""),
    ],
)
def test_detokenizing_joins_chinese_and_keeps_latin_words_apart(tokens, text):
    assert chinese.detokenize(tokens.split()) == text


@pytest.mark.parametrize(
    ("lang", "segmented"),
    [(code, True) for code in ["zh", "zho", "cmn", "chi", "yue", "zh-TW", "zh_Hans", "ZH"]]
    + [("za", False), ("de", False)],
)
def test_text_with_a_code_of_chinese_is_segmented(lang, segmented):
    assert chinese.is_chinese(lang) is segmented
    tokens = TextSide(lang, PrepSettings()).tokens("我们喜欢猫。")
    assert (tokens == ["我们", "喜欢", "猫", "。"]) is segmented


# By itself jieba prints at first use, keeps its dictionary in the system's temporary folder, warns
# of its escapes, and shares one tokenizer with everybody.


def run_python(code, **environment):
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **environment}
    return python("-W", "always", "-c", code, env=environment)


def test_jieba_prints_nothing_and_writes_only_into_the_cache_of_nmtkit(tmp_path):
    """Python warns of jieba's escapes when it compiles jieba anew."""
    folder, temporary = tmp_path / "cache", tmp_path / "tmp"
    temporary.mkdir()
    code = "from nmtkit.text import chinese; print(*chinese.segment('我们'))"
    variables = {"NMTKIT_CACHE": folder, "TMPDIR": temporary, "PYTHONPYCACHEPREFIX": tmp_path / "c"}
    for _ in ("dictionary parsed", "dictionary from the cache"):
        done = run_python(code, **{name: str(path) for name, path in variables.items()})
        assert (done.returncode, done.stdout, done.stderr) == (0, "我们\n", "")
        (cache,) = folder.iterdir()
        assert re.fullmatch(r"jieba-[\d.]+\.cache", cache.name)
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("damage", ["empty", "cut", "a file in its place"])
def test_segmentation_works_without_a_usable_cache(tmp_path, damage):
    folder = tmp_path / "cache"
    if damage == "a file in its place":
        folder.write_text("")
    else:
        folder.mkdir()
        name = f"jieba-{chinese._jieba().__version__}.cache"
        (folder / name).write_bytes(b"" if damage == "empty" else b"(\x00\x00")
    done = run_python(
        "from nmtkit.text import chinese; print(*chinese.segment('我们喜欢猫'))",
        NMTKIT_CACHE=str(folder),
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "我们 喜欢 猫\n", "")


def test_a_program_that_changes_jiebas_dictionary_does_not_change_nmtkits(tmp_path):
    code = """
import jieba
jieba.add_word("我们喜欢猫", 10**9)
from nmtkit.text import chinese
print(*chinese.segment("我们喜欢猫"), jieba.dt.tmp_dir, "/".join(jieba.cut("我们喜欢猫")))
"""
    done = run_python(code, NMTKIT_CACHE=str(tmp_path), TMPDIR=str(tmp_path))
    assert done.stdout == "我们 喜欢 猫 None 我们喜欢猫\n"
