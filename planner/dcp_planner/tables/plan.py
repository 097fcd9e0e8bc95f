"""Plans as tables: owners of blocks, devices of tiles, transfers, and every device's program.

A plan is one immutable value made of tables. An index has the name of its table: a `tile` is a row
of `ComputeBlocks`, a `transfer` a row of `Transfers`. Instructions are the paper's five (Sec. 5).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from enum import IntEnum
from importlib.metadata import entry_points
from typing import Annotated, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dcp_dsl import Slabs, printable
from dcp_dsl.arrays import Bools, Bytes, Indices, Ints, Record
from dcp_dsl.forms import BlockKind, PlacedForm
from dcp_planner.errors import PlanError
from dcp_planner.model.cluster import Cluster, ModelShape
from dcp_planner.model.problem import Direction, PlanWarning

SCHEMA = "dcp.plan/1"
"""Version of the tables; a column `group` and a table `forms` are there only if needed."""

MOST_NAME = 200
"""Most characters of the name of a sequence."""


class TransferKind(IntEnum):
    """Content of a transfer: all heads of one token block and head group.

    `KV` and `Q` are inputs, on their way from the block's owner to the devices that compute with
    it; `OUT`, `DQ` and `DKV` are partial results, on their way home. In backward, `Q` is the bundle
    q, dout, lse, delta.
    """

    KV = 0
    Q = 1
    OUT = 2
    DQ = 3
    DKV = 4

    @property
    def is_result(self) -> bool:
        """True for partial results on their way home to the owner."""
        return self >= TransferKind.OUT


@dataclass(frozen=True, slots=True, eq=False)
class Blocks(Record):
    """Token blocks: the unit of ownership (q, k, v, out, lse of its tokens live together).

    Attributes:
        sequence: int32 ``[D]``, sequence of the batch.
        start, end: int64 ``[D]``, tokens of the packed batch; blocks tile it in order.
        owner: int32 ``[D]``, device.
    """

    sequence: Annotated[Indices, "D"]
    start: Annotated[Ints, "D"]
    end: Annotated[Ints, "D"]
    owner: Annotated[Indices, "D"]

    def __len__(self) -> int:
        return len(self.owner)

    @property
    def num_tokens(self) -> Ints:
        """Tokens of each block, int64 ``[D]``."""
        return self.end - self.start


@dataclass(frozen=True, slots=True, eq=False)
class ComputeBlocks(Record):
    """Compute blocks: the non-empty tiles of the attention matrix, the unit of computation.

    Attributes:
        q_block, kv_block: int32 ``[W]``, rows of `Blocks`; sorted by (group, q_block, kv_block).
        kind: uint8 ``[W]``, `BlockKind`.
        pairs: int64 ``[W]``, visible pairs.
        device: int32 ``[W]``, who computes it, forward and backward.
        division: int32 ``[W]``, when, in forward.
        backward_division: int32 ``[W]``, when, in backward.
        group: uint8 ``[W]``, the head group that it computes; ``None`` in a plan of one.
    """

    q_block: Annotated[Indices, "W"]
    kv_block: Annotated[Indices, "W"]
    kind: Annotated[Bytes, "W"]
    pairs: Annotated[Ints, "W"]
    device: Annotated[Indices, "W"]
    division: Annotated[Indices, "W"]
    backward_division: Annotated[Indices, "W"]
    group: Annotated[Bytes | None, "W"] = None

    def _check(self) -> None:
        if len(self) and not np.isin(self.kind, list(BlockKind)).all():
            raise ValueError(f"ComputeBlocks.kind: expected 1 or 2, got {np.unique(self.kind)}")

    def __len__(self) -> int:
        return len(self.device)


@dataclass(frozen=True, slots=True, eq=False)
class Transfers(Record):
    """Messages of one block between two different devices.

    The inputs of one direction, kind and block are a tree from the owner to every device that
    computes with the block; its results the same way back, merged where they meet. Devices may pass
    on a block that they do not compute with. A device may receive a block again in a later
    division: `visits` says which receive a tile or a result belongs to.

    Attributes:
        is_backward: bool ``[X]``.
        kind: uint8 ``[X]``, `TransferKind`.
        block: int32 ``[X]``, row of `Blocks`.
        source, target: int32 ``[X]``, devices.
        division: int32 ``[X]``: an input arrives before the target computes this division, a result
            leaves after the source has computed it.
        size_bytes: int64 ``[X]``.
        hop: uint8 ``[X]``: 0 if the source has the data of its own, else more than the hop of every
            transfer that brought it what it passes on.
        slot: int32 ``[X]``, first token row that it takes in the target's receive buffer of its
            direction and kind.
        group: uint8 ``[X]``, the head group that it carries, of several that read the same keys the
            first; ``None`` in a plan of one.
    """

    is_backward: Annotated[Bools, "M"]
    kind: Annotated[Bytes, "M"]
    block: Annotated[Indices, "M"]
    source: Annotated[Indices, "M"]
    target: Annotated[Indices, "M"]
    division: Annotated[Indices, "M"]
    size_bytes: Annotated[Ints, "M"]
    hop: Annotated[Bytes, "M"]
    slot: Annotated[Indices, "M"]
    group: Annotated[Bytes | None, "M"] = None

    def __len__(self) -> int:
        return len(self.block)


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy the device's own blocks into its working buffers (first instruction of a program)."""

    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CommLaunch:
    """Start the given transfers, in this order, without waiting; `key` names them for `CommWait`.

    Both ends launch a transfer, each in its own program; between two devices the order of launches
    of inputs is the same on both ends, and so is the order of results. An input that is passed on
    may be launched while it is still arriving: it leaves when it is there.
    """

    key: int
    division: int
    transfers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CommWait:
    """Wait until everything launched under `key` has arrived and left."""

    key: int
    division: int


