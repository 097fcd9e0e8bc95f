"""A plan's digest: the same number for the same work, whoever asked for it."""

import hashlib
import json
from dataclasses import asdict

import numpy as np
from numpy.typing import NDArray

from dcp_planner.tables.plan import Plan, columns_of
from dcp_planner.tables.programs import tabulate_programs


def digest(plan: Plan) -> str:
    """Give the sha256 over what the devices execute, as 64 hex digits.

    Covers schema, numbers of cluster and shape, sequences, all tables, the mask and the programs;
    not provenance, the partitioner's name, warnings, or names and sources of the cluster's
    constants.
    """
    cluster = {k: v for k, v in asdict(plan.cluster).items() if k not in ("name", "source")}
    head: dict[str, object]
    head = {"schema": plan.schema, "cluster": cluster, "shape": asdict(plan.shape)}
    if plan.head_groups > 1:
        head["head_groups"] = plan.head_groups
    sha = hashlib.sha256(json.dumps(head, sort_keys=True).encode())
    _add(sha, "cu_seqlens", plan.cu_seqlens)
    programs = tabulate_programs(plan)
    for table in (plan.blocks, plan.tiles, plan.transfers):
        for name, column in columns_of(table).items():
            _add(sha, f"{type(table).__name__}.{name}", column)
    for name in programs.__slots__:
        _add(sha, f"ProgramTable.{name}", getattr(programs, name))
    _add(sha, "slabs", plan.slabs.table())
    for placed in plan.forms:
        sha.update(f"form:{placed.q_start}:{placed.kv_start}:{placed.form.digest};".encode())
    return sha.hexdigest()


def _add(sha: "hashlib._Hash", name: str, array: NDArray[np.generic]) -> None:
    little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    sha.update(f"{name}:{little.dtype.str}:{little.shape};".encode())
    sha.update(little.tobytes())
