"""The folder for Hugging Face: its own models compute nmtkit's logits, its tokenizer gives
nmtkit's ids, and greedy search finds the same subwords.
"""

import pytest
import torch

from nmtkit import files
from nmtkit.errors import EnvironmentProblem
from nmtkit.export import folder, stage, to_huggingface
from nmtkit.models import loading
from nmtkit.nn.embeddings import sinusoids
from nmtkit.text.vocabulary import SPECIALS, load_vocabularies
from nmtkit.translate.forced import pair_batch
from tests.export.conftest import EOS, SETTINGS
from tests.export.test_stage import LINES, command, readme_code
from tests.full_disk import full_disk
from tests.manifests import read_json, write_json
from tests.random_systems import add_system, prepare

SRC, TGT = [[5, 9, 7, 30, 2], [8, 2]], [[11, 4, 2], [6, 7, 20, 21, 2]]
APART = {
    "pre-target": {"norm": "pre", "tie": "target"},
    "pre-none": {"norm": "pre", "tie": "none", "softmax_bias": True, "encoder_layers": 0},
    "post-none": {"tie": "none", "attn_bias": False, "d_model": 15, "heads": 3},
}
"""Systems of a run whose sides have vocabularies of different sizes."""


@pytest.fixture(scope="module")
def separate(tmp_path_factory):
    run = prepare(tmp_path_factory.mktemp("separate") / "run", joint_vocab=False)
    with (run.prep / "vocab.src.txt").open("a", encoding="utf-8") as file:
        file.writelines(f"never-{number}\n" for number in range(50))  # larger than the target's
    manifest = read_json(run.prep / "manifest.json")
    manifest["vocabulary"]["src"] += 50
    write_json(run.prep / "manifest.json", manifest)
    for name, model in APART.items():
        add_system(run, name, "transformer", eos=EOS if "softmax_bias" in model else 0, **model)
    return run


@pytest.fixture(params=[*SETTINGS, "blind", "transformer-cycle", *APART])
def system(request, run, separate):
    """A run and the name of a system."""
    return separate if request.param in APART else run, request.param


def test_its_model_computes_the_same_logits(system, tmp_path):
    """In float64, with positions in float64 too: the model fills its table in float32."""
    from transformers import AutoModelForSeq2SeqLM

    run, name = system
    out = stage.export(run, name, "huggingface", out=tmp_path / "out")
    model = loading.load_system(run, run.system(name)).double()
    theirs, loading_info = AutoModelForSeq2SeqLM.from_pretrained(out, output_loading_info=True)
    assert not any(loading_info.values())  # no weight is missing or unknown
    pre = model.settings.norm == "pre"
    assert type(theirs).__name__ == ("PegasusForConditionalGeneration" if pre else "MarianMTModel")
    positions = sinusoids(1024, model.width)[:, to_huggingface.sines_first(model.width)]
    theirs = theirs.double().eval()
    for stack in (theirs.model.encoder, theirs.model.decoder):
        torch.testing.assert_close(stack.embed_positions.weight, positions, rtol=0, atol=1e-6)
        stack.embed_positions.weight.data.copy_(positions)
    batch = pair_batch(SRC, TGT)
    padded = batch.src != 0
    with torch.inference_mode():
        wanted = model.logits(model.decode(batch.tgt_in, model.encode(batch))[0])
        found = theirs(
            input_ids=batch.src, attention_mask=padded.long(), decoder_input_ids=batch.tgt_in
        ).logits
    for row, tgt in enumerate(TGT):
        real = found[row, : len(tgt)]
        of_target = real[:, : wanted.size(-1)]
        torch.testing.assert_close(of_target, wanted[row, : len(tgt)], rtol=0, atol=1e-10)
        beyond = real.softmax(-1)[:, wanted.size(-1) :]  # ids of the source alone
        assert not beyond.any() and (beyond.numel() > 0) == (pre and name in APART)


def test_its_tokenizer_gives_the_same_ids(separate, tmp_path):
    from transformers import AutoTokenizer

    out = stage.export(separate, "pre-target", "huggingface", out=tmp_path / "out")
    for at, vocabulary in zip(
        (out, out / to_huggingface.TARGET), load_vocabularies(separate.prep), strict=True
    ):
        tokenizer = AutoTokenizer.from_pretrained(at)
        known = list(vocabulary)[len(SPECIALS) :]
        subwords = [*known, "unheard-of", *SPECIALS, "a<s>", *SPECIALS[::-1], known[0], known[0]]
        ids = vocabulary.encode(subwords)
        assert tokenizer(" ".join(subwords))["input_ids"] == ids
        back = tokenizer.decode(ids, skip_special_tokens=True)
        assert back.split(" ") == vocabulary.decode(ids)  # <unk> stays
        pair = tokenizer([known[0], ""], padding=True)
        assert pair["input_ids"] == [[4, 2], [2, 0]] and pair["attention_mask"] == [[1, 1], [1, 0]]
        assert set(pair) == {"input_ids", "attention_mask"}


# Those whose logits differ in kind; the logits of all systems are compared above.
@pytest.mark.parametrize("system", ["post", "pre", "pre-target", "post-none"], indirect=True)
def test_it_translates_alike(system, tmp_path, stdout, monkeypatch):
    run, name = system
    out = tmp_path / "out"
    options = f"{name} --to huggingface --out {out} --check --lines 20 --at-least 100"
    result = command(run, options)
    assert result.exit_code == 0, result.stdout + result.stderr
    greedy, beam = (line for line in result.stdout.splitlines() if " of 20 (" in line)
    assert "20 of 20 (100.0%)" in greedy and int(beam.split()[1]) >= 18
    monkeypatch.chdir(out)
    exec(readme_code(out).replace('["…"]', repr(LINES)), {})
    assert stdout().startswith("['")


def test_what_it_says_of_the_search(run, tmp_path):
    out = stage.export(run, "pre", "huggingface", out=tmp_path / "out")
    values = read_json(out / "generation_config.json")
    assert (values["num_beams"], values["length_penalty"]) == (3, 0.6)
    page = (out / folder.README).read_text("utf-8")
    assert "for Hugging Face" in page and "log P / |Y|^α" in page and "{" not in page


def test_on_a_full_disk_the_earlier_export_stays(run, tmp_path):
    stage.export(run, "post", "huggingface", out=tmp_path / "out")
    before = hashes(tmp_path)
    room = (tmp_path / "out/model.safetensors").stat().st_size - 1
    with full_disk(room), pytest.raises(EnvironmentProblem, match="cannot write .*model.safe"):
        stage.export(run, "post", "huggingface", out=tmp_path / "out", force=True)
    assert hashes(tmp_path) == before


def hashes(folder):
    return files.hashes((path for path in folder.rglob("*") if path.name != ".lock"), folder)
