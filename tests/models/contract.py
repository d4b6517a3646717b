"""What must be true of every model, whatever is inside it (design: "one contract suite over the
table").

Each check takes a `Case` and uses `encode`, `decode` and `logits` only; test_contract.py runs all
of them over the table of variants and over a recurrent model outside the package. Sizes come from
one preset-like dict through the model's own `adapt`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from nmtkit.data.batches import Batch
from nmtkit.data.context import Context, contexts
from nmtkit.data.documents import ContextRule
from nmtkit.models.base import Memory, Model, Vocabularies
from nmtkit.models.loading import put_weights, weights_of
from nmtkit.models.variants import build_model, load_variant
from nmtkit.nn.dropout import seed_dropout
from nmtkit.nn.state import select_rows
from nmtkit.settings import SearchSettings
from nmtkit.text.vocabulary import BOS, EOS, PAD
from nmtkit.translate.beam import search
from nmtkit.translate.forced import forced_scores

V = 23
SIZES = {
    "d_model": 16,
    "d_ff": 24,
    "heads": 4,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "dropout": 0.0,
    "tie": "none",
}
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
Pair = tuple[list[int], list[int]]


@dataclasses.dataclass(frozen=True)
class Case:
    """A variant with settings."""

    variant: str
    values: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        return "-".join(
            [self.variant.rpartition(":")[2], *(f"{key}={value}" for key, value in self.values)]
        )

    def build(self, seed: int = 1, dtype: torch.dtype = torch.float64, **more: Any) -> Model:
        """A new model in evaluation mode; its parameters are moved off their initial values, so
        that no bias or norm is trivial.
        """
        torch.manual_seed(seed)
        vocabularies = Vocabularies(V, V, shared=True)
        model = build_model(
            self.variant,
            load_variant(self.variant).adapt(SIZES) | dict(self.values) | more,
            vocabularies,
        )
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
        return model.to(dtype).eval()


def pairs(count: int = 5, seed: int = 3, longest: int = 7) -> list[Pair]:
    """Random sentence pairs of different lengths, </s> included; every token of the vocabulary
    occurs somewhere if there are enough.
    """
    generator = torch.Generator().manual_seed(seed)
    lengths = [(1 + (3 * i + 4) % longest, 1 + (5 * i + 2) % longest) for i in range(count)]
    return [
        (*(torch.randint(3, V, (n - 1,), generator=generator).tolist() + [EOS] for n in pair),)
        for pair in lengths
    ]


POOL = pairs(count=60, seed=8, longest=5)


def chosen(src: list[int], rule: ContextRule) -> list[int]:
    """The sentences of `POOL` that are a source's context: none, one or two, by its length;
    which, by its tokens.
    """
    count = min(len(src) // 2 % 3, rule.size)
    return sorted((sum(src) + i) % len(POOL) for i in range(count))


def contexts_of(src: list[int], rule: ContextRule) -> list[Any]:
    """The contexts of a source, as a model reads them: ids; or ids and what the decoder reads of
    their target sides.
    """
    found = _contexts([src], rule, 0)
    if found is None:
        return []
    sources = [
        row[:length] for row, length in zip(found.ids.tolist(), found.lengths.tolist(), strict=True)
    ]
    if found.tgt_in is None or found.tgt_lengths is None:
        return sources
    return [
        (src, row[:n])
        for src, row, n in zip(
            sources, found.tgt_in.tolist(), found.tgt_lengths.tolist(), strict=True
        )
    ]


def _contexts(sources: list[list[int]], rule: ContextRule, more: int) -> Context | None:
    """The contexts of a batch, padded by `more` columns beyond the longest and, where they are
    parallel, by one that no sentence has.
    """
    src, tgt = ((lambda i, side=side: np.array(POOL[i][side])) for side in (0, 1))
    found = contexts([chosen(src, rule) for src in sources], src, rule, targets=tgt)
    if found is None or not more:
        return found
    rows = F.pad(found.rows, (0, 1), value=-1) if rule.join == "parallel" else found.rows
    tgt_in = None if found.tgt_in is None else F.pad(found.tgt_in, (0, more), value=PAD)
    return dataclasses.replace(
        found,
        ids=F.pad(found.ids, (0, more), value=PAD),
        rows=rows,
        padded=True,
        tgt_in=tgt_in,
        tgt_padded=True,
    )


def spans_of(src: list[int]) -> list[int]:
    """Tokens of each phrase of a source, as a parse may have cut it; of some sources, by their
    tokens, there is no parse.
    """
    sizes: list[int] = []
    while sum(src) % 3 and sum(sizes) < len(src):
        sizes.append(min(1 + (sum(src) + len(sizes)) % 3, len(src) - sum(sizes)))
    return sizes


def collate(
    sentences: list[Pair], more: int = 0, rule: ContextRule | None = None, spans: bool = False
) -> Batch:
    """A batch, padded by `more` columns beyond the longest, with the contexts that a model's
    rule wants, and phrases where it reads them.
    """
    src, tgt = [s for s, _ in sentences], [t for _, t in sentences]
    src_lengths, tgt_lengths = (
        torch.tensor([len(s) for s in src]),
        torch.tensor([len(t) for t in tgt]),
    )
    s, t = int(src_lengths.max()) + more, int(tgt_lengths.max()) + more
    return Batch(
        src=torch.tensor([row + [PAD] * (s - len(row)) for row in src]),
        src_lengths=src_lengths,
        rows=torch.arange(len(src)),
        tgt_in=torch.tensor([[BOS] + row[:-1] + [PAD] * (t - len(row)) for row in tgt]),
        tgt_out=torch.tensor([row + [PAD] * (t - len(row)) for row in tgt]),
        tgt_lengths=tgt_lengths,
        src_padded=bool((src_lengths < s).any()),
        tgt_padded=bool((tgt_lengths < t).any()),
        context=None if rule is None else _contexts(src, rule, more),
        spans=(
            pad_sequence(
                [torch.tensor(spans_of(row) + [0] * (1 + more)) for row in src], batch_first=True
            )
            if spans
            else None
        ),
    )


def batch_for(model: Model, sentences: list[Pair] | None = None, more: int = 0) -> Batch:
    """A batch (of `pairs()`) with all that a model reads."""
    return collate(
        pairs() if sentences is None else sentences, more, model.context_rule, model.reads_spans
    )


def full(model: Model, batch: Batch) -> Tensor:
    """Logits of whole targets, (B, T, V)."""
    return model.logits(model.decode(batch.tgt_in, model.encode(batch))[0])


def close(a: Tensor, b: Tensor) -> None:
    """Equal within the tolerance of the number type."""
    torch.testing.assert_close(a, b, rtol=TOLERANCE[a.dtype], atol=TOLERANCE[a.dtype])


def step_by_step(case: Case, dtype: torch.dtype) -> None:
    """1. Decoding with a state, in steps of any size and with several rows a sentence, gives
    what decoding the whole target gives.
    """
    model = case.build(dtype=dtype)
    batch = batch_for(model)
    for rows in (1, 3):
        memory = model.encode(batch)
        tgt_in = torch.cat(
            [batch.tgt_in[:, :1].repeat(rows, 1), torch.randint(3, V, (rows * len(batch.src), 8))],
            dim=1,
        )
        whole = model.logits(model.decode(tgt_in, memory)[0])
        for cuts in (range(10), (0, 3, 4, 9), (0, 1, 9)):
            state: Any = {}
            for start, end in zip(cuts, cuts[1:], strict=False):
                hidden, state = model.decode(tgt_in[:, start:end], memory, state)
                close(model.logits(hidden), whole[:, start:end])


def neighbours(case: Case, dtype: torch.dtype) -> None:
    """2. Neither the other sentences of a batch nor padding changes a sentence's result."""
    model, sentences = case.build(dtype=dtype), pairs()
    together = full(model, batch_for(model, sentences))
    padded = full(model, batch_for(model, sentences, more=3))
    for i, pair in enumerate(sentences):
        alone = full(model, batch_for(model, [pair]))[0]
        close(together[i, : len(pair[1])], alone)
        close(padded[i, : len(pair[1])], alone)
    memory = model.encode(batch_for(model, sentences, more=2))
    for keep in ([4, 0], [2]):  # search drops finished sentences from a memory
        index = torch.tensor(keep)
        tgt_in = collate([sentences[i] for i in keep]).tgt_in
        hidden, _ = model.decode(tgt_in, select_rows(memory, index))
        for row, i in enumerate(keep):
            n = len(sentences[i][1])
            close(model.logits(hidden)[row, :n], together[i, :n])


