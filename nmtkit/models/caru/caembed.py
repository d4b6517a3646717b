"""CAEmbed: a run of CARU between attention and decoder, over what came before and then the context."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from nmtkit.models.caru.cell import CARUCell, FirstStep
from nmtkit.nn.capture import capturing
from nmtkit.nn.cells import inputs_loop
from nmtkit.nn.linear import Linear
from nmtkit.nn.repeated import Product, Repeated, repeated


class CAEmbed(nn.Module):
    """u = None; for v in [v_{t-p}, …, v_{t-1}, c_t], those that exist: u = CARU(v, u), so that the context counts most.

    Args:
        context: width of c_t.
        width: W, of the vectors v and of u; a context of another width is projected.
        history: p.
        first_step: of its cell.
    Source: Im & Chan 2024, Algorithm 1, which is an image: rebuilt from the text (models.md 4.5).
    """

    def __init__(self, context: int, width: int, history: int, first_step: FirstStep) -> None:
        super().__init__()
        self.history = history
        self.project = Linear(context, width) if context != width else None
        self.cell = CARUCell(width, width, first_step)

    def contexts(self, times: int, dtype: torch.dtype, bias: bool = True) -> Product:
        """The cell's products of a context, made ready for a loop: (R, context) -> (R, 2W); without its biases where they are added elsewhere."""
        cell = inputs_loop(self.cell, times, dtype) if bias else Repeated(self.cell.input.weight.to(dtype).mT, times)
        if self.project is None:
            return cell
        project = repeated([self.project], times, dtype)
        return lambda c: cell(project(c))

    def over_states(self, recent: list[Tensor], opened: list[Tensor], times: int, dtype: torch.dtype) -> Callable[[Tensor, Tensor], Tensor]:
        """The run over decoder states, made ready for a loop.

        Args:
            recent: the cell's products of up to p-1 earlier states (R, 2W), the oldest first; kept up to date.
            opened: receives, where somebody captures, how open the gate to the context is (R).
            times: steps, at most.
            dtype: number type of the products.
        Returns: s_{t-1} (R, W) and the cell's products of the context (R, 2W) -> u (R, W).
        """
        product = inputs_loop(self.cell, times, dtype)
        if self.history == 1 and self.cell.input.packed is None:  # a first step reads one half only
            weight, bias = (p[: self.cell.d_hidden].to(dtype) for p in (self.cell.input.weight, self.cell.input.bias))
            product = Repeated(weight.mT, times, bias)
        state = repeated(self.cell.products(), times * self.history, dtype)

        def run(s: Tensor, x: Tensor) -> Tensor:
            vectors = [*recent, product(s).to(s.dtype)]
            recent[:] = vectors[len(vectors) - min(len(vectors), self.history - 1) :]
            u = self.cell.first(vectors[0], self.cell.step)
            for vector in vectors[1:]:
                u = self.cell.step(vector, u, state)
            return self._end(x, u, state, opened)

        return run

    def over_words(self, words: Tensor, recent: list[Tensor], opened: list[Tensor]) -> tuple[torch.dtype, Callable[[int, Tensor], Tensor]]:
        """The run over target words, all steps at once but for the context.

        Args:
            words: of the steps to come (T, R, W).
            recent, opened: as for `over_states`, of words.
        Returns: the number type of the cell's products; step t from 0 and the products of its context (R, 2W) -> u (R, W).
        """
        new = self.cell.inputs(words)
        dtype = self.cell.input.weight.dtype
        vectors, before = torch.stack([*recent, *new.unbind(0)]).to(dtype), len(recent)  # (before + T, R, 2W)
        place = torch.arange(before, len(vectors), device=words.device).view(-1, 1, 1)
        recent[:] = vectors[len(vectors) - min(len(vectors), self.history - 1) :].unbind(0)
        u: Any = None
        for back in reversed(range(self.history)):
            x = vectors[(place.flatten() - back).clamp_min(0)]  # (T, R, 2W): y_{t-back}; where there is none, u begins anew later
            fresh = self.cell.first(x, self.cell.step)
            u = fresh if u is None else torch.where(place == back, fresh, self.cell.step(x, u, self.cell.state))
        of_u = self.cell.state(u)  # (T, R, 2W)
        return new.dtype, lambda t, x: self._end(x, u[t], lambda _: of_u[t], opened)

    def _end(self, x: Tensor, u: Tensor, state: Product, opened: list[Tensor]) -> Tensor:
        n, gate = self.cell.parts(x.to(u.dtype), u, state)
        if capturing():
            opened.append(gate.mean(-1))
        return torch.lerp(u, n, gate)
