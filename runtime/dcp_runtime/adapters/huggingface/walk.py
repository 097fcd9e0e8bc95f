"""Walk a model once: does everything in it but its attention compute each token for itself?

Under context parallelism a rank calls the model with its own tokens only. That is right for a layer
that computes each token for itself, and for attention that comes to us. It is silently wrong for a
layer that mixes tokens (linear attention, a state space, a convolution), or that reads the place of
a token in the call, the number of tokens, or the largest position.

The walk decides by what modules compute, not by their names. It calls the model with a few tokens,
and again with two of them at other places among other tokens; attention gives every token its own
value. Where a kept token comes out differently, the walk names the innermost module whose inputs
were equal and whose outputs were not.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn import Module
from torch.utils._pytree import tree_flatten, tree_map

from dcp_runtime.adapters.huggingface.visibility import Predicate, Visibility, visibility_of

TOKENS = 13
"""Tokens of a call: a prime, so that hardly another size of a tensor is equal to it."""

PLACES = ((4, 9), (11, 2))
"""Places of the kept tokens in the two calls; their positions stay those of the first."""

FAR = 2**22
"""A position beyond those that models are made for."""

LARGEST_ID = 2**15
"""Token ids of a call are smaller."""

EQUAL, OTHER = 1e-3, 3e-2
"""The largest relative difference of equal tensors, and the smallest of others.

Both calls have the same shapes and the second call gets the results of the first, so that nearly
all kernels give equal bits. Mixing changes a tensor by about its own size.
"""

Run: TypeAlias = Callable[["Attention", Tensor, Tensor], object]
"""Calls a model with stand-ins for its attention, token ids and positions, int64 ``[1, T]``."""


@dataclass(slots=True)
class Attention:
    """The attention and the masks of a model that is walked.

    Attributes:
        seen: what each attention module may see.
        masks: the masks that the model got, with their predicates, by id.
    """

    seen: dict[Module, Visibility] = field(default_factory=dict)
    masks: dict[int, tuple[Tensor, Predicate]] = field(default_factory=dict)

    def mask(self, predicate: Predicate, q_length: int, kv_length: int) -> Tensor:
        """Return a mask that stands for its predicate."""
        stand_in = torch.ones(1, 1, q_length, kv_length, dtype=torch.bool)
        self.masks[id(stand_in)] = stand_in, predicate
        return stand_in

    def attend(
        self, module: Module, query: Tensor, value: Tensor, mask: Tensor | None, window: int | None
    ) -> Tensor:
        """Give every token its own value, ``[1, T, Hq, D]``; note what the layer may see."""
        _, predicate = self.masks.get(id(mask), (None, None))
        is_causal = bool(getattr(module, "is_causal", True))
        self.seen.setdefault(module, visibility_of(predicate, window, is_causal))
        heads, tokens = query.shape[1:3]
        if value.shape[2] != tokens:  # of two sequences, which is refused later
            return value.new_zeros(1, tokens, heads, value.shape[3])
        return value.repeat_interleave(heads // value.shape[1], 1).transpose(1, 2).contiguous()


class Found(NamedTuple):
    """What a walk found.

    Attributes:
        seen: what each attention module that ran may see.
        longest: most tokens of a sequence; in longer ones a module reads the largest position.
            0 for any number.
        culprit: name and class of the module that mixes tokens; empty if none does.
    """

    seen: Mapping[Module, Visibility]
    longest: int
    culprit: str


def walk(model: Module, run: Run, vocabulary: int, avoided: frozenset[int]) -> Found:
    """Call a model twice on `TOKENS` tokens, without gradients, and compare.

    Args:
        model: with its weights.
        run: calls the model.
        vocabulary: number of token ids.
        avoided: special token ids.
    """
    device = next(model.parameters()).device
    current, trace = Attention(), _Trace(model)
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(_evaluating(model))
        calls = _calls(vocabulary, avoided)
        for hook, (tokens, positions) in zip((trace.note, trace.compare), calls, strict=True):
            with _hooked(model, hook):
                run(current, tokens[None].to(device), positions[None].to(device))
    longest = min(filter(None, map(_longest, trace.positional)), default=0)
    return Found(current.seen, longest, trace.culprit)


def _calls(vocabulary: int, avoided: frozenset[int]) -> list[tuple[Tensor, Tensor]]:
    """Return token ids and positions, int64 ``[T]``, of both calls."""
    draw = torch.Generator().manual_seed(0)
    allowed = torch.tensor([n for n in range(min(vocabulary, LARGEST_ID)) if n not in avoided])
    tokens = allowed[torch.randint(len(allowed), (2, TOKENS), generator=draw)]
    positions = torch.stack([torch.arange(TOKENS), torch.randperm(TOKENS, generator=draw)])
    before, after = (list(places) for places in PLACES)
    for values in (tokens, positions):
        values[1, after] = values[0, before]
    return [(tokens[call], positions[call]) for call in range(2)]


@contextmanager
def _evaluating(model: Module) -> Iterator[None]:
    """Switch off dropout and checkpointing."""
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def _hooked(model: Module, hook: Callable[..., Any]) -> Iterator[None]:
    """Call a hook behind every module, inner ones first."""
    handles = [each.register_forward_hook(hook, with_kwargs=True) for each in model.modules()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class _Call(NamedTuple):
    """A call of a module: what the kept tokens have in its inputs and outputs."""

    inputs: list[Tensor | None]
    outputs: list[Tensor | None]


class _Positional(NamedTuple):
    """A call of a module without weights that takes the positions."""

    module: Module
    arguments: tuple[Any, ...]
    named: dict[str, Any]


class _Trace:
    """Notes the calls of all modules, then compares those of a second call of the model."""

    def __init__(self, model: Module) -> None:
        self._names = {module: name for name, module in model.named_modules()}
        self._calls: dict[Module, deque[_Call]] = defaultdict(deque)
        self.positional: list[_Positional] = []
        self.culprit = ""

    def note(self, module: Module, args: Any, kwargs: Any, output: Any) -> None:
        """Note a call: a hook of the first call of the model."""
        self._calls[module].append(_Call(_kept((args, kwargs), 0), _kept(output, 0)))
        has_weights = any(True for _ in module.parameters())
        if not has_weights and any(map(_is_position, tree_flatten((args, kwargs))[0])):
            self.positional.append(_Positional(module, args, kwargs))

    def compare(self, module: Module, args: Any, kwargs: Any, output: Any) -> Any:
        """Compare a call with the first: a hook of the second call of the model.

        Equal results are replaced by those of the first call, so that rounding does not add up.
        """
        if self.culprit or not self._calls[module]:
            return None
        first = self._calls[module].popleft()
        if _difference(first.inputs, _kept((args, kwargs), 1)) > EQUAL:
            return None
        if _difference(first.outputs, _kept(output, 1)) > OTHER:
            name = self._names[module]
            self.culprit = f"{name} ({type(module).__name__})" if name else type(module).__name__
            return None
        results = iter(first.outputs)
        return tree_map(lambda value: _restored(value, next(results)), output)


def _token_dim(value: Any) -> int | None:
    if not isinstance(value, Tensor):
        return None
    return next((dim for dim, size in enumerate(value.shape) if size == TOKENS), None)


def _kept(values: Any, call: int) -> list[Tensor | None]:
    """Return the kept tokens' part of every tensor; ``None`` for other values."""
    found: list[Tensor | None] = []
    for value in tree_flatten(values)[0]:
        dim = _token_dim(value)
        places = None if dim is None else torch.tensor(PLACES[call], device=value.device)
        found.append(None if places is None else value.index_select(dim, places))
    return found


