"""Properties of every model, checked through `encode`, `decode` and `logits` only: for all
variants, some of their settings, and two models outside the package.
"""

import dataclasses
import importlib
import itertools
import math

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional as F

from nmtkit.data.batches import without_targets
from nmtkit.models.loading import put_weights, weights_of
from nmtkit.models.lookups import WordsWithoutVector, word_tables
from nmtkit.models.variants import VARIANTS, count_parameters, load_variant
from nmtkit.nn import cpu, linear
from nmtkit.nn.dropout import seed_everything
from nmtkit.nn.state import Continued, mapped, select_rows
from nmtkit.settings import SearchSettings, TrainSettings
from nmtkit.text.vocabulary import BOS, EOS, PAD
from nmtkit.train.gradients import packed_multiple
from nmtkit.translate.beam import search
from nmtkit.translate.demands import Demand
from nmtkit.translate.forced import forced_scores
from nmtkit.translate.methods import decode
from tests.device import ON_GPU
from tests.models.cases import LOCAL, TOY
from tests.models.contract import (
    Case,
    V,
    batch_for,
    close,
    collate,
    contexts_of,
    full,
    loss_from,
    loss_of,
    numbers,
    packed_for,
    pairs,
)
from tests.models.differences import similarity_in_bfloat16


def test_01_step_by_step_equals_full_decoding(case):
    """Steps have any size, and a sentence several rows. The whole target has gradients, as in
    training; steps have none, as in search.
    """
    check_steps_equal_whole(case.build())


def test_01_step_by_step_equals_full_decoding_in_float32(thinned_case):
    check_steps_equal_whole(thinned_case.build(dtype=torch.float32))


@pytest.mark.parametrize("variant", ["transformer", "dec-dc"])
def test_01_layer_used_twice_keeps_two_pasts(variant):
    model = Case(variant).build()
    model.decoder[1] = model.decoder[0]
    check_steps_equal_whole(model)


def check_steps_equal_whole(model):
    batch = batch_for(model)
    for rows in (1, 3):
        tokens = torch.randint(3, V, (rows * len(batch.src), 8))
        tgt_in = torch.cat([batch.tgt_in[:, :1].repeat(rows, 1), tokens], dim=1)
        whole = model.logits(model.decode(tgt_in, model.encode(batch))[0]).detach()
        with torch.no_grad():
            memory = model.encode(batch)
            for cuts in (range(10), (0, 3, 4, 9), (0, 1, 9)):
                state = {}
                for start, end in zip(cuts, cuts[1:], strict=False):
                    hidden, state = model.decode(tgt_in[:, start:end], memory, state)
                    claim = (
                        f"a step with positions {start} to {end - 1}, and {rows} rows a sentence,"
                        " gives the logits of the whole target"
                    )
                    close(model.logits(hidden), whole[:, start:end], claim)


def test_02_sentence_does_not_depend_on_neighbours_or_padding(case):
    check_sentences_are_independent(case.build())


def test_02_sentence_does_not_depend_on_neighbours_or_padding_in_float32(thinned_case):
    check_sentences_are_independent(thinned_case.build(dtype=torch.float32))


def check_sentences_are_independent(model):
    sentences = pairs()
    together = full(model, batch_for(model, sentences))
    padded = full(model, batch_for(model, sentences, more=3))
    for i, pair in enumerate(sentences):
        alone = full(model, batch_for(model, [pair]))[0]
        close(together[i, : len(pair[1])], alone, "a sentence does not depend on its neighbours")
        close(padded[i, : len(pair[1])], alone, "a sentence does not depend on more padding")
    memory = model.encode(batch_for(model, sentences, more=2))
    for rows in ([4, 0], [2]):  # search drops finished sentences from a memory
        tgt_in = collate([sentences[i] for i in rows]).tgt_in
        logits = model.logits(model.decode(tgt_in, select_rows(memory, torch.tensor(rows)))[0])
        for row, i in zip(logits, rows, strict=True):
            n = len(sentences[i][1])
            close(row[:n], together[i, :n], "a memory of fewer sentences gives the same logits")


