"""Chinese: jieba's words as they were recorded, text without spaces on the way back, and jieba
kept quiet and in its place.
"""

import os
import re
import tarfile
import zipfile
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nmtkit.text import chinese
from nmtkit.text.side import TextSide
from nmtkit.text.tidy import tidy
from tests.prep.real import lines
from tests.processes import python

TED = ("dev2010", "tst2010", "tst2011", "tst2012", "tst2013")


@pytest.fixture(scope="module")
def jieba(tmp_path_factory):
    """jieba as it is, and, for as long as a test asks for it, with the blocks of jieba 0.39 (a
    hyphen belongs to none).
    """
    plain = chinese._jieba()
    tokenizer = plain.Tokenizer()
    tokenizer.tmp_dir = str(tmp_path_factory.mktemp("jieba"))
    tokenizer.initialize()
    return SimpleNamespace(module=plain, cut=lambda line: " ".join(tokenizer.cut(line)).split())


@pytest.fixture
def jieba39(jieba, monkeypatch):
    monkeypatch.setattr(
        jieba.module, "re_han_default", re.compile("([\u4e00-\u9fd5a-zA-Z0-9+#&\\._%]+)")
    )
    return jieba.cut


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
    """*.tc.zh: jieba's words of 0.39; all 6,360 lines; in 4,006 the file has the text's own
    spaces as words too.
    """
    apart = 0
    for part in TED:
        folder = shared / "data/iwslt15_zhen"
        ours = [
            " ".join(chinese.segment(tidy(line)))
            for line in lines(folder / f"IWSLT15.TED.{part}.zh-en.zh")
        ]
        recorded = lines(folder / f"IWSLT15.TED.{part}.tc.zh")
        assert ours == [" ".join(line.split()) for line in recorded]
        apart += sum(line != words for line, words in zip(ours, recorded, strict=True))
    assert apart == 4006


def test_the_words_are_jiebas_on_real_text(shared, jieba39):
    for kind, text in texts(shared).items():
        ours = [chinese.segment(line) for line in text]
        assert ours == list(map(jieba39, text)), kind


MADE_UP = st.text(
    st.one_of(
        st.sampled_from("中国人民的一了是不在aB1.%+#&_- \u3000，。—…·"),
        st.characters(exclude_categories=["Cs"]),
    ),
    max_size=30,
)


@settings(deadline=None, max_examples=300)
@given(MADE_UP)
def test_the_words_are_jiebas_on_made_up_text(jieba, line):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            jieba.module, "re_han_default", re.compile("([\u4e00-\u9fd5a-zA-Z0-9+#&\\._%]+)")
        )
        assert chinese.segment(line) == jieba.cut(line)


WIDE = "[\u2e80-\ua4cf\uf900-\ufaff\ufe30-\ufe4f\uff00-\uff60]"
BESIDE_WIDE = re.compile(f"(?<={WIDE}) +| +(?={WIDE})")


def test_real_text_comes_back_without_spaces_between_chinese_and_with_those_of_latin_words(shared):
    """Lines that don't come back to the letter, of those whose spaces beside Chinese characters are
    left out.

    They have what no rule can know: jieba cuts numbers with letters apart (`802.11 n`), and spaces
    around dashes, brackets and quotes (`- 9`, `” “`) are the writer's.
    """
    differ, spaces = {}, {}
    for kind, text in texts(shared).items():
        wanted = [BESIDE_WIDE.sub("", tidy(line)) for line in text]
        ours = [chinese.detokenize(chinese.segment(tidy(line))) for line in text]
        assert ["".join(line.split()) for line in ours] == [
            "".join(line.split()) for line in wanted
        ]
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
def test_detokenization(tokens, text):
    assert chinese.detokenize(tokens.split()) == text


@pytest.mark.parametrize(
    "lang", ["zh", "zho", "cmn", "chi", "yue", "zh-TW", "zh_Hans", "ZH", "za", "de"]
)
def test_codes_of_chinese(lang):
    yes = lang not in {"za", "de"}
    assert chinese.is_chinese(lang) is yes
    side = TextSide(
        lang,
        SimpleNamespace(normalize=True, aggressive_hyphens=False, escape=True, lowercase=False),
    )
    assert (side.tokens("我们喜欢猫。") == ["我们", "喜欢", "猫", "。"]) is yes


# jieba prints at first use, keeps its dictionary in the system's temporary folder, warns of its own
# escapes, and everybody shares one tokenizer


def warned(code, **environment):
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **environment}
    return python("-W", "always", "-c", code, env=environment)


def test_jieba_is_quiet_and_its_cache_is_in_ours(tmp_path):
    """Compiled anew, too, which is when Python warns of its escapes."""
    folder, temporary = tmp_path / "cache", tmp_path / "tmp"
    temporary.mkdir()
    code = "from nmtkit.text import chinese; print(*chinese.segment('我们'))"
    for _ in "12":  # parsed, then from the cache
        done = warned(
            code,
            NMTKIT_CACHE=str(folder),
            TMPDIR=str(temporary),
            PYTHONPYCACHEPREFIX=str(tmp_path / "pyc"),
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "我们\n", "")
        assert [re.sub(r"[\d.]+(?=\.cache)", "N", path.name) for path in folder.iterdir()] == [
            "jieba-N.cache"
        ]
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("damage", ["empty", "cut", "a file in its place"])
def test_a_cache_that_cannot_be_used_is_done_without(tmp_path, damage):
    folder = tmp_path / "cache"
    if damage == "a file in its place":
        folder.write_text("")
    else:
        folder.mkdir()
        name = f"jieba-{chinese._jieba().__version__}.cache"
        (folder / name).write_bytes(b"" if damage == "empty" else b"(\x00\x00")
    done = warned(
        "from nmtkit.text import chinese; print(*chinese.segment('我们喜欢猫'))",
        NMTKIT_CACHE=str(folder),
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "我们 喜欢 猫\n", "")


def test_the_dictionary_of_others_in_the_process_stays_theirs(tmp_path):
    code = """
import jieba
jieba.add_word("我们喜欢猫", 10**9)
from nmtkit.text import chinese
print(*chinese.segment("我们喜欢猫"), jieba.dt.tmp_dir, "/".join(jieba.cut("我们喜欢猫")))
"""
    done = warned(code, NMTKIT_CACHE=str(tmp_path), TMPDIR=str(tmp_path))
    assert done.stdout == "我们 喜欢 猫 None 我们喜欢猫\n"
