"""`PreparedPlan`: a plan that is ready on this rank, and the calls that layers make on it.

Every call checks its tensors against the plan. ``DCPExecutor(check_finite=True)`` also checks their
values, which reads every tensor once more: receive buffers are then filled with NaN before anything
arrives, so that a row that is read too early, or never written, is found as well.

A compiled graph passes tensors only, so a tensor with a number stands for each plan and open call.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from math import inf
from struct import Struct
from typing import NamedTuple, TypeAlias, cast
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from dcp_planner import Direction
from dcp_runtime.errors import RunError
from dcp_runtime.execute.interpreter import Interpreter
from dcp_runtime.execute.layer_limits import LayerLimits, MaskLimits
from dcp_runtime.execute.passes import BackwardPass, Finishes, ForwardPass, Keys, Pass
from dcp_runtime.kernels.choice import ITS_OWN_ORDER, KernelChoice, choose_kernel
from dcp_runtime.kernels.kernel import Kernel, QueryRows, TensorKind, accumulator_dtype
from dcp_runtime.plans.device_plan import DevicePlan
from dcp_runtime.transport.recorder import Recorder, make_clock
from dcp_runtime.transport.store_barrier import Topic
from dcp_runtime.transport.transport import Transport, agree

_numbers = count()
# Weak: a number in a compiled graph must not keep a plan of a past batch alive.
_objects: "WeakValueDictionary[int, object]" = WeakValueDictionary()


def handle_of(plan: object) -> Tensor:
    """Return a tensor that stands for a plan as long as the plan lives."""
    number = next(_numbers)
    _objects[number] = plan
    # On the CPU whatever the default device: `find` would wait for another one in every call.
    return torch.tensor([number], device="cpu")


_PAIR = Struct("=qq")  # of int64, as a handle has them


def find(handle: Tensor) -> object:
    """Return the plan that a handle stands for."""
    return _objects[int(handle)]


class OpenCall(bytearray):
    """A forward call that awaits its backward; it is the memory of its own handle.

    Only the autograd graph holds the handle, compiled or not. When the graph is freed, so are the
    handle, its memory and thereby the call. The call keeps its plan alive.
    """

    def __init__(self, plan: "PreparedPlan") -> None:
        number = next(_numbers)
        super().__init__(_PAIR.pack(number, plan.handle_number))
        self.plan = plan
        _objects[number] = self

    def handle(self) -> Tensor:
        """Return the tensor over this memory: the number of the call, and that of its plan."""
        return torch.frombuffer(self, dtype=torch.int64)


def find_call(handle: Tensor) -> OpenCall | None:
    """Return the call of a handle; ``None`` if the call is gone, or the handle has no values."""
    # Compilers trace with subclasses.
    found = _objects.get(int(handle[0])) if type(handle) is Tensor else None
    return cast(OpenCall | None, found)


def plan_of_call(handle: Tensor) -> "PreparedPlan":
    """Return the plan of a call, of which a copy of the handle may be all that is left."""
    # Hooks on saved tensors, as of offloaded activations, copy the handle.
    if (call := find_call(handle)) is not None:
        return call.plan
    if (plan := _objects.get(int(handle[1]))) is None:
        raise RunError(
            "the plan of this layer is gone before its backward: hooks have copied the tensors "
            "that autograd saved; keep what executor.prepare(plan) returned until backward has run"
        )
    return cast(PreparedPlan, plan)


class PreparedBatch:
    """The plans that were prepared together: a single plan, or those of a stack."""

    def __init__(
        self, name: str, masks: Sequence[str], layers: list[tuple[str, int]], *, is_traced: bool
    ) -> None:
        self.name, self.masks, self.layers, self.is_traced = name, masks, layers, is_traced
        self.reached = set[int]()
        # Weak: a call leaves when its autograd graph is freed. By id: a bytearray has no hash.
        self._calls: WeakValueDictionary[int, OpenCall] = WeakValueDictionary()

    def note_call(self, call: OpenCall) -> None:
        """Note a forward call that waits for its backward."""
        self._calls[id(call)] = call

    def note_layer(self, number: int) -> None:
        """Note that a layer runs, by its number in the model."""
        # Inside a backward pass a checkpoint runs layers again, which all ranks ran before.
        if torch._C._current_graph_task_id() == -1:
            self.layers.append((self.name, number))

    @property
    def is_reached(self) -> bool:
        """Return whether a layer ran one of the plans, or tried to."""
        return bool(self.reached)

    @property
    def unused(self) -> list[str]:
        """Masks that no layer ran although a layer ran another mask of the batch."""
        numbers = range(len(self.masks)) if self.reached else ()
        return [self.masks[number] for number in numbers if number not in self.reached]

    @property
    def is_finished(self) -> bool:
        """Return whether layers ran and no call of theirs waits for its backward."""
        return self.is_reached and not self._calls

    def __str__(self) -> str:
        """Return the name of the batch and the calls for which it waits."""
        missing = "its backward" if self.is_reached else "its first layer"
        return f"{self.name} (waits for {missing})"


class Softmax(NamedTuple):
    """The choices of a layer's softmax; see `DCPAttn.apply`."""

    scale: float | None = None
    cap: float | None = None
    sinks: Tensor | None = None

    def check(self, q: Tensor) -> None:
        """Check the choices, and the sinks against the queries."""
        if self.scale is not None and not 0 < self.scale < inf:
            raise RunError(f"expected a softmax_scale above 0, got {self.scale}")
        if self.cap is not None and not 0 < self.cap < inf:
            raise RunError(f"expected a soft cap above 0, got {self.cap}")
        sinks = self.sinks
        if sinks is not None and (tuple(sinks.shape), sinks.device) != (q.shape[1:2], q.device):
            raise RunError(
                f"expected a sink per query head, {list(q.shape[1:2])} on {q.device}, got "
                f"{list(sinks.shape)} on {sinks.device}"
            )


