"""The key/value cache, and selection of rows of memory and state, against histories kept as lists."""

import pytest
import torch
from torch.nn import functional as F

from nmtkit.nn import cpu
from nmtkit.nn.cache import Cache
from nmtkit.nn.state import Continued, select_rows

LAYERS, H, C = 2, 2, 3


class Histories:
    """The keys and values of the past of every row, in lists."""

    def __init__(self, rows):
        self.rows = [[] for _ in range(rows)]

    def select(self, index):
        self.rows = [list(self.rows[i]) for i in index.tolist()]

    def step(self, k, v):
        for row, key, value in zip(
            self.rows, k.unbind(1), v.unbind(1), strict=True
        ):  # (L, R, T, H, C)
            row += list(zip(key.unbind(1), value.unbind(1), strict=True))

    def attend(self, q, layer, row, t, steps):
        past = self.rows[row][: len(self.rows[row]) - steps + t + 1]
        keys = torch.stack([k[layer] for k, _ in past], 1)  # (H, n, C)
        values = torch.stack([v[layer] for _, v in past], 1)
        weights = torch.softmax((keys @ q[:, :, None])[..., 0] / C**0.5, -1)
        return weights[:, None].matmul(values)[:, 0]


def step(cache, histories, rows, sentences, steps):
    """Append through the cache and through the lists, and compare attention to both."""
    k, v, q = (torch.randn(LAYERS, rows, steps, H, C, dtype=torch.float64) for _ in range(3))
    histories.step(k, v)
    cache.begin(rows, sentences, steps, q)
    for layer in range(LAYERS):
        keys, values = cache.append(k[layer].transpose(1, 2), v[layer].transpose(1, 2))
        groups = keys.size(0)
        queries = q[layer].reshape(groups, -1, H, C).transpose(1, 2)
        mask = None if cache.visible is None else cache.visible.unsqueeze(1)
        if mask is None and steps > 1:
            mask = torch.ones(steps, keys.size(2), dtype=torch.bool).tril(keys.size(2) - steps)
        found = (
            F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
            .transpose(1, 2)
            .reshape(rows, steps, H, C)
        )
        for row in range(rows):
            for t in range(steps):
                expected = histories.attend(q[layer, row, t], layer, row, t, steps)
                torch.testing.assert_close(found[row, t], expected, rtol=1e-10, atol=1e-10)
    length = len(histories.rows[0])
    assert cache.length == length
    assert cache.positions(steps, q.device).tolist() == [*range(length - steps, length)]


@pytest.mark.parametrize("on_gpu", [False, True])
@pytest.mark.parametrize("beam", [1, 3, 4])
def test_cache_equals_histories_in_a_long_beam_search(beam, on_gpu, monkeypatch):
    """Buffers fill, lose entries that no row sees, and grow. On a GPU they lose none."""
    if on_gpu:
        monkeypatch.setattr(cpu, "reads_at_once", lambda x: False)
    torch.manual_seed(beam)
    sentences, cache, histories = 3, Cache(), Histories(3)
    step(cache, histories, 3, 3, 1)
    rows = torch.arange(3).repeat_interleave(beam)
    sizes, stay = set(), None
    for i in range(60):
        cache = cache.select_rows(Continued(rows, stay))
        stay = None
        histories.select(rows)
        step(cache, histories, len(rows), sentences, 1)
        sizes.add(cache._capacity)
        offset = torch.arange(sentences)[:, None] * beam
        pick = (
            torch.randint(0, beam, (sentences, beam))
            if i % 3
            else torch.randint(0, beam, (sentences, 1)).expand(-1, beam)
        )
        rows = (offset + pick).flatten()
        if i == 40:  # a sentence is finished
            rows, sentences = torch.cat([rows[:beam], rows[2 * beam :]]), 2
            stay = torch.tensor([0, 2])
    if on_gpu:
        assert cache._entries == 60 * beam + 1
    else:
        assert cache._entries < 61 * beam or beam == 1, "nothing was ever thrown out"
        assert max(sizes) <= 256


def test_cache_takes_several_positions_at_once():
    torch.manual_seed(2)
    cache, histories = Cache(), Histories(4)
    for steps in (3, 1, 40, 2):
        step(cache, histories, 4, 2, steps)
        index = torch.tensor([1, 0, 3, 3])
        cache = select_rows(cache, Continued(index))
        histories.select(index)


def test_cache_grows_for_many_positions_after_few():
    """Removing unseen entries would not make enough room."""
    cache, histories, both = Cache(), Histories(2), torch.tensor([0, 0])
    for _ in range(20):
        step(cache, histories, rows=2, sentences=1, steps=1)
        cache = select_rows(cache, Continued(both))
        histories.select(both)
    step(cache, histories, rows=2, sentences=1, steps=25)


def test_reordered_hypotheses_leave_keys_in_place():
    cache, histories = Cache(), Histories(6)
    step(cache, histories, 6, 2, 1)
    before = [t.data_ptr() for t in cache._buffers.values()]
    for index in ([1, 0, 2, 5, 5, 3], [2, 2, 2, 3, 4, 5]):
        cache = select_rows(cache, Continued(torch.tensor(index)))
        histories.select(torch.tensor(index))
        step(cache, histories, 6, 2, 1)
    assert [t.data_ptr() for t in cache._buffers.values()] == before


def test_select_rows_keeps_nesting_and_leaves_without_rows():
    rows, index = torch.arange(3), torch.tensor([2, 0, 0, 1])
    tree = {"a": torch.arange(6).view(3, 2), "b": [rows, None], "c": (rows,), "step": 7}
    picked = select_rows(tree, index)
    assert picked["a"].tolist() == [[4, 5], [0, 1], [0, 1], [2, 3]]
    assert torch.equal(picked["b"][0], index) and picked["b"][1] is None
    assert picked["step"] == 7 and isinstance(picked["c"], tuple)
    cache, histories = Cache(), Histories(2)
    step(cache, histories, 2, 2, 1)
    twice = torch.tensor([0, 0, 1, 1])
    doubled = select_rows({"cache": cache}, Continued(twice))["cache"]
    histories.select(twice)
    step(doubled, histories, 4, 2, 1)


def test_positions_are_counted_after_shapes_are_fixed():
    """As in a search on a GPU, where the device counts them."""
    cache, entry = Cache(), torch.ones(2, H, 1, C)
    for step in range(70):  # longer than the first buffers
        if step >= 2:
            cache.fix_shapes()
        cache.begin(2, 1, 1, entry)
        cache.append(entry, entry)
        assert cache.positions(1, entry.device).tolist() == [step]
