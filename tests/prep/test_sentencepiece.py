"""SentencePiece and whole words instead of BPE: stored subwords equal those of the library."""

import io
import shutil
from collections import Counter

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
from tests.prep.test_documents import write_lines
from tests.refused import refused

SPM = ["prep.subwords=sentencepiece", "prep.vocab_size=2400"]
ODD = ["两 个人。ｉＰｈｏｎｅ１５ €", "a▁b  <s> </s> <unk>\u3000é ﬁn @@ x@@ …"]


@pytest.fixture(scope="module")
def text(shared, tmp_path_factory):
    """Captions in Chinese and English: 900 training pairs, 100 of dev, 100 of test."""
    folder = tmp_path_factory.mktemp("captions")
    for lang, odd in zip(("zh", "en"), ODD, strict=True):
        captions = lines(shared / f"data/3am_enzh/train.{lang}")[:1100]
        captions[7] = captions[1050] = odd
        for name, start, end in (("train", 0, 900), ("dev", 900, 1000), ("test", 1000, 1100)):
            write_lines(folder / f"{name}.{lang}", captions[start:end])
    return folder


def prepared(text, run, *assignments, src="zh", tgt="en", jobs=1, **options):
    train, dev, test = (
        f"{text / name}.{src},{text / name}.{tgt}" for name in ("train", "dev", "test")
    )
    sets = {"train": train, "dev": dev, "test": [test]}
    return prep("captions", **sets, run_dir=run, assignments=assignments, jobs=jobs, **options)


def learnt(text, *langs, **options):
    """Return the model that the library learns of the training lines."""
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
    """Assert that every line of the sets is stored as the library encodes it."""
    for lang, side, vocabulary, model in zip(
        ("zh", "en"), ("src", "tgt"), load_vocabularies(run.prep), models, strict=True
    ):
        library = sentencepiece.SentencePieceProcessor(model_file=str(model))
        pieces = set(map(library.id_to_piece, range(len(library))))
        assert set(vocabulary) - pieces <= {"<pad>"}
        known = pieces & set(vocabulary)
        for name in ("train", "dev", "test"):
            store = Store(run.prep / name)
            encoded = library.encode(lines(text / f"{name}.{lang}"), out_type=str)
            assert len(store) == len(encoded)
            for row, expected in enumerate(encoded):
                stored = [vocabulary[i] for i in getattr(store, side)(row)[:-1].tolist()]
                assert stored == [piece if piece in known else "<unk>" for piece in expected]


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_stored_ids_equal_the_library_on_whole_lines(text, tmp_path, kind, small_shards):
    setting = f"prep.sentencepiece={kind}"
    run = prepared(text, tmp_path / "run", *SPM, setting)
    model = run.prep / "subwords.spm"
    check_ids(run, text, [model] * 2)
    size = len(SentencePiece(model).pieces)
    assert 1900 < len(load_vocabularies(run.prep)[0]) <= size + 1 <= 2401
    assert run.manifest().corpus["pieces"] == size
    if kind == "unigram":
        parallel = prepared(text, tmp_path / "jobs", *SPM, setting, jobs=3).manifest()
        assert parallel.files == run.manifest().files
        assert parallel.fingerprint == run.manifest().fingerprint


@pytest.mark.parametrize(("src", "tgt", "tok"), [("zh", "en", "13a"), ("en", "zh", "zh")])
def test_references_as_hypotheses_score_100(text, tmp_path, src, tgt, tok):
    joint = f"prep.joint_vocab={'true' if src == 'zh' else 'false'}"
    run = prepared(text, tmp_path / "run", *SPM, joint, src=src, tgt=tgt)
    side = TextSide.load(run.prep, "tgt")
    references = lines(run.references("test")[0])
    subwords = [side.encode(line) for line in references]
    texts = [side.decode(line) for line in subwords]
    changed = [pair for pair in zip(texts, references, strict=True) if pair[0] != pair[1]]
    # of all text only ▁ does not come back
    odd = [line.replace("  ", " ") for line in (ODD[1].replace("▁", " "), ODD[1])]
    assert changed == ([] if tgt == "zh" else [tuple(odd)])
    hypotheses = texts if tgt == "zh" else references
    scorer = scorer_of(run, "test", side)
    for key in scorer.columns():
        cased = [side.cased(line) for line in hypotheses]
        metric = scorer.score(key, cased if key == "tokenized_bleu" else hypotheses)
        assert round(metric.value, 6) == (0 if key == "ter" else 100)
        assert f"|tok:{tok}|" in metric.signature or key != "bleu"
    words = [side.cased_surface(line) for line in subwords]
    assert words[:50] == [side.cased(line) for line in references[:50]]
    assert any(" ." in line or " 。" in line for line in words)


