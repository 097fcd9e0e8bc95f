"""Which tokens of a module's input reach which tokens of its output: by gradients, or by changes.

A gradient is zero exactly where no path leads, whatever the values. Where a module gives none, its
input is changed at some tokens, and the output is compared bit by bit.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.nn import Module

from dcp_dsl.arrays import Bools
from dcp_runtime.errors import RunError
from dcp_runtime.probing.calls import Call, find_tokens, repeat, token_dim

DRAWS = 3
"""A pair is hidden if so many draws of random inputs do not show it."""

NOISE = {torch.bfloat16: 3e-2, torch.float16: 1e-2}
"""Changes of an output that may be rounding, of its largest value; 1e-5 for other dtypes.

Experts compute with matrices of other sizes if other tokens choose them.
"""


class Reach:
    """Asks one call which tokens a group of tokens reaches, or is reached by.

    Attributes:
        is_gradient: whether gradients answer; else the input is changed.
        passes: forward and backward passes so far, of this module alone.

    Args:
        call: the call.
        tokens: length of the row.
        cut: modules inside whose outputs count as inputs: what is left is the code around them.
        draw: 0 for the inputs of the call, else a number of random inputs.
        may_differentiate: whether to ask gradients where there are some.
        draws: changes of every group, if gradients are not asked.
    """

    def __init__(
        self,
        call: Call,
        tokens: int,
        cut: Sequence[Module] = (),
        draw: int = 0,
        *,
        may_differentiate: bool = True,
        draws: int = DRAWS,
    ) -> None:
        self._draws = draws
        self._call, self._tokens, self._cut, self._draw = call, tokens, cut, draw
        self._random = torch.Generator().manual_seed(draw)
        self._leaves: list[Tensor] = []
        self._held: list[Tensor] = []  # what the modules that are cut returned at first
        self._outputs: list[Tensor] = []
        self.passes = [0, 0]
        if may_differentiate:
            self.passes[0] = 1
            with torch.enable_grad():
                found = find_tokens(repeat(call, tokens, self._leaf, cut), tokens)
            self._outputs = [value for value in found if value.requires_grad]
        self.is_gradient = bool(self._outputs and self._leaves)
        if not self.is_gradient:
            self._outputs = self._changed(np.zeros(tokens, bool))

    def touched(self, group: Bools) -> Bools:
        """Return the inputs that a group of outputs reads; else the outputs that inputs change."""
        return self._gradients(group) if self.is_gradient else self._changes(group)

    def _leaf(self, value: Tensor) -> Tensor:
        if not value.is_floating_point():
            return value
        value = value.detach()
        if self._draw:  # other values, of the same size
            value = self._noise(value) * (value.float().std(correction=0) + 1e-3).to(value.dtype)
        self._leaves.append(value.clone().requires_grad_())
        return self._leaves[-1].view_as(self._leaves[-1])  # modules may write into their input

    def _noise(self, like: Tensor) -> Tensor:
        drawn = torch.randn(like.shape, generator=self._random, device="cpu")
        return drawn.to(device=like.device, dtype=like.dtype)

    def _gradients(self, group: Bools) -> Bools:
        self.passes[1] += 1
        wanted = [self._noise(out) * _along(out, group) for out in self._outputs]
        found = torch.autograd.grad(
            self._outputs, self._leaves, wanted, retain_graph=True, allow_unused=True
        )
        touched = np.zeros(self._tokens, bool)
        for gradient in found:
            if gradient is not None:
                if not gradient.isfinite().all():
                    raise RunError(
                        f"{self._call.words}: expected finite gradients, got inf or NaN; probe "
                        "the model with weights and a batch for which it can be trained"
                    )
                touched |= _any_of(gradient != 0, self._tokens)
        return touched

    def _changes(self, group: Bools) -> Bools:
        touched = np.zeros(self._tokens, bool)
        for _ in range(self._draws):
            for before, after in zip(self._outputs, self._changed(group), strict=True):
                most = NOISE.get(before.dtype, 1e-5) * before.nan_to_num(0, 0, 0).abs().max()
                is_same = ((before - after).abs() <= most) | (before.isnan() & after.isnan())
                touched |= _any_of(~(is_same | (before == after)), self._tokens)
        return touched

    def _changed(self, group: Bools) -> list[Tensor]:
        """Return the outputs after a change of the inputs at a group of tokens."""
        self.passes[0] += 1
        held = iter(list(self._held))

        def change(value: Tensor) -> Tensor:
            where = _along(value, group).bool()
            if value.is_floating_point():
                other = self._noise(value) * (4 * value.float().std(correction=0)).to(value.dtype)
            else:
                at = torch.randint(1, self._tokens, (), generator=self._random)
                other = value.roll(int(at), token_dim(value, self._tokens))
            return torch.where(where, other, value)

        def end(value: Tensor) -> Tensor:
            first = next(held, None)
            if first is None:
                self._held.append(value.clone())
            return change(value if first is None else first)

        with torch.no_grad():
            found = repeat(self._call, self._tokens, change, self._cut, end)
        return [value.clone() for value in find_tokens(found, self._tokens)]


def _along(value: Tensor, group: Bools) -> Tensor:
    """Return a group of tokens as 0 and 1, in the shape of a tensor of tokens."""
    dim, size = token_dim(value, len(group)), [1] * value.ndim
    assert dim is not None, "tensors of tokens"
    size[dim] = len(group)
    dtype = value.dtype if value.is_floating_point() else torch.bool
    return torch.from_numpy(group).view(size).to(device=value.device, dtype=dtype)


def _any_of(found: Tensor, tokens: int) -> Bools:
    dim = token_dim(found, tokens)
    others = [n for n in range(found.ndim) if n != dim]
    result: Bools = (found.any(dim=others) if others else found).cpu().numpy()
    return result


def mixes(reach: Reach, tokens: int) -> bool:
    """Return whether any token reaches another one; at most 2 log2(tokens) passes.

    Two tokens differ in a bit of their numbers, so one of the groups holds one of them alone.
    """
    numbers = np.arange(tokens)
    for bit in range(max(1, (tokens - 1).bit_length())):
        group = (numbers >> bit & 1).astype(bool)
        for each in (group, ~group):
            if (reach.touched(each) & ~each).any():
                return True
    return False


FEW = 96
"""Most tokens for which groups are searched."""


@lru_cache(maxsize=16)
def groups(may_bytes: bytes, open_bytes: bytes, tokens: int) -> tuple[Bools, ...]:
    """Return groups of tokens whose answers together decide every open pair of two tokens.

    A group decides a pair (s, t) if no other token of it may reach t. Each group is chosen to
    decide many pairs: packed documents and windows need fewer groups than tokens, causal masks as
    many. O(T^3) for each group up to `FEW` tokens; longer rows are asked token by token.

    Args:
        may_bytes: bool ``[T, T]``, whether token s may reach token t.
        open_bytes: bool ``[T, T]``, the pairs to decide.
        tokens: length T of the row.
    """
    may, left = (
        np.frombuffer(b, bool).reshape(tokens, tokens).copy() for b in (may_bytes, open_bytes)
    )
    if tokens > FEW:
        order = np.random.default_rng(0).permutation(tokens)
        return tuple(np.arange(tokens) == token for token in order)
    found = []
    while left.any():
        chosen: list[int] = []
        best = np.zeros_like(left)
        for token in np.argsort(-left.sum(1), kind="stable"):
            rows = [*chosen, int(token)]
            decided = np.zeros_like(left)
            decided[rows] = left[rows] & (may[rows].sum(0) - may[rows] == 0)
            if decided.sum() > best.sum():
                chosen, best = rows, decided
        left &= ~best
        found.append(np.isin(np.arange(tokens), chosen))
    return tuple(found)


def contradicts(ask: Callable[[Bools], Bools], least: Bools, most: Bools) -> bool:
    """Return whether a token reaches more than the most that is written, or less than the least.

    Asks group by group and ends at the first group that contradicts. A token reaches itself,
    whatever is written.
    """
    tokens = len(most)
    own = np.eye(tokens, dtype=bool)
    least, most = least & ~own, most | own
    is_open = ~own & (least | ~most)
    for group in groups(most.tobytes(), is_open.tobytes(), tokens):
        got = ask(group)
        must = (most[group].sum(0) == 1) & least[group].any(0)
        if (got & ~most[group].any(0)).any() or (must & ~got).any():
            return True
    return False


def whole(ask: Callable[[Bools], Bools], tokens: int) -> Bools:
    """Return what every token reaches, bool ``[T, T]``, asked token by token."""
    return np.stack([ask(row) for row in np.eye(tokens, dtype=bool)])
