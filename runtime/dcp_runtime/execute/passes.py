"""The passes of a prepared plan: its buffers in one direction, and what instructions do to them.

The layers of a batch run the same pass one after the other. The first makes it; its buffers, and
views of them, serve the others.
"""

from abc import ABC, abstractmethod
from typing import TypeAlias

import torch
from torch import Tensor

from dcp_planner import Direction, TransferKind
from dcp_runtime.execute.exact_sums import ExactSums, digits_of
from dcp_runtime.execute.sums import Sums, own_rows
from dcp_runtime.kernels.kernel import (
    AttentionState,
    Gradients,
    Kernel,
    QueryRows,
    accumulator_dtype,
)
from dcp_runtime.plans.device_plan import DevicePlan
from dcp_runtime.plans.tile_table import TileTable
from dcp_runtime.plans.transfers import Bundle, Transfer, merged_rows

Keys: TypeAlias = Tensor | tuple[Tensor, Tensor]
"""kv ``[T, 2, Hkv, D]``, or k and v, ``[T, Hkv, D]`` each."""
Finishes: TypeAlias = frozenset[TransferKind]  # sums that a kernel begins and ends itself


def working_buffer(own: Tensor, receive_rows: int) -> Tensor | None:
    """Return a buffer for own rows and received ones; ``None`` if nothing arrives."""
    if receive_rows == 0:
        return None
    return own.new_empty(len(own) + receive_rows, *own.shape[1:])