@dataclass(frozen=True, slots=True)
class Attention:
    """Compute tiles, accumulating partial results on this device."""

    division: int
    tiles: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Reduction:
    """Merge arrived partial results into the own: out by log-sum-exp, dq and dkv by adding."""

    division: int
    transfers: tuple[int, ...]


Instruction: TypeAlias = Copy | CommLaunch | CommWait | Attention | Reduction


@dataclass(frozen=True, slots=True)
class DeviceProgram:
    """Instructions of one device in one direction, in order."""

    device: int
    instructions: tuple[Instruction, ...]


@dataclass(frozen=True, slots=True)
class Provenance:
    """Source of a plan's mask: enough to rebuild the mask from the text alone.

    Attributes:
        spec: source of the .dcpm file.
        mask: name or call of the mask, as ``Spec.mask`` takes it.
        samples: one JSON object of columns per sequence, each with ``len``.
        origin: file names or a sentence for people; never used to compute anything.
        files: path and text of every file that the spec imports.
    """

    spec: str
    mask: str
    samples: tuple[str, ...]
    origin: str = ""
    files: tuple[tuple[str, str], ...] = ()


class Drawn:
    """Base of values that are pictures in notebooks; text without the dashboard.

    This package does not know the dashboard. It asks the entry points of `dcpm.notebook`, as the
    command line asks those of `dcpm.commands`.
    """

    __slots__ = ()

    def _repr_html_(self) -> str | None:
        draw = _shower("html")
        return None if draw is None else str(draw(self))