PLAIN = Softmax()


def check_tensors(part: DevicePlan, q: Tensor, kv: Keys) -> None:
    """Check shapes, dtypes and devices of a forward call; strides and gradients may be any."""
    shape, tokens = part.heads.shape, part.num_local // part.heads.groups
    if isinstance(kv, tuple) and len(kv) != 2:
        raise RunError(
            f"expected kv as one tensor or as (k, v), got a tuple of {len(kv)}; "
            "stack k and v along dim 1, or give both"
        )
    given = {"q": q, **(dict(zip("kv", kv, strict=True)) if isinstance(kv, tuple) else {"kv": kv})}
    for name, value in given.items():
        if not isinstance(value, Tensor):
            raise RunError(f"expected {name} to be a tensor, got {type(value).__name__}")
    packed = (2,) if len(given) == 2 else ()
    want_keys = (tokens, *packed, shape.kv_heads, shape.head_dim)
    wanted = dict.fromkeys(given, want_keys) | {"q": (tokens, shape.q_heads, shape.head_dim)}
    last = [*given.values()][-1]
    if any(tuple(given[name].shape) != wanted[name] for name in given):
        way_out = "take the rows plan.local_tokens(rank) of the packed batch"
        # The right rows with other heads: the plan is for another model.
        if (q.ndim, last.ndim, len(q), len(last)) == (3, len(want_keys), tokens, tokens):
            way_out = (
                "plan for the heads of your model: Planning(ModelShape("
                f"q_heads={q.shape[1]}, kv_heads={last.shape[-2]}, head_dim={q.shape[2]}))"
            )
        elif all(v.ndim == len(wanted[n]) + 1 and len(v) == 1 for n, v in given.items()):
            shown = " and ".join(f"{name}[0]" for name in given)
            way_out = (
                f"drop the batch dimension: give {shown}, since a batch is packed into one row"
            )
        raise RunError(
            f"rank {part.device} owns {tokens} tokens of this plan: expected "
            f"{' and '.join(f'{name} {list(wanted[name])}' for name in given)}, got "
            f"{' and '.join(str(list(value.shape)) for value in given.values())}; {way_out}"
        )
    if len({(value.dtype, value.device) for value in given.values()}) > 1:
        raise RunError(
            f"{' and '.join(given)} must share dtype and device, got "
            f"{' and '.join(f'{value.dtype} on {value.device}' for value in given.values())}; "
            "convert one of them"
        )