@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "training"])
def test_03_no_position_sees_the_future(case, vectors, training):
    """The gradient of any output with respect to a later target token is exactly zero. In training
    a model may compute in another way: a mean over all positions, as in batch normalisation, leaks
    later words into the loss.

    A model outside the package may see a part of the past only, as a convolution does, and look up
    no words with `F.embedding`.
    """
    check_no_future(case.build().train(training), vectors, whole_past=not outside(case))


def check_no_future(model, vectors, whole_past):
    batch = batch_for(model)
    memory = model.encode(batch)

    def decoded(tgt_in):
        seed_everything(1, 1, 0)
        return model.logits(model.decode(tgt_in, memory)[0])

    vectors.clear()
    logits = decoded(batch.tgt_in)
    word_vectors = [found for found in vectors if found.shape[:2] == batch.tgt_in.shape]
    assert word_vectors or not whole_past
    for t in range(batch.tgt_in.size(1)):
        changed = batch.tgt_in.clone()
        changed[:, t + 1 :] = (changed[:, t + 1 :] + 5) % V
        same = torch.equal(decoded(changed)[:, : t + 1], logits[:, : t + 1])
        assert same, f"other words after position {t} change a result up to position {t}"
        if not word_vectors:
            continue
        output = (logits[:, t] * torch.randn(V, dtype=logits.dtype)).sum()
        first = 0 if whole_past else t
        for gradient in torch.autograd.grad(output, word_vectors, retain_graph=True):
            assert (gradient[:, t + 1 :] == 0).all(), f"position {t} sees the future"
            past = (gradient[:, first : t + 1] != 0).any(-1)
            assert past.all(), f"position {t} does not see all words from {first} to {t}"


def test_03_encoder_does_not_see_the_target(case):
    """A translation has no target to read."""
    check_encoder_is_blind(case.build())


def check_encoder_is_blind(model):
    batch = batch_for(model)
    memories = model.encode(batch), model.encode(without_targets(batch))
    found, expected = (model.decode(batch.tgt_in, memory)[0] for memory in memories)
    assert torch.equal(found, expected), "`encode` reads the target"


def greedy_search(model, batch, steps):
    """Return greedy outputs without </s>, from whole prefixes at every step, one sentence at a
    time.
    """
    outputs, encoded = [], model.encode(batch)
    for row in range(len(batch.src)):
        memory = select_rows(encoded, torch.tensor([row]))
        ids = [BOS]
        while len(ids) <= steps and (len(ids) == 1 or ids[-1] != EOS):
            scores = model.logits(model.decode(torch.tensor([ids]), memory)[0])[0, -1]
            scores[[PAD, BOS]] = -torch.inf
            ids.append(int(scores.argmax()))
        outputs.append([i for i in ids[1:] if i != EOS])
    return outputs


def check_forced_scores(model, found):
    """Check the log-probabilities of the hypotheses of each sentence of `pairs()`."""
    for rank in range(max(map(len, found))):
        hypotheses = [of_sentence[: rank + 1][-1] for of_sentence in found]
        outputs = [(s, h.ids + [EOS]) for (s, _), h in zip(pairs(), hypotheses, strict=True)]
        forced = forced_scores([model], batch_for(model, outputs))
        for hypothesis, scores in zip(hypotheses, forced, strict=True):
            log_prob = sum(scores if hypothesis.finished else scores[:-1])
            assert abs(log_prob - hypothesis.log_prob) < 1e-9


def test_04_beam_scores_equal_forced_scores_and_beam_1_is_greedy(case):
    model = case.build()
    batch, limits = batch_for(model), {"max_length_a": 0, "max_length_b": 9}
    with torch.no_grad():
        best = search([model], batch, SearchSettings(beam=4, nbest=4, **limits))
        check_forced_scores(model, best)
        alone = search([model], batch, SearchSettings(beam=1, **limits))
        assert [hypotheses[0].ids for hypotheses in alone] == greedy_search(model, batch, 9)


def test_05_state_follows_selected_rows(case):
    """A state follows any selection of rows, inside a sentence and across sentences, as in search:
    it equals the decoded history of each row.
    """
    check_state_follows_rows(case.build(), seed=0)


def test_05_state_follows_rows_selected_in_another_order(thinned_case):
    check_state_follows_rows(thinned_case.build(), seed=1)


