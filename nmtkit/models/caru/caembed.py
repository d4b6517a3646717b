"""CAEmbed: a CARU between attention and decoder. It reads earlier vectors, then the context.

Legend: T steps, R rows, W width of u and of the vectors v, p history.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from nmtkit.models.caru.unit import CARUCell, FirstStep
from nmtkit.nn.capture import capturing
from nmtkit.nn.linear import Linear
from nmtkit.nn.loops import LoopProduct, Product, loop_product
from nmtkit.nn.recurrent import cell_inputs

Before = Callable[[int, Tensor], tuple[Tensor, Product]]
"""Step t and s_{t-1} (R, W) -> u (R, W) before the context, and the cell's product with u."""
Run = Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor | None]]
"""Step t, s_{t-1} (R, W), c_t -> u (R, W), and in a capture how open the gate to the context is
(R), otherwise None."""


class CAEmbed(nn.Module):
    """u = None; for v in [v_{t-p}, …, v_{t-1}, c_t]: u = CARU(v, u).

    Vectors before the first step are left out. The context comes last, so that it counts most.

    Args:
        context: width of c_t.
        width: W; a context of another width is projected to W.
        history: p.
        first_step: see `CARUCell`.
    Source: Im & Chan 2024, Algorithm 1. It is printed as an image, so this follows the text.
    """

    def __init__(self, context: int, width: int, history: int, first_step: FirstStep) -> None:
        super().__init__()
        self.history = history
        self.project = Linear(context, width) if context != width else None
        self.cell = CARUCell(width, width, first_step)

    def loop(
        self,
        recent: list[Tensor],
        times: int,
        dtype: torch.dtype,
        words: Tensor | None = None,
        added: Tensor | None = None,
    ) -> Run:
        """Return a function that computes u at each step of a loop.

        Args:
            recent: input-side products (R, 2W) of up to p-1 vectors before these steps, the oldest
                first; updated in place.
            times: maximum number of steps.
            dtype: number type of the products.
            words: input-side products (T, R, 2W) of the words, if the vectors v are words; None if
                the vectors v are decoder states.
            added: input-side products (T, R, 2W), with biases, to add to those of the contexts.
        """
        if words is None:
            before = self._over_states(recent, times, dtype)
        else:
            before = self._over_words(words, recent)
        contexts = cell_inputs(self.cell, times, dtype)
        if added is not None:
            contexts = LoopProduct(self.cell.input.weight.to(dtype).mT, times)
        project = None if self.project is None else loop_product([self.project], times, dtype)

        def run(t: int, s: Tensor, c: Tensor) -> tuple[Tensor, Tensor | None]:
            x = contexts(c if project is None else project(c))
            u, state = before(t, s)
            x = (x if added is None else added[t] + x).to(u.dtype)
            if not capturing():
                return self.cell.step(x, u, state), None
            n, gate = self.cell.parts(x, u, state)
            return torch.lerp(u, n, gate), gate.mean(-1)

        return run

    def _over_states(self, recent: list[Tensor], times: int, dtype: torch.dtype) -> Before:
        cell, product = self.cell, cell_inputs(self.cell, times, dtype)
        if self.history == 1 and cell.input.packed is None:  # `first` reads half of a product
            weight, bias = (p[: cell.d_hidden].to(dtype) for p in cell.input.parameters())
            product = LoopProduct(weight.mT, times, bias)
        state = loop_product([cell.state], times * self.history, dtype)

        def before(_: int, s: Tensor) -> tuple[Tensor, Product]:
            first, *further = vectors = [*recent, product(s).to(s.dtype)]
            recent[:] = vectors[max(0, len(vectors) + 1 - self.history) :]
            u = cell.first(first, cell.step)
            for vector in further:
                u = cell.step(vector, u, state)
            return u, state

        return before

    def _over_words(self, words: Tensor, recent: list[Tensor]) -> Before:
        """Compute u before the context, for all steps at once."""
        cell, earlier = self.cell, len(recent)
        vectors = torch.stack([*recent, *words]).to(cell.input.weight.dtype)  # (earlier + T, R, 2W)
        recent[:] = vectors[max(0, len(vectors) + 1 - self.history) :]
        # Step t reads the vectors t-p+1 … t, oldest first; none before the target's first word.
        index = torch.arange(earlier, len(vectors), device=words.device)
        u = cell.first(vectors[(index - self.history + 1).clamp_min(0)], cell.step)  # (T, R, W)
        for back in reversed(range(self.history - 1)):
            x = vectors[(index - back).clamp_min(0)]  # y_{t-back}; u starts at the first word
            starts = (index == back).view(-1, 1, 1)
            u = torch.where(starts, cell.first(x, cell.step), cell.step(x, u, cell.state))
        of_u = cell.state(u)  # (T, R, 2W)
        return lambda t, _: (u[t], lambda _: of_u[t])
