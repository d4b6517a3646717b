"""SentencePiece and whole words instead of BPE: beside the library on whole lines of real text."""

import io

import pytest
import sentencepiece

from nmtkit.data.store import Store
from nmtkit.errors import ConfigError, DataError
from nmtkit.export import folder as exported
from nmtkit.prep.stage import prep
from nmtkit.score.translations import scorer_of
from nmtkit.text.sentencepiece import SentencePiece, learn_sentencepiece
from nmtkit.text.side import TextSide
from nmtkit.text.vocabulary import UNK, load_vocabularies
from nmtkit.translate.over_long import cut
from tests.prep.real import lines
from tests.refused import refused

SPM = ["prep.subwords=sentencepiece", "prep.vocab_size=2400"]
ODD = ["两 个人。ｉＰｈｏｎｅ１５ €", "a▁b  <s> </s> <unk>\u3000é ﬁn @@ x@@ …"]


@pytest.fixture(scope="module")
def text(shared, tmp_path_factory):
    """Captions in Chinese and English as they are: 900 training pairs, 100 of dev, 100 of test."""
    folder = tmp_path_factory.mktemp("captions")
    captions = {lang: lines(shared / f"data/3am_enzh/train.{lang}")[:1100] for lang in ("zh", "en")}
    for number, lang in enumerate(captions):
        captions[lang][7] = captions[lang][1050] = ODD[number]
        for name, part in (
            ("train", slice(900)),
            ("dev", slice(900, 1000)),
            ("test", slice(1000, 1100)),
        ):
            (folder / f"{name}.{lang}").write_text("\n".join(captions[lang][part]) + "\n", "utf-8")
    return folder


def prepared(text, run, *assignments, src="zh", tgt="en", jobs=1, **options):
    def pair(name):
        return f"{text / f'{name}.{src}'},{text / f'{name}.{tgt}'}"

    return prep(
        "captions",
        train=pair("train"),
        dev=pair("dev"),
        test=[pair("test")],
        run_dir=run,
        assignments=[*assignments],
        jobs=jobs,
        **options,
    )


def learnt(text, *langs, **options):
    """A model that the library learns of lines."""
    model = io.BytesIO()
    sentences = [line for lang in langs for line in lines(text / f"train.{lang}")]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences),
        model_writer=model,
        vocab_size=2400,
        minloglevel=2,
        hard_vocab_limit=False,
        num_threads=1,
        **options,
    )
    return model.getvalue()


def check_ids(run, text, models):
    """Every line of the sets is stored as the library encodes it."""
    vocabularies = load_vocabularies(run.prep)
    for name in ("train", "dev", "test"):
        store = Store(run.prep / name)
        for lang, ids, vocabulary, model in zip(
            ("zh", "en"), (store.src, store.tgt), vocabularies, models, strict=True
        ):
            library = sentencepiece.SentencePieceProcessor(model_file=str(model))
            pieces = set(map(library.id_to_piece, range(len(library))))
            assert set(vocabulary) - pieces <= {"<pad>"}
            wanted = [
                [
                    piece if piece in pieces else "<unk>"
                    for piece in library.encode(line, out_type=str)
                ]
                for line in lines(text / f"{name}.{lang}")
            ]
            assert len(store) == len(wanted)
            for row, pieces in enumerate(wanted):
                stored = [vocabulary[i] for i in ids(row)[:-1].tolist()]
                known = [piece if piece in vocabulary else "<unk>" for piece in pieces]
                assert stored == known


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_the_store_is_what_the_library_makes_of_whole_lines(text, tmp_path, kind, small_shards):
    setting = f"prep.sentencepiece={kind}"
    run = prepared(text, tmp_path / "run", *SPM, setting)
    models = [run.prep / "subwords.spm"] * 2
    check_ids(run, text, models)
    size = len(SentencePiece(models[0]).pieces)
    assert 1900 < len(load_vocabularies(run.prep)[0]) <= size + 1 <= 2401
    if kind == "unigram":
        parallel = prepared(text, tmp_path / "jobs", *SPM, setting, jobs=3)
        for name in ("subwords.spm", "vocab.txt", "train/00000.bin", "test/00000.bin"):
            assert (parallel.prep / name).read_bytes() == (run.prep / name).read_bytes()
        assert run.manifest().fingerprint == parallel.manifest().fingerprint


