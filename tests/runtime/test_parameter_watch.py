"""Ranks whose parameters drift apart are told in the next `prepare`, by the name of a parameter.

Two real processes of one world train a layer, with and without sums of gradients, way by way. Each
prints a line of JSON for each way: its name, the number of batches until an error, and what this
rank was told.
"""

import json
import re
import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from test_uneven_ranks import load, rows_of
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from dcp_runtime import DCPAttn, DCPExecutor, RunError, sum_gradients
from dcp_runtime.transport.loopback import LoopbackTransport, LoopbackWorld

HEADS, HEAD_DIM, WIDTH = (2, 1), 8, 16


class Model(torch.nn.Module):
    """An embedding, an attention layer, and a bias that is zero on all ranks at first."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.embedding = torch.nn.Embedding(64, WIDTH)
        self.to_qkv = torch.nn.Linear(WIDTH, (HEADS[0] + 2 * HEADS[1]) * HEAD_DIM, bias=False)
        self.bias = torch.nn.Parameter(torch.zeros(HEAD_DIM))

    def forward(self, tokens, plan):
        qkv = self.to_qkv(self.embedding(tokens)).view(len(tokens), -1, HEAD_DIM)
        q, k, v = qkv.split((HEADS[0], HEADS[1], HEADS[1]), 1)
        return DCPAttn.apply(plan, q, (k, v)) + self.bias


def train(executor, make=Model, after=lambda model, step: None, optimizer=torch.optim.SGD, rows=8):
    """Train as a script does; return how many batches were trained and what was said."""
    model, trained = make(), 0
    step = optimizer(model.parameters(), lr=0.1)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            for data, plan in load(rows_of(rows, 8), hidden_targets="leave_out"):
                out = model(data.tokens % 64, executor.prepare(plan))
                (out.square().sum() / 100).backward()
                after(model, trained)
                step.step()
                step.zero_grad()
                trained += 1
        except Exception as error:
            return trained, f"{type(error).__name__}: {error}"
    return trained, [str(warning.message) for warning in told]


def nobody_sums(executor):
    return train(executor)


def nobody_sums_under_adam(executor):
    return train(executor, optimizer=torch.optim.AdamW)


def the_call_of_the_message(executor):
    return train(executor, after=lambda model, step: sum_gradients(model))


def forgotten_from_the_third_batch_on(executor):
    return train(executor, after=lambda model, step: step < 2 and sum_gradients(model))


def only_the_bias_is_not_summed(executor):
    """It was zero before step 1, as the biases of experts may be; step 2 makes it differ again."""

    def sum_others(model, step):
        own = model.bias.grad.clone()
        sum_gradients(model)
        model.bias.grad.copy_(own)

    return train(executor, after=sum_others)


def ddp(executor):
    return train(executor, lambda: DistributedDataParallel(Model()))


def fsdp(executor):
    def make():
        model = fully_shard(Model())
        sum_gradients(model)
        return model

    return train(executor, make)


def another_seed_on_each_rank(executor):
    def make():
        model = Model()
        with torch.no_grad():
            model.embedding.weight += dist.get_rank()
        return model

    return train(executor, make, after=lambda model, step: sum_gradients(model))


def a_compiled_step(executor):
    def make(parameters, lr):
        optimizer = torch.optim.SGD(parameters, lr)
        optimizer.step = torch.compile(optimizer.step, backend="eager")
        return optimizer

    return train(executor, optimizer=make)


def not_asked(executor):
    return train(executor)


OPTIONS = {
    forgotten_from_the_third_batch_on: {"compare_parameters_every": 2},
    only_the_bias_is_not_summed: {"compare_parameters_every": 1},
    not_asked: {"compare_parameters_every": None},
}
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
    nobody_sums: (1, DRIFTED.format(r"embedding\.weight", 1)),
    nobody_sums_under_adam: (1, DRIFTED.format(r"embedding\.weight", 1)),
    the_call_of_the_message: (4, None),
    forgotten_from_the_third_batch_on: (3, DRIFTED.format("bias", 3)),
    only_the_bias_is_not_summed: (4, None),
    ddp: (4, None),
    fsdp: (4, None),
    another_seed_on_each_rank: (4, SEEDS),
    a_compiled_step: (1, DRIFTED.format(r"embedding\.weight", 1)),
    not_asked: (4, None),
}


@pytest.fixture(scope="module")
def told(tmp_path_factory, start_ranks):
    outs = start_ranks(2, Path(__file__), tmp_path_factory.mktemp("parameters"))
    return [{line[0]: line[1:] for line in map(json.loads, out.splitlines())} for out in outs]


@pytest.mark.dist
@pytest.mark.parametrize("way", EXPECTED, ids=lambda way: way.__name__)
def test_both_ranks_are_told_of_parameters_that_drifted_apart(told, way):
    batches, says = EXPECTED[way]
    for rank in told:
        trained, said = rank[way.__name__]
        assert trained == batches, said
        assert said == [] if says is None else re.search(says, str(said))


@pytest.mark.parametrize("every", [0, -1, 1.5])
def test_the_steps_between_two_looks_are_at_least_one(every):
    with pytest.raises(RunError, match="expected compare_parameters_every to be at least 1, got"):
        DCPExecutor(
            transport=LoopbackTransport(LoopbackWorld(1), 0), compare_parameters_every=every
        )


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for way in EXPECTED:
        executor = DCPExecutor(timeout_s=60, **OPTIONS.get(way, {}))
        print(json.dumps([way.__name__, *way(executor)]), flush=True)
        del executor
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
