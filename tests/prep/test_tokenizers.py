"""Text that Moses is not for: tokenized text, and languages without spaces between words."""

import shutil

import pytest

from nmtkit.errors import DataError
from nmtkit.prep.stage import prep
from nmtkit.score.translations import scorer_of
from nmtkit.settings import PrepSettings
from nmtkit.text.side import TextSide
from nmtkit.text.tokenizer import joiner, moses_doubt, tokenizer_name, unspaced
from tests.prep.corpora import prepare, write
from tests.prep.real import lines
from tests.refused import refused

NONE = ["prep.src_tokenizer=none", "prep.tgt_tokenizer=none"]
UNSPACED = {
    "ja": "国境の長いトンネルを抜けると雪国であった。 iPhone 15を買う。",
    "th-TH": "ภาษาไทย ไม่มีช่องว่าง ระหว่างคำ Bangkok 2024",
    "km": "ខ្ញុំស្រឡាញ់ភាសាខ្មែរ។",
    "lo": "ຂ້ອຍຮັກພາສາລາວ",
    "my_MM": "မြန်မာဘာသာ စကား",
}


@pytest.fixture(scope="module")
def iwslt(shared, tmp_path_factory):
    """IWSLT14 German-English as its scripts tokenize it: 1,200 training pairs, 300 test pairs."""
    folder = tmp_path_factory.mktemp("iwslt")
    source = shared / "data/iwslt14_deen_tok/tok"
    for name, file, count in (("train", "valid", 1200), ("dev", "test", 200)):
        for lang in ("de", "en"):
            text = lines(source / f"{file}.{lang}")[:count]
            (folder / f"{name}.{lang}").write_text("\n".join(text) + "\n", "utf-8")
    for lang in ("de", "en"):
        text = lines(source / f"IWSLT14.TED.tst2010.de-en.{lang}")[:300]
        (folder / f"test.{lang}").write_text("\n".join(text) + "\n", "utf-8")
    return folder


def prepared(folder, run, *assignments):
    return prep(
        "iwslt",
        train=[folder / "train.de", folder / "train.en"],
        dev=[folder / "dev.de", folder / "dev.en"],
        test=[f"{folder / 'test.de'},{folder / 'test.en'}"],
        run_dir=run,
        assignments=[*assignments, "prep.merges=500"],
        jobs=1,
    )


def test_tokenized_text_is_refused_with_the_setting_to_give(iwslt, tmp_path):
    error = refused(
        DataError, "the source of train looks .*; the target of", prepared, iwslt, tmp_path / "run"
    )
    both = (
        "--set prep.src_tokenizer=none and --set prep.tgt_tokenizer=none (or moses, to tokenize it)"
    )
    assert both in error.hint
    assert not (tmp_path / "run").exists()
    with pytest.raises(DataError, match="the target of train looks tokenized") as error:
        prepared(iwslt, tmp_path / "run", "prep.src_tokenizer=moses")
    assert "--set prep.tgt_tokenizer=none" in error.value.hint


def test_text_that_is_split_into_subwords_is_refused_or_kept_with_a_warning(
    iwslt, shared, tmp_path, stderr
):
    folder = tmp_path / "split"
    shutil.copytree(iwslt, folder)
    for lang in ("de", "en"):
        text = lines(shared / f"data/iwslt14_deen_tok/bpe10k/valid.{lang}")
        (folder / f"train.{lang}").write_text("\n".join(text[:1200]) + "\n", "utf-8")
        (folder / f"dev.{lang}").write_text("\n".join(text[1200:1400]) + "\n", "utf-8")
    with pytest.raises(DataError, match="the source of train looks split into .*@@") as error:
        prepared(folder, tmp_path / "run", *NONE)
    assert "sed 's/@@ //g'; --codes FILE" in error.value.hint
    assert not (tmp_path / "run").exists()
    prepared(folder, tmp_path / "run", *NONE, "prep.subwords=none")
    said = stderr()
    assert "warning: the target of dev looks split into subwords (@@): BLEU" in said
    assert said.count("looks split") == 1


