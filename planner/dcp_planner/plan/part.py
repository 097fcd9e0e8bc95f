"""Serialise one device's part of a plan, as a planner sends it to the ranks.

A part keeps the numbers of tiles and transfers, which both ends of a message use as its name; rows
of other devices are blank in it. It holds no provenance.
"""

import io
import json
import zipfile
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcp_dsl import Slabs
from dcp_dsl.arrays import Bools, Indices, Ints
from dcp_dsl.forms import BlockKind, PlacedForm, form_of, items_of
from dcp_planner.errors import PlanFileError
from dcp_planner.model.cluster import Cluster, ModelShape, devices_of_json
from dcp_planner.tables.plan import SCHEMA, Blocks, ComputeBlocks, Plan, Transfers, columns_of
from dcp_planner.tables.programs import ProgramTable, digest, restore_programs, tabulate_programs

_META = "meta"
_BLANK = {"kind": BlockKind.FULL, "device": -1, "source": -1, "target": -1}
"""Values in the rows of other devices; 0 in the columns that are not named."""

Arrays = dict[str, NDArray[np.generic]]


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class PlanPart:
    """The part of a plan that one device needs.

    Attributes:
        device: whose part.
        digest: of the whole plan; equal on all ranks that run it.
        plan: the plan, blank where other devices are concerned; not for `validate`, `measure` or
            `simulate`.
    """

    device: int
    digest: str
    plan: Plan

    @property
    def num_devices(self) -> int:
        """Devices of the whole plan."""
        return self.plan.num_devices

    @property
    def num_tokens(self) -> int:
        """Tokens of the packed batch."""
        return self.plan.num_tokens

    @property
    def cu_seqlens(self) -> Indices:
        """Sequences of the packed batch, int32 ``[S+1]``."""
        return self.plan.cu_seqlens

    def local_tokens(self, device: int) -> Ints:
        """Return packed positions of the tokens that a device, any one, owns."""
        return self.plan.local_tokens(device)


def encode_parts(plan: Plan) -> list[bytes]:
    """Encode every device's part of a plan as bytes for `decode_part`, in device order."""
    name, programs = digest(plan), tabulate_programs(plan)
    return [_encode(plan, device, name, programs) for device in range(plan.num_devices)]


def _encode(plan: Plan, device: int, name: str, programs: ProgramTable) -> bytes:
    transfers = plan.transfers
    mine = (transfers.source == device) | (transfers.target == device)
    arrays: Arrays = {"cu_seqlens": plan.cu_seqlens}
    _add(arrays, "blocks", plan.blocks, np.arange(len(plan.blocks)))
    _add(arrays, "tiles", plan.tiles, np.flatnonzero(plan.tiles.device == device))
    _add(arrays, "transfers", transfers, np.flatnonzero(mine))
    _add_programs(arrays, programs, np.flatnonzero(programs.device == device))
    arrays["slabs"] = plan.slabs.table()[_slabs_met(plan, arrays["tiles.q_block"])]
    forms: list[tuple[str, int, int, int]] = []
    for placed in plan.forms:
        if _meets(placed, plan, arrays["tiles.q_block"]):
            kind, arrays[f"forms.{len(forms)}"] = items_of(placed.form)
            forms.append((kind, placed.q_start, placed.kv_start, placed.form.num_tokens))
    meta: dict[str, Any] = {  # Any: a JSON document
        "schema": SCHEMA,
        "device": device,
        "digest": name,
        "partitioner": plan.partitioner,
        "cluster": plan.cluster.to_json(),
        "shape": plan.shape.to_json(),
        "rows": {"tiles": len(plan.tiles), "transfers": len(transfers)},
    }
    if plan.head_groups > 1:
        meta["head_groups"] = plan.head_groups
    if forms:
        meta["forms"] = forms
    arrays[_META] = np.frombuffer(json.dumps(meta).encode(), np.uint8)
    data = io.BytesIO()
    np.savez_compressed(data, **arrays)  # type: ignore[arg-type]  # a keyword has another type
    return data.getvalue()


