"""Note every call of every module of a model once, so that each can be repeated alone.

A module that is called again with the inputs that it had in the model shows what it computes
without the rest of the model. Tensors of tokens are those with a dimension as long as the row.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import Module
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from dcp_runtime.errors import RunError


Change: TypeAlias = Callable[[Tensor], Tensor]


@dataclass(eq=False)
class Call:
    """A call of a module, with its inputs.

    Attributes:
        name: of the module in the model, empty for the model itself.
        inputs: positional and named arguments; caches as they were before the call.
        inside: the calls that this one made.
        mixes: whether a token of the output depends on another token of the input.
    """

    name: str
    module: Module
    inputs: Any  # Any: a tree of whatever a model passes on
    inside: "list[Call]" = field(default_factory=list)
    mixes: bool = False

    @property
    def words(self) -> str:
        """Name and class, for messages."""
        kind = type(self.module).__name__
        return f"`{self.name}` ({kind})" if self.name else f"the model ({kind})"

    def descendants(self) -> "Iterator[Call]":
        """Yield the calls inside, at any depth, in their order."""
        for call in self.inside:
            yield call
            yield from call.descendants()


def token_dim(value: Any, tokens: int) -> int | None:  # Any: whatever a model passes on
    """Return the first dimension as long as the row; ``None`` without one."""
    if not isinstance(value, Tensor):
        return None
    return next((dim for dim, size in enumerate(value.shape) if size == tokens), None)


def is_values(value: Any, tokens: int) -> bool:  # Any: whatever a model passes on
    """Return whether this holds numbers of tokens; a mask has tokens in two dimensions."""
    is_float = isinstance(value, Tensor) and value.is_floating_point()
    return is_float and list(value.shape).count(tokens) == 1


def find_tokens(values: Any, tokens: int) -> list[Tensor]:  # Any: a tree
    """Return the tensors of numbers that have a dimension of tokens."""
    found = (value for value in tree_leaves(values) if isinstance(value, Tensor))
    return [v for v in found if v.is_floating_point() and token_dim(v, tokens) is not None]


def note_calls(model: Module, args: tuple[Any, ...], named: dict[str, Any]) -> Call:
    """Call a model and return the tree of calls of its modules, that of the model itself."""
    names = {module: name for name, module in model.named_modules()}
    top, handles = Call("", model, None), []
    running = [top]

    def before(module: Module, args: Any, named: Any) -> None:
        call = Call(names[module], module, fresh((args, named)))
        running[-1].inside.append(call)
        running.append(call)

    def behind(module: Module, args: Any, output: Any) -> None:
        running.pop()

    for module in names:
        handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
        handles.append(module.register_forward_hook(behind))
    try:
        with torch.no_grad():
            model(*fresh(args), **fresh(named))
    except Exception as error:
        raise RunError(
            f"{type(model).__name__}: the call of the model failed: {type(error).__name__}: "
            f"{error}; expected a batch that the model takes: a tensor, a tuple of positional or a "
            "dict of named arguments"
        ) from error
    finally:
        for handle in handles:
            handle.remove()
    return top.inside[0]


def fresh(values: Any) -> Any:  # Any: a tree
    """Copy what a call may change: caches and the like, but not tensors."""

    def copied(value: Any) -> Any:
        if value is None or isinstance(value, (Tensor, Module, bool, int, float, str, torch.dtype)):
            return value
        try:
            return deepcopy(value)
        except Exception:  # whatever a class of somebody else raises: it is passed on as it is
            return value

    return tree_map(copied, values)


def repeat(
    call: Call, tokens: int, change: Change, cut: Sequence[Module] = (), end: Change | None = None
) -> Any:  # Any: a tree of what the module returns
    """Call a module again with other inputs.

    Where neither the inputs nor modules to cut have numbers of tokens, ids are changed:
    `input_ids`, or else the first integers.

    Args:
        call: the call to repeat.
        tokens: length of the row.
        change: gives the inputs of tokens.
        cut: modules inside whose outputs count as inputs.
        end: gives these outputs; by default `change`.
    """

    def behind(module: Module, args: Any, output: Any) -> Any:
        return tree_map(lambda v: (end or change)(v) if is_values(v, tokens) else v, output)

    leaves, tree = tree_flatten(fresh(call.inputs))
    given = [change(value) if is_values(value, tokens) else value for value in leaves]
    args, named = tree_unflatten(given, tree)
    if not cut and not any(is_values(value, tokens) for value in leaves):
        args, named = _with_ids(args, named, tokens, change)
    with ExitStack() as stack:
        for module in cut:
            stack.callback(module.register_forward_hook(behind).remove)
        return call.module(*args, **named)


def _with_ids(args: Any, named: Any, tokens: int, change: Change) -> Any:  # Any: trees
    def is_ids(value: Any) -> bool:
        is_integer = isinstance(value, Tensor) and not value.is_floating_point()
        return is_integer and token_dim(value, tokens) is not None

    named = dict(named)
    if is_ids(named.get("input_ids")):
        named["input_ids"] = change(named["input_ids"])
        return args, named
    at = next((n for n, value in enumerate(args) if is_ids(value)), None)
    return tuple(change(v) if n == at else v for n, v in enumerate(args)), named


@contextmanager
def at_rest(model: Module) -> Iterator[None]:
    """Switch off dropout, compilation and randomness; fill weights that are all zero.

    A projection that begins at zero hides everything in front of it.
    """
    training = [module for module in model.modules() if module.training]
    zeros = [w for w in model.parameters() if w.ndim > 1 and w.numel() and not w.detach().any()]
    with torch.random.fork_rng(devices=[]), torch.compiler.set_stance("force_eager"):
        torch.manual_seed(0)
        for module in training:
            module.training = False
        for weight in zeros:
            torch.nn.init.normal_(weight, std=0.02)
        try:
            yield
        finally:
            for weight in zeros:
                torch.nn.init.zeros_(weight)
            for module in training:
                module.training = True
