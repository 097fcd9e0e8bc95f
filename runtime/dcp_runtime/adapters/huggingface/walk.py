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

from collections import Counter, defaultdict
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

TOKENS = 13  # tokens of a call: a prime, so that hardly another size of a tensor is equal to it
KEPT, CALLS = (1, 4, 9, 10), 4  # places of the kept tokens in the first call, and number of calls
FAR = 2**22  # a position beyond those that models are made for
LARGEST_ID = 2**15  # token ids of a call are smaller

NOISE = {torch.bfloat16: 3e-2, torch.float16: 1e-2}
"""The largest relative difference of equal tensors; 1e-3 for other dtypes.

All calls have the same shapes, for which nearly all kernels give equal bits. Mixing changes a
tensor by about its own size.
"""

Run: TypeAlias = Callable[["ValuesOnly", Tensor, Tensor], object]
"""Calls a model with stand-ins for its attention, token ids and positions, int64 ``[1, T]``."""


@dataclass(slots=True)
class ValuesOnly:
    """An attention that gives every token its own value, for a model that is walked."""

    seen: dict[Module, Visibility] = field(default_factory=dict)
    masks: dict[int, tuple[Tensor, Predicate]] = field(default_factory=dict)  # of the model, by id

    def mask(self, predicate: Predicate, q_length: int, kv_length: int) -> Tensor:
        """Return a mask that stands for its predicate."""
        stand_in = torch.ones(1, 1, q_length, kv_length, dtype=torch.bool, device="cpu")
        self.masks[id(stand_in)] = stand_in, predicate
        return stand_in

    def attend(
        self, module: Module, query: Tensor, value: Tensor, mask: Tensor | None, window: int | None
    ) -> Tensor:
        """Return the own value of every token, ``[1, T, Hq, D]``; note what the layer may see."""
        _, predicate = self.masks.get(id(mask), (None, None))
        seen = visibility_of(predicate, window, bool(getattr(module, "is_causal", True)))
        if mask is not None and predicate is None:  # the model has made a mask of its own of it
            seen = seen._replace(is_known=False)
        self.seen.setdefault(module, seen)
        heads, tokens = query.shape[1:3]
        if value.shape[2] != tokens:  # of two sequences, which is refused later
            return value.new_zeros(1, tokens, heads, value.shape[3])
        return value.repeat_interleave(heads // value.shape[1], 1).transpose(1, 2).contiguous()


class Found(NamedTuple):
    """What a walk found."""

    seen: Mapping[Module, Visibility]  # what each attention module that ran may see
    longest: int  # tokens; in longer sequences a module reads the largest position; 0: never
    culprit: str  # name and class of the module that mixes tokens; empty if none does


def walk(model: Module, run: Run, vocabulary: int, avoided: frozenset[int]) -> Found:
    """Call a model some times on `TOKENS` tokens, none of them special, and compare."""
    device = next(model.parameters()).device
    current, trace = ValuesOnly(), _Trace(model)
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(_evaluating(model))
        for places, tokens, positions in _calls(vocabulary, avoided):
            hooks = trace.begin(places)
            with _hooked(model, *hooks):
                run(current, tokens[None].to(device), positions[None].to(device))
            if trace.culprit:
                break
    longest = min(filter(None, map(_longest, trace.positional)), default=0)
    return Found(current.seen, longest, trace.culprit)


def _calls(vocabulary: int, avoided: frozenset[int]) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Return places of the kept tokens, token ids and positions, int64 ``[T]``, of every call."""
    draw = torch.Generator().manual_seed(0)
    allowed = torch.tensor(
        [n for n in range(min(vocabulary, LARGEST_ID)) if n not in avoided], device="cpu"
    )
    kept = torch.tensor(KEPT, device="cpu")
    first = (
        allowed[torch.randint(len(allowed), (TOKENS,), generator=draw, device="cpu")],
        torch.arange(TOKENS, device="cpu"),
    )
    yield kept, *first
    for _ in range(CALLS - 1):
        places = torch.randperm(TOKENS, generator=draw, device="cpu")[: len(KEPT)]
        tokens = allowed[torch.randint(len(allowed), (TOKENS,), generator=draw, device="cpu")]
        positions = torch.randperm(TOKENS, generator=draw, device="cpu")
        tokens[places], positions[places] = first[0][kept], first[1][kept]
        yield places, tokens, positions


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
def _hooked(
    model: Module, before: Callable[..., Any], behind: Callable[..., Any]
) -> Iterator[None]:
    """Call hooks before and behind every module."""
    handles = []
    for each in model.modules():
        handles.append(each.register_forward_pre_hook(before, with_kwargs=True))
        handles.append(each.register_forward_hook(behind, with_kwargs=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


_Kept: TypeAlias = list[Tensor | None]
"""The kept tokens' part of every tensor; ``None`` for other values."""
_Call: TypeAlias = tuple[_Kept, _Kept]  # of a module: its inputs and outputs
_Positional: TypeAlias = tuple[Module, tuple[Any, ...], dict[str, Any]]
"""A call of a module without weights that takes the positions: its arguments, and named ones."""


class _Trace:
    """Notes the calls of all modules in the first call of the model, and compares later ones."""

    def __init__(self, model: Module) -> None:
        self._names = {module: name for name, module in model.named_modules()}
        self._calls: dict[Module, list[_Call]] = defaultdict(list)
        self._done: Counter[Module] = Counter()  # calls of each module in this call of the model
        self._open: list[tuple[Module, _Call | None]] = []  # running modules, with their first call
        self._places = torch.tensor(KEPT, device="cpu")
        self.positional: list[_Positional] = []
        self.culprit = ""

    def begin(self, places: Tensor) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """Begin a call of the model, with the places of the kept tokens; return hooks for it."""
        is_first, self._places = not self._calls, places
        self._done.clear()
        self._open.clear()
        return (self.ignore, self.note) if is_first else (self.check_inputs, self.check_outputs)

    def ignore(self, module: Module, args: Any, kwargs: Any) -> None:
        """Do nothing: inputs are noted with the outputs."""

    def note(self, module: Module, args: Any, kwargs: Any, output: Any) -> None:
        """Note a call, behind a module."""
        self._calls[module].append((self._kept((args, kwargs)), self._kept(output)))
        has_weights = any(True for _ in module.parameters())
        if not has_weights and any(map(_is_position, tree_flatten((args, kwargs))[0])):
            self.positional.append((module, args, kwargs))

    def check_inputs(self, module: Module, args: Any, kwargs: Any) -> None:
        """Compare what a module gets, before it runs."""
        number, calls = self._done[module], self._calls[module]
        self._done[module] += 1
        first = calls[number] if number < len(calls) else None
        # All results up to here are those of the first call: the code around computed the rest.
        if self._open and first is not None and _differ(first[0], self._kept((args, kwargs))):
            self._blame(self._open[-1][0])
        self._open.append((module, first))

    def check_outputs(self, module: Module, args: Any, kwargs: Any, output: Any) -> Any:
        """Compare what a module returns, and return what it returned in the first call."""
        _, first = self._open.pop()
        if self.culprit or first is None:
            return None
        if _differ(first[1], self._kept(output)):
            self._blame(module)
            return None
        results = iter(first[1])
        return tree_map(lambda value: self._restored(value, next(results)), output)

    def _blame(self, module: Module) -> None:
        name = self._names.get(module)  # a model may replace its modules as it runs
        told = f"{name} ({type(module).__name__})" if name else type(module).__name__
        self.culprit = self.culprit or told

    def _kept(self, values: Any) -> _Kept:
        return _kept(values, self._places)

    def _restored(self, value: Any, first: Tensor | None) -> Any:
        dim = _token_dim(value)
        if dim is None or first is None:
            return value
        return value.index_copy(dim, self._places.to(value.device), first)


def _token_dim(value: Any) -> int | None:
    if not isinstance(value, Tensor):
        return None
    return next((dim for dim, size in enumerate(value.shape) if size == TOKENS), None)


def _kept(values: Any, places: Tensor) -> _Kept:
    found: _Kept = []
    for value in tree_flatten(values)[0]:
        dim = _token_dim(value)
        found.append(None if dim is None else value.index_select(dim, places.to(value.device)))
    return found


def _differ(first: _Kept, second: _Kept) -> bool:
    """Return whether two tensors differ by more than rounding."""
    return any(
        a is not None and b is not None and a.shape == b.shape and _is_off(a, b)
        for a, b in zip(first, second, strict=False)
    )


def _is_off(a: Tensor, b: Tensor) -> bool:
    if not a.numel() or not a.is_floating_point():
        return not torch.equal(a, b)
    most = torch.maximum(a.abs().max(), b.abs().max()).float()
    return bool((a.float() - b.float()).abs().max() > NOISE.get(a.dtype, 1e-3) * most)


def _is_position(value: Any) -> bool:
    is_index = isinstance(value, Tensor) and not value.is_floating_point()
    return is_index and value.shape[-1:] == (TOKENS,) and value.ndim in (2, 3)


def _longest(found: _Positional) -> int:
    """Return from how many tokens on other tokens' positions change a module's result; 0: never."""
    most = max(KEPT)
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


def _is_other(a: _Kept | None, b: _Kept | None) -> bool:
    return a is not None and b is not None and _differ(a, b)


def _with_others(found: _Positional, position: int) -> _Kept | None:
    """Call a copy of a module with the other tokens at a position; ``None`` if it refuses."""

    def moved(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        value = value.cpu()  # an index out of range would end a CUDA process
        if not _is_position(value):
            return value
        kept = torch.isin(torch.arange(TOKENS, device="cpu"), torch.tensor(KEPT, device="cpu"))
        return torch.where(kept, value, position)

    module, arguments, named = found
    module = deepcopy(module).cpu()
    try:
        with torch.no_grad():
            output = module(*tree_map(moved, arguments), **tree_map(moved, named))
    except (IndexError, RuntimeError, ValueError):
        return None
    return _kept(output, torch.tensor(KEPT, device="cpu"))
