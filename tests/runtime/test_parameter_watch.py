"""Ranks whose parameters drift apart are told in the next `prepare`, by the name of a parameter.

Two real processes of one world run the ways to train of `parameter_ranks`.
"""

import json
import re
from pathlib import Path

import pytest

from dcp_runtime import DCPExecutor, RunError
from dcp_runtime.transport.loopback import LoopbackTransport, LoopbackWorld

SCRIPT = Path(__file__).with_name("parameter_ranks.py")
DRIFTED = (
    r"RunError: parameter {} of rank 1 is not that of rank 0 in prepare, after {} optimizer steps; "
    r"they were equal at the last look, .*dcp_runtime\.sum_gradients\(model\) between loss\."
    r"backward\(\) and optimizer\.step\(\)\. .*DCPExecutor\(compare_parameters_every=None\)"
)
SEEDS = (
    r"parameter embedding\.weight differs between ranks before the first step .* give all ranks "
    "the same seed or broadcast the model.*will not be compared"
)
EXPECTED = {  # batches until the error, and its text; 4: all
    "nobody_sums": (1, DRIFTED.format(r"embedding\.weight", 1)),
    "nobody_sums_under_adam": (1, DRIFTED.format(r"embedding\.weight", 1)),
    "the_call_of_the_message": (4, None),
    "forgotten_from_the_third_batch_on": (3, DRIFTED.format("bias", 3)),
    "only_the_bias_is_not_summed": (4, None),
    "ddp": (4, None),
    "fsdp": (4, None),
    "another_seed_on_each_rank": (4, SEEDS),
    "a_compiled_step": (1, DRIFTED.format(r"embedding\.weight", 1)),
    "not_asked": (4, None),
}


@pytest.fixture(scope="module")
def told(tmp_path_factory, start_ranks):
    outs = start_ranks(2, SCRIPT, tmp_path_factory.mktemp("parameters"))
    return [{line[0]: line[1:] for line in map(json.loads, out.splitlines())} for out in outs]


@pytest.mark.dist
@pytest.mark.parametrize("way", EXPECTED)
def test_both_ranks_are_told_of_parameters_that_drifted_apart(told, way):
    batches, says = EXPECTED[way]
    for rank in told:
        assert rank[way][0] == batches, rank[way]
        if says is None:
            assert rank[way][1] == []
        else:
            assert re.search(says, str(rank[way][1]))


@pytest.mark.parametrize("every", [0, -1, 1.5])
def test_the_steps_between_two_looks_are_at_least_one(every):
    with pytest.raises(RunError, match="expected compare_parameters_every to be at least 1, got"):
        DCPExecutor(
            transport=LoopbackTransport(LoopbackWorld(1), 0), compare_parameters_every=every
        )
