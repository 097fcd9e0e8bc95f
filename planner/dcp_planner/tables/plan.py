"""Plans as tables: owners of blocks, devices of tiles, transfers, and every device's program.

A plan is one immutable value made of tables. An index has the name of its table: a `tile` is a row
of `ComputeBlocks`, a `transfer` a row of `Transfers`. Programs consist of the five instructions of
the DCP paper (SOSP'25, Sec. 5).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from enum import IntEnum
from importlib.metadata import entry_points
from typing import Annotated, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dcp_dsl import Slabs, printable
from dcp_dsl.arrays import Bools, Bytes, Indices, Ints, Record, expand
from dcp_dsl.forms import BlockKind, PlacedForm
from dcp_planner.errors import PlanError
from dcp_planner.model.cluster import Cluster, ModelShape
from dcp_planner.model.config import GRID as GRID  # the runtime cuts tiles on it, too
from dcp_planner.model.problem import Direction, PlanWarning

SCHEMA = "dcp.plan/1"
"""Version of the tables; the columns `group` and the table `forms` exist only where needed."""

MOST_NAME = 200
"""Most characters in the name of a sequence."""


class TransferKind(IntEnum):
    """Content of a transfer, for one token block and all heads of a head group.

    `KV` and `Q` are inputs, on their way from the block's owner to the devices that compute with
    it; `OUT`, `DQ` and `DKV` are partial results, on their way home. In backward, `Q` is the bundle
    q, dout, lse, delta.
    """

    # Inputs before results: tables find results with ``kind >= OUT``. Files hold these numbers.
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
    """Token blocks: the unit of ownership (q, k, v, out, lse of its tokens live together)."""

    sequence: Annotated[Indices, "D"]  # sequence of the batch
    # start, end: int64 `[D]`, tokens of the packed batch; blocks tile it in order
    start: Annotated[Ints, "D"]
    end: Annotated[Ints, "D"]
    owner: Annotated[Indices, "D"]  # device

    def __len__(self) -> int:
        return len(self.owner)

    @property
    def num_tokens(self) -> Ints:
        """Tokens of each block, int64 ``[D]``."""
        return self.end - self.start


@dataclass(frozen=True, slots=True, eq=False)
class ComputeBlocks(Record):
    """Compute blocks: the non-empty tiles of the attention matrix, the unit of computation."""

    # q_block, kv_block: int32 `[W]`, rows of `Blocks`; sorted by (group, q_block, kv_block)
    q_block: Annotated[Indices, "W"]
    kv_block: Annotated[Indices, "W"]
    kind: Annotated[Bytes, "W"]  # `BlockKind`
    pairs: Annotated[Ints, "W"]  # visible pairs
    device: Annotated[Indices, "W"]  # device that computes the tile, forward and backward
    division: Annotated[Indices, "W"]  # division in which it is computed, forward
    backward_division: Annotated[Indices, "W"]  # the same in backward
    # head group that is computed; `None` in a plan of one group
    group: Annotated[Bytes | None, "W"] = None

    def _check(self) -> None:
        if len(self) and not np.isin(self.kind, list(BlockKind)).all():
            raise ValueError(f"ComputeBlocks.kind: expected 1 or 2, got {np.unique(self.kind)}")

    def __len__(self) -> int:
        return len(self.device)


@dataclass(frozen=True, slots=True, eq=False)
class Transfers(Record):
    """Messages of one block between two different devices.

    The inputs of one direction, kind and block form a tree from the owner to every device that
    computes with the block. Results travel the same tree back and are merged where they meet.
    Devices may pass on a block that they do not compute with. A device may receive a block again in
    a later division: the module `visits` finds the receive that a tile or a result belongs to.
    """

    is_backward: Annotated[Bools, "X"]
    kind: Annotated[Bytes, "X"]  # `TransferKind`
    block: Annotated[Indices, "X"]  # row of `Blocks`
    # source, target: int32 `[X]`, devices
    source: Annotated[Indices, "X"]
    target: Annotated[Indices, "X"]
    # an input arrives before the target computes this division, a result leaves after the source
    # has computed it
    division: Annotated[Indices, "X"]
    size_bytes: Annotated[Ints, "X"]
    # 0 if the source itself made the data, else more than the hop of every transfer that brought
    # the source what this transfer passes on
    hop: Annotated[Bytes, "X"]
    # first token row of the transfer in the target's receive buffer of its direction and kind
    slot: Annotated[Indices, "X"]
    # head group of the data; for keys that several groups read, the first of these. `None` in a
    # plan of one group.
    group: Annotated[Bytes | None, "X"] = None

    def __len__(self) -> int:
        return len(self.block)


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy the device's own blocks into its working buffers (first instruction of a program)."""

    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CommLaunch:
    """Start the given transfers, in this order, without waiting; `key` names them for `CommWait`.

    Both ends launch a transfer, each in its own program. Between two devices both ends launch the
    inputs in the same order, and likewise the results. An input that is passed on may be launched
    before it has arrived: it leaves on arrival.
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
    """Merge arrived partial results into this device's: out by log-sum-exp, dq and dkv by sums."""

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
        origin: file names or a sentence, for people only.
        files: path and text of every file that the spec imports.
    """

    spec: str
    mask: str
    samples: tuple[str, ...]
    origin: str = ""
    files: tuple[tuple[str, str], ...] = ()


class Drawn:
    """Base of values that notebooks show as pictures, or as text without the dashboard.

    This package does not import the dashboard. It looks for entry points of `dcpm.notebook`, as the
    command line looks for those of `dcpm.commands`.
    """

    __slots__ = ()

    def _repr_html_(self) -> str | None:
        draw = _shower("html")
        return None if draw is None else str(draw(self))


def _shower(name: str) -> Callable[[Any], Any] | None:  # Any: a value, and what shows it
    """Return the function that shows a value, ``None`` if no installed package has one."""
    found = entry_points(group="dcpm.notebook", name=name)
    return next((entry.load() for entry in found), None)


# Weak references: the runtime keeps notes on plans that must not keep the plans alive.
@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Plan(Record, Drawn):
    """Placement, schedule and programs of one batch on one cluster.

    Attributes:
        cluster, shape: machine and heads that the plan is made for.
        cu_seqlens: int32 ``[S+1]``, sequences of the packed batch.
        blocks, tiles, transfers: the tables.
        slabs: exact masks of the sequences that are slabs, in packed coordinates.
        forms: exact masks of the other sequences, at their places; `mask_tile` evaluates both.
        forward, backward: one program per device, in device order; made from a table on demand.
        partitioner: name of the partitioner, for example ``"kahypar"``.
        provenance: where the mask came from, or ``None``.
        warnings: demands of the configuration that the plan does not meet.
        head_groups: groups of heads G that are placed separately; every tile is there once for each
            group, and computes a Gth of the heads.
        sequence_names: row of the data set of each sequence, for people; empty: unknown.

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
    def is_reproducible(self) -> bool:
        """True if results have the same bits in every such plan."""
        return self.shape.exact_sums

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
        # Forms are sequences without slabs, each in its own rows: other rows need not be evaluated.
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
        return expand(self.blocks.start[blocks], self.blocks.num_tokens[blocks])[1]


def columns_of(table: Blocks | ComputeBlocks | Transfers) -> dict[str, NDArray[np.generic]]:
    """Return the columns of a table by name, in order; without optional columns that are None."""
    found = {field.name: getattr(table, field.name) for field in fields(table)}
    return {name: column for name, column in found.items() if column is not None}
