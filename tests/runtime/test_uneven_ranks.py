"""A rank with fewer rows, batches or epochs, or with other layers, is named at once.

Real processes of one world run the scenarios of `uneven_ranks`; no rank may wait for its time
limit.
"""

import json
import re
from itertools import chain
from pathlib import Path

import pytest
import uneven_ranks

SCRIPT = Path(__file__).with_name("uneven_ranks.py")
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
EARLY = "the plan is for 1 devices, the process group has 3 ranks; " + MADE
PARTS = "the loader yields the tokens of rank 0, this is rank {} of the executor's group; " + MADE


SAID = {  # by rank 0, 1 and 2; None: nothing went wrong there
    "a_loader_made_before_the_process_group": 3 * (f"RunError: {EARLY}",),
    "a_loader_that_knows_its_cluster_and_no_rank": (
        f"RunError: rank 1 failed in prepare: {PARTS.format(1)}",
        f"RunError: {PARTS.format(1)}", f"RunError: {PARTS.format(2)}",
    ),
    "a_loader_that_knows_its_cluster_and_its_rank": 3 * (..., ),
    "a_list_with_fewer_rows": (LENGTH, LENGTH, LENGTH),
    "a_stream_that_ends_earlier": (
        (over := goes_on("has no more rows after epoch 0, batch 1", "epoch 0, batch 2", "4, 5")),
        None, over,
    ),
    "a_stream_whose_first_rank_plans_for_all": (
        None,
        (first := "RunError: rank 0, which plans for all, has no more rows after epoch 0, batch 1; "
         "rank [12] goes on; " + SAME),
        first,
    ),
    "a_stream_beside_one_that_plans_for_all": (over, None, over),
    "a_row_that_one_rank_cannot_read": (
        (failed := goes_on(
            r"failed in its data loader \(row 6: expected `tokens` .*\) after epoch 0, batch 0",
            "epoch 0, batch 1", "2, 3",
        )),
        None, failed,
    ),
    "a_loop_that_is_left_earlier": (
        (left := goes_on(
            "left the loop over its batches after epoch 0, batch 1", "epoch 0, batch 2", "4, 5"
        )),
        None, left,
    ),
    "fewer_epochs": (
        (closed := waits("closed its executor after epoch 0, batch 1", "prepare")), None, closed,
    ),
    "an_executor_that_closes_between_forward_and_backward": (
        (closed := waits(
            "closed its executor after epoch 0, batch 0", r"division \d of backward"
        )),
        None, closed,
    ),
    "an_executor_that_closes_before_the_first_layer": (
        (unrun := f"PeerError: rank 1 failed in closing its executor: {UNRUN}.*"),
        f"RunError: {UNRUN}.*", unrun,
    ),
    "layers_of_each_rank": 3 * (
        LAYERS.format(0, "prepare", 1, "0-2, 5", 1, "0, 2-3, 5", DRAW=DRAW),
    ),
    "layers_of_the_last_batch": (
        None, LAYERS.format("[02]", "closing the executor", 0, 0, 0, 1, DRAW=DRAW), None,
    ),
    "the_same_layers_on_all_ranks": (None, None, None),
    "the_same_batches_of_uneven_streams": 3 * ([[0, 1], [2, 3]],),
    "a_process_that_ends": (
        (gone := waits("ended without closing its executor", "prepare")), None, gone,
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def said(tmp_path_factory, start_ranks):
    """What each rank said, by scenario, and after how many seconds."""
    printed = start_ranks(3, SCRIPT, tmp_path_factory.mktemp("uneven"))
    lines = [[json.loads(line) for line in text.splitlines()] for text in printed]
    return [{name: (text, seconds) for name, text, seconds in rank} for rank in lines]


@pytest.mark.dist
@pytest.mark.parametrize("name", SAID)
def test_no_rank_waits_for_one_that_does_not_come(said, name):
    for rank, wanted in enumerate(SAID[name]):
        text, seconds = said[rank].get(name, (None, 0.0))  # rank 1 has ended in the last one
        assert seconds < uneven_ranks.TIMEOUT_S / 2
        if wanted is ...:
            continue  # below
        if isinstance(wanted, str):
            assert re.fullmatch(wanted, str(text)), (rank, text)
        else:
            assert text == wanted, rank


@pytest.mark.dist
def test_ranks_whose_loader_is_told_who_they_are_have_each_token_once(said):
    found = [rank["a_loader_that_knows_its_cluster_and_its_rank"][0] for rank in said]
    tokens = [token for row in uneven_ranks.rows_of(6) for token in row["tokens"]]
    assert sorted(chain(*found)) == sorted(tokens)


def test_every_scenario_is_looked_at():
    assert list(SAID) == [scenario.__name__ for scenario in uneven_ranks.SCENARIOS]