@contextmanager
def embedded() -> Iterator[list[Tensor]]:
    """Collect every vector that is looked up, whichever module does it."""
    found: list[Tensor] = []
    original = F.embedding

    def spy(*args: Any, **kwargs: Any) -> Tensor:
        found.append(original(*args, **kwargs))
        return found[-1]

    F.embedding = spy
    try:
        yield found
    finally:
        F.embedding = original


def causality(case: Case) -> None:
    """3. The gradient of any output with respect to a later target token is exactly zero."""
    model = case.build()
    batch = batch_for(model)
    memory = model.encode(batch)
    with embedded() as found:
        logits = model.logits(model.decode(batch.tgt_in, memory)[0])
    steps = batch.tgt_in.size(1)
    assert found and all(vectors.shape[:2] == batch.tgt_in.shape for vectors in found)
    for t in range(steps):
        for gradient in torch.autograd.grad(
            (logits[:, t] * torch.randn(V, dtype=logits.dtype)).sum(), found, retain_graph=True
        ):
            assert (gradient[:, t + 1 :] == 0).all(), f"position {t} sees the future"
            assert (gradient[:, : t + 1] != 0).any(-1).all(), (
                f"position {t} does not see all of its past"
            )
    for t in range(1, steps):
        changed = batch.tgt_in.clone()
        changed[:, t:] = (changed[:, t:] + 5) % V
        assert torch.equal(model.logits(model.decode(changed, memory)[0])[:, :t], logits[:, :t])