@pytest.mark.parametrize(("src", "tgt", "tok"), [("zh", "en", "13a"), ("en", "zh", "zh")])
def test_a_perfect_system_scores_100_on_plain_text(text, tmp_path, src, tgt, tok):
    joint = f"prep.joint_vocab={'true' if src == 'zh' else 'false'}"
    run = prepared(text, tmp_path / "run", *SPM, joint, src=src, tgt=tgt)
    side = TextSide.load(run.prep, "tgt")
    references = lines(run.references("test")[0])
    subwords = [side.encode(line) for line in references]
    texts = [side.decode(line) for line in subwords]
    changed = [pair for pair in zip(texts, references, strict=True) if pair[0] != pair[1]]
    # of all text only ▁ does not come back
    odd = ODD[1].replace("▁", " ").replace("  ", " ")
    assert changed == ([] if tgt == "zh" else [(odd, ODD[1].replace("  ", " "))])
    perfect = texts if tgt == "zh" else references
    scorer = scorer_of(run, "test", side)
    for key in scorer.columns():
        words = [side.cased(line) for line in perfect]
        metric = scorer.score(key, words if key == "tokenized_bleu" else perfect)
        assert round(metric.value, 6) == (0 if key == "ter" else 100)
        assert f"|tok:{tok}|" in metric.signature or key != "bleu"
    words = [side.cased_surface(line) for line in subwords]
    assert words[:50] == [side.cased(line) for line in references[:50]]
    assert any(" ." in line or " 。" in line for line in words)


def test_byte_pair_models_of_word_counts_are_those_of_the_lines(text, tmp_path):
    counts = {}
    for lang in ("zh", "en"):
        for line in lines(text / f"train.{lang}"):
            for word in line.replace("▁", " ").split(" "):
                counts[word] = counts.get(word, 0) + 1
    learn_sentencepiece(counts, 2400, "bpe", tmp_path / "model")
    backwards = dict(reversed(counts.items()))
    learn_sentencepiece(backwards, 2400, "bpe", tmp_path / "again")
    assert (tmp_path / "model").read_bytes() == (tmp_path / "again").read_bytes()
    model = learnt(text, "zh", "en", model_type="bpe", normalization_rule_name="identity")
    library = sentencepiece.SentencePieceProcessor(model_proto=model)
    merges = [p for p in map(library.id_to_piece, range(len(library))) if len(p) > 1]
    ours = [p for p in SentencePiece(tmp_path / "model").pieces if len(p) > 1]
    assert ours == merges and len(ours) > 100


def test_own_models_with_the_normalisation_that_they_have(text, tmp_path):
    models = [tmp_path / "zh.model", tmp_path / "en.model"]
    models[0].write_bytes(learnt(text, "zh"))
    models[1].write_bytes(learnt(text, "en", model_type="bpe", byte_fallback=True))
    spm = ",".join(map(str, models))
    with pytest.raises(ConfigError, match="joint_vocab is true, but false in the text model"):
        prepared(text, tmp_path / "run", "prep.joint_vocab=true", spm=spm)
    run = prepared(text, tmp_path / "run", spm=spm)
    check_ids(run, text, models)
    for name in ("subwords.src.spm", "subwords.tgt.spm"):
        assert name in run.manifest().files
    src, tgt = (TextSide.load(run.prep, side) for side in ("src", "tgt"))
    assert src.tokens(ODD[0]) == ["两", "个人。iPhone15", "€"]
    assert tgt.decode(tgt.encode("a 魔法 b…")) == "a 魔法 b..."
    assert "<0xE9>" in tgt.encode("魔")
    odd = "a\u00a0\u200db\u3000\x85\u061c\x07"
    pieces = ["▁", *(f"<0x{byte:02X}>" for byte in odd.encode())]
    assert tgt.splitter.join(pieces) == ["a\u00a0\u200db\u3000"]
    again = prepared(text, tmp_path / "run", "prep.joint_vocab=false", spm=spm)
    assert again.manifest() == run.manifest()
    one = prepared(text, tmp_path / "one", "prep.joint_vocab=false", spm=str(models[0]))
    assert (one.prep / "subwords.spm").read_bytes() == models[0].read_bytes()


