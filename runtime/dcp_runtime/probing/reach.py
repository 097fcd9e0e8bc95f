"""Which tokens of a module's input reach which tokens of its output: by gradients, or by changes.

A gradient is exactly zero where no path leads. Where a module gives no gradient, its input is
changed at some tokens and the outputs are compared.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from dcp_dsl.arrays import Bools
from dcp_runtime.errors import RunError
from dcp_runtime.probing.calls import ModuleCall, find_numbers, repeat, token_dim

NOISE = {torch.bfloat16: 3e-2, torch.float16: 1e-2}
"""Changes that may be rounding, of the largest value of an output; 1e-5 for other dtypes.

Experts compute with matrices of other sizes if other tokens choose them.
"""


class ModuleReach:
    """Asks one call which inputs a group of its outputs reads, bool ``[T]`` to bool ``[T]``.

    Without gradients it asks the opposite, which outputs a group of inputs changes. The outputs of
    calls in `cut` count as inputs: the code around them is asked. `draw` is 0 for the inputs of the
    call, else a number of random inputs.
    """

    def __init__(
        self, call: ModuleCall, tokens: int, passes: Counter[str], cut: Sequence[ModuleCall] = (),
        draw: int = 0, *, is_gradient: bool = True,
    ) -> None:  # fmt: skip
        self._call, self._tokens, self._cut, self._draw = call, tokens, cut, draw
        self._passes, self._random = passes, torch.Generator().manual_seed(draw)
        self._leaves: list[Tensor] = []
        self._outputs: list[Tensor] = []
        if is_gradient:
            with torch.enable_grad():
                found = self._repeat(self._leaf)
            self._outputs = [value for value in found if value.requires_grad and self._leaves]
        self.is_gradient = bool(self._outputs) and self._can_differentiate()
        if not self.is_gradient:
            self._outputs = self._changed(np.zeros(tokens, bool))

    def __call__(self, group: Bools) -> Bools:
        """Ask for a group of tokens."""
        return self._gradients(group) if self.is_gradient else self._changes(group)

    def whole(self) -> Bools:
        """Return which key each query sees, bool ``[T, T]``, asked token by token."""
        found = np.stack([self(row) for row in np.eye(self._tokens, dtype=bool)])
        return found if self.is_gradient else found.T

    def mixes(self) -> bool:
        """Return whether any token reaches another one; at most 2 log2(T) passes."""
        # The numbers of two tokens differ in a bit, so one of the groups holds one of them alone.
        numbers = np.arange(self._tokens)
        bits = [numbers >> bit & 1 == 1 for bit in range((self._tokens - 1).bit_length())]
        return any((self(each) & ~each).any() for bit in bits for each in (bit, ~bit))

    def _can_differentiate(self) -> bool:
        try:
            self._gradients(np.ones(self._tokens, bool))
        except RuntimeError:  # a kernel without backward pass, or a checkpoint that was cut
            return False
        return True

    def _repeat(self, change: Callable[[Tensor], Tensor]) -> list[Tensor]:
        self._passes["forward"] += 1
        return find_numbers(repeat(self._call, self._tokens, change, self._cut), self._tokens)

    def _leaf(self, value: Tensor) -> Tensor:
        if value.is_floating_point():
            value = self._other(value) if self._draw else value.detach().clone()
            self._leaves.append(value.requires_grad_())
            value = value.view_as(value)  # modules may write into their input
        return value

    def _gradients(self, group: Bools) -> Bools:
        self._passes["backward"] += 1
        wanted = [self._noise(out) * _along(out, group) for out in self._outputs]
        found = torch.autograd.grad(
            self._outputs, self._leaves, wanted, retain_graph=True, allow_unused=True
        )
        gradients = [gradient for gradient in found if gradient is not None]
        if not all(gradient.isfinite().all() for gradient in gradients):
            raise RunError(
                f"{self._call.words}: expected finite gradients, got inf or NaN; probe the model "
                "with weights and a batch with which it can be trained"
            )
        return self._any(gradient != 0 for gradient in gradients)

    def _changes(self, group: Bools) -> Bools:
        return self._any(
            (before - after).nan_to_num().abs()
            > NOISE.get(before.dtype, 1e-5) * before.nan_to_num().abs().max()
            for before, after in zip(self._outputs, self._changed(group), strict=True)
        )

    def _changed(self, group: Bools) -> list[Tensor]:
        """Return the outputs after a change of the inputs at a group of tokens."""

        def change(value: Tensor) -> Tensor:
            return torch.where(_along(value, group).bool(), self._other(value), value)

        with torch.no_grad():
            return [value.clone() for value in self._repeat(change)]

    def _other(self, value: Tensor) -> Tensor:
        """Return random numbers of some size, or the ids of other tokens."""
        if value.is_floating_point():
            size = value.detach().float().std(correction=0) * (1 if self._draw % 2 else 4) + 1e-3
            return self._noise(value) * size.to(value.dtype)
        at = int(torch.randint(1, self._tokens, (), generator=self._random, device="cpu"))
        other = value.roll(at, token_dim(value, self._tokens))
        least = torch.where(value == value.min(), value.max(), value.min())
        return torch.where(other == value, least, other)

    def _noise(self, like: Tensor) -> Tensor:
        drawn = torch.randn(like.shape, generator=self._random, device="cpu")
        return drawn.to(device=like.device, dtype=like.dtype)

    def _any(self, found: Iterable[Tensor]) -> Bools:
        touched = np.zeros(self._tokens, bool)
        for each in found:
            dim = token_dim(each, self._tokens)
            touched |= each.movedim(dim, 0).flatten(1).any(1).cpu().numpy()
        return touched


def _along(value: Tensor, group: Bools) -> Tensor:
    """Return a group of tokens as 0 and 1, in a shape that broadcasts over a tensor of tokens."""
    sizes = [1] * value.ndim
    sizes[token_dim(value, len(group))] = -1
    return torch.from_numpy(group).to(device=value.device, dtype=value.dtype).view(sizes)
