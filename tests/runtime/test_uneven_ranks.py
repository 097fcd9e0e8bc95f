"""A rank with fewer rows, batches or epochs, or with other layers, is named at once.

Three real processes of one world, of which rank 1 goes another way than the others, way by way; no
rank may wait for its time limit. Every scenario has an executor of its own. A rank that has left
waits for the end of the scenario, so that no connection breaks: only words can tell the others.
Each prints a line of JSON for each: its name, what this rank said, and after how many seconds. In
the last one rank 1 ends its process.
"""

import json
import os
import re
import sys
import time
from contextlib import suppress
from itertools import chain
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from loader_options import Stream, make_loader

from dcp_dsl import Spec
from dcp_planner import Cluster, ModelShape, PlanConfig
from dcp_runtime import DCPAttn, DCPExecutor, LayerPlans

HEADS, TIMEOUT_S = (2, 1, 8), 100.0
SPEC = Spec.from_text("mask m = causal")


def rows_of(count, length=8):
    return [{"tokens": [10 * row + n for n in range(length)]} for row in range(count)]


def load(dataset, budget=16, **options):
    return make_loader(
        dataset, SPEC.mask("m"), token_budget=budget, block_size=4, ahead=1,
        shape=ModelShape(*HEADS, 4), config=PlanConfig("static:zigzag"), **options,
    )  # fmt: skip


EARLY = {}
"""Loaders made before the process group, by what they are told."""


def layer(plan, tokens, factor=1.0):
    q = torch.randn(tokens, *HEADS[::2], requires_grad=True)
    return DCPAttn.apply(plan, q * factor, torch.randn(tokens, 2, *HEADS[1:])).sum()


def train(executor, loader, batches=99, epochs=1):
    """Train as a script does, and leave the loop behind so many batches of an epoch."""
    for _ in range(epochs):
        for number, (data, plan) in enumerate(loader, 1):
            layer(executor.prepare(plan), len(data.tokens)).backward()
            if number == batches:
                break


def a_loader_made_before_the_process_group(executor, is_odd):
    train(executor, EARLY["nothing"])


def a_loader_that_knows_its_cluster_and_no_rank(executor, is_odd):
    train(executor, EARLY["a cluster"])


def a_loader_that_knows_its_cluster_and_its_rank(executor, is_odd):
    """The way out; as is a loader that is made later, in all that follows."""
    found = []
    for data, plan in EARLY["both"]:
        layer(executor.prepare(plan), len(data.tokens))
        found += data.tokens.tolist()
    executor.close()
    return found


def a_list_with_fewer_rows(executor, is_odd):
    train(executor, load(rows_of(4 if is_odd else 6)))


def a_stream_that_ends_earlier(executor, is_odd):
    train(executor, load(Stream(rows_of(4 if is_odd else 6))))


def a_stream_whose_first_rank_plans_for_all(executor, is_odd):
    train(executor, load(Stream(rows_of(6 if dist.get_rank() else 4)), planner="first"))


def a_stream_beside_one_that_plans_for_all(executor, is_odd):
    train(executor, load(Stream(rows_of(4 if is_odd else 6)), planner="first"))


def a_row_that_one_rank_cannot_read(executor, is_odd):
    rows = rows_of(8)
    if is_odd:
        rows[6] = {"tokens": None}
    with suppress(Exception if is_odd else ()):  # as a script that goes on to write a checkpoint
        train(executor, load(Stream(rows)))


def a_loop_that_is_left_earlier(executor, is_odd):
    train(executor, load(rows_of(6)), 2 if is_odd else 99)


def fewer_epochs(executor, is_odd):
    train(executor, load(rows_of(4)), epochs=1 if is_odd else 2)
    executor.close()


def an_executor_that_closes_between_forward_and_backward(executor, is_odd):
    for data, plan in load(rows_of(2, length=48), budget=48):
        loss = layer(executor.prepare(plan), len(data.tokens))
        if is_odd:
            executor.close()
            return
        loss.backward()


def an_executor_that_closes_before_the_first_layer(executor, is_odd):
    for data, plan in load(rows_of(4)):
        prepared = executor.prepare(plan)
        if is_odd:
            executor.close()
        layer(prepared, len(data.tokens)).backward()


