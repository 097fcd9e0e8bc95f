import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dcp_planner import ModelShape
from dcp_planner.model.problem import build_workload
from dcp_planner.search.kahypar import build_hypergraph


def pins_of(graph, edge):
    return graph.pins[graph.pin_ptr[edge] : graph.pin_ptr[edge + 1]].tolist()


def test_two_causal_blocks_make_this_hypergraph(masks):
    # tiles 0 = (0, 0), 1 = (1, 0), 2 = (1, 1); blocks are vertices 3 and 4
    workload = build_workload(masks.pack([masks.causal(6)], 4), ModelShape(1, 1, 1, 1))
    graph = build_hypergraph(workload)
    assert graph.vertex_weight.tolist() == [[10, 0], [8, 0], [3, 0], [0, 4], [0, 2]]
    assert [sorted(pins_of(graph, e)) for e in range(4)] == [[0, 3], [1, 2, 4], [0, 1, 3], [2, 4]]
    # per token: q 1 + out 1 + lse 4 = 6 bytes for a row, k 1 + v 1 = 2 for a column
    assert graph.edge_weight.tolist() == [24, 12, 8, 4]


@given(st.data())
def test_cost_is_the_bytes_counted_tile_by_tile(masks, strategies, data):
    shape = ModelShape(4, 2, 8, 2)
    workload = build_workload(data.draw(strategies.sparsities()), shape)
    placed = data.draw(strategies.placements(workload.num_blocks, workload.num_tiles, 3))
    owner, device = placed.device_of_data.tolist(), placed.device_of_compute.tolist()
    # q 4*8*2 = 64, out 64, lse 4*4 = 16, kv 2*2*8*2 = 64; backward q, dout 128 + lse, delta 32
    forward = {"row": 64 + 80, "column": 64}
    backward = {"row": 128 + 32 + 64, "column": 64 + 64}
    remote = {"row": set(), "column": set()}
    for q, kv, at in zip(workload.compute_q, workload.compute_kv, device, strict=True):
        if owner[q] != at:
            remote["row"].add((int(q), at))
        if owner[kv] != at:
            remote["column"].add((int(kv), at))
    part = np.array([*device, *owner], np.int32)
    for direction, size in (("forward", forward), ("backward", backward)):
        expected = sum(
            int(workload.block_tokens[block]) * size[net]
            for net in remote
            for block, _ in remote[net]
        )
        assert masks.cost(build_hypergraph(workload, direction), part) == expected


def test_a_block_that_nobody_reads_has_edges_of_its_own(masks):
    workload = build_workload(masks.pack([np.zeros((4, 4), bool)], 2), ModelShape())
    graph = build_hypergraph(workload)
    assert graph.pin_ptr.tolist() == [0, 1, 2, 3, 4]
    assert masks.cost(graph, np.array([0, 1], np.int32)) == 0
