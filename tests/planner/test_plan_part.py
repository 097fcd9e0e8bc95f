"""A part holds what its device does, and nothing of the others."""

from contextlib import suppress

import numpy as np
import pytest
from second_validator import dense_of

from dcp_dsl import Sample, Spec, block_sparsity
from dcp_planner import Cluster, ModelShape, PlanConfig, PlanFileError, build_plan, digest
from dcp_planner.plan import decode_part, encode_parts

SPEC = Spec.from_text("mask band(w: tokens = 300) = causal and (k < 20 or q - k < w)")


def plan_of(devices: int):
    slabs = [SPEC.mask("band").bind(Sample(length=n)) for n in (700, 1, 400, 333)]
    sparsity = block_sparsity(slabs, 64, 64)
    cluster = Cluster(nodes=1, devices_per_node=devices)
    return build_plan(sparsity, ModelShape(2, 1, 8, 4), cluster, PlanConfig("static:zigzag"))


@pytest.mark.parametrize("devices", [1, 3, 40])  # 40: some own nothing
def test_every_device_finds_its_rows_and_programs(devices):
    plan = plan_of(devices)
    parts = encode_parts(plan)
    assert len(parts) == devices
    for device, data in enumerate(parts):
        part = decode_part(data)
        assert (part.device, part.digest) == (device, digest(plan))
        assert (part.num_devices, part.num_tokens) == (devices, plan.num_tokens)
        assert np.array_equal(part.cu_seqlens, plan.cu_seqlens)
        assert np.array_equal(part.local_tokens(device), plan.local_tokens(device))
        for direction in ("forward", "backward"):
            found, wanted = part.plan.programs(direction), plan.programs(direction)
            assert found[device] == wanted[device]
            assert all(not p.instructions for p in found if p.device != device)
        mine = plan.tiles.device == device
        transfers = plan.transfers
        touches = (transfers.source == device) | (transfers.target == device)
        for name, rows in (("tiles", mine), ("transfers", touches)):
            table, whole = getattr(part.plan, name), getattr(plan, name)
            for column in table.__slots__:
                found, wanted = getattr(table, column), getattr(whole, column)
                if wanted is None:
                    assert found is None
                else:
                    assert np.array_equal(found[rows], wanted[rows])
        assert not (part.plan.tiles.device[~mine] == device).any()
        assert not (part.plan.transfers.target[~touches] == device).any()


def test_the_mask_of_a_part_is_that_of_the_plan_in_its_rows():
    plan = plan_of(3)
    for device, data in enumerate(encode_parts(plan)):
        part = decode_part(data).plan
        blocks = np.unique(plan.tiles.q_block[plan.tiles.device == device])
        rows = np.concatenate([np.arange(plan.blocks.start[b], plan.blocks.end[b]) for b in blocks])
        table = plan.slabs.table()
        met = [bool({*rows.tolist()} & {*range(first, last)}) for first, last in table[:, :2]]
        assert part.slabs.table().tolist() == table[met].tolist()
        assert not all(met)
        assert np.array_equal(dense_of(part.slabs)[rows], dense_of(plan.slabs)[rows])


def test_damaged_parts_are_refused():
    data = encode_parts(plan_of(1))[0]
    for bad in (b"", b"PK", data[:100], data[:-40], b"\0" * 50):
        with pytest.raises(PlanFileError, match="expected a part of a plan, got"):
            decode_part(bad)
    for at in range(0, len(data), 29):
        damaged = bytearray(data)
        damaged[at] ^= 255
        with suppress(PlanFileError):  # no other error
            decode_part(bytes(damaged))