@contextmanager
def _on_device(q: Tensor) -> Iterator[None]:
    """Record no graph, and make the device of q the current one, on which Triton launches."""
    with ExitStack() as stack:
        # Even a context that changes nothing takes the host longer than these questions.
        if torch.is_grad_enabled():
            stack.enter_context(torch.no_grad())
        if q.is_cuda:
            stack.enter_context(torch.cuda.device(q.device))
        yield


def _facts_of(q: Tensor, kv: Keys, softmax: Softmax) -> tuple[object, ...]:
    """Return all that a check looks at, but sinks."""
    tensors = (q, *kv) if isinstance(kv, tuple) else (q, kv)
    try:
        facts = tuple((x.shape, x.dtype, x.device) for x in tensors)
    except AttributeError:  # no tensor: the check says so
        return (None,)
    return (*facts, softmax.scale, softmax.cap)


_KIND = Topic("kind of tensors", "give every rank tensors of the same kind")


@dataclass(frozen=True, slots=True)
class Engine:
    """The kernel that computes, and the kind of tensors that it has loaded a plan's tables for."""

    kind: TensorKind
    kernel: Kernel
    choice: KernelChoice

    @classmethod
    def make(cls, kind: TensorKind, wanted: str | None, part: DevicePlan) -> "Engine":
        """Choose the kernel of a plan, and bring its tile tables to where the tensors are."""
        choice = choose_kernel(kind.dtype, kind.device, wanted, kind.head_dim, kind.softcap, part)
        engine = cls(kind, choice.kernel, choice)
        engine._load(part)
        return engine

    def take(self, part: DevicePlan, wanted: str | None) -> "Engine":
        """Load a further plan; return another engine if this kernel cannot compute it."""
        try:
            self._load(part)
        except RunError:
            if wanted is not None:
                raise
            return Engine.make(self.kind, wanted, part)
        return replace(self, choice=replace(self.choice, is_kept=wanted is None))

    def _load(self, part: DevicePlan) -> None:
        if part.plan.is_reproducible and not self.kernel.keeps_bits:
            raise RunError(
                f"kernel {self.kernel.name!r} {ITS_OWN_ORDER}; leave the kernel open, or use one "
                "of 'triton', 'cpu' and 'reference'"
            )
        self.kernel.load(part.forward.tables, part.backward.tables, self.kind)

    def check(self, kind: TensorKind) -> None:
        """Check the tensors of a further layer."""
        if str(self.kind) != str(kind):
            raise RunError(
                f"all layers of a prepared plan share dtype, device and soft cap: expected "
                f"{self.kind}, got {kind}; prepare the plan again for other tensors"
            )


_PassKey: TypeAlias = tuple[Direction, Finishes, bool, bool]


def _key_of(direction: Direction, kv: Keys, finishes: Finishes) -> _PassKey:
    """Return what calls must share to use the same buffers."""
    # Tensors made in inference mode cannot be written to outside of it.
    return direction, finishes, isinstance(kv, Tensor), torch.is_inference_mode_enabled()