def layers_of_each_rank(executor, is_odd, same_seed=False):
    """LayerDrop, drawn on each rank: 4 of 6 layers, others on rank 1."""
    for number, (data, plan) in enumerate(load(rows_of(6))):
        layers = LayerPlans.prepare(executor, plan)
        ran = [0, 2, 3, 5] if is_odd and not same_seed and number == 1 else [0, 1, 2, 5]
        sum(layer(layers.of(n), len(data.tokens), n + 1.0) for n in ran).backward()
    executor.close()


def layers_of_the_last_batch(executor, is_odd):
    """The last batch is compared where executors close; rank 1 closes last."""
    data, plan = next(iter(load(rows_of(2))))
    layers = LayerPlans.prepare(executor, plan)
    ran = [1] if is_odd else [0]
    sum(layer(layers.of(n), len(data.tokens)) for n in ran).backward()
    store = dist.distributed_c10d._get_default_store()
    if is_odd:
        store.wait(["closed 0", "closed 2"])
    executor.close()
    store.set(f"closed {dist.get_rank()}", "")


def the_same_layers_on_all_ranks(executor, is_odd):
    layers_of_each_rank(executor, is_odd, same_seed=True)


def the_same_batches_of_uneven_streams(executor, is_odd):
    """The way out: all ranks leave after the same batch. The rows are those of all ranks."""
    loader, found = load(Stream(rows_of(4 if is_odd else 6))), []
    for data, plan in loader:
        found.append([data.rows, float(layer(executor.prepare(plan), len(data.tokens)))])
        if len(found) == 2:
            break
    executor.close()
    return [rows for rows, _ in found]


def a_process_that_ends(executor, is_odd):
    if is_odd:
        sys.exit()
    train(executor, load(rows_of(4)))


SAME = (
    "give every rank the same rows, or let all ranks leave the loop over their batches after the "
    "same one"
)
GOES_ON = (
    r"PeerError: rank 1 {}; rank [02] goes on with {}, rows {} \(fingerprint \w{{16}}\); {SAME}"
)
WAITS = "PeerError: rank 1 {}; rank [02] waits for it in {}; {SAME}"
DRAW = (
    "all ranks run the same layers in the same order: where chance decides which ones run, as in "
    "LayerDrop, it must decide alike, from the same seed on all ranks"
)
UNRUN = "no layer ran the plan of epoch 0, batch 0, so no layer attended under its mask: "
LENGTH = (
    "RunError: rank 1 has another length of the data than rank 0 in prepare: expected 6 rows, 3 "
    "batches in epoch 0, got 4 rows, 2 batches in epoch 0; give every rank the same rows in the "
    "same order, shuffled with the same seed; the loader deals them to ranks and replicas"
)
LAYERS = (
    "RunError: rank 1 has another order of layers than rank {} in {}: expected epoch 0, batch {}: "
    "layers {}, got epoch 0, batch {}: layers {}; {DRAW}"
)


def goes_on(why, batch, rows):
    return GOES_ON.format(why, batch, rows, SAME=SAME)


def waits(why, place):
    return WAITS.format(why, place, SAME=SAME)


MADE = (
    "a DCPDataloader plans for the ranks that there are when it is made, divided by its replicas: "
    "make it after init_process_group, or give it Planning\\(cluster=..., rank=...\\); with "
    r"replicas, make the executor for the ranks of one replica, such as DCPExecutor\(mesh\['cp'\]\)"
)
TOO_EARLY = "the plan is for 1 devices, the process group has 3 ranks; " + MADE
PARTS = "the loader yields the tokens of rank 0, this is rank {} of the executor's group; " + MADE


