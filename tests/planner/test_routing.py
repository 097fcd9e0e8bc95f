"""Gateways of blocks that several devices of another node need."""

import numpy as np

from dcp_planner import Cluster, ModelShape
from dcp_planner.model.placement import Placement
from dcp_planner.model.workload import build_workload
from dcp_planner.schedule.routing import find_needs


def test_gateways_share_the_bytes_of_queries_and_keys(masks):
    """Two devices of a node both need one query block and the keys of two blocks from afar.

    With 8 query heads to 1 key head, a query block weighs more than two key blocks, so one gateway
    takes the queries and the other takes both key blocks.
    """
    workload = build_workload(masks.pack([np.ones((16, 16), bool)], 4), ModelShape(8, 1, 16, 2))
    q, kv = workload.compute_q, workload.compute_kv
    # Devices 0 and 1 are node 0, devices 2 and 3 node 1, which owns blocks 2 and 3.
    device = np.zeros(len(q), np.int64)
    for row, column, at in ((0, 2, 2), (0, 3, 3), (2, 0, 2), (2, 1, 3), (3, 0, 3), (3, 1, 2)):
        device[(q == row) & (kv == column)] = at
    placement = Placement(np.array([0, 1, 2, 3]), device)
    rows, columns = find_needs(workload, placement, Cluster(2, 2), "node")
    shared = [
        (needs, block) for needs, blocks in ((rows, (0,)), (columns, (0, 1))) for block in blocks
    ]
    gateways = []
    for needs, block in shared:
        chosen = (needs.block == block) & needs.is_gateway
        assert chosen.sum() == 1
        gateways.append(int(needs.device[chosen][0]))
    assert gateways[1] == gateways[2] != gateways[0]