def _restored(value: Any, first: Tensor | None) -> Any:
    dim = _token_dim(value)
    if dim is None or first is None:
        return value
    return value.index_copy(dim, torch.tensor(PLACES[1], device=value.device), first)


def _difference(first: list[Tensor | None], second: list[Tensor | None]) -> float:
    """Return the largest difference of two tensors, relative to the largest number of both."""
    most = 0.0
    for a, b in zip(first, second, strict=False):
        if a is None or b is None or a.shape != b.shape or not a.numel():
            continue
        if not a.is_floating_point():
            most = max(most, float(not torch.equal(a, b)))
            continue
        scale = torch.maximum(a.abs().max(), b.abs().max()).float()
        off = (a.float() - b.float()).abs().max() / scale
        most = max(most, float(off.nan_to_num(nan=0.0)))  # 0 / 0: both are zero
    return most


def _is_position(value: Any) -> bool:
    is_index = isinstance(value, Tensor) and not value.is_floating_point()
    return is_index and value.shape[-1:] == (TOKENS,) and value.ndim in (2, 3)


def _longest(found: _Positional) -> int:
    """Return from how many tokens on other tokens' positions change a module's result; 0: never.

    On copies, since some of these modules remember the largest position.
    """
    most = max(PLACES[0])
    near = _with_others(found, most)
    if not _is_other(near, _with_others(found, FAR)):
        return 0
    low, high = most, FAR  # the largest other position that changes nothing, and one that does
    while high - low > 1:
        middle = (low + high) // 2
        if _is_other(near, _with_others(found, middle)):
            high = middle
        else:
            low = middle
    return low + 1


def _is_other(a: list[Tensor | None] | None, b: list[Tensor | None] | None) -> bool:
    return a is not None and b is not None and _difference(a, b) > OTHER


def _with_others(found: _Positional, position: int) -> list[Tensor | None] | None:
    """Call a copy of a module with the other tokens at a position; ``None`` if it refuses."""

    def moved(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        value = value.cpu()  # an index out of range would end a CUDA process
        if not _is_position(value):
            return value
        kept = torch.isin(torch.arange(TOKENS), torch.tensor(PLACES[0]))
        return torch.where(kept, value, position)

    module = deepcopy(found.module).cpu()
    try:
        with torch.no_grad():
            output = module(*tree_map(moved, found.arguments), **tree_map(moved, found.named))
    except (IndexError, RuntimeError, ValueError):
        return None
    return _kept(output, 0)
