"""One rank of the tests of symmetric memory: ``symmetric_scenarios.py FOLDER NODES``.

Runs every scenario on one process group and prints its name once it has passed.
"""

import sys
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _resolve_process_group

sys.path.insert(0, str(Path(__file__).parent))
from conftest import MASKS, assert_as_exact_as_eager, random_qkv, striped
from dense_blocks import sparsity_of
from layer_runs import run_layers
from symmetric_stand_in import Graph, ThreadStream, install, whole
from test_random_placements import DTYPES, HEADS, random_plan

from dcp_planner import Cluster, ModelShape, PlanConfig, build_plan
from dcp_planner.plan import decode_part, encode_parts
from dcp_runtime import DCPExecutor
from dcp_runtime.execute.executor import make_transport
from dcp_runtime.transport.symmetric_memory import CopyStream
from dcp_runtime.transport.symmetric_transport import SymmetricTransport
from dcp_runtime.transport.transport import NoOverlapTransport

TIMEOUT_S = 60.0


class Lab:
    """Takes the place of the fixture that `random_plan` is given."""

    masks, sparsity_of = MASKS, staticmethod(sparsity_of)


def random_plans_are_exact_and_have_the_bits_of_gloo(nodes):
    """One executor over many plans: its window grows with them."""
    size, rank = dist.get_world_size(), dist.get_rank()
    cluster, capacities, hops = Cluster(nodes, size // nodes), [], set()
    with (
        DCPExecutor(transport="symmetric", timeout_s=TIMEOUT_S, check_finite=True) as executor,
        DCPExecutor(timeout_s=TIMEOUT_S) as other,
    ):
        for seed in range(8 if nodes > 1 else 3):
            rng = np.random.default_rng(seed)
            names = sorted(MASKS)
            lengths = [
                int(rng.integers(2 + 4 * seed, 8 + 8 * seed)) for _ in range(rng.integers(1, 4))
            ]
            masks = [MASKS[names[rng.integers(len(names))]](n) for n in lengths]
            dense = torch.block_diag(*map(torch.tensor, masks)).bool().numpy()
            if not dense.any():
                continue
            heads, dim = HEADS[rng.integers(len(HEADS))], 8 if seed < 6 else 32
            plan = random_plan(Lab, masks, ModelShape(*heads, dim, 4), rng, cluster)
            if seed in (3, 6) and plan.head_groups == 1:
                plan = striped(plan)
            qkv = random_qkv(seed, len(dense), *heads, dim, DTYPES[rng.integers(len(DTYPES))])
            hops |= set(plan.transfers.hop.tolist())
            given = decode_part(encode_parts(plan)[rank]) if seed % 2 else plan
            rows, mine = run_layers(executor, given, qkv, layers=1 + seed % 3)
            _, theirs = run_layers(other, plan, qkv)
            for name, tensor in mine.items():
                assert torch.equal(tensor, theirs[name]), (seed, name)
            got = whole(rows, mine, len(dense))
            if got is not None:
                assert_as_exact_as_eager(got, *qkv, dense)
            capacities.append(sum(executor._transport._capacity))
    assert not executor._transport._windows
    assert sorted(capacities) == capacities
    assert len(set(capacities)) > 1, f"the window never grew: {capacities}"
    assert nodes == 1 or hops >= {0, 1, 2}, "nothing was passed on, near and far"


def the_bits_are_the_same_without_overlap(nodes):
    plan, qkv = plan_of("static:zigzag"), random_qkv(0, 96, 4, 2, 8, torch.float32)
    found = []
    for is_held in (True, False):
        transport = make_transport(None, TIMEOUT_S, "symmetric")
        used = NoOverlapTransport(transport) if is_held else transport
        with DCPExecutor(transport=used) as executor:
            found.append(run_layers(executor, plan, qkv)[1])
    assert all(torch.equal(tensor, found[1][name]) for name, tensor in found[0].items())


def plan_of(partitioner, mask="full", tokens=96):
    sparsity = sparsity_of([MASKS[mask](tokens)], 8)
    shape, cluster = ModelShape(4, 2, 8, 4), Cluster(1, dist.get_world_size())
    return build_plan(sparsity, shape, cluster, PlanConfig(partitioner))


@contextmanager
def held_back(gate, *, is_guarded):
    """Hold rank 1's first pull back until rank 0 has begun its second call.

    Or, where rank 0 does not wait for who reads, until its second call has copied a block.
    """
    kept, calls, pulls = vars(SymmetricTransport).copy(), count(1), count(1)
    aside, ours = CopyStream(), {}

    def begin(self, *arguments):
        kept["begin"](self, *arguments)
        if next(calls) == 2:
            self._copy_all = partial(copy_and_open, self)
            gate.set("begun", "1")

    def copy_and_open(self, lane, *which):
        kept["_copy_all"](self, lane, *which)
        lane.out.run(lambda: gate.set("copied", "1"))

    def await_readers_aside(self, lane, half):
        out, lane.out = lane.out, aside
        readers = kept["_await_readers"](self, lane, half)
        lane.out = out
        return readers

    def receive(self, lane, source, parcels):
        if source == 0 and next(pulls) == 1:
            lane.into.run(lambda: gate.wait(["begun" if is_guarded else "copied"]))
        kept["_receive"](self, lane, source, parcels)

    if dist.get_rank() == 0:
        ours = {"begin": begin, **({} if is_guarded else {"_await_readers": await_readers_aside})}
    if dist.get_rank() == 1:
        ours = {"_receive": receive}
    with pytest.MonkeyPatch.context() as patch:
        for name, method in ours.items():
            patch.setattr(SymmetricTransport, name, method)
        yield


def layers_run_ahead(*, is_guarded):
    """Let rank 0 run ahead of rank 1's first pull; return whether all layers here are right.

    Rank 0 sends blocks and needs none, so only the guard of its window holds it up: the blocks of
    its second call take the place of the first's.
    """
    plan = plan_of("static:contiguous", "causal")
    gate = dist.PrefixStore(f"gate {is_guarded}", dist.distributed_c10d._get_default_store())
    rows = torch.tensor(plan.local_tokens(dist.get_rank()))
    layers = [random_qkv(seed, 96, 4, 2, 8, torch.float32)[:2] for seed in range(4)]
    with (
        held_back(gate, is_guarded=is_guarded),
        DCPExecutor(transport="symmetric", timeout_s=TIMEOUT_S) as executor,
    ):
        prepared = executor.prepare(plan)
        got = [prepared.forward(q[rows], kv[rows])[0] for q, kv in layers]
    with DCPExecutor(timeout_s=TIMEOUT_S) as other:
        prepared = other.prepare(plan)
        expected = [prepared.forward(q[rows], kv[rows])[0] for q, kv in layers]
    return all(map(torch.equal, got, expected))


def a_block_stays_until_all_have_read_it(nodes):
    if nodes > 1:
        return
    assert layers_run_ahead(is_guarded=True)
    is_right = layers_run_ahead(is_guarded=False)
    assert dist.get_rank() != 1 or not is_right, "nothing was overwritten: what does it guard?"


def run_two(prepared, q, kv, dout):
    """Run two layers, the second on what the first gave."""
    out, lse = prepared.forward(q, kv)
    second, other_lse = prepared.forward(out, kv)
    dq, dkv = prepared.backward(out, kv, second, other_lse, dout)
    return [second, dq, dkv, *prepared.backward(q, kv, out, lse, dq)]


def graphs_replay_with_new_inputs(nodes):
    """Replays are exact whatever runs between them, also once the window has grown."""
    if nodes > 1:
        return
    plans = [plan_of("static:zigzag", tokens=48), plan_of("static:contiguous", "causal", 48)]
    layers = [random_qkv(seed, 48, 4, 2, 8, torch.float32) for seed in range(4)]
    with (
        DCPExecutor(transport="symmetric", timeout_s=TIMEOUT_S) as executor,
        DCPExecutor(timeout_s=TIMEOUT_S) as other,
    ):

        def rows_of(plan, number):
            rows = torch.tensor(plan.local_tokens(executor.rank))
            return [x[rows] for x in layers[number]]

        def check(found, plan, number):
            expected = run_two(other.prepare(plan), *rows_of(plan, number))
            assert all(map(torch.equal, found, expected)), number

        graphs = []
        for plan in plans:
            prepared, mine, graph = executor.prepare(plan), rows_of(plan, 0), Graph()
            check(run_two(prepared, *mine), plan, 0)
            with graph:
                found = run_two(prepared, *mine)
            graphs.append((plan, mine, graph, found))
        for number in range(1, 4):
            for plan, mine, graph, found in graphs:
                for old, new in zip(mine, rows_of(plan, number), strict=True):
                    old.copy_(new)
                graph.replay()
                check(found, plan, number)
            tokens = 48 if number < 2 else 144  # the last replays follow a larger window
            between = plan_of("static:zigzag", tokens=tokens)
            qkv = random_qkv(number, tokens, 4, 2, 8, torch.float32)
            mine, theirs = (run_layers(each, between, qkv)[1] for each in (executor, other))
            assert all(torch.equal(x, theirs[name]) for name, x in mine.items())
        assert len(executor._transport._windows) > 2, "no window that graphs use was outgrown"


def a_closed_executor_leaves_no_group(nodes):
    executor = DCPExecutor(transport="symmetric", timeout_s=TIMEOUT_S)
    executor.close()  # no window was made
    with pytest.raises(RuntimeError, match="Could not resolve"):
        _resolve_process_group(executor._transport._node.name)


SCENARIOS = (
    random_plans_are_exact_and_have_the_bits_of_gloo,
    the_bits_are_the_same_without_overlap,
    a_block_stays_until_all_have_read_it,
    graphs_replay_with_new_inputs,
    a_closed_executor_leaves_no_group,
)


def main():
    folder, nodes = Path(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    install(folder, nodes)
    for scenario in SCENARIOS:
        scenario(nodes)
        dist.barrier()
        print(scenario.__name__, flush=True)
    ThreadStream.longest_nap_s = 0
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
