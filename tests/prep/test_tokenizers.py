"""Text that Moses cannot tokenize: tokenized text, and languages without spaces between words."""

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
from tests.prep.test_documents import write_lines
from tests.refused import refused

NONE = ["prep.src_tokenizer=none", "prep.tgt_tokenizer=none"]
SETS = ("train", "dev", "test")
UNSPACED = {
    "ja": "国境の長いトンネルを抜けると雪国であった。 iPhone 15を買う。",
    "th-TH": "ภาษาไทย ไม่มีช่องว่าง ระหว่างคำ Bangkok 2024",
    "km": "ខ្ញុំស្រឡាញ់ភាសាខ្មែរ។",
    "lo": "ຂ້ອຍຮັກພາສາລາວ",
    "my_MM": "မြန်မာဘာသာ စကား",
}


@pytest.fixture(scope="module")
def iwslt(shared, tmp_path_factory):
    """IWSLT14 German-English, tokenized: 1,200 training, 200 dev and 300 test pairs."""
    folder, source = tmp_path_factory.mktemp("iwslt"), shared / "data/iwslt14_deen_tok/tok"
    for lang in ("de", "en"):
        for name, file, count in (
            ("train", "valid", 1200),
            ("dev", "test", 200),
            ("test", "IWSLT14.TED.tst2010.de-en", 300),
        ):
            write_lines(folder / f"{name}.{lang}", lines(source / f"{file}.{lang}")[:count])
    return folder


def prepared(folder, run, *assignments):
    train, dev, test = (f"{folder / name}.de,{folder / name}.en" for name in SETS)
    settings = [*assignments, "prep.merges=500"]
    return prep(
        "iwslt", train=train, dev=dev, test=[test], run_dir=run, assignments=settings, jobs=1
    )


def test_tokenized_text_is_refused_with_the_setting_to_give(iwslt, tmp_path):
    run, message = tmp_path / "run", "the source of train looks .*; the target of"
    hint = refused(DataError, message, prepared, iwslt, run).hint
    both = "--set prep.src_tokenizer=none and --set prep.tgt_tokenizer=none"
    assert f"{both} (or moses, to tokenize it)" in hint
    assert not run.exists()
    message = "the target of train looks tokenized"
    hint = refused(DataError, message, prepared, iwslt, run, "prep.src_tokenizer=moses").hint
    assert "--set prep.tgt_tokenizer=none" in hint


@pytest.fixture
def split_text(iwslt, shared, tmp_path):
    """The same text as `iwslt`, with the train and dev sets split into subwords."""
    shutil.copytree(iwslt, tmp_path / "split")
    for lang in ("de", "en"):
        text = lines(shared / f"data/iwslt14_deen_tok/bpe10k/valid.{lang}")
        write_lines(tmp_path / f"split/train.{lang}", text[:1200])
        write_lines(tmp_path / f"split/dev.{lang}", text[1200:1400])
    return tmp_path / "split"


def test_text_split_into_subwords_is_refused_before_bpe(split_text, tmp_path):
    message = "the source of train looks split into .*@@"
    error = refused(DataError, message, prepared, split_text, tmp_path / "run", *NONE)
    assert "sed 's/@@ //g'; --codes FILE" in error.hint
    assert not (tmp_path / "run").exists()


def test_text_split_into_subwords_is_a_warning_without_bpe(split_text, tmp_path, stderr):
    prepared(split_text, tmp_path / "run", *NONE, "prep.subwords=none")
    printed = stderr()
    assert "warning: the target of dev looks split into subwords (@@): BLEU" in printed
    assert printed.count("looks split") == 1


def test_joiner_is_the_mark_that_most_lines_have():
    split = ["wir wuch@@ sen auf"] * 10 + ["so@@"] * 10
    assert joiner(split) == joiner([*split, *["so ."] * 20]) == "@@"
    assert joiner(split[1:]) is joiner([*split, *["so ."] * 21]) is None
    assert joiner(["▁wir ▁wuch sen"] * 20) == joiner(["▁我们 长大"] * 20) == "▁"
    assert joiner(["@@ a ▁ b a▁b a@@b @@"] * 20) is None


@pytest.mark.parametrize(
    ("german_looks_tokenized", "message"),
    [
        (False, "the target of train looks tokenized"),
        (True, "the source of train looks .*; the target of train"),
    ],
)
def test_columns_of_a_tsv_file_are_checked_apart_and_the_file_is_named(
    iwslt, tmp_path, german_looks_tokenized, message
):
    """The file is named, not the temporary file of a column."""
    train, run = tmp_path / "train.tsv", tmp_path / "run"
    german, english = (lines(iwslt / f"train.{lang}") for lang in ("de", "en"))
    if not german_looks_tokenized:
        german = [line.replace(" .", ".") for line in german]
    write_lines(train, map("\t".join, zip(german, english, strict=True)))
    dev = f"{iwslt / 'dev.de'},{iwslt / 'dev.en'}"
    options = {"train": str(train), "dev": dev, "src": "de", "tgt": "en", "run_dir": run}
    places = refused(DataError, message, prep, "iwslt", **options).where.split(", ")
    others = [] if german_looks_tokenized else [str(iwslt / "dev.de")]
    assert sorted(places) == sorted([str(train), *others])  # once, though two columns are wrong
    assert not run.exists()


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
def test_errors_in_a_tsv_file_name_the_file_and_not_its_columns(tmp_path, text, options, message):
    train, dev, run = tmp_path / "train.tsv", tmp_path / "dev.tsv", tmp_path / "run"
    train.write_text("ein Haus\ta house\n" * 3, "utf-8")
    dev.write_text(text * 3, "utf-8")
    options = options | {
        "train": str(train),
        "dev": str(dev),
        "src": "de",
        "tgt": "en",
        "run_dir": run,
    }
    error = refused(DataError, message, prep, "tsv", assignments=["prep.min_words=3"], **options)
    assert error.where.removesuffix(", line 1") == str(train if "cleaning" in message else dev)