def greedy(model: Model, batch: Batch, steps: int) -> list[list[int]]:
    """The obvious greedy search: whole prefixes anew at every step, one sentence at a time;
    without </s>.
    """
    found = []
    for row in range(len(batch.src)):
        index = torch.tensor([row])
        memory = select_rows(model.encode(batch), index)
        ids = [BOS]
        while len(ids) <= steps and (len(ids) == 1 or ids[-1] != EOS):
            scores = model.logits(model.decode(torch.tensor([ids]), memory)[0])[0, -1]
            scores[[PAD, BOS]] = -torch.inf
            ids.append(int(scores.argmax()))
        found.append([i for i in ids[1:] if i != EOS])
    return found


def searching(case: Case) -> None:
    """4. A beam's log-probability is the one that forced decoding gives the same output; a beam
    of one is greedy search.
    """
    model = case.build()
    batch = batch_for(model)
    with torch.no_grad():
        best = search(
            [model], batch, SearchSettings(beam=4, nbest=4, max_length_a=0, max_length_b=9)
        )
        for rank in range(4):
            hypotheses = [hypotheses[rank] for hypotheses in best]
            outputs = batch_for(
                model, [(s, h.ids + [EOS]) for (s, _), h in zip(pairs(), hypotheses, strict=True)]
            )
            for hypothesis, scores in zip(hypotheses, forced_scores([model], outputs), strict=True):
                log_prob = sum(scores if hypothesis.finished else scores[:-1])
                assert abs(log_prob - hypothesis.log_prob) < 1e-9
        alone = search([model], batch, SearchSettings(beam=1, max_length_a=0, max_length_b=9))
        assert [hypotheses[0].ids for hypotheses in alone] == greedy(model, batch, 9)


class Forgetful:
    """A model without the state of its decoder: of what was decoded it knows the tokens alone,
    and reads all of them again at every step.
    """

    def __init__(self, model: Model) -> None:
        self.model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def decode(self, tgt_in: Tensor, memory: Memory, state: Any = None) -> tuple[Tensor, Any]:
        """As `Model.decode`."""
        tokens = torch.cat([state["tokens"], tgt_in], dim=1) if state else tgt_in
        return self.model.decode(tokens, memory)[0][:, -tgt_in.size(1) :], {"tokens": tokens}


