"""Note every call of every module of a model once, so that each can be repeated alone.

Tensors of tokens are those with one dimension as long as the row; a mask has two.
"""

import sys
import warnings
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

Tree: TypeAlias = Any  # whatever a model passes on
Change: TypeAlias = Callable[[Tensor], Tensor]


@dataclass(eq=False)
class ModuleCall:
    """A call of a module: positional and named inputs, what it returned, the calls inside."""

    name: str
    module: Module
    inputs: Tree
    output: Tree = None
    inside: "list[ModuleCall]" = field(default_factory=list)

    @property
    def words(self) -> str:
        """Name and class, for messages."""
        return f"`{self.name or 'model'}` ({type(self.module).__name__})"

    def descendants(self) -> "Iterator[ModuleCall]":
        """Yield the calls inside, at any depth, in their order."""
        for call in self.inside:
            yield call
            yield from call.descendants()


def token_dim(value: Tensor, tokens: int) -> int:
    """Return the dimension of the tokens; -1 without one, or with two."""
    sizes = list(value.shape)
    return sizes.index(tokens) if sizes.count(tokens) == 1 else -1


def find_numbers(values: Tree, tokens: int) -> list[Tensor]:
    """Return the tensors of tokens that hold numbers, not ids."""
    found = [value for value in tree_leaves(values) if isinstance(value, Tensor)]
    return [v for v in found if v.is_floating_point() and token_dim(v, tokens) >= 0]


def note_calls(model: Module, args: tuple[Any, ...], named: dict[str, Any]) -> ModuleCall:
    """Call a model; return its call, with those of its modules inside."""
    names, top = (
        {module: name for name, module in model.named_modules()},
        ModuleCall("", model, None),
    )
    running = [top]

    def before(module: Module, args: Tree, named: Tree) -> None:
        call = ModuleCall(names[module], module, _fresh((args, named)))
        running[-1].inside.append(call)
        running.append(call)

    def behind(module: Module, args: Tree, output: Tree) -> None:
        running.pop().output = output

    with ExitStack() as stack, torch.no_grad():
        for module in names:
            hooks = (
                module.register_forward_pre_hook(before, with_kwargs=True),
                module.register_forward_hook(behind),
            )
            for hook in hooks:
                stack.callback(hook.remove)
        try:
            model(*_fresh(args), **_fresh(named))
        except Exception as error:
            raise RunError(
                f"{type(model).__name__}: the call of the model failed: {type(error).__name__}: "
                f"{error}; expected a batch that the model takes: a tensor, a tuple of positional "
                "or a dict of named arguments"
            ) from error
    return top.inside[0]


def _fresh(values: Tree) -> Tree:
    """Copy what a call may change, such as a cache, but no tensors."""

    def copied(value: Any) -> Any:
        try:
            return value if isinstance(value, (Tensor, Module)) else deepcopy(value)
        except Exception:
            return value

    return tree_map(copied, values)


def repeat(call: ModuleCall, tokens: int, change: Change, cut: Sequence[ModuleCall] = ()) -> Tree:
    """Call a module again with other inputs, and return what it returns.

    `change` gives the numbers of tokens; where there are none, the first tensor of ids. Calls in
    `cut` do not run again: what they returned is changed like the inputs.
    """

    def changed(value: Any) -> Any:
        is_numbers = isinstance(value, Tensor) and bool(find_numbers(value, tokens))
        return change(value) if is_numbers else value

    leaves, tree = tree_flatten(_fresh(call.inputs))
    given = [changed(value) for value in leaves]
    if not cut and not find_numbers(leaves, tokens):
        ids = (n for n, v in enumerate(leaves) if isinstance(v, Tensor))
        at = next((n for n in ids if token_dim(leaves[n], tokens) >= 0), None)
        given = [change(value) if n == at else value for n, value in enumerate(leaves)]
    args, named = tree_unflatten(given, tree)
    outputs: dict[Module, list[Tree]] = {}
    for each in cut:
        outputs.setdefault(each.module, []).append(tree_map(changed, each.output))
    with ExitStack() as stack:
        for module, found in outputs.items():
            stack.enter_context(_returning(module, iter(found)))
        return call.module(*args, **named)


@contextmanager
def _returning(module: Module, outputs: Iterator[Tree]) -> Iterator[None]:
    own = module.__dict__.get("forward")  # some libraries replace it
    module.forward = lambda *_, **__: next(outputs)
    try:
        yield
    finally:
        del module.forward
        if own is not None:
            module.forward = own


@contextmanager
def at_rest(model: Module) -> Iterator[None]:
    """Switch off dropout, compilation and torch's fused layers, which call no modules."""
    # Weights that are all zero would hide everything: they are filled.
    training = [module for module in model.modules() if module.training]
    zeros = [w for w in model.parameters() if w.ndim > 1 and not w.detach().any()]
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=[]))
        if "torch._dynamo" in sys.modules:  # else nothing is compiled, and its import takes seconds
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.callback(
            torch.backends.mha.set_fastpath_enabled, torch.backends.mha.get_fastpath_enabled()
        )
        torch.backends.mha.set_fastpath_enabled(False)
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")  # about calls that the model's own code would not make
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