class Pass(ABC):
    """Calls in one direction, one after the other, with their send and receive buffers.

    `queries` are the tensors of the local tokens that travel with a block of queries, `finishes`
    the sums that the kernel begins and ends itself. A `scale` of ``None`` stands for ``1 /
    sqrt(D)``.
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
        self._work_q = tuple(working_buffer(own, received[TransferKind.Q]) for own in queries)
        rows, k = received[TransferKind.KV], kv if isinstance(kv, Tensor) else kv[0]
        self._is_packed = isinstance(kv, Tensor)
        self._work_kv: Tensor | None
        if isinstance(kv, Tensor):
            self._work_kv = working_buffer(kv, rows)
        else:
            # k and v meet in one buffer, into which `copy` brings them: kernels read kv.
            self._work_kv = k.new_empty(len(k) + rows, 2, *k.shape[1:])  # [T + received, 2, Hkv, D]
        self._sum_type = accumulator_dtype(k.dtype)
        self._partial_type = self._sum_type if part.plan.shape.float32_partials else k.dtype
        # The tensors that travel as one kind; a direction adds the buffers of its partial results.
        self._buffers: dict[TransferKind, tuple[Tensor, ...]] = {}
        # Views of buffers that calls share, and the rows of blocks that are gathered.
        self._views: dict[object, tuple[Tensor, ...]] = {}
        # The sums that travel as one kind, and their types then. A device that sends sums has got
        # their inputs, so calls share these buffers.
        self._travelling: dict[
            TransferKind, tuple[tuple[Tensor, ...], tuple[torch.dtype, ...]]
        ] = {}
        self._take(queries, kv, scale)

    def _take(self, queries: tuple[Tensor, ...], kv: Keys, scale: float | None) -> None:
        """Take the tensors of a call: as they are where nothing arrives, else to be copied."""
        given = zip(queries, self._work_q, strict=True)
        self._queries = tuple(x.contiguous() if work is None else work for x, work in given)
        self._own: list[tuple[Tensor, Tensor]] = [
            (work, x) for x, work in zip(queries, self._work_q, strict=True) if work is not None
        ]
        work = self._work_kv
        if work is None:
            assert isinstance(kv, Tensor), "k and v apart have a buffer"
            self._kv = kv.contiguous()
        else:
            self._kv = work
            parts = (
                ((work, kv),) if isinstance(kv, Tensor) else zip(work.unbind(1), kv, strict=True)
            )
            self._own += parts
        self._scale = self._kv.shape[-1] ** -0.5 if scale is None else scale
        self._buffers[TransferKind.Q], self._buffers[TransferKind.KV] = self._queries, (self._kv,)

    def _keep(self, *tensors: Tensor | None) -> None:
        """Note the buffers that calls share."""
        # On the CPU memory stays, so that calls need not touch new pages. On CUDA the allocator
        # lends it to other work of the stream meanwhile.
        storages = (x.untyped_storage() for x in tensors if x is not None and x.is_cuda)
        self._lent = [(storage, storage.nbytes()) for storage in storages]

    def release(self) -> None:
        """Lend memory until the next call, and forget the tensors of this one."""
        # Views of the buffers stay valid, like those of FSDP's parameters.
        for storage, _ in self._lent:
            storage.resize_(0)
        del self._own, self._queries, self._kv
        del self._buffers[TransferKind.Q], self._buffers[TransferKind.KV]

    def renew(self, queries: tuple[Tensor, ...], kv: Keys, scale: float | None) -> None:
        """Begin another call, with tensors of the same kind."""
        for storage, size in self._lent:
            storage.resize_(size)
        self._take(queries, kv, scale)
        self._begin()

    @abstractmethod
    def _begin(self) -> None:
        """Begin the sums and results of a call."""

    def _sums(self, kind: TransferKind, like: Tensor, *, is_split: bool = False) -> Sums:
        others = self._plan.sums[kind] if kind in self._finishes else None
        return Sums(like, self._num_local, self._sum_type, others, is_split=is_split)

    @abstractmethod
    def poison(self) -> None:
        """Fill results with NaN, which shows in the rows that no kernel ends."""

    def copy(self) -> None:
        """Copy the own blocks into the working buffers."""
        for buffer, own in self._own:
            buffer[: self._num_local].copy_(own)

    def outgoing(self, bundle: Bundle) -> tuple[Tensor, ...]:
        """Return the contiguous tensors to send; blocks that lie apart are gathered in new ones."""
        if bundle.is_result:
            sums, types = self._travelling[bundle.kind]
            return tuple(
                rows if rows.dtype == dtype else rows.to(dtype)
                for rows, dtype in zip(self._gathered(bundle, sums), types, strict=True)
            )
        is_shared = (
            self._work_kv if bundle.kind == TransferKind.KV else self._work_q[0]
        ) is not None
        return self._gathered(bundle, self._buffers[bundle.kind], is_shared=is_shared)

    def incoming(self, bundle: Bundle) -> tuple[Tensor, ...]:
        """Return the contiguous tensors to receive into."""
        # Inputs arrive behind the local rows, partial results in buffers of their own.
        return self._received(bundle, bundle.slot if bundle.is_result else bundle.rows[0].start)

    def clear(self, bundles: tuple[Bundle, ...]) -> None:
        """Let the sums of blocks that arrive begin at 0: earlier blocks had these rows."""
        if (found := self._views.get(id(bundles))) is None:
            found = ()
            for kind in (TransferKind.Q, TransferKind.KV):
                rows = [b.rows[0] for b in bundles if b.kind == kind and not b.is_send]
                for run in merged_rows(sorted(rows, key=lambda each: each.start)):
                    found += self._begun(kind, run)
            self._views[id(bundles)] = found  # the plan keeps the tuple, so its id is its own
        self._clear(found)

    def row_bytes(self, kind: TransferKind) -> tuple[int, ...]:
        """Return the bytes of a token in each tensor that travels as the given kind."""
        return tuple(x.stride(0) * x.element_size() for x in self._buffers[kind])

    def _gathered(
        self, bundle: Bundle, buffers: tuple[Tensor, ...], *, is_shared: bool = True
    ) -> tuple[Tensor, ...]:
        """Return the rows of a bundle's blocks, copied only if they lie apart."""
        found = self._views.get(bundle)
        if len(bundle.rows) == 1:
            if found is None or not is_shared:
                found = tuple(x[bundle.rows[0]] for x in buffers)
                if is_shared:
                    self._views[bundle] = found
            return found
        if found is None:
            device = self._kv.device
            parts = [torch.arange(r.start, r.stop, device=device) for r in bundle.rows]
            found = self._views[bundle] = (torch.cat(parts),)
        return tuple(x.index_select(0, found[0]) for x in buffers)

    def _received(self, part: Bundle | Transfer, first: int) -> tuple[Tensor, ...]:
        """Return the rows of the buffers where blocks arrive."""
        if (found := self._views.get(part)) is None:
            rows = slice(first, first + part.num_tokens)
            found = self._views[part] = tuple(x[rows] for x in self._buffers[part.kind])
        return found

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
    def _begun(self, kind: TransferKind, rows: slice) -> tuple[Tensor, ...]:
        """Return the sums over rows of inputs that arrive."""

    @abstractmethod
    def _clear(self, sums: tuple[Tensor, ...]) -> None:
        """Let sums begin."""


