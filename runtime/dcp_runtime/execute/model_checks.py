"""Checks of models that run once, before a model's first batch.

An adapter notes a model when the model is made. `LayerPlans.prepare` runs the checks: every rank
calls it, outside of compiled code and of other calls of the model.
"""

from collections.abc import Callable
from weakref import WeakKeyDictionary

import torch

_waiting: WeakKeyDictionary[torch.nn.Module, Callable[[torch.nn.Module], None]] = (
    WeakKeyDictionary()
)


def check_later(model: torch.nn.Module, check: Callable[[torch.nn.Module], None]) -> None:
    """Note the check of a model; parts of a model that is noted itself are not checked alone."""
    _waiting[model] = check


def run_checks() -> None:
    """Run the checks that wait; a model whose weights are not loaded yet goes on waiting."""
    if not _waiting:
        return
    models = list(_waiting)
    inside = {id(part) for model in models for part in model.modules() if part is not model}
    for model in models:
        if any(weight.is_meta for weight in model.parameters()):
            continue
        check = _waiting.pop(model)
        if id(model) not in inside:
            check(model)