def test_byte_pair_model_of_word_counts_equals_that_of_the_lines(text, tmp_path):
    """The order of the words does not matter."""
    words = (
        word
        for lang in ("zh", "en")
        for line in lines(text / f"train.{lang}")
        for word in line.replace("▁", " ").split(" ")
    )
    counts = Counter(words)
    learn_sentencepiece(counts, 2400, "bpe", tmp_path / "model")
    learn_sentencepiece(dict(reversed(counts.items())), 2400, "bpe", tmp_path / "again")
    assert (tmp_path / "model").read_bytes() == (tmp_path / "again").read_bytes()
    model = learnt(text, "zh", "en", model_type="bpe", normalization_rule_name="identity")
    library = sentencepiece.SentencePieceProcessor(model_proto=model)
    merges = [p for p in map(library.id_to_piece, range(len(library))) if len(p) > 1]
    ours = [p for p in SentencePiece(tmp_path / "model").pieces if len(p) > 1]
    assert ours == merges and len(ours) > 100


def test_sentencepiece_learns_from_the_most_frequent_words_only(tmp_path, monkeypatch):
    monkeypatch.setattr("nmtkit.text.sentencepiece.MOST_WORDS", 4)
    counts = {"aab": 9, "abab": 9, "ba": 9, "bbaa": 9, "xyx": 8}
    learn_sentencepiece(counts, 20, "bpe", tmp_path / "model")
    letters = {*"".join(SentencePiece(tmp_path / "model").pieces[3:])}
    assert letters == {"▁", "a", "b"}


@pytest.fixture(scope="module")
def own_models(text, tmp_path_factory):
    """A unigram model of Chinese, and a byte-pair model of English with bytes."""
    folder = tmp_path_factory.mktemp("models")
    models = [folder / "zh.model", folder / "en.model"]
    models[0].write_bytes(learnt(text, "zh"))
    models[1].write_bytes(learnt(text, "en", model_type="bpe", byte_fallback=True))
    return models


def test_given_models_are_used_with_their_normalisation(text, tmp_path, own_models):
    spm = ",".join(map(str, own_models))
    run = prepared(text, tmp_path / "run", spm=spm)
    check_ids(run, text, own_models)
    assert {"subwords.src.spm", "subwords.tgt.spm"} <= {*run.manifest().files}
    src, tgt = (TextSide.load(run.prep, side) for side in ("src", "tgt"))
    assert src.tokens(ODD[0]) == ["两", "个人。iPhone15", "€"]
    assert tgt.decode(tgt.encode("a 魔法 b…")) == "a 魔法 b..."
    assert "<0xE9>" in tgt.encode("魔")
    odd = "a\u00a0\u200db\u3000\x85\u061c\x07"
    pieces = ["▁", *(f"<0x{byte:02X}>" for byte in odd.encode())]
    assert tgt.splitter.join(pieces) == ["a\u00a0\u200db\u3000"]
    again = prepared(text, tmp_path / "run", "prep.joint_vocab=false", spm=spm)
    assert again.manifest() == run.manifest()


def test_training_text_is_encoded_as_new_text_with_another_tokenizer(text, tmp_path):
    folder = shutil.copytree(text, tmp_path / "text")
    english = lines(folder / "train.en")
    english[7] = line = "A ▁dog ▁ ."
    write_lines(folder / "train.en", english)
    run = prepared(folder, tmp_path / "run", *SPM, "prep.tgt_tokenizer=none")
    ids = load_vocabularies(run.prep)[1].encode(TextSide.load(run.prep, "tgt").encode(line))
    assert Store(run.prep / "train").tgt(7).tolist() == ids


def test_one_given_model_is_shared_by_both_sides(text, tmp_path, own_models):
    run = prepared(text, tmp_path / "run", "prep.joint_vocab=false", spm=str(own_models[0]))
    assert (run.prep / "subwords.spm").read_bytes() == own_models[0].read_bytes()