def decode_part(data: bytes) -> PlanPart:
    """Read what `encode_parts` wrote.

    Raises:
        PlanFileError: if it is something else or of another schema.
    """
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as found:
            arrays: Arrays = {name: found[name] for name in found.files}
        meta = json.loads(arrays[_META].tobytes())
        if meta["schema"] != SCHEMA:
            raise PlanFileError(f"expected a part of a {SCHEMA!r} plan, got {meta['schema']!r}")
        return PlanPart(int(meta["device"]), str(meta["digest"]), _restore(arrays, meta))
    except (ValueError, KeyError, TypeError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise PlanFileError(f"expected a part of a plan, got {len(data)} bytes: {error}") from error


def _restore(arrays: Arrays, meta: dict[str, Any]) -> Plan:  # Any: a JSON document
    given = meta["cluster"]
    if "devices" in given:
        given["devices"] = devices_of_json(given["devices"])
    cluster, cu = Cluster(**given), arrays["cu_seqlens"]
    rows, slabs = meta["rows"], arrays["slabs"]
    forward, backward = restore_programs(_programs(arrays), cluster.num_devices)
    return Plan(
        cluster=cluster,
        shape=ModelShape(**meta["shape"]),
        cu_seqlens=cu.astype(np.int32),
        blocks=Blocks(**_table(arrays, "blocks", len(arrays["blocks.row"]))),
        tiles=ComputeBlocks(**_table(arrays, "tiles", int(rows["tiles"]))),
        transfers=Transfers(**_table(arrays, "transfers", int(rows["transfers"]))),
        slabs=Slabs(int(cu[-1]), *slabs[:, :4].T, *slabs[:, 4:].T.astype(np.uint8)),
        forward=forward,
        backward=backward,
        partitioner=meta["partitioner"],
        head_groups=int(meta.get("head_groups", 1)),
        forms=_forms(arrays, meta),
    )


def _forms(arrays: Arrays, meta: dict[str, Any]) -> tuple[PlacedForm, ...]:  # Any: as above
    found = enumerate(meta.get("forms", ()))
    return tuple(
        PlacedForm(form_of(kind, tokens, arrays[f"forms.{n}"].astype(np.int64)), q_start, kv_start)
        for n, (kind, q_start, kv_start, tokens) in found
    )


def _add(arrays: Arrays, name: str, table: Blocks | ComputeBlocks | Transfers, rows: Ints) -> None:
    arrays[f"{name}.row"] = rows
    for column, values in columns_of(table).items():
        arrays[f"{name}.{column}"] = values[rows]


# Any: columns of several types
def _table(arrays: Arrays, name: str, size: int) -> dict[str, Any]:
    """Rebuild the columns of a whole table, blank but for the rows that came along."""
    rows = arrays[f"{name}.row"]
    columns = {}
    for key, values in arrays.items():
        table, _, column = key.partition(".")
        if table == name and column != "row":
            whole = np.full(size, _BLANK.get(column, 0), values.dtype)
            whole[rows] = values
            columns[column] = whole
    return columns


def _add_programs(arrays: Arrays, table: ProgramTable, rows: Ints) -> None:
    for name, values in table.chosen(rows).items():
        arrays[f"programs.{name}"] = values


def _programs(arrays: Arrays) -> ProgramTable:
    # Any: columns of several types, which the table checks
    columns: dict[str, Any] = {f.name: arrays[f"programs.{f.name}"] for f in fields(ProgramTable)}
    return ProgramTable(**columns)


def _meets(placed: PlacedForm, plan: Plan, q_blocks: NDArray[np.generic]) -> bool:
    """Check whether some of the given blocks have queries of a form."""
    start = plan.blocks.start[q_blocks]
    return bool(((placed.q_start <= start) & (start < placed.q_end)).any())


def _slabs_met(plan: Plan, q_blocks: NDArray[np.generic]) -> Bools:
    """Find the slabs that have rows in some of the given blocks."""
    is_mine = np.zeros(len(plan.blocks), np.int64)
    is_mine[q_blocks] = 1
    before = np.append(0, np.cumsum(is_mine))
    first = np.searchsorted(plan.blocks.end, plan.slabs.q_start, side="right")
    last = np.searchsorted(plan.blocks.start, plan.slabs.q_end, side="left")
    met: Bools = before[last] > before[first]
    return met
