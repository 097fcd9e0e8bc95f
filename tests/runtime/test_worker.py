"""Replies of a rank whose job fails."""

import pytest

from dcp_planner.tables import Attention, CommWait
from dcp_runtime import RunError
from dcp_runtime.launch import worker
from dcp_runtime.launch.worker import progress_of
from dcp_runtime.transport.recorder import Activity, Recorder


def test_progress_counts_every_step_and_names_who_computes():
    ranks = [Recorder(0), Recorder(1)]
    ranks[0].begin(Activity(CommWait(0, 1), 1, "forward"))
    assert progress_of(ranks) == {"steps": 1, "doing": None}  # who waits is not to blame
    ranks[1].begin(Activity(Attention(2, (0,)), 2, "forward"))
    assert progress_of(ranks) == {
        "steps": 2, "doing": "attention in division 2 of forward", "division": 2, "rank": 1,
    }  # fmt: skip
    ranks[1].begin(None)
    assert progress_of(ranks) == {"steps": 3, "doing": None}


@pytest.mark.parametrize(
    ("gloo", "said"),
    [
        ("[/src/buffer.cc:78] Timed out waiting 1ms for recv operation", "0.5 s long"),
        ("[/src/pair.cc:5] Connection closed by peer", "until its connection broke"),
        ("something\nelse", "something"),
    ],
)
def test_a_collective_that_fails_is_said_in_words(gloo, said):
    with (
        pytest.raises(RunError, match=f"^lost contact with another rank while starting: {said}$"),
        worker._collective("starting", 0.5),
    ):
        raise RuntimeError(gloo)