@pytest.fixture(scope="module")
def learnt_run(text, tmp_path_factory):
    return prepared(text, tmp_path_factory.mktemp("learnt") / "run", *SPM)


def test_subwords_are_mapped_to_their_words(learnt_run):
    side = TextSide.load(learnt_run.prep, "tgt")
    words = side.tokens("Two men, a dog and 3.14 kittens are walking.")
    subwords, owners = side.subwords(words)
    assert side.splitter.join(subwords) == words
    assert sum(side.splitter.ends(subwords)) == len(words) == owners[-1] + 1
    assert side.splitter.segment(["▁"]) == []


def test_long_lines_are_cut_between_words_or_after_chinese_punctuation(learnt_run):
    src, tgt = (TextSide.load(learnt_run.prep, side) for side in ("src", "tgt"))
    subwords = tgt.encode("Two men, a dog and 3.14 kittens are walking.")
    assert tgt.splitter.join(cut(subwords, 8, tgt.splitter)[0]) == ["Two", "men,"]
    chinese = src.encode("几个人骑着自行车。几个人骑着自行车，几个人。")
    parts = cut(chinese, len(chinese) - 2, src.splitter)
    assert parts[0][-1] == "。" or parts[0][-2:] != chinese[-4:-2]
    assert [piece for part in parts for piece in part] == chinese
    assert cut([], 8, src.splitter) == [[]]  # a blank line


def test_exported_text_folder_has_the_model(text, tmp_path, learnt_run):
    manifest = learnt_run.manifest()
    exported.write_text_files(tmp_path / "text", learnt_run.prep, manifest)
    source, target = (TextSide.load(tmp_path / "text", side) for side in ("src", "tgt"))
    for line in lines(text / "test.en")[:50]:
        assert target.decode(target.encode(line)) == line
    steps = exported.text_steps(source, target, manifest.settings)
    assert steps["source"][-1] == "SentencePiece with text/subwords.spm"
    assert any("▁ (U+2581) becomes a space" in step for step in steps["target"])


@pytest.mark.parametrize("whole_words", ["prep.subwords=none", "prep.merges=0"])
def test_vocab_size_limits_the_vocabulary_of_whole_words(text, tmp_path, whole_words):
    run = prepared(text, tmp_path / "run", whole_words, "prep.vocab_size=50")
    assert not list(run.prep.glob("codes*"))
    assert len(load_vocabularies(run.prep)[0]) == 54
    side = TextSide.load(run.prep, "tgt")
    assert side.decode(side.encode("Two men are walking.")) == "Two men are walking."
    assert UNK in Store(run.prep / "train").tgt(0)


WRONG_MODELS = {
    "broken": (lambda text: b"#version: 0.2\n", "not a SentencePiece model"),
    "spaces": (lambda text: learnt(text, "en", split_by_whitespace=False), "holds a space"),
    "suffix": (
        lambda text: learnt(text, "en", treat_whitespace_as_suffix=True),
        "begins each word with ▁",
    ),
}


@pytest.mark.parametrize("case", WRONG_MODELS)
def test_wrong_model_file_is_refused(text, tmp_path, case):
    make_model, message = WRONG_MODELS[case]
    path = tmp_path / "own.model"
    path.write_bytes(make_model(text))
    error = refused(DataError, message, prepared, text, tmp_path / "run", spm=str(path))
    assert str(path) in str(error.where) + error.message
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("settings", "models", "message"),
    [
        (["subwords=sentencepiece", "vocab_size=20"], None, "cannot learn 20 pieces"),
        (["subwords=sentencepiece", "src_tokenizer=characters"], None, "cannot join characters"),
        (["subwords=bpe"], "{0}", 'subwords is "bpe", but "sentencepiece" in the text model'),
        (["joint_vocab=true"], "{0},{1}", "joint_vocab is true, but false in the text model"),
        ([], "{0},{0},{0}", "got 3"),
        ([], "gone.model", "gone.model"),
    ],
)
def test_wrong_settings_for_sentencepiece_are_refused(
    text, tmp_path, own_models, settings, models, message
):
    assignments = [f"prep.{setting}" for setting in settings]
    options = {"spm": models.format(*own_models)} if models else {}
    call = prepared, text, tmp_path / "run", *assignments
    error = refused((ConfigError, DataError), message, *call, **options)
    assert error.where == "prep.vocab_size" or "20 pieces" not in message
    assert not (tmp_path / "run").exists()