def test_marks_of_subwords_are_those_of_most_lines():
    split = ["wir wuch@@ sen auf"] * 10 + ["so@@"] * 10
    assert joiner(split) == joiner([*split, *["so ."] * 20]) == "@@"
    assert joiner(split[1:]) is joiner([*split, *["so ."] * 21]) is None
    assert joiner(["▁wir ▁wuch sen"] * 20) == joiner(["▁我们 长大"] * 20) == "▁"
    assert joiner(["@@ a ▁ b a▁b a@@b @@"] * 20) is None


def test_each_column_of_a_tsv_file_is_looked_at_by_itself(iwslt, tmp_path):
    german = [line.replace(" .", ".") for line in lines(iwslt / "train.de")]
    pairs = zip(german, lines(iwslt / "train.en"), strict=True)
    (tmp_path / "train.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in pairs), "utf-8")
    dev = f"{iwslt / 'dev.de'},{iwslt / 'dev.en'}"
    train = str(tmp_path / "train.tsv")
    with pytest.raises(DataError, match="the target of train looks tokenized") as error:
        prep("iwslt", train=train, dev=dev, src="de", tgt="en", run_dir=tmp_path / "run")
    # not a column of it, which is removed
    assert set(error.value.where.split(", ")) == {train, str(iwslt / "dev.de")}
    assert not (tmp_path / "run").exists()


def test_a_tsv_file_with_two_problems_is_named_once(iwslt, tmp_path):
    pairs = zip(lines(iwslt / "train.de"), lines(iwslt / "train.en"), strict=True)
    (tmp_path / "train.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in pairs), "utf-8")
    values = {"dev": f"{iwslt / 'dev.de'},{iwslt / 'dev.en'}", "src": "de", "tgt": "en"}
    problem = "the source of train looks .*; the target of train"
    with pytest.raises(DataError, match=problem) as error:
        prep("iwslt", train=str(tmp_path / "train.tsv"), run_dir=tmp_path / "run", **values)
    assert error.value.where == str(tmp_path / "train.tsv")


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("ein Haus\t \n", {}, "dev has no line with text: all of the target is blank"),
        ("ein Haus\ta house\n", {}, "cleaning dropped all 3 training pairs: too short 3"),
        (
            "ein Haus\t\n",
            {"docs": ["dev=blank"]},
            "line 1 is blank in the target but not in the source",
        ),
    ],
)
def test_a_tsv_file_is_named_and_not_its_columns(tmp_path, text, options, message):
    train, dev, run = tmp_path / "train.tsv", tmp_path / "dev.tsv", tmp_path / "run"
    train.write_text("ein Haus\ta house\n" * 3, "utf-8")
    dev.write_text(text * 3, "utf-8")
    files = {"train": str(train), "dev": str(dev), "src": "de", "tgt": "en", "run_dir": run}
    with pytest.raises(DataError, match=message) as error:
        prep("tsv", assignments=["prep.min_words=3"], **files, **options)
    place = train if "cleaning" in message else dev
    assert error.value.where.removesuffix(", line 1") == str(place)


def test_a_perfect_system_of_tokenized_text_scores_100(iwslt, tmp_path):
    run = prepared(iwslt, tmp_path / "run", *NONE)
    side = TextSide.load(run.prep, "tgt")
    references = lines(run.references("test")[0])
    assert any(" &apos;" in line for line in references)
    subwords = [side.encode(line) for line in references]
    assert any(piece.endswith("@@") for line in subwords for piece in line)
    hypotheses = [side.decode(line) for line in subwords]
    assert hypotheses == references
    scorer = scorer_of(run, "test", side)
    assert scorer.columns() == ["bleu", "tokenized_bleu", "chrf", "ter"]
    metrics = {key: scorer.score(key, hypotheses) for key in scorer.columns()}
    assert [round(metric.value, 6) for metric in metrics.values()] == [100, 100, 100, 0]
    assert "|tok:none|" in metrics["bleu"].signature
    assert any("left out: NIST BLEU, NIST uncased (it needs" in remark for remark in scorer.remarks)


