"""The interpreter runs one device's program, instruction by instruction, and decides nothing.

A `Pass` holds everything that belongs to one call: its buffers, and the effects of instructions on
them. So several layers, and several plans, may be between their forward and their backward at once.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor

from dcp_planner import Direction, TransferKind
from dcp_planner.simulation import EventKind, wait_name
from dcp_planner.tables import Attention, CommLaunch, CommWait, Copy, Instruction, Reduction
from dcp_runtime.errors import PeerError, RunError
from dcp_runtime.execute.sums import Sums, own_rows
from dcp_runtime.kernels.kernel import (
    AttentionState,
    Gradients,
    Kernel,
    QueryRows,
    accumulator_dtype,
)
from dcp_runtime.plans.device_plan import DevicePlan, Transfer
from dcp_runtime.plans.tile_table import TileTable
from dcp_runtime.transport.recorder import Activity, Event, Recorder
from dcp_runtime.transport.transport import Parcel, Transport

Keys: TypeAlias = Tensor | tuple[Tensor, Tensor]
"""kv ``[T, 2, Hkv, D]``, or k and v, ``[T, Hkv, D]`` each."""
Finishes: TypeAlias = frozenset[TransferKind]
"""Sums that a kernel begins and ends itself."""


def working_buffer(own: Tensor, receive_rows: int) -> Tensor:
    """Return a buffer for own rows and received ones; the own tensor itself if nothing arrives.

    >>> own = torch.ones(2, 3)
    >>> working_buffer(own, 0) is own, working_buffer(own, 4).shape
    (True, torch.Size([6, 3]))
    """
    if receive_rows == 0:
        return own.contiguous()
    return own.new_empty(len(own) + receive_rows, *own.shape[1:])


class Pass(ABC):
    """One call in one direction, with its send and receive buffers.

    Args:
        part: the device's part of the plan.
        queries: the tensors of the local tokens that travel with a block of queries.
        kv: keys and values of the local tokens.
        scale: factor of the scores; ``None`` for ``1 / sqrt(D)``.
        finishes: the sums that the kernel begins and ends itself.
    """

    direction: Direction

    def __init__(
        self,
        part: DevicePlan,
        queries: tuple[Tensor, ...],
        kv: Keys,
        scale: float | None,
        finishes: Finishes,
    ) -> None:
        self._plan, self._num_local = part.of(self.direction), part.num_local
        self._finishes = finishes
        received = self._plan.receive_rows
        self._queries = tuple(working_buffer(own, received[TransferKind.Q]) for own in queries)
        self._is_packed, rows = isinstance(kv, Tensor), received[TransferKind.KV]
        keys: tuple[tuple[Tensor, Tensor], ...]
        if isinstance(kv, Tensor):
            self._kv = working_buffer(kv, rows)
            keys = ((self._kv, kv),)
        else:
            # k and v meet in one buffer, into which `copy` brings them: kernels read kv.
            k, v = kv
            self._kv = k.new_empty(len(k) + rows, 2, *k.shape[1:])  # [T + received, 2, Hkv, D]
            keys = ((self._kv[:, 0], k), (self._kv[:, 1], v))
        self._own = (*zip(self._queries, queries, strict=True), *keys)
        self._scale = self._kv.shape[-1] ** -0.5 if scale is None else scale
        self._sum_type = accumulator_dtype(self._kv.dtype)
        is_wide = part.plan.shape.float32_partials
        self._partial_type = self._sum_type if is_wide else self._kv.dtype
        # The tensors that travel as one kind; a direction adds the buffers of its partial results.
        self._buffers: dict[TransferKind, tuple[Tensor, ...]] = {
            TransferKind.Q: self._queries, TransferKind.KV: (self._kv,)
        }  # fmt: skip

    def _sums(self, kind: TransferKind, like: Tensor, *, is_split: bool = False) -> Sums:
        others = self._plan.sums[kind] if kind in self._finishes else None
        return Sums(like, self._num_local, self._sum_type, others, is_split=is_split)

    @abstractmethod
    def poison(self) -> None:
        """Fill results with NaN, which shows in the rows that no kernel ends."""

    @property
    def receive_bytes(self) -> int:
        """Bytes of the receive buffers, as ``receive_buffer_bytes`` of the planner counts them."""
        # Inputs arrive behind the local rows, partial results in buffers of their own.
        arriving = (
            buffer[0 if kind.is_result else self._num_local :]
            for kind, buffers in self._buffers.items()
            for buffer in buffers
        )
        return sum(rows.nbytes for rows in arriving)

    def copy(self) -> None:
        """Copy the own blocks into the working buffers."""
        for buffer, own in self._own:
            if buffer is not own:
                buffer[: len(own)] = own

    def outgoing(self, transfer: Transfer) -> tuple[Tensor, ...]:
        """Return the contiguous tensors to send: inputs without a copy, or the result so far."""
        return self._result(transfer) if transfer.kind.is_result else self._rows(transfer)

    def incoming(self, transfer: Transfer) -> tuple[Tensor, ...]:
        """Return the contiguous tensors to receive into; the results of a new block start at 0."""
        if not transfer.kind.is_result:
            # Results lie at the rows of their inputs, which an earlier block may have used.
            self._clear(transfer)
        return self._rows(transfer)

    def row_bytes(self, kind: TransferKind) -> tuple[int, ...]:
        """Return the bytes of a token in each tensor that travels as the given kind."""
        return tuple(x.stride(0) * x.element_size() for x in self._buffers[kind])

    def _rows(self, transfer: Transfer) -> tuple[Tensor, ...]:
        """Return the rows where an input lies, or where a partial result arrives."""
        first = transfer.slot if transfer.kind.is_result else transfer.row
        rows = slice(first, first + transfer.num_tokens)
        return tuple(buffer[rows] for buffer in self._buffers[transfer.kind])

    @abstractmethod
    def attend(self, kernel: Kernel, table: TileTable) -> None:
        """Compute the tiles of a table."""

    @abstractmethod
    def result(self) -> tuple[Tensor, ...]:
        """Return the results of the own rows, when the program has ended."""

    @abstractmethod
    def reduce(self, kernel: Kernel, transfer: Transfer) -> None:
        """Merge a partial result that has arrived."""

    @abstractmethod
    def _result(self, transfer: Transfer) -> tuple[Tensor, ...]:
        """Return the result of a transfer's block so far."""

    @abstractmethod
    def _clear(self, transfer: Transfer) -> None:
        """Reset the results of the block that was in these rows before."""