def test_words_subwords_and_long_lines_fit_together(text, tmp_path):
    run = prepared(text, tmp_path / "run", *SPM)
    side = TextSide.load(run.prep, "tgt")
    words = side.tokens("Two men, a dog and 3.14 kittens are walking.")
    subwords, owners = side.subwords(words)
    assert side.splitter.join(subwords) == words
    assert sum(side.splitter.ends(subwords)) == len(words) == owners[-1] + 1
    assert side.splitter.segment(["▁"]) == []
    pieces = cut(subwords, 8, side.splitter)
    assert side.splitter.join(pieces[0]) == words[:2] and words[1] == "men,"
    chinese = TextSide.load(run.prep, "src").encode("几个人骑着自行车。几个人骑着自行车，几个人。")
    pieces = cut(chinese, len(chinese) - 2, side.splitter)
    assert pieces[0][-1] == "。" or pieces[0][-2:] != chinese[-4:-2]
    assert [piece for part in pieces for piece in part] == chinese


def test_the_exported_text_folder_has_the_model(text, tmp_path):
    run = prepared(text, tmp_path / "run", *SPM)
    exported.write_text_files(tmp_path / "text", run.prep, run.manifest())
    source, target = (TextSide.load(tmp_path / "text", side) for side in ("src", "tgt"))
    for line in lines(text / "test.en")[:50]:
        assert target.decode(target.encode(line)) == line
    steps = exported.text_steps(source, target, run.manifest().settings)
    assert steps["source"][-1] == "SentencePiece with text/subwords.spm"
    assert any("▁ (U+2581) becomes a space" in step for step in steps["target"])


def test_whole_words_by_frequency(text, tmp_path):
    words = ["prep.subwords=none", "prep.vocab_size=50"]
    run = prepared(text, tmp_path / "run", *words)
    assert not list(run.prep.glob("codes*"))
    assert len(load_vocabularies(run.prep)[0]) == 54
    side = TextSide.load(run.prep, "tgt")
    assert side.decode(side.encode("Two men are walking.")) == "Two men are walking."
    assert UNK in Store(run.prep / "train").tgt(0)


def bytes_of(model):
    return lambda path, text: path.write_bytes(model(text))


WRONG = {
    "broken": (
        lambda path, text: path.write_bytes(b"#version: 0.2\n"),
        DataError,
        "not a SentencePiece model",
    ),
    "missing": (lambda path, text: None, DataError, "own.model"),
    "spaces": (
        bytes_of(lambda text: learnt(text, "en", split_by_whitespace=False)),
        DataError,
        "holds a space",
    ),
    "suffix": (
        bytes_of(lambda text: learnt(text, "en", treat_whitespace_as_suffix=True)),
        DataError,
        "begins each word with ▁",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_model_file_is_one_clear_error(text, tmp_path, case):
    write, error, message = WRONG[case]
    path = tmp_path / "own.model"
    write(path, text)
    raised = refused(error, message, prepared, text, tmp_path / "run", spm=str(path))
    assert str(path) in str(raised.where) + raised.message
    assert not (tmp_path / "run").exists()


def test_settings_that_do_not_fit_are_refused(text, tmp_path):
    def refuse(message, *assignments, **options):
        error = refused(
            ConfigError, message, prepared, text, tmp_path / "run", *assignments, **options
        )
        assert not (tmp_path / "run").exists()
        return error

    model = tmp_path / "en.model"
    model.write_bytes(learnt(text, "en"))
    error = refuse("cannot learn 20 pieces", SPM[0], "prep.vocab_size=20")
    assert error.where == "prep.vocab_size"
    refuse("cannot join characters", SPM[0], "prep.src_tokenizer=characters")
    refuse(
        'subwords is "bpe", but "sentencepiece" in the text model',
        "prep.subwords=bpe",
        spm=str(model),
    )
    refuse("got 3", spm=f"{model},{model},{model}")