def select_as_search(rows):
    """Return a random selection of the rows (B, K) of a state, and the sentences that it keeps."""
    sentences, count = rows.shape
    every, choice = torch.arange(sentences), int(torch.randint(0, 6, ()))
    if choice == 0 and sentences > 2:  # a sentence is finished
        kept = torch.randperm(sentences)[1:].sort().values
        return rows[kept], kept
    if choice < 2:  # sentences change places
        order = torch.randperm(sentences)
        return rows[order], order
    if choice == 2 and count < 4:  # more hypotheses
        return rows.repeat_interleave(2, dim=1), every
    if choice == 3 and count > 1:  # fewer hypotheses
        return rows[:, torch.randperm(count)[1:]], every
    return rows.gather(1, torch.randint(0, count, rows.shape)), every  # some are continued twice


def check_selectable(tree, rows, name):
    """Check that search can select the rows of every leaf of a memory or state."""

    def check(leaf):
        if isinstance(leaf, torch.Tensor):
            shape = tuple(leaf.shape)
            assert shape[:1] == (rows,), (
                f"the {name} has {rows} rows, one of its tensors is {shape}"
            )
        elif not hasattr(leaf, "select_rows"):
            plain = isinstance(leaf, int | float | str | None)
            assert plain, f"search selects no rows of the {type(leaf).__name__} in the {name}"

    mapped(tree, check)


@torch.no_grad()
def check_state_follows_rows(model, seed):
    batch = batch_for(model)
    torch.manual_seed(seed)
    memory, state = model.encode(batch), {}
    rows = torch.arange(len(batch.src))[:, None]
    history = torch.full((len(rows), 0), BOS)
    for _ in range(14):
        selected, sentences = select_as_search(rows)
        index = selected.flatten()
        check_selectable(memory, len(rows), "memory")
        check_selectable(state, len(history), "state")
        memory = select_rows(memory, sentences)
        state = select_rows(state, Continued(index, sentences))
        history = torch.cat([history[index], torch.randint(3, V, (len(index), 1))], dim=1)
        hidden, state = model.decode(history[:, -1:], memory, state)
        whole = model.logits(model.decode(history, memory)[0][:, -1])
        claim = "after a selection of rows, a step gives the logits of each row's own target"
        close(model.logits(hidden[:, -1]), whole, claim)
        rows = torch.arange(len(index)).view(selected.shape)


def test_06_every_parameter_gets_a_gradient(case):
    """At least half of a vector (key biases get none), and most of a matrix. A model outside the
    package may have a table of positions that no short sentence reaches.
    """
    model = case.build().train()
    loss_of(model, batch_for(model, pairs(count=60))).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name
        reached = (parameter.grad.abs() > 1e-14).double().mean()
        least = 1e-9 if outside(case) else 0.5 if parameter.dim() == 1 else 0.8
        assert reached >= least, f"{name}: only {reached:.0%} of its numbers have a gradient"


def test_07_model_learns_eight_pairs_by_heart(plain_case):
    torch.manual_seed(4)
    bigger = load_variant(plain_case.variant).adapt({"d_model": 32, "d_ff": 64})
    model, sentences = plain_case.build(dtype=torch.float32, **bigger), pairs(count=8, seed=9)
    batch = batch_for(model, sentences)
    for parameter in model.parameters():
        parameter.data.mul_(0.7)  # nearer to initial weights
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3, betas=(0.9, 0.98))
    model.train()
    for _ in range(200):
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()
        optimizer.step()
        if loss < 0.2:
            break
    with torch.no_grad():
        best = search([model.eval()], batch, SearchSettings(beam=1))
    assert [hypotheses[0].ids for hypotheses in best] == [tgt[:-1] for _, tgt in sentences]


def ties(model):
    """Return groups of names under which one parameter is known."""
    names = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return sorted(names.values())


def test_08_saved_weights_give_the_same_bits_and_keep_ties(case, tmp_path):
    model, other = case.build(seed=1), case.build(seed=2)
    batch = batch_for(model)
    assert not torch.equal(full(model, batch), full(other, batch))
    weights = {name: tensor.contiguous() for name, tensor in weights_of(model).items()}
    save_file(weights, tmp_path / "model.safetensors")
    put_weights(other, load_file(tmp_path / "model.safetensors"))
    assert torch.equal(full(model, batch), full(other, batch))
    assert ties(model) == ties(other)