def searching_without_state(case: Case) -> None:
    """A beam finds with what a state has kept of the steps before what it finds without: the
    same hypotheses, in the same order.
    """
    model = case.build()
    batch, settings = (
        batch_for(model, more=1),
        SearchSettings(beam=4, nbest=4, max_length_a=0, max_length_b=9),
    )
    kept, anew = search([model], batch, settings), search([Forgetful(model)], batch, settings)  # type: ignore[list-item]
    assert len({tuple(h.ids) for hypotheses in kept for h in hypotheses}) > 5
    for one, other in zip(kept, anew, strict=True):
        assert [(h.ids, h.finished) for h in one] == [(h.ids, h.finished) for h in other]
        assert all(abs(a.log_prob - b.log_prob) < 1e-9 for a, b in zip(one, other, strict=True))


def rows_permuted(case: Case) -> None:
    """5. Permuting rows permutes results; a state follows any selection of its rows, inside a
    sentence and across sentences.
    """
    model, sentences = case.build(), pairs()
    order = torch.tensor([3, 0, 4, 2, 1])
    batch = batch_for(model, sentences)
    close(
        full(model, batch_for(model, [sentences[i] for i in order]))[:, : batch.tgt_in.size(1)],
        full(model, batch)[order],
    )
    for seed in range(6):
        _random_selections(model, batch, seed)


def _random_selections(model: Model, batch: Batch, seed: int) -> None:
    """Let a state go through what a search may do to it; keep the history of each row, and
    decode that whole for comparison.
    """
    torch.manual_seed(seed)
    memory, state = model.encode(batch), {}
    sentences, count = torch.arange(len(batch.src)), 1
    history = torch.full((len(sentences), 0), BOS)
    for step in range(14):
        choice = int(torch.randint(0, 6, ())) if step else 5
        rows = torch.arange(len(history)).view(-1, count)  # (B, K)
        if choice == 0 and len(sentences) > 2:  # finished sentences leave
            kept = torch.randperm(len(sentences))[: len(sentences) - 1].sort().values
            index, sentences, memory = (
                rows[kept].flatten(),
                sentences[kept],
                select_rows(memory, kept),
            )
        elif choice == 1:  # sentences change places
            kept = torch.randperm(len(sentences))
            index, sentences, memory = (
                rows[kept].flatten(),
                sentences[kept],
                select_rows(memory, kept),
            )
        elif choice == 2 and count < 4:  # more hypotheses
            index, count = rows.flatten().repeat_interleave(2), count * 2
        elif choice == 3 and count > 1:  # fewer hypotheses
            index, count = rows[:, torch.randperm(count)[: count - 1]].flatten(), count - 1
        else:  # hypotheses are continued, twice or not at all
            index = rows.gather(1, torch.randint(0, count, rows.shape)).flatten()
        state = select_rows(state, index)
        history = torch.cat([history[index], torch.randint(3, V, (len(index), 1))], dim=1)
        hidden, state = model.decode(history[:, -1:], memory, state)
        close(model.logits(hidden[:, -1]), model.logits(model.decode(history, memory)[0][:, -1]))


def loss_of(model: Model, batch: Batch) -> Tensor:
    """Mean cross-entropy of the real target tokens."""
    return F.cross_entropy(
        full(model, batch).flatten(0, 1), batch.tgt_out.flatten(), ignore_index=PAD
    )


def gradients(case: Case) -> None:
    """6. Every parameter gets a gradient: at least half of a vector's numbers (key biases get
    none), and most of a matrix's.
    """
    model = case.build().train()
    batch = batch_for(model, pairs(count=60))
    loss_of(model, batch).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name
        reached = (parameter.grad.abs() > 1e-14).double().mean()
        assert reached >= (0.5 if parameter.dim() == 1 else 0.8), (
            f"{name}: only {reached:.0%} of its numbers have a gradient"
        )