class ForwardPass(Pass):
    """Buffers of a forward call on q ``[T_local, Hq, D]`` and kv, or k and v.

    A partial result travels as lse in the type of the sums, and out in the type of q or, where the
    plan says so, in that of the sums.
    """

    direction: Direction = "forward"

    def __init__(
        self,
        part: DevicePlan,
        q: Tensor,
        kv: Keys,
        scale: float | None = None,
        finishes: Finishes = frozenset(),
    ) -> None:
        super().__init__(part, (q,), kv, scale, finishes)
        (self._q,) = self._queries
        self._out = self._sums(TransferKind.OUT, self._q)
        lse = q.new_full(self._q.shape[:2], -torch.inf, dtype=self._sum_type)
        self._state = AttentionState(self._out.wide, lse, self._out.result)
        received = self._plan.receive_rows[TransferKind.OUT]
        self._buffers[TransferKind.OUT] = (
            q.new_empty(received, q.shape[1], dtype=self._sum_type),
            q.new_empty(received, *q.shape[1:], dtype=self._partial_type),
        )

    def result(self) -> tuple[Tensor, Tensor]:
        """Return out ``[T_local, Hq, D]`` in the dtype of q and lse ``[T_local, Hq]``."""
        (out,) = self._out.finish()
        return out, own_rows(self._state.lse, self._num_local)

    def add_sinks(self, sinks: Tensor) -> None:
        """Let a key of value 0 take its share of each local row, by scores ``[T_local, Hq]``.

        It comes last, and only on the rank that owns a token: a sink counts once. lse leaves it
        out: beside a sink that takes almost all, a sum of both would not tell the keys' share.
        """
        rows = slice(0, self._num_local)
        # NaN is -inf - -inf: no key and no sink, and out is 0.
        share = torch.sigmoid(self._state.lse[rows] - sinks).nan_to_num_(0.0)
        self._state.out[rows].mul_(share.unsqueeze(-1))

    def poison(self) -> None:
        """Fill out with NaN."""
        self._out.poison()

    def attend(self, kernel: Kernel, table: TileTable) -> None:
        """Merge the tiles of a table into the state."""
        kernel.forward(self._q, self._kv, table, self._scale, self._state)

    def reduce(self, kernel: Kernel, transfer: Transfer) -> None:
        """Merge a partial result by log-sum-exp."""
        lse, out = self._rows(transfer)
        kernel.merge(self._state, transfer.row, out, lse)

    def _result(self, transfer: Transfer) -> tuple[Tensor, ...]:
        rows = transfer.rows
        return self._state.lse[rows], self._state.out[rows].to(self._partial_type)

    def _clear(self, transfer: Transfer) -> None:
        if transfer.kind == TransferKind.Q:
            self._state.out[transfer.rows] = 0
            self._state.lse[transfer.rows] = -torch.inf