def outside(case):
    return case.variant not in {*VARIANTS, TOY, LOCAL}


def oracle(case):
    """Return the test file of the case's variant: it has the formula (`count`), the slow
    implementation and the check without its idea.
    """
    if outside(case):
        pytest.skip("a model outside the package states its size and equations in its own tests")
    target = VARIANTS[case.variant].target if case.variant in VARIANTS else case.variant
    module = target.partition(":")[0].rpartition(".")[2]
    return importlib.import_module(f"tests.models.test_{module}")


def test_09_parameter_count_equals_the_formula(case):
    model = case.build()
    assert count_parameters(model) == oracle(case).count(model.settings, V)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_10_row_without_source_tokens_stays_finite(case, dtype):
    if outside(case):
        pytest.skip("no batch of training has such a row, and torch's packed sequences refuse it")
    model = case.build(dtype=dtype).train()
    batch = batch_for(model)
    lengths = batch.src_lengths.clone()
    lengths[2] = 0
    logits = full(model, dataclasses.replace(batch, src_lengths=lengths, src_padded=True))
    assert logits.isfinite().all()
    logits = logits.float().flatten(0, 1)
    F.cross_entropy(logits, batch.tgt_out.flatten(), ignore_index=PAD).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name


def test_11_variant_without_its_idea_equals_its_baseline(case):
    """The variant's test file names its baseline and checks this, unless it is a baseline itself."""
    facts = oracle(case)
    assert facts.BASELINE in {None, *VARIANTS}
    if facts.BASELINE is None:
        assert not hasattr(facts, "without_idea")
    else:
        facts.without_idea(case)


def test_12_equations_equal_the_slow_implementation(case):
    model, facts = case.build(), oracle(case)
    weights, rule = numbers(model), model.context_rule
    for src, tgt in [*pairs(count=3), ([EOS], [5, 6, EOS])]:
        contexts = () if rule is None else (contexts_of(src, rule),)
        slow = facts.slow_logits(weights, model.settings, src, [BOS, *tgt[:-1]], *contexts)
        for training in (True, False):  # the paths may differ
            with torch.set_grad_enabled(training):
                fast = full(model, batch_for(model, [(src, tgt)]))[0]
            close(fast.detach(), torch.tensor(slow, dtype=torch.float64))


def test_13_dropout_repeats_with_its_seed(case):
    """Dropout depends on (seed, step, micro-batch) and on nothing else, so that a training resumes
    exactly.
    """
    model = case.build(dropout=0.3).train()
    batch = batch_for(model)

    def outcome(*seed):
        seed_everything(*seed)
        return full(model, batch)

    first = outcome(1, 2, 3)
    torch.manual_seed(5)
    assert torch.equal(first, outcome(1, 2, 3))
    for seed in ((2, 2, 3), (1, 3, 3), (1, 2, 4)):
        assert not torch.equal(first, outcome(*seed))
    assert torch.equal(full(model.eval(), batch), full(model, batch))


def gradients_of(model, batch, reduction="mean"):
    """Return the loss and the gradients of all parameters, in one vector."""
    return gradients_from(model, loss_of(model, batch, reduction))


def gradients_from(model, loss):
    gradients = torch.autograd.grad(loss, list(model.parameters()), materialize_grads=True)
    return torch.cat([loss.detach().view(1), *(gradient.flatten() for gradient in gradients)])


def test_14_contexts_in_parts_give_the_same_result(case, monkeypatch):
    """Contexts that are read a few at a time, those of similar length together, forwards and
    backwards.
    """
    for of_device in ("SAVED", "SAVED_ELSEWHERE"):
        monkeypatch.setattr(f"nmtkit.data.context.{of_device}", 4)
    model = case.build().train()
    batch = batch_for(model, pairs(count=12))
    if model.context_rule is None:
        assert batch.context is None
        return
    parts = batch.context.parts
    assert len(parts) > 1 and any(part.padded for part in parts)
    assert sum(part.ids.numel() for part in parts) < batch.context.ids.numel()
    whole = dataclasses.replace(batch, context=dataclasses.replace(batch.context, parts=()))
    close(gradients_of(model, batch), gradients_of(model, whole))


