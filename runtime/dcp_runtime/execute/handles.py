"""Tensors that stand for plans and open calls: a compiled graph passes tensors alone."""

from itertools import count
from weakref import WeakValueDictionary

import torch
from torch import Tensor

_numbers = count()
_objects: "WeakValueDictionary[int, object]" = WeakValueDictionary()


def handle_of(plan: object) -> Tensor:
    """Return a tensor that stands for a plan as long as that lives."""
    number = next(_numbers)
    _objects[number] = plan
    return torch.tensor([number])


def find(handle: Tensor) -> object:
    """Return what a handle stands for."""
    return _objects[int(handle)]


class OpenCall(bytearray):
    """A forward call that awaits its backward, as the memory of its handle.

    The autograd graph alone holds the handle, also a compiled graph; the call ends when that memory
    is freed. It keeps its plan alive.
    """

    def __init__(self, plan: object) -> None:
        number = next(_numbers)
        super().__init__(number.to_bytes(8, "little"))
        self.plan = plan
        _objects[number] = self

    def handle(self) -> Tensor:
        """Return the tensor over this memory."""
        return torch.frombuffer(self, dtype=torch.int64)