class BackwardPass(Pass):
    """Buffers of a backward call on the `QueryRows` of the local tokens and kv, or k and v.

    A block of queries travels as lse, delta, q and dout. Gradients are summed in float32 (float64
    for float64) and travel home in the dtype of q or, where the plan says so, in that of the sums.
    """

    direction: Direction = "backward"

    def __init__(
        self,
        part: DevicePlan,
        rows: QueryRows,
        kv: Keys,
        scale: float | None = None,
        finishes: Finishes = frozenset(),
    ) -> None:
        super().__init__(part, (rows.lse, rows.delta, rows.q, rows.dout), kv, scale, finishes)
        lse, delta, q, dout = self._queries
        self._query_rows = QueryRows(q, dout, lse, delta)
        self._dq = self._sums(TransferKind.DQ, q)
        self._dkv = self._sums(TransferKind.DKV, self._kv, is_split=not self._is_packed)
        self._gradients = Gradients(
            self._dq.wide, self._dkv.wide, self._dq.result, self._dkv.results
        )
        for kind, like in ((TransferKind.DQ, q), (TransferKind.DKV, self._kv)):
            received = self._plan.receive_rows[kind]
            buffer = q.new_empty(received, *like.shape[1:], dtype=self._partial_type)
            self._buffers[kind] = (buffer,)

    def result(self) -> tuple[Tensor, ...]:
        """Return dq ``[T_local, Hq, D]`` and dkv, or dk and dv if k and v came so; dtype of q."""
        return (*self._dq.finish(), *self._dkv.finish())

    def poison(self) -> None:
        """Fill the gradients with NaN."""
        self._dq.poison()
        self._dkv.poison()

    def attend(self, kernel: Kernel, table: TileTable) -> None:
        """Add the gradients of the tiles of a table."""
        kernel.backward(self._query_rows, self._kv, table, self._scale, self._gradients)

    def reduce(self, kernel: Kernel, transfer: Transfer) -> None:
        """Add a partial sum."""
        (partial,) = self._rows(transfer)
        self._sum(transfer)[transfer.rows].add_(partial)  # += would also copy the rows back

    def _result(self, transfer: Transfer) -> tuple[Tensor, ...]:
        return (self._sum(transfer)[transfer.rows].to(self._partial_type),)

    def _clear(self, transfer: Transfer) -> None:
        self._sum(transfer)[transfer.rows] = 0

    def _sum(self, transfer: Transfer) -> Tensor:
        is_kv = transfer.kind in (TransferKind.KV, TransferKind.DKV)
        return (self._dkv if is_kv else self._dq).wide


@dataclass(slots=True)
class _Flight:
    """Messages of one call."""

    # Launches that follow one another start together: where messages go in batches, the sends of a
    # rank must not wait for its receives.
    launched: list[Parcel] = field(default_factory=list)
    by_key: dict[int, list[Parcel]] = field(default_factory=dict)  # of each launch, until its wait
    arriving: dict[int, Parcel] = field(default_factory=dict)  # by transfer, to be passed on