class PreparedPlan:
    """A plan made ready on this rank: `DCPExecutor.prepare` makes it, layers run it.

    ``DCPAttn.apply(prepared, q, kv)`` runs it, in as many layers as you like, also when a
    checkpoint runs them again after other plans were prepared. The `expected` engine, that of the
    plan before, has loaded this plan's tables already. `number` is that of the plan in its batch.
    """

    def __init__(  # noqa: PLR0913 - what an executor knows of a plan
        self,
        part: DevicePlan,
        transport: Transport,
        batch: PreparedBatch,
        kernel: str | None,
        check_finite: bool,
        expected: Engine | None,
        number: int = 0,
        mask_limits: MaskLimits | None = None,
    ) -> None:
        self._number = number
        self._mask_limits = mask_limits or MaskLimits(part.plan)
        self.part, self.batch, self.handle = part, batch, handle_of(self)
        self.handle_number = int(self.handle)
        self.recorder = Recorder(transport.rank, is_on=batch.is_traced)
        self._transport = transport
        self._kernel, self._check_finite = kernel, check_finite
        self._expected = expected
        self._engine: Engine | None = None
        self._facts: tuple[object, ...] = ()  # of the tensors of the layer before
        self._passes: dict[_PassKey, Pass] = {}

    def note_layer(self) -> None:
        """Note that a layer runs this plan, or tries to."""
        self.batch.reached.add(self._number)

    @property
    def latest_engine(self) -> Engine | None:
        """The engine of this plan's layers; until one has run, that of the plan before."""
        return self._engine or self._expected

    @property
    def kernel_choice(self) -> KernelChoice | None:
        """The kernel of the layers, and the reasons against others; ``None`` before any layer."""
        return None if self.latest_engine is None else self.latest_engine.choice

    def check_limits(self, limits: LayerLimits) -> None:
        """Compare the plan's mask with what a layer may see; see `MaskLimits.check`."""
        self.note_layer()  # as in `forward`
        with self._telling("forward"):
            self._mask_limits.check(limits)

    def forward(self, q: Tensor, kv: Keys, softmax: Softmax = PLAIN) -> tuple[Tensor, Tensor]:
        """Compute out ``[T_local, Hq, D]`` and lse ``[T_local, Hq]`` of this rank's tokens.

        The first layer compares dtype, device, scale and soft cap with those of the other ranks.
        lse is that of the keys; sinks are no part of it.

        Raises:
            RunError: if the tensors do not fit the plan, or another rank fails.
        """
        # Before the checks: a refused layer was reached, too, and `close` must not say otherwise.
        self.note_layer()
        self._check_tensors(q, kv, softmax)
        with _on_device(q):
            heads = self.part.heads
            # Sinks come behind the last table, so no table ends the sums of out.
            finishes = self._finishes if softmax.sinks is None else frozenset()
            # Buffers may find no memory on this rank alone; the others must not wait for it then.
            key = _key_of("forward", kv, finishes)
            with self._telling("forward"):
                current = self._forward_pass(key, heads.split_q(q), self._split(kv), softmax.scale)
            self._interpreter().run(current)
            if softmax.sinks is not None:
                rows = softmax.sinks.to(accumulator_dtype(q.dtype)).expand(len(q), -1)
                current.add_sinks(heads.split_q(rows))
            out, lse = (heads.join_q(tensor) for tensor in current.result())
            self._keep(key, current)
            self._check("forward", out=out)
            return out, lse

    def backward(
        self,
        q: Tensor,
        kv: Keys,
        out: Tensor,
        lse: Tensor,
        dout: Tensor,
        softmax_scale: float | None = None,
    ) -> tuple[Tensor, ...]:
        """Compute dq and dkv, or dk and dv, from the arguments and results of forward.

        With sinks, lse is that of the keys and the sink of each row together.

        Raises:
            RunError: if dout does not fit out, or another rank fails.
        """
        with _on_device(q):
            key = _key_of("backward", kv, self._finishes)
            with self._telling("backward"):
                current = self._backward_pass(key, (q, kv, out, lse, dout), softmax_scale)
            self._interpreter().run(current)
            dq, *dkv = current.result()
            heads = self.part.heads
            results = heads.join_q(dq), *map(heads.join_kv, dkv)
            self._keep(key, current)
            names = ("dq", "dkv") if len(dkv) == 1 else ("dq", "dk", "dv")
            self._check("backward", **dict(zip(names, results, strict=True)))
            return results

    def _forward_pass(self, key: _PassKey, q: Tensor, kv: Keys, scale: float | None) -> ForwardPass:
        """Begin a call: on the pass that an earlier layer left, or on a new one."""
        # Taken out: a call that fails leaves messages under way, and nobody may use its buffers.
        found = cast("ForwardPass | None", self._passes.pop(key, None))
        if found is None:
            return ForwardPass(self.part, q, kv, scale, key[1])
        found.renew((q,), kv, scale)
        return found

    def _backward_pass(
        self, key: _PassKey, saved: tuple[Tensor, Keys, Tensor, Tensor, Tensor], scale: float | None
    ) -> BackwardPass:
        q, kv, out, lse, dout = saved
        if (dout.shape, dout.dtype, dout.device) != (out.shape, out.dtype, out.device):
            raise RunError(
                f"rank {self.part.device}: expected dout as out, {list(out.shape)} "
                f"{out.dtype} on {out.device}, got {list(dout.shape)} {dout.dtype} on "
                f"{dout.device}"
            )
        split, delta = self.part.heads.split_q, self._kernel_of_layers.delta(out, dout)
        rows, kv = QueryRows(split(q), split(dout), split(lse), split(delta)), self._split(kv)
        found = cast("BackwardPass | None", self._passes.pop(key, None))
        if found is None:
            return BackwardPass(self.part, rows, kv, scale, key[1])
        found.renew((rows.lse, rows.delta, rows.q, rows.dout), kv, scale)
        return found

    def _keep(self, key: _PassKey, current: Pass) -> None:
        """Keep a pass whose call has ended for the next layer."""
        current.release()
        self._passes[key] = current

    def _split(self, kv: Keys) -> Keys:
        split = self.part.heads.split_kv
        return split(kv) if isinstance(kv, Tensor) else (split(kv[0]), split(kv[1]))

    def _check_tensors(self, q: Tensor, kv: Keys, softmax: Softmax = PLAIN) -> None:
        given = _facts_of(q, kv, softmax)
        # As a layer before: most layers of a model.
        if given == self._facts and softmax.sinks is None:
            return
        if self._engine is None:
            propose = partial(self._propose_engine, q, kv, softmax)
            # Collective: all ranks compute with tensors of the same kind.
            self._engine = agree(self._transport, (_KIND,), "the first layer", propose)
            # Where the tensors are decides by which clock work is timed, and is known only now.
            self.recorder.clock = make_clock(q.device, self.recorder.clock)
        else:
            with self._telling("forward"):
                self._engine.check(self._checked_kind(q, kv, softmax))
        self._facts = given

    def _propose_engine(
        self, q: Tensor, kv: Keys, softmax: Softmax
    ) -> tuple[Sequence[str], Engine]:
        kind = self._checked_kind(q, kv, softmax)
        scaled = "" if softmax.scale is None else f" with softmax_scale {softmax.scale:.9g}"
        if self._expected is not None and self._expected.kind == kind:
            engine = self._expected
        else:
            engine = Engine.make(kind, self._kernel, self.part)
        return (f"{kind}{scaled}",), engine

    def _checked_kind(self, q: Tensor, kv: Keys, softmax: Softmax) -> TensorKind:
        """Check tensors and choices of a call, and return their kind."""
        check_tensors(self.part, q, kv)
        softmax.check(q)
        shape = self.part.plan.shape
        group = shape.q_heads // shape.kv_heads
        return TensorKind(q.dtype, q.device, q.shape[-1], softmax.cap, group)

    @property
    def _kernel_of_layers(self) -> Kernel:
        assert self._engine is not None, "the first forward chose it"
        return self._engine.kernel

    @property
    def _finishes(self) -> Finishes:
        """The sums that the kernel begins and ends; none in ordered tables."""
        is_ordered = self.part.plan.is_reproducible
        return frozenset() if is_ordered else self._kernel_of_layers.finishes

    def _interpreter(self) -> Interpreter:
        kernel = self._kernel_of_layers
        return Interpreter(self.part, kernel, self._transport, self.recorder, self._check_finite)

    def _check(self, direction: Direction, **results: Tensor) -> None:
        """Check that results are finite, if `check_finite` asks for it."""
        if not self._check_finite:
            return
        rank = self.part.device
        with self._telling(direction):
            for name, tensor in results.items():
                wrong = ~torch.isfinite(tensor)
                if wrong.any():
                    raise RunError(
                        f"rank {rank}: {name} has {int(wrong.sum())} values that are not finite "
                        f"after {direction}, the first one at local token "
                        f"{int(wrong.nonzero()[0, 0])}; look at the inputs of this layer",
                        rank=rank,
                        division=0,
                    )

    @contextmanager
    def _telling(self, direction: Direction) -> Iterator[None]:
        """Tell the other ranks of an error that this one meets alone."""
        try:
            yield
        except Exception as error:
            self._transport.report(direction, 0, error)
            raise