def _shower(name: str) -> Callable[[Any], Any] | None:  # Any: a value, and what shows it
    """Return what shows a value, ``None`` where no installed package does."""
    found = entry_points(group="dcpm.notebook", name=name)
    return next((entry.load() for entry in found), None)


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Plan(Record, Drawn):
    """Placement, schedule and programs of one batch on one cluster.

    Attributes:
        cluster, shape: what it was made for.
        cu_seqlens: int32 ``[S+1]``, sequences of the packed batch.
        blocks, tiles, transfers: the tables.
        slabs: the exact masks of the sequences that are slabs, in packed coordinates.
        forms: those of the others, at their places; `mask_tile` cuts both to a tile.
        forward, backward: one program per device, in device order; made from a table on demand.
        partitioner: who placed it, for example ``"kahypar"``.
        provenance: where the mask came from, or ``None``.
        warnings: wishes of the configuration that could not be met.
        head_groups: groups of heads G that are placed on their own; every tile is there once for
            each of them, and computes a Gth of the heads.
        sequence_names: for people: of each sequence its row of the data set; empty: not known.

    Raises:
        ValueError: if not each sequence has a name, or a name is longer than `MOST_NAME`.
    """

    cluster: Cluster
    shape: ModelShape
    cu_seqlens: Annotated[Indices, "S+1"]
    blocks: Blocks
    tiles: ComputeBlocks
    transfers: Transfers
    slabs: Slabs
    forward: Sequence[DeviceProgram]
    backward: Sequence[DeviceProgram]
    partitioner: str
    provenance: Provenance | None = None
    warnings: tuple[PlanWarning, ...] = ()
    head_groups: int = 1
    forms: tuple[PlacedForm, ...] = ()
    sequence_names: tuple[str, ...] = ()

    def _check(self) -> None:
        names, count = self.sequence_names, len(self.cu_seqlens) - 1
        if names and len(names) != count:
            raise ValueError(f"Plan.sequence_names: expected {count} or none, got {len(names)}")
        longest = max((len(printable(name)) for name in names), default=0)
        if longest > MOST_NAME:
            raise ValueError(
                f"Plan.sequence_names: expected at most {MOST_NAME} characters, got {longest}"
            )

    @property
    def num_tokens(self) -> int:
        """Tokens T of the packed batch."""
        return int(self.cu_seqlens[-1])

    @property
    def num_devices(self) -> int:
        """Devices R of the cluster."""
        return self.cluster.num_devices

    def mask_tile(self, q_start: int, q_end: int, kv_start: int, kv_end: int) -> Bools:
        """Return the exact mask of some queries and keys of the batch, bool ``[queries, keys]``."""
        window = (q_start, q_end, kv_start, kv_end)
        seen = self.slabs.tile(*window)
        for placed in self.forms:
            if placed.q_start < q_end and q_start < placed.q_end:
                seen |= placed.tile(*window)
        return seen

    def show(self) -> Any:  # Any: a server of a package that this one does not know
        """Open the dashboard for this plan in a web browser; return its server, which has `close`.

        Raises:
            PlanError: if the dashboard is not installed.
        """
        opens = _shower("show")
        if opens is None:
            raise PlanError("showing a plan needs the dashboard: pip install 'dcp-dsl[dashboard]'")
        return opens(self)

    def programs(self, direction: Direction) -> Sequence[DeviceProgram]:
        """Return the programs of all devices in one direction."""
        return self.forward if direction == "forward" else self.backward

    def local_blocks(self, device: int) -> Ints:
        """Return the blocks that `device` owns, ascending: the order of its local tokens."""
        return np.flatnonzero(self.blocks.owner == device)

    def local_tokens(self, device: int) -> Ints:
        """Return packed positions of the tokens that `device` owns, in its order, ``[T_local]``."""
        blocks = self.local_blocks(device)
        spans = zip(self.blocks.start[blocks], self.blocks.end[blocks], strict=True)
        return np.concatenate([np.empty(0, np.int64), *(np.arange(a, b) for a, b in spans)])


def columns_of(table: Blocks | ComputeBlocks | Transfers) -> dict[str, NDArray[np.generic]]:
    """Return the columns of a table by name, in order; without those that it does not have."""
    found = {field.name: getattr(table, field.name) for field in fields(table)}
    return {name: column for name, column in found.items() if column is not None}