@dataclass(slots=True, eq=False)
class Interpreter:
    """Runs the calls on a prepared plan.

    With `guard`, results hold NaN until a kernel ends them and receive buffers until their message
    comes, and messages are checked.
    """

    part: DevicePlan
    kernel: Kernel
    transport: Transport
    recorder: Recorder
    guard: bool

    def run(self, current: Pass) -> None:
        """Execute the program of the direction of `current`."""
        flight, division = _Flight(), 0
        if self.guard:
            current.poison()
        try:
            self.transport.begin(self.part, current.direction, current.row_bytes)
            for instruction, table in self.part.of(current.direction).steps:
                if not isinstance(instruction, Copy):  # it belongs to no division
                    division = instruction.division
                if not isinstance(instruction, CommLaunch) and flight.launched:
                    self.transport.start(flight.launched)
                    flight.launched = []
                self.recorder.begin(Activity(instruction, division, current.direction))
                self._execute(current, instruction, table, flight)
        # Another rank's failure is the cause, and all ranks know of it already.
        except PeerError:
            raise
        except Exception as error:
            self.transport.report(current.direction, division, error)
            raise
        finally:
            self.recorder.begin(None)

    def _execute(
        self, current: Pass, instruction: Instruction, table: TileTable | None, flight: _Flight
    ) -> None:
        match instruction:
            case Copy():
                with self._timed(current, "copy", 0):
                    current.copy()
            case CommLaunch():
                self._launch(current, instruction, flight)
            case CommWait():
                self._wait(current, instruction, flight)
            case Attention():
                assert table is not None, "every attention instruction has a table"
                with self._timed(current, "attention", instruction.division):
                    current.attend(self.kernel, table)
            case Reduction() if instruction.transfers:
                with self._timed(current, "reduction", instruction.division):
                    for index in instruction.transfers:
                        current.reduce(self.kernel, self.part.transfers[index])

    @contextmanager
    def _timed(
        self, current: Pass, kind: EventKind, division: int, name: str | None = None
    ) -> Iterator[None]:
        """Record the work inside as an event, if events are recorded."""
        if not self.recorder.is_on:
            yield
            return
        clock, is_backward = self.recorder.clock, current.direction == "backward"
        start = clock.now()
        yield
        self.recorder.add(Event(kind, start, clock.now(), is_backward, division, name or kind))

    def _launch(self, current: Pass, launch: CommLaunch, flight: _Flight) -> None:
        parcels = []
        for index in launch.transfers:
            transfer = self.part.transfers[index]
            if transfer.is_send:
                # A block that is passed on leaves as soon as it has arrived.
                after = flight.arriving.get(transfer.brought_by)
                tensors = current.outgoing(transfer)
                parcels.append(Parcel(transfer, tensors, launch.division, after))
            else:
                parcel = Parcel(transfer, current.incoming(transfer), launch.division)
                if self.guard:
                    for tensor in parcel.tensors:
                        tensor.fill_(torch.nan)  # shows in the results if it is read too early
                flight.arriving[index] = parcel
                parcels.append(parcel)
        flight.by_key.setdefault(launch.key, []).extend(parcels)
        flight.launched += parcels

    def _wait(self, current: Pass, wait: CommWait, flight: _Flight) -> None:
        parcels = flight.by_key.pop(wait.key, [])
        if not parcels:
            return
        name = wait_name(wait.division, is_result=parcels[0].transfer.kind.is_result)
        with self._timed(current, "wait", wait.division, name):
            self.transport.wait(parcels, current.direction)
        # The wait counts against the rank whose message came last.
        self.recorder.latest_peer = max(parcels, key=lambda parcel: parcel.end_ns).transfer.peer
        for parcel in parcels:
            if self.recorder.is_on:
                # On CUDA only the stream has waited: the message may still be on its way.
                is_backward = current.direction == "backward"
                parcel.then(partial(self._record, parcel, is_backward=is_backward))
            if self.guard and not parcel.transfer.is_send:
                _check_arrived(parcel, current.direction)

    def _record(self, parcel: Parcel, *, is_backward: bool) -> None:
        transfer, division = parcel.transfer, parcel.division
        kind: EventKind = "send" if transfer.is_send else "receive"
        event = Event(
            kind, parcel.start_ns, parcel.end_ns, is_backward, division, transfer.name,
            transfer.peer, parcel.size_bytes, transfer.index,
        )  # fmt: skip
        self.recorder.add(event)


def _check_arrived(parcel: Parcel, direction: Direction) -> None:
    """Check a message for NaN and infinity; -inf may stand in lse, for a row without keys."""
    for tensor in parcel.tensors:
        if (torch.isnan(tensor) | (tensor == torch.inf)).any():
            transfer = parcel.transfer
            raise RunError(
                f"rank {transfer.peer} sent {transfer.name} with NaN or infinite values in "
                f"division {parcel.division} of {direction}; look at the inputs of its attention",
                rank=transfer.peer,
                division=parcel.division,
            )