def test_references_of_tokenized_text_as_hypotheses_score_100(iwslt, tmp_path):
    run = prepared(iwslt, tmp_path / "run", *NONE)
    side = TextSide.load(run.prep, "tgt")
    references = lines(run.references("test")[0])
    assert any(" &apos;" in line for line in references)
    subwords = [side.encode(line) for line in references]
    assert any(piece.endswith("@@") for line in subwords for piece in line)
    hypotheses = [side.decode(line) for line in subwords]
    assert hypotheses == references
    scorer = scorer_of(run, "test", side)
    metrics = {key: scorer.score(key, hypotheses) for key in scorer.columns()}
    values = {key: round(metric.value, 6) for key, metric in metrics.items()}
    assert values == {"bleu": 100, "tokenized_bleu": 100, "chrf": 100, "ter": 0}
    assert "|tok:none|" in metrics["bleu"].signature
    assert any("left out: NIST BLEU, NIST uncased (it needs" in remark for remark in scorer.remarks)


@pytest.mark.parametrize("lang", UNSPACED)
def test_languages_without_spaces_are_split_into_characters_and_come_back(lang):
    settings = PrepSettings()
    assert tokenizer_name("src", lang, settings) == "characters" and unspaced(lang)
    side, line = TextSide(lang, settings), UNSPACED[lang]
    words = side.tokens(line)
    assert side.decode(words) == line
    assert "▁" in words or " " not in line
    assert {"iPhone", "15", "Bangkok", "2024"} >= {word for word in words if word.isascii()}
    assert len(words) >= len(line) / 2  # a character keeps its vowel signs and tone marks


def test_tokenizer_setting_is_for_one_side():
    settings = PrepSettings(src_tokenizer="jieba", tgt_tokenizer="none")
    names = [tokenizer_name(side, "zh", settings) for side in ("src", "tgt")]
    assert names == ["jieba", "none"]
    names = [tokenizer_name("src", lang, PrepSettings()) for lang in ("zh_TW", "de", "ko", "xx")]
    assert names == ["jieba", "moses", "moses", "moses"]


def test_only_clear_signs_of_unsuitable_text_are_reported():
    raw = ["Well, he went home."] * 100
    assert moses_doubt(raw) is None
    assert moses_doubt([line.replace(".", " .") for line in raw[:19]]) is None
    assert moses_doubt([line.replace(".", " .") for line in raw[:20]])[1] == ["none"]
    assert moses_doubt(["Vraiment ?"] * 100) is None  # French puts a space before its marks
    assert moses_doubt([UNSPACED["lo"] * 2] * 20)[1] == ["characters", "jieba"]
    assert moses_doubt(["你好！", "OK 吗？"] * 10)[1] == ["characters", "jieba"]
    assert moses_doubt(["我 喜欢 吃 苹果 。"] * 20) is None  # segmented
    assert moses_doubt(["漢字 한국어다", "Toyota (豊田)"] * 10) is None
    assert moses_doubt([*raw, "a" * 100_000]) is None  # one line is no evidence


@pytest.mark.parametrize(
    ("lang", "name"), [("ja", "characters"), ("fr", "none"), ("fr", "moses"), ("zh", "jieba")]
)
def test_white_space_of_any_kind_separates_words(lang, name):
    side = TextSide(lang, PrepSettings(), tokenizer=name)
    line = "\u3000国境\u3000 長い\u202f:\u00a0B\u2009C\u3000"
    words = side.tokens(line)
    assert not any(any(map(str.isspace, word)) for word in words)
    assert words == side.tokens("国境 長い : B C")
    assert side.tokens("\u3000\u00a0") == []
    if name in {"characters", "none"}:
        assert side.decode(words) == "国境 長い : B C"


def test_text_with_unusual_white_space_is_prepared(tmp_path):
    rows = [(f"国境\u3000{n}", f"« la\u00a0frontière\u202f» {n}") for n in range(30)]
    files = {name: write(tmp_path, name, rows, ("ja", "fr")) for name in ("train", "dev")}
    settings = ["tgt_tokenizer=none", "merges=20"]
    run = prepare(tmp_path, files, "bpe", settings)
    assert TextSide.load(run.prep, "src").decode(["国", "▁", "7"]) == "国 7"
    run = prepare(tmp_path, files, "spm", [*settings, "subwords=sentencepiece", "vocab_size=80"])
    side = TextSide.load(run.prep, "tgt")
    assert side.decode(side.encode(rows[0][1])) == "« la frontière » 0"