def test_15_bfloat16_autocast_stays_near_float32(case):
    """With any of three seeds: among so few words, one hidden unit near 0 that rounding turns on or
    off is visible.
    """
    dropout = 0.0 if ON_GPU else 0.1  # a GPU's masks depend on the number type
    models = (case.build(seed, torch.float32, dropout=dropout).train() for seed in (1, 2, 3))
    assert any(similarity_in_bfloat16(model, batch_for(model)) > 0.999 for model in models)


@pytest.mark.parametrize("more", [0, 3])
def test_16_batch_gradients_are_the_sum_over_sentences(plain_case, more):
    check_gradients_are_sums(plain_case.build().train(), more)


def check_gradients_are_sums(model, more=0):
    for _, dropout in dropouts(model):
        dropout.p = 0.0
    together = gradients_of(model, batch_for(model, more=more), "sum")
    alone = [gradients_of(model, batch_for(model, [pair]), "sum") for pair in pairs()]
    claim = (
        "in training without dropout, a sentence does not depend on its neighbours or on padding"
    )
    torch.testing.assert_close(
        together, sum(alone), rtol=1e-10, atol=1e-12, msg=lambda numbers: f"{claim}\n{numbers}"
    )


def dropouts(model):
    """Return name and module of each dropout of a model."""
    return [(name, m) for name, m in model.named_modules() if isinstance(vars(m).get("p"), float)]


def test_17_every_dropout_changes_the_result(plain_case):
    """With only this dropout on, two seeds give two results."""
    model = plain_case.build(dropout=0.0).train()
    batch = batch_for(model)
    for name, module in dropouts(model):
        if name == "memory.read_residual":
            continue  # it has no query to add, so the memory drops before its norm instead
        module.p, results = 0.5, []
        for seed in (1, 2):
            seed_everything(seed, 1, 0)
            results.append(full(model, batch))
        module.p = 0.0
        assert not torch.equal(*results), name


def test_18_word_left_out_is_a_vector_of_zeros(case):
    """Word dropout makes the id i of a word of the source or of the decoder input ~i. The slow form
    sets the rows of these words in the tables to zero.
    """
    model = case.build()
    tables = word_tables(model)
    if outside(case) and any(table is None for table in tables):
        pytest.skip("training refuses word dropout for this model")
    batch = batch_for(model, [([4, 7, 9, EOS], [5, 8, EOS]), ([6, EOS], [8, 5, 10, 11, EOS])])
    elsewhere = {*batch.src[1].tolist(), *batch.tgt_in[:, 2:].flatten().tolist(), 5}
    if batch.context is not None:
        elsewhere |= {*batch.context.ids.flatten().tolist()}
    left_out = [(batch.src, 0, 1), (batch.tgt_in, 1, 1)]
    words = sorted(set(range(4, V)) - elsewhere)[:2]  # that occur once each
    for word, (ids, row, column), table in zip(words, left_out, tables, strict=True):
        ids[row, column] = word
        with torch.no_grad():
            table[word] = 0
    slow, _ = model.decode(batch.tgt_in, model.encode(batch))
    for ids, row, column in left_out:
        ids[row, column] = ~ids[row, column]
    with WordsWithoutVector():
        fast, _ = model.decode(batch.tgt_in, model.encode(batch))
    close(fast, slow)


@pytest.mark.parametrize(
    ("values", "prefix", "phrases"),
    [
        ({"sample": True, "nbest": 3}, (), ()),
        ({"sample": True, "top_k": 5, "nbest": 2}, (5, 6), ()),
        ({"beam": 4, "nbest": 4, "diverse_groups": 2}, (), ()),
        ({"beam": 4, "nbest": 4}, (5,), ((7, 8), (9,))),
    ],
    ids=["samples", "samples with a prefix", "diverse", "phrases behind a prefix"],
)
def test_19_samples_diverse_beams_and_constraints_have_forced_scores(
    thinned_case, values, prefix, phrases
):
    model = thinned_case.build()
    settings = SearchSettings(max_length_a=0, max_length_b=9, **values)
    demands = [Demand((i, 0), prefix, phrases) for i, _ in enumerate(pairs())]
    with torch.no_grad():
        found = decode([model], batch_for(model), settings, demands)
        check_forced_scores(model, found)
    for hypothesis in itertools.chain.from_iterable(found):
        ids = tuple(hypothesis.ids)
        assert ids[: len(prefix)] == prefix
        for phrase in phrases if hypothesis.finished else ():
            assert any(ids[i : i + len(phrase)] == phrase for i in range(len(ids)))


