"""Divergence of local and global attention: golden values, a slow loop, batches, the analysis."""

import math

import pytest
import torch

from nmtkit.analyze import divergence
from nmtkit.analyze.divergence import REDUCTIONS, jensen_shannon, mean_divergence
from nmtkit.measures import recording
from nmtkit.translate.forced import pair_batch

from .conftest import SMALL

GOLDEN = {
    "max_renorm": 0.090832,
    "max_raw": 0.152423,
    "peak_head": 0.203928,
    "per_head": 0.144111,
}  # Ampomah et al. 2021, Eqs. 10-13, by hand
DUAL = {**SMALL, "encoder_layers": 2, "decoder_layers": 2}
PAIRS = [([5, 6, 7, 8, 9, 2], [5, 9, 2]), ([7, 2], [8, 8, 8, 8, 2]), ([9, 5, 2], [6, 2])]


def kl(p, q):
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True) if a > 0)


def js(p, q):
    m = [(a + b) / 2 for a, b in zip(p, q, strict=True)]
    return 0.5 * kl(p, m) + 0.5 * kl(q, m)


def slow(local, whole, mode):
    """Return dv of one query (Ampomah et al. 2021, Eqs. 10-13) from the weights of each head."""
    if mode == "per_head":
        return sum(js(a, b) for a, b in zip(local, whole, strict=True)) / len(local)
    if mode == "peak_head":
        return js(max(local, key=max), max(whole, key=max))
    p, q = ([max(column) for column in zip(*heads, strict=True)] for heads in (local, whole))
    return js(p, q) if mode == "max_raw" else js([a / sum(p) for a in p], [b / sum(q) for b in q])


@pytest.mark.parametrize("mode", REDUCTIONS)
def test_divergence_equals_golden_values(mode):
    whole = torch.tensor([[[[0.7, 0.2, 0.1]], [[0.1, 0.1, 0.8]]]], dtype=torch.float64)
    local = torch.tensor([[[[0.3, 0.4, 0.3]], [[0.2, 0.6, 0.2]]]], dtype=torch.float64)
    assert float(divergence.divergence(local, whole, mode)) == pytest.approx(GOLDEN[mode], abs=5e-7)


def test_jensen_shannon_is_zero_for_equal_and_ln_2_for_disjoint_distributions():
    p, q = torch.eye(2, dtype=torch.float64)[:, None]
    assert float(jensen_shannon(p, q)) == pytest.approx(math.log(2))
    assert float(jensen_shannon(p, p)) == 0.0


def dual(analysed, name="dual", variant="full-dc", **settings):
    return analysed.system(name, variant, {**DUAL, **settings})


def oracle(model):
    """Return the mean dv by stack, layer and mode, in loops over sentences and queries."""
    sums, counts = {}, {}
    for src, tgt in PAIRS:
        for stack, seen in recording.look(model, pair_batch([src], [tgt])).items():
            for layer in (1, 2):
                local, whole = (
                    seen[f"{stack}.{layer - 1}.attention.{end}"][0].double().tolist()
                    for end in ("local", "global")
                )
                for t in range(len(local[0])):
                    rows = [[head[t] for head in heads] for heads in (local, whole)]
                    for mode in REDUCTIONS:
                        key = (stack, layer, mode)
                        sums[key] = sums.get(key, 0) + slow(*rows, mode)
                        counts[key] = counts.get(key, 0) + 1
    return {key: sums[key] / counts[key] for key in sums}


@pytest.mark.parametrize("size", [1, 3])
def test_mean_divergence_equals_a_slow_loop_for_any_batch_and_padding(analysed, size):
    model = dual(analysed)
    batches = [
        pair_batch(*map(list, zip(*PAIRS[i : i + size], strict=True)))
        for i in range(0, len(PAIRS), size)
    ]
    means = {
        (stack, layer, mode): value
        for stack, layers in mean_divergence(model, batches).items()
        for layer, values in layers.items()
        for mode, value in zip(REDUCTIONS, values, strict=True)
    }
    assert means == pytest.approx(oracle(model), rel=1e-5, abs=1e-9)
    assert min(means.values()) > 0


def divergences(analysed):
    """Return the finding, the texts of its figure, and the rows by system."""
    finding, rows = analysed.analyze("divergence", set_names=["other"]), {}
    for row in finding["table"]["rows"]:
        rows.setdefault(row["system"], []).append(row)
    texts = analysed.text("divergence").partition("</metadata>")[2]
    return finding, texts, rows


def test_rows_and_figure_show_systems_with_their_kernel_sizes(analysed, stderr):
    dual(analysed, "two", "enc-dc")
    dual(analysed, "three", "enc-dc", kernel_size=3)
    dual(analysed, "top", "enc-dc", layers="2-2")
    analysed.system()
    finding, figure, rows = divergences(analysed)
    assert "base" in stderr()
    assert [c["key"] for c in finding["table"]["columns"]][-4:] == list(GOLDEN)
    assert {name: {row["settings"] for row in of_system} for name, of_system in rows.items()} == {
        "two": {"kernel_size=2"},
        "three": {"kernel_size=3"},
        "top": {"kernel_size=2, layers=2-2"},
    }
    mean, first, second = rows["two"]
    assert [row["layer"] for row in rows["two"]] == ["E_d", "1", "2"]
    assert all(mean[mode] == pytest.approx((first[mode] + second[mode]) / 2) for mode in GOLDEN)
    assert [row["layer"] for row in rows["top"]] == ["E_d", "2"]
    firsts = finding["table"]["rows"][:3]  # the means of all systems
    assert {row["layer"] for row in firsts} == {"E_d"}
    assert list(rows) == [row["system"] for row in firsts]
    assert "dv (max_renorm)" in figure
    assert all(
        f"encoder, E_d {means[0]['max_renorm']:.4f}: {name}" in figure
        for name, means in rows.items()
    )
    (panel,) = analysed.figure("divergence")["panels"]
    for curve, (_, *layers) in zip(panel["curves"], rows.values(), strict=True):
        assert curve["x"] == [int(row["layer"]) for row in layers]
        assert curve["y"] == [row["max_renorm"] for row in layers]


def test_settings_do_not_repeat_which_stacks_have_local_heads(analysed):
    """enc-dc and full-dc differ in model.decoder, which the column "stack" shows."""
    dual(analysed, "one", "enc-dc")
    dual(analysed, "both", "full-dc", kernel_size=3)
    _, _, rows = divergences(analysed)
    settings = {(row["stack"], row["settings"]) for row in rows["both"]}
    assert settings == {("encoder", "kernel_size=3"), ("decoder", "kernel_size=3")}
    assert {(row["stack"], row["settings"]) for row in rows["one"]} == {
        ("encoder", "kernel_size=2")
    }