SAID = {  # by rank 0, 1 and 2; None: nothing went wrong there
    a_loader_made_before_the_process_group: 3 * (f"RunError: {TOO_EARLY}",),
    a_loader_that_knows_its_cluster_and_no_rank: (
        f"RunError: rank 1 failed in prepare: {PARTS.format(1)}",
        f"RunError: {PARTS.format(1)}", f"RunError: {PARTS.format(2)}",
    ),
    a_loader_that_knows_its_cluster_and_its_rank: 3 * (..., ),
    a_list_with_fewer_rows: (LENGTH, LENGTH, LENGTH),
    a_stream_that_ends_earlier: (
        (over := goes_on("has no more rows after epoch 0, batch 1", "epoch 0, batch 2", "4, 5")),
        None, over,
    ),
    a_stream_whose_first_rank_plans_for_all: (
        None,
        (first := "RunError: rank 0, which plans for all, has no more rows after epoch 0, batch 1; "
         "rank [12] goes on; " + SAME),
        first,
    ),
    a_stream_beside_one_that_plans_for_all: (over, None, over),
    a_row_that_one_rank_cannot_read: (
        (failed := goes_on(
            r"failed in its data loader \(row 6: expected `tokens` .*\) after epoch 0, batch 0",
            "epoch 0, batch 1", "2, 3",
        )),
        None, failed,
    ),
    a_loop_that_is_left_earlier: (
        (left := goes_on(
            "left the loop over its batches after epoch 0, batch 1", "epoch 0, batch 2", "4, 5"
        )),
        None, left,
    ),
    fewer_epochs: (
        (closed := waits("closed its executor after epoch 0, batch 1", "prepare")), None, closed,
    ),
    an_executor_that_closes_between_forward_and_backward: (
        (closed := waits(
            "closed its executor after epoch 0, batch 0", r"division \d of backward"
        )),
        None, closed,
    ),
    an_executor_that_closes_before_the_first_layer: (
        (unrun := f"PeerError: rank 1 failed in closing its executor: {UNRUN}.*"),
        f"RunError: {UNRUN}.*", unrun,
    ),
    layers_of_each_rank: 3 * (
        LAYERS.format(0, "prepare", 1, "0-2, 5", 1, "0, 2-3, 5", DRAW=DRAW),
    ),
    layers_of_the_last_batch: (
        None, LAYERS.format("[02]", "closing the executor", 0, 0, 0, 1, DRAW=DRAW), None,
    ),
    the_same_layers_on_all_ranks: (None, None, None),
    the_same_batches_of_uneven_streams: 3 * ([[0, 1], [2, 3]],),
    a_process_that_ends: (
        (gone := waits("ended without closing its executor", "prepare")), None, gone,
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def said(tmp_path_factory, start_ranks):
    """What each rank said, by scenario, and after how many seconds."""
    printed = start_ranks(3, Path(__file__), tmp_path_factory.mktemp("uneven"))
    lines = [[json.loads(line) for line in text.splitlines()] for text in printed]
    return [{name: (text, seconds) for name, text, seconds in rank} for rank in lines]


@pytest.mark.dist
@pytest.mark.parametrize("scenario", SAID, ids=lambda scenario: scenario.__name__)
def test_no_rank_waits_for_one_that_does_not_come(said, scenario):
    for rank, wanted in enumerate(SAID[scenario]):
        # Rank 1 has ended in the last one.
        text, seconds = said[rank].get(scenario.__name__, (None, 0.0))
        assert seconds < TIMEOUT_S / 2
        if wanted is ...:
            continue  # below
        if isinstance(wanted, str):
            assert re.fullmatch(wanted, str(text)), (rank, text)
        else:
            assert text == wanted, rank


@pytest.mark.dist
def test_ranks_whose_loader_is_told_who_they_are_have_each_token_once(said):
    found = [rank["a_loader_that_knows_its_cluster_and_its_rank"][0] for rank in said]
    tokens = [token for row in rows_of(6) for token in row["tokens"]]
    assert sorted(chain(*found)) == sorted(tokens)


def main():
    torch.set_num_threads(1)
    rank, cluster = int(os.environ["RANK"]), Cluster(devices_per_node=3)
    EARLY["nothing"] = load(rows_of(6))
    EARLY["a cluster"] = load(rows_of(6), cluster=cluster)
    EARLY["both"] = load(rows_of(6), cluster=cluster, rank=rank)
    dist.init_process_group("gloo")
    store = dist.distributed_c10d._get_default_store()
    for scenario in SAID:
        executor = DCPExecutor(timeout_s=TIMEOUT_S)
        start = time.monotonic()
        try:
            found = scenario(executor, rank == 1)
        except Exception as error:
            found = f"{type(error).__name__}: {error}"
        print(json.dumps([scenario.__name__, found, time.monotonic() - start]), flush=True)
        # Not a collective of gloo: it would name whoever left.
        store.set(f"{scenario.__name__} {rank}", "")
        if scenario is not a_process_that_ends:
            store.wait([f"{scenario.__name__} {each}" for each in range(3)])


if __name__ == "__main__":
    main()