@pytest.mark.skipif(ON_GPU, reason="int8 is for CPUs")
def test_20_int8_search_stays_near_float32(plain_case, monkeypatch):
    """Every linear layer is rounded, the output layer too, and no hypothesis is lost."""
    monkeypatch.setattr(linear, "WIDE", 1)
    scores = []
    for precision in ("float32", "int8"):
        model = plain_case.build(dtype=torch.float32)
        linear.pack(model, precision)
        layers = [m for m in model.modules() if isinstance(m, linear.Packable)]
        assert precision == "float32" or all(isinstance(m.packed, cpu.Int8) for m in layers)
        batch = batch_for(model)
        with linear.inference([model]):
            scores.append(full(model, batch))
        settings = SearchSettings(beam=4, nbest=4, max_length_a=0, max_length_b=9)
        for hypotheses in search([model], batch, settings):
            assert len(hypotheses) == 4
            assert all(math.isfinite(h.log_prob) for h in hypotheses)
    assert torch.equal(*scores) == (not layers)
    assert F.cosine_similarity(*(s.flatten() for s in scores), dim=0) > 0.99


def test_21_packed_batch_equals_padded_batch(case):
    model = case.build()
    if model.reads_packed:
        check_packed_equals_padded(model)
    else:
        assert packed_multiple(model, TrainSettings(), "cuda") == 0


def check_packed_equals_padded(model):
    """Compare hidden states and gradients, with and without positions that fill the rows."""
    for sentences in (pairs(), pairs(4, longest=1), pairs(3, seed=5, longest=12)):
        padded = batch_for(model, sentences)
        steps = torch.arange(padded.tgt_out.size(1))
        real = steps < padded.tgt_lengths[:, None]
        expected, gradients = logits_and_gradients(model, padded)
        expected = expected[real]
        for multiple in (1, 64):
            packed = packed_for(model, sentences, multiple)
            assert packed.src.numel() % multiple == packed.tgt_in.numel() % multiple == 0
            (logits,), found = logits_and_gradients(model, packed)
            claim = "a packed sentence does not depend on the others in its row"
            close(logits[: len(expected)], expected, claim)
            assert logits.isfinite().all()
            close(found, gradients, claim)


@pytest.fixture
def bending_dropout(monkeypatch):
    """Dropout with probability p makes x(1 + px) of each number: a slow implementation can do the
    same, and the result depends on the place.
    """
    monkeypatch.setattr(cpu, "dropout", lambda x, p: x * (1 + p * x))


DROPOUTS = {"dropout": 0.4, "attention_dropout": 0.5, "activation_dropout": 0.3}


@pytest.mark.skipif(ON_GPU, reason="kernels draw their own numbers")
def test_22_dropout_acts_where_the_equations_have_it(case, bending_dropout):
    """In training at the slow implementation's places, in evaluation nowhere."""
    known, facts = load_variant(case.variant).Settings.model_fields, oracle(case)
    values = {name: p for name, p in DROPOUTS.items() if name in known}
    model, plain = case.build(**values), case.build()
    src, tgt = pairs()[2]
    contexts = () if model.context_rule is None else (contexts_of(src, model.context_rule),)
    batch = batch_for(model, [(src, tgt)])
    assert torch.equal(full(model, batch), full(plain, batch))
    arguments = numbers(model), model.settings, src, [BOS, *tgt[:-1]], *contexts
    slow = torch.tensor(facts.slow_logits(*arguments), dtype=torch.float64)
    close(full(model.train(), batch)[0].detach(), slow)


def logits_and_gradients(model, batch):
    """Return logits, and the summed loss with its gradients as in `gradients_of`, from one pass."""
    logits = full(model, batch)
    return logits.detach(), gradients_from(model, loss_from(logits, batch, "sum"))