def overfits(case: Case) -> None:
    """7. Eight pairs can be learnt by heart, and greedy search says them."""
    torch.manual_seed(4)
    bigger = load_variant(case.variant).adapt({"d_model": 32, "d_ff": 64})
    model = case.build(dtype=torch.float32, **bigger)
    batch = batch_for(model, pairs(count=8, seed=9))
    for parameter in model.parameters():  # from a fresh start, not the shaken one
        parameter.data.mul_(0.7)
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3, betas=(0.9, 0.98))
    model.train()
    for _ in range(200):
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()
        optimizer.step()
        if loss < 0.05:
            break
    model.eval()
    with torch.no_grad():
        found = search([model], batch, SearchSettings(beam=1))
    assert [hypotheses[0].ids for hypotheses in found] == [
        tgt[:-1] for _, tgt in pairs(count=8, seed=9)
    ], f"loss {loss:.3f}"


def saved(case: Case, folder: Any) -> None:
    """8. Weights written and read by another model of the same settings give the same bits, and
    tied parameters stay one.
    """
    model, other = case.build(seed=1), case.build(seed=2)
    batch = batch_for(model)
    assert not torch.equal(full(model, batch), full(other, batch))
    save_file(
        {name: tensor.contiguous() for name, tensor in weights_of(model).items()},
        folder / "model.safetensors",
    )
    put_weights(other, load_file(folder / "model.safetensors"))
    assert torch.equal(full(model, batch), full(other, batch))
    assert ties(model) == ties(other)


def ties(model: Model) -> list[list[str]]:
    """Groups of names under which one parameter is known."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return sorted(names.values())


def blind_rows(case: Case) -> None:
    """10. A row without a single real source token stays finite, forwards and backwards, in
    bfloat16 too.
    """
    for dtype in (torch.float32, torch.bfloat16):
        model = case.build(dtype=dtype).train()
        batch = batch_for(model)
        lengths = batch.src_lengths.clone()
        lengths[2] = 0
        logits = full(model, dataclasses.replace(batch, src_lengths=lengths, src_padded=True))
        assert logits.isfinite().all()
        F.cross_entropy(
            logits.float().flatten(0, 1), batch.tgt_out.flatten(), ignore_index=PAD
        ).backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None and parameter.grad.isfinite().all(), name


def dropout_repeats(case: Case) -> None:
    """Dropout depends on (seed, step, micro-batch) and on nothing else, or a resumed training
    would not be the same one.
    """
    model = case.build(dropout=0.3).train()
    batch = batch_for(model)

    def outcome(seed: int, step: int, micro: int, other: int) -> Tensor:
        torch.manual_seed(other)
        seed_dropout(seed, step, micro)
        return full(model, batch)

    first = outcome(1, 2, 3, 4)
    assert torch.equal(first, outcome(1, 2, 3, 5))
    for different in ((2, 2, 3), (1, 3, 3), (1, 2, 4)):
        assert not torch.equal(first, outcome(*different, 4))
    assert torch.equal(full(model.eval(), batch), full(model, batch))


def parts_of_contexts(case: Case) -> None:
    """Contexts that come a few at a time, those of like length together, are read as all of them
    at once, forwards and backwards.
    """
    model = case.build().train()
    batch = batch_for(model, pairs(count=12))
    if model.context_rule is None:
        assert batch.context is None
        return
    assert (
        batch.context is not None
        and len(batch.context.parts) > 1
        and any(part.padded for part in batch.context.parts)
    )
    assert sum(part.ids.numel() for part in batch.context.parts) < batch.context.ids.numel()
    found = []
    for context in (batch.context, dataclasses.replace(batch.context, parts=())):
        model.zero_grad()
        loss = loss_of(model, dataclasses.replace(batch, context=context))
        loss.backward()
        found.append(
            (
                loss.detach(),
                torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]),
            )
        )
    for one, other in zip(*found, strict=True):
        close(one, other)


def memory_is_per_sentence(case: Case) -> None:
    """Rows share the memory of their sentence: K rows a sentence give what K copies of the
    memory give.
    """
    model = case.build()
    batch = batch_for(model)
    memory: Memory = model.encode(batch)
    tgt_in = torch.randint(3, V, (3 * len(batch.src), 5))
    close(
        model.decode(tgt_in, memory)[0],
        model.decode(
            tgt_in, select_rows(memory, torch.arange(len(batch.src)).repeat_interleave(3))
        )[0],
    )