class ForwardPass(Pass):
    """Forward calls on q ``[T_local, Hq, D]`` and kv, or k and v.

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
        (all_q,) = self._queries
        self._out = self._sums(TransferKind.OUT, all_q)
        received = self._plan.receive_rows[TransferKind.OUT]
        partial = self._buffers[TransferKind.OUT] = (
            q.new_empty(received, q.shape[1], dtype=self._sum_type),
            q.new_empty(received, *q.shape[1:], dtype=self._partial_type),
        )
        # lse of own rows only is a result, which the caller keeps.
        self._is_lse_given, lse = len(all_q) == self._num_local, None
        if not self._is_lse_given:
            lse = self._lse = q.new_empty(all_q.shape[:2], dtype=self._sum_type)
            sums, types = (lse, self._out.wide), (self._sum_type, self._partial_type)
            self._travelling[TransferKind.OUT] = sums, types
        self._keep(*self._work_q, self._work_kv, *partial, self._out.shared, lse)
        self._begin()

    def release(self) -> None:
        """Lend memory until the next call, and forget the tensors of this one."""
        super().release()
        del self._q, self._state
        if self._is_lse_given:
            del self._lse

    def _begin(self) -> None:
        (self._q,) = self._queries
        if self._is_lse_given:
            self._lse = self._q.new_empty(self._q.shape[:2], dtype=self._sum_type)
        self._out.begin()
        self._lse.fill_(-torch.inf)
        self._state = AttentionState(self._out.wide, self._lse, self._out.result)

    def result(self) -> tuple[Tensor, Tensor]:
        """Return out ``[T_local, Hq, D]`` in the dtype of q and lse ``[T_local, Hq]``."""
        (out,) = self._out.finish()
        return out, self._lse if self._is_lse_given else own_rows(self._lse, self._num_local)

    def add_sinks(self, sinks: Tensor) -> None:
        """Let a key of value 0 take its share of each local row, by scores ``[T_local, Hq]``."""
        # It comes last, and only on the rank that owns a token: a sink counts once. lse leaves it
        # out: beside a sink that takes almost all, a sum of both would not tell the keys' share.
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
        lse, out = self._received(transfer, transfer.slot)
        kernel.merge(self._state, transfer.row, out, lse)

    def _begun(self, kind: TransferKind, rows: slice) -> tuple[Tensor, ...]:
        return (self._out.wide[rows], self._lse[rows]) if kind == TransferKind.Q else ()

    def _clear(self, sums: tuple[Tensor, ...]) -> None:
        for out, lse in zip(sums[::2], sums[1::2], strict=True):
            out.zero_()
            lse.fill_(-torch.inf)


class BackwardPass(Pass):
    """Backward calls on the `QueryRows` of the local tokens and kv, or k and v.

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
        q = self._queries[2]
        self._dq = self._sums(TransferKind.DQ, q)
        self._dkv = self._sums(TransferKind.DKV, self._kv, is_split=not self._is_packed)
        self._exact: ExactSums | None = None
        if part.plan.is_reproducible:
            self._exact = self._exact_sums(q.dtype)
        for kind, like, sums in (
            (TransferKind.DQ, q, self._dq), (TransferKind.DKV, self._kv, self._dkv)
        ):  # fmt: skip
            if kind in self._buffers:
                continue
            received = self._plan.receive_rows[kind]
            buffer = q.new_empty(received, *like.shape[1:], dtype=self._partial_type)
            self._buffers[kind] = (buffer,)
            if sums.shared is not None:
                self._travelling[kind] = (sums.wide,), (self._partial_type,)
        partials = (*self._buffers[TransferKind.DQ], *self._buffers[TransferKind.DKV])
        shared = self._dq.shared, self._dkv.shared
        exact = () if self._exact is None else (self._exact.place, self._exact.digits)
        self._keep(*self._work_q, self._work_kv, *partials, *shared, *exact)
        self._begin()

    def _exact_sums(self, dtype: torch.dtype) -> ExactSums:
        """Make the sums of a reproducible plan, which travel as they are kept."""
        rows, digits = len(self._kv), digits_of(dtype)
        made, received = (
            ExactSums(count, self._kv, digits)
            for count in (rows, self._plan.receive_rows[TransferKind.DKV])
        )
        self._buffers[TransferKind.DKV] = received.place, received.digits
        types = (torch.int32, torch.int32)
        self._travelling[TransferKind.DKV] = (made.place, made.digits), types
        return made

    def release(self) -> None:
        """Lend memory until the next call, and forget the tensors of this one."""
        super().release()
        del self._query_rows, self._gradients

    def _begin(self) -> None:
        lse, delta, q, dout = self._queries
        self._query_rows = QueryRows(q, dout, lse, delta)
        self._dq.begin()
        self._dkv.begin()
        if self._exact is not None:
            self._exact.clear()
        self._gradients = Gradients(
            self._dq.wide, self._dkv.wide, self._dq.result, self._dkv.results
        )

    def result(self) -> tuple[Tensor, ...]:
        """Return dq ``[T_local, Hq, D]`` and dkv, or dk and dv if k and v came so; dtype of q."""
        if self._exact is not None:
            own = self._dkv.wide[: self._num_local]
            own.copy_(self._exact.value(self._num_local, own.dtype))
        return (*self._dq.finish(), *self._dkv.finish())

    def poison(self) -> None:
        """Fill the gradients with NaN."""
        self._dq.poison()
        self._dkv.poison()

    def attend(self, kernel: Kernel, table: TileTable) -> None:
        """Add the gradients of the tiles of a table."""
        exact = self._exact if table.adds_to == "dkv" else None
        rows = () if exact is None else table.key_rows()
        for keys in rows:
            self._dkv.wide[keys].zero_()
        kernel.backward(self._query_rows, self._kv, table, self._scale, self._gradients)
        for keys in rows:
            assert exact is not None, "rows are those of exact sums"
            exact.add(keys, self._dkv.wide[keys])

    def reduce(self, kernel: Kernel, transfer: Transfer) -> None:
        """Add a partial sum."""
        if self._exact is not None and transfer.kind == TransferKind.DKV:
            self._exact.merge(transfer.rows, *self._received(transfer, transfer.slot))
            return
        (partial,) = self._received(transfer, transfer.slot)
        # += would also copy the rows back.
        self._wide(transfer.kind)[transfer.rows].add_(partial)

    def _begun(self, kind: TransferKind, rows: slice) -> tuple[Tensor, ...]:
        if self._exact is not None and kind == TransferKind.KV:
            return self._exact.place[rows], self._exact.digits[rows]
        return (self._wide(kind)[rows],)

    def _clear(self, sums: tuple[Tensor, ...]) -> None:
        for rows in sums:
            rows.zero_()

    def _wide(self, kind: TransferKind) -> Tensor:
        is_kv = kind in (TransferKind.KV, TransferKind.DKV)
        return (self._dkv if is_kv else self._dq).wide
