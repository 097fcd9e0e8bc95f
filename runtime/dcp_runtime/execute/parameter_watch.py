"""`ParameterWatch`: notices ranks whose parameters drift apart, as where no one sums gradients.

torch calls a hook before and after every step of every optimizer. Parameters that were equal on
all ranks before a step, and are not after it, got other gradients on some rank.
"""

import gc
import threading
import warnings
import weakref
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.distributed.tensor import DTensor
from torch.fx import GraphModule
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from dcp_runtime.errors import RunError

MOST = 4096
"""Parameters that are compared, the first ones: the note of a rank has 17 characters for each."""
_WIDTHS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_CONSTANT = "-"
"""Stands for equal numbers, such as zeros: they do not say that ranks must hold the same."""


class ParameterWatch:
    """Compares fingerprints of the parameters that optimizers of this process train.

    Only parameters that were equal on all ranks at the last look are compared: shards of FSDP or
    ZeRO and experts of one rank differ, and may. The first look comes after step 1, then one after
    `every` steps.
    """

    def __init__(self, every: int | None) -> None:
        self._every, self._steps, self._due = every, 0, 1
        self._before: dict[weakref.ref[Tensor], str] = {}  # fingerprints of the last look
        self._known = weakref.WeakSet[Optimizer]()
        self._is_first = True
        self._thread = threading.get_ident()  # ranks may be threads of one process
        if every is not None:
            _register_hooks()
            _watches.add(self)

    def close(self) -> None:
        """Look at no further step."""
        self._every = None
        _watches.discard(self)

    def note(self, optimizer: Optimizer) -> None:
        """Take the fingerprints of parameters before the first step that trains them."""
        if not self._is_own() or optimizer in self._known:
            return
        self._known.add(optimizer)
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        new = [weakref.ref(p) for p in parameters if weakref.ref(p) not in self._before]
        new = new[: MOST - len(self._before)]
        self._before |= zip(new, _fingerprints([ref() for ref in new]), strict=True)

    def count(self) -> None:
        """Count a step."""
        self._steps += self._is_own()

    def _is_own(self) -> bool:
        return self._every is not None and threading.get_ident() == self._thread

    def value(self) -> str:
        """Return the fingerprints of this rank if it is time to compare them, else nothing."""
        if self._every is None or self._steps < self._due:
            return ""
        self._due = self._steps + self._every
        now = _fingerprints([ref() for ref in self._before])
        told = ",".join(f"{a}:{b}" for a, b in zip(self._before.values(), now, strict=True))
        self._before = dict(zip(self._before, now, strict=True))
        return told

    def compare(self, values: Sequence[str], place: str) -> None:
        """Compare the values of all ranks; refuse the first parameter that drifted apart."""
        first = next(filter(None, values), "")
        ranks = [rank for rank, value in enumerate(values) if value]
        if all(values[rank] == first for rank in ranks):
            self._is_first &= not ranks
            return
        rows = [[pair.split(":") for pair in values[rank].split(",")] for rank in ranks]
        if len(set(map(len, rows))) > 1:
            self._warn("optimizers hold other numbers of parameters on other ranks; none of them")
            return
        for number, column in enumerate(zip(*rows, strict=True)):
            before, after = ([pair[side] for pair in column] for side in (0, 1))
            odd = next((n for n, value in enumerate(after) if value != after[0]), None)
            if odd is None or before[0] == _CONSTANT:
                continue
            if len(set(before)) > 1:
                self._warn(
                    f"parameter {self._name_of(number)} differs between ranks before the first "
                    "step that the executor saw; if it is neither a shard nor an expert, give all "
                    "ranks the same seed or broadcast the model. It"
                )
                continue
            raise RunError(
                f"parameter {self._name_of(number)} of rank {ranks[odd]} is not that of rank "
                f"{ranks[0]} in {place}, after {self._steps} optimizer steps; they were equal at "
                "the last look, so these ranks stepped with other gradients: add the gradients of "
                "all ranks up, dcp_runtime.sum_gradients(model) between loss.backward() and "
                "optimizer.step(). Parameters that each rank trains for itself: "
                "DCPExecutor(compare_parameters_every=None)",
                rank=ranks[odd],
                division=0,
            )
        self._is_first = False

    def _warn(self, text: str) -> None:
        # What was constant at the first look, such as biases of experts, may differ at the second.
        if self._is_first:
            self._is_first = False
            warnings.warn(
                f"{text} will not be compared. The executor says this once",
                UserWarning,
                stacklevel=6,
            )

    def _name_of(self, number: int) -> str:
        parameter = list(self._before)[number]()
        return f"{number} of the optimizers" if parameter is None else _name_of(parameter)


_watches = weakref.WeakSet[ParameterWatch]()


@cache
def _register_hooks() -> None:
    """Register the hooks of all watches, once: torch cannot run hooks that change meanwhile."""
    register_optimizer_step_pre_hook(_before_step)
    register_optimizer_step_post_hook(_after_step)


# They read values, which no compiler can. `torch.compiler.disable` would import the compiler here.
@_disable_dynamo
def _before_step(optimizer: Optimizer, *_: Any) -> None:  # Any: arguments of the step
    for watch in tuple(_watches):
        watch.note(optimizer)


@_disable_dynamo
def _after_step(*_: Any) -> None:  # Any: the optimizer, and arguments of the step
    for watch in tuple(_watches):
        watch.count()


@torch.no_grad()
def _fingerprints(parameters: Sequence[Tensor | None]) -> list[str]:
    """Return a text of each: the sum of its bits as integers, so that every difference counts."""
    found = [_CONSTANT] * len(parameters)
    by_device: dict[torch.device, dict[int, Tensor]] = {}
    for number, parameter in enumerate(parameters):
        if (bits := _bits(parameter)) is not None:
            by_device.setdefault(bits.device, {})[number] = bits
    for own in by_device.values():
        # One wait for a device, not one for each parameter.
        sums = torch.stack([bits.sum(dtype=torch.int64) for bits in own.values()]).tolist()
        constant = torch.stack([bits.max() == bits.min() for bits in own.values()]).tolist()
        for number, total, is_constant in zip(own, sums, constant, strict=True):
            if not is_constant:  # folded to 32 bits: a note in the store is short
                found[number] = f"{(total ^ total >> 32) & 0xFFFFFFFF:08x}"
    return found


def _bits(parameter: Tensor | None) -> Tensor | None:
    """View a parameter as integers; ``None`` where no other rank need hold the same."""
    if parameter is None:
        return None
    own = parameter
    if isinstance(parameter, DTensor):
        if not all(placement.is_replicate() for placement in parameter.placements):
            return None  # a shard, which no other rank holds
        own = parameter.to_local()
    if not own.numel() or own.is_meta or own.is_sparse or own.is_complex():
        return None
    try:
        return own.detach().view(_WIDTHS[own.element_size()])
    except (RuntimeError, KeyError, NotImplementedError):  # a subclass that packs its numbers
        return None


def _name_of(parameter: Tensor) -> str:
    """Return the longest name under which a module of this process holds a parameter."""
    # Only an error asks: the objects of a process are many, its models few.
    names = [
        name
        for module in gc.get_objects()
        if issubclass(type(module), torch.nn.Module) and not issubclass(type(module), GraphModule)
        for name, own in module.named_parameters()
        if own is parameter
    ]
    return max(names, key=len, default=f"of shape {list(parameter.shape)}")