@pytest.mark.parametrize("lang", UNSPACED)
def test_languages_without_spaces_are_cut_into_characters_and_come_back(lang):
    settings = PrepSettings()
    assert tokenizer_name("src", lang, settings) == "characters" and unspaced(lang)
    side, line = TextSide(lang, settings), UNSPACED[lang]
    words = side.tokens(line)
    assert side.decode(words) == line
    assert "▁" in words or " " not in line
    assert {"iPhone", "15", "Bangkok", "2024"} >= {word for word in words if word.isascii()}
    assert len(words) >= len(line) / 2  # a character keeps its vowel signs and tone marks


def test_a_setting_chooses_the_tokenizer_of_its_side_alone():
    settings = PrepSettings(src_tokenizer="jieba", tgt_tokenizer="none")
    names = [tokenizer_name(side, "zh", settings) for side in ("src", "tgt")]
    assert names == ["jieba", "none"]
    names = [tokenizer_name("src", lang, PrepSettings()) for lang in ("zh_TW", "de", "ko", "xx")]
    assert names == ["jieba", "moses", "moses", "moses"]


def test_only_clear_cases_are_doubted():
    raw = ["Well, he went home."] * 100
    assert moses_doubt(raw) is None
    assert moses_doubt([line.replace(".", " .") for line in raw[:19]]) is None
    assert moses_doubt([line.replace(".", " .") for line in raw[:20]])[1] == ["none"]
    assert moses_doubt(["Vraiment ?"] * 100) is None  # French puts a space before its marks
    assert moses_doubt([UNSPACED["lo"] * 2] * 20)[1] == ["characters", "jieba"]
    assert moses_doubt(["你好！", "OK 吗？"] * 10)[1] == ["characters", "jieba"]
    assert moses_doubt(["我 喜欢 吃 苹果 。"] * 20) is None  # segmented
    assert moses_doubt(["漢字 한국어다", "Toyota (豊田)"] * 10) is None
    assert moses_doubt([*raw, "a" * 100_000]) is None  # one line shows nothing


@pytest.mark.parametrize(
    ("lang", "name"), [("ja", "characters"), ("fr", "none"), ("fr", "moses"), ("zh", "jieba")]
)
def test_white_space_of_any_kind_is_a_space(lang, name):
    side = TextSide(lang, PrepSettings(), tokenizer=name)
    line = "\u3000国境\u3000 長い\u202f:\u00a0B\u2009C\u3000"
    words = side.tokens(line)
    assert not any(any(map(str.isspace, word)) for word in words)
    assert words == side.tokens("国境 長い : B C")
    assert side.tokens("\u3000\u00a0") == []
    if name in {"characters", "none"}:
        assert side.decode(words) == "国境 長い : B C"


def test_text_with_odd_white_space_is_prepared_with_any_tokenizer(tmp_path):
    rows = [(f"国境\u3000{n}", f"« la\u00a0frontière\u202f» {n}") for n in range(30)]
    files = {name: write(tmp_path, name, rows, ("ja", "fr")) for name in ("train", "dev")}
    settings = ["tgt_tokenizer=none", "merges=20"]
    run = prepare(tmp_path, files, "bpe", settings)
    assert TextSide.load(run.prep, "src").decode(["国", "▁", "7"]) == "国 7"
    run = prepare(tmp_path, files, "spm", [*settings, "subwords=sentencepiece", "vocab_size=80"])
    side = TextSide.load(run.prep, "tgt")
    assert side.decode(side.encode(rows[0][1])) == "« la frontière » 0"
