"""One rank of GPTs of Megatron-Core under DCP, in its own loop: ``megatron_ranks.py [CHECK ...]``.

Every check trains with Megatron's schedules, gradient buffers and optimizers, and compares the
gradients of all parameters with those of one process: there, every document runs alone through
Megatron's own attention under a dense mask, and torch adds the losses of its tokens up. Prints the
name of each check that has passed.
"""

import re
import sys
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parent))
import megatron_modules
from loader_options import make_loader
from megatron.core import parallel_state
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer.utils import sharded_state_dict_default
from megatron_models import (
    EXPERTS,
    LATENT,
    VOCABULARY,
    YARN,
    OnCpu,
    logits_alone,
    loss_alone,
    model_of,
)
from torch.nn import functional

from dcp_dsl import Spec
from dcp_planner import Cluster, ModelShape, PlanConfig
from dcp_runtime import DCPExecutor, Planning
from dcp_runtime.adapters.megatron import (
    DCPCoreAttention,
    PlannedBatches,
    PlannedSequences,
    planned_loss,
    use_plans,
)

SPEC = Spec.from_text(
    "segment s = question[question] answer[answers]*\n"
    "segment b = prompt[prompt] branch reply[replies]*\n"
    "mask plain = causal\n"
    "mask shared = causal and (k in question or same(answer))\n"
    "mask local = causal and q - k < 8\n"
    "mask own = paths\n"
    "stack two = local, shared\n"
)
# Micro-batches have 31 tokens at most; one of 2 tokens lies on one rank.
LENGTHS, EPOCH = (2, 30, 5, 9), (2, 30, 21, 9, 31, 5, 13, 1)


def documents(lengths=LENGTHS):
    generator = torch.Generator().manual_seed(1)
    drawn = (torch.randint(0, VOCABULARY, (n,), generator=generator) for n in lengths)
    return [{"tokens": tokens.tolist()} for tokens in drawn]


class World:
    """Two ranks in one of Megatron's layouts, with the executor of those that share a batch."""

    def __init__(self, replicas=1, **sizes):
        parallel_state.initialize_model_parallel(**sizes)
        self.group = parallel_state.get_context_parallel_group()
        self.executor = DCPExecutor(self.group, timeout_s=60, micro_batches=4)
        self.replicas = replicas
        # All ranks have the same gradients where no layout splits the parameters.
        self.judges = dist.get_rank() == 0 or len(sizes) > 1 or "context_parallel_size" not in sizes

    def loader(self, rows, mask, shape, micro_batches):
        ranks = self.group.size()
        where = {"mesh": self.group, "cluster": Cluster(1, ranks)}
        if self.replicas > 1:
            where = {"replicas": self.replicas}
        return make_loader(
            rows, mask, shape=ModelShape(*shape, 4), config=PlanConfig("static:zigzag"),
            block_size=4, token_budget=31, micro_batches=micro_batches, balance="order",
            hidden_targets="keep", **where,
        )  # fmt: skip

    def close(self):
        self.executor.close()
        parallel_state.destroy_model_parallel()


class Run:
    """A model in Megatron's loop, and the same model of one process."""

    def __init__(self, world, masks, *, stage=None, buffers=None, planned=None, **options):
        torch.manual_seed(0)
        self.world, self.masks, self.first = world, masks, stage or 0
        self.dense = model_of(False, **options)
        stages = {} if stage is None else {"stage": (stage == 0, stage == 1)}
        torch.manual_seed(0)
        self.model = model_of(True, **stages, **options, **(planned or {}))
        weights = self.dense.state_dict()
        self.model.load_state_dict(
            {name: weights[self.in_dense(name)] for name in self.model.state_dict()}
        )
        use_plans(self.model)
        settings = DistributedDataParallelConfig(**(buffers or {}))
        self.wrapped = DistributedDataParallel(self.model.config, settings, self.model)
        self.model.config.finalize_model_grads_func = finalize_model_grads
        self.seen = []

    def in_dense(self, name):
        """A parameter of this stage, or of these experts, in the whole model, which has others."""
        if self.first:
            name = name.replace("layers.0.", f"layers.{self.first}.")
        own = parallel_state.get_expert_model_parallel_rank() * 2
        return re.sub(r"(?<=local_experts.)\d", lambda digit: str(int(digit[0]) + own), name)

    def step(self, batches, count, *, forward_only=False):
        """Run Megatron's schedule over micro-batches; return the reports of their losses."""
        self.wrapped.zero_grad_buffer()
        self.seen.clear()
        return get_forward_backward_func()(
            forward_step_func=self.forward_step, data_iterator=batches, model=self.wrapped,
            num_microbatches=count, seq_length=64, micro_batch_size=1, forward_only=forward_only,
        )  # fmt: skip

    def forward_step(self, batches, model):
        data, plan = next(batches)
        self.seen += data.rows
        sequences = PlannedSequences.prepare(self.world.executor, plan, data.position_ids)
        given = data.tokens[None], data.position_ids[None], None
        return model(*given, packed_seq_params=sequences), partial(planned_loss, data=data)

    def compare(self, rows):
        """Compare the gradients of this rank's parameters with those of one process."""
        if not self.world.judges:
            return
        self.dense.zero_grad()
        total, count = loss_alone(self.dense, self.masks, rows)
        (total / count).backward()
        self.compare_with(self.dense)

    def compare_with(self, dense):
        wanted = dict(dense.named_parameters())
        for name, parameter in self.model.named_parameters():
            gradient = wanted[self.in_dense(name)].grad
            error = (parameter.main_grad - gradient).norm()
            assert error <= 1e-5 * gradient.norm() + 1e-9, (name, float(error / gradient.norm()))


def trains(
    world, masks=None, *, rows=None, mask=None, shape=(4, 2, 8), count=3, steps=1, **options
):
    """Compare the gradients of the first steps of an epoch."""
    masks, rows = masks or [SPEC.mask("plain")] * 2, rows or documents()
    run = Run(world, masks, **options)
    batches = iter(world.loader(rows, mask or masks[0], shape, count))
    for _ in range(steps):
        run.step(batches, count)
        parts = [run.seen]
        if world.replicas > 1:
            parts = [None] * world.replicas
            dist.all_gather_object(parts, run.seen)
        run.compare([rows[row] for part in parts for row in part])
    return run


CHECKS = {}
"""Checks by name, with the layout that they need."""


def check(**sizes):
    def add(function):
        CHECKS[function.__name__] = function, sizes
        return function

    return add


CONTEXT = {"context_parallel_size": 2}


@check(**CONTEXT)
def unequal_micro_batches(world):
    """An epoch, evaluated before: ranks without tokens, at last micro-batches without rows."""
    masks, rows = [SPEC.mask("plain")] * 2, documents(EPOCH)
    run, everything = Run(world, masks), []
    loader = world.loader(rows, masks[0], (4, 2, 8), 4)
    with torch.no_grad():
        run.model.eval()
        reports = run.step(iter(loader), 4, forward_only=True)
        run.model.train()
        found = torch.stack([report["lm loss"] for report in reports]).sum(0)
        dist.all_reduce(found)
        total, count = loss_alone(run.dense, masks, [rows[row] for row in run.seen])
        torch.testing.assert_close(found, torch.stack([total, torch.tensor(float(count))]))
    loader.set_epoch(0)
    batches = chain.from_iterable(repeat(loader))  # epoch after epoch
    for _ in range(2):
        run.step(batches, 4)
        run.compare([rows[row] for row in run.seen])
        everything += run.seen
    assert sorted(everything) == list(range(len(rows)))


@check(**CONTEXT)
def branches(world):
    """A token that predicts the first of each reply has several targets."""
    tokens = documents((6, 7, 5))
    whole = [
        {
            "tokens": list(chain.from_iterable(d["tokens"] for d in tokens)),
            "prompt": 6,
            "replies": [7, 5],
        }
    ]
    plain = [SPEC.mask("plain")] * 2
    run = Run(world, plain)
    run.step(iter(world.loader(whole, SPEC.mask("own"), (4, 2, 8), 1)), 1)
    prompt, *replies = (torch.tensor(document["tokens"]) for document in tokens)
    total = 0.0
    for number, reply in enumerate(replies):
        row = torch.cat([prompt, reply])
        logits = logits_alone(run.dense, plain, {"tokens": row.tolist()})[:-1]
        losses = functional.cross_entropy(logits, row[1:], reduction="none")
        total = total + losses[0 if number == 0 else len(prompt) - 1 :].sum()
    (total / 17).backward()
    run.compare_with(run.dense)


@check(**CONTEXT)
def layers_with_masks_of_their_own(world):
    """And rows with columns, sinks, and a core that is computed again."""
    masks = SPEC.stack("two").masks
    rows = documents((21, 14))
    for row, question, answers in zip(rows, (5, 3), ([9, 7], [6, 5]), strict=True):
        row |= {"question": question, "answers": answers}
    again = {"recompute_granularity": "selective", "recompute_modules": ["core_attn"]}
    trains(
        world, masks, rows=rows, mask=SPEC.stack("two"), count=2, softmax_type="learnable",
        planned=again,
    )  # fmt: skip


@check(**CONTEXT)
def recomputed_layers(world):
    """Layers that are computed again, with norms of q and k, and scaled rotary positions."""
    whole = {"recompute_granularity": "full", "recompute_method": "uniform"}
    model = {"rope_scaling": True, "rotary_percent": 0.5, "seq_len_interpolation_factor": 2.0}
    trains(
        world, planned={**whole, "recompute_num_layers": 1}, softmax_type="off-by-one",
        qk_layernorm=True, rotary_interleaved=True, model=model,
    )  # fmt: skip


@check(**CONTEXT)
def yarn(world):
    trains(world, positions="yarn", **YARN)


@check(**CONTEXT)
def latent_attention(world):
    trains(world, shape=(4, 4, 16), rope_type="yarn", **LATENT)
    trains(world, rows=documents((9,)), count=1, shape=(4, 4, 16), rope_type="rope", **LATENT)


@check(**CONTEXT, expert_model_parallel_size=2)
def experts_and_their_bias(world):
    """Each rank has half of the experts; the bias counts no row that stands in."""
    run = trains(world, planned={"expert_model_parallel_size": 2}, **EXPERTS)
    for own, dense in zip(run.model.decoder.layers, run.dense.decoder.layers, strict=True):
        counts = dense.mlp.router.local_tokens_per_expert  # of every document alone
        assert counts.sum() == 2 * sum(LENGTHS)
        # An expert with fewer tokens than the mean gains.
        wanted = 0.125 * torch.sign(counts.mean() - counts)
        assert wanted.any()
        torch.testing.assert_close(own.mlp.router.expert_bias, wanted)


@check(**CONTEXT)
def clipped_steps_of_both_optimizers(world):
    """Weights after a step, with learned positions and tied embeddings.

    The distributed optimizer keeps a shard on each rank.
    """
    plain, rows = [SPEC.mask("plain")] * 2, documents()
    kind = {"positions": "learned_absolute", "model": {"share_embeddings_and_output_weights": True}}
    for is_distributed in (False, True):
        run = Run(world, plain, buffers={"use_distributed_optimizer": is_distributed}, **kind)
        choices = OptimizerConfig(
            optimizer="adam" if is_distributed else "sgd", lr=0.1, clip_grad=0.5,
            weight_decay=0.0, use_distributed_optimizer=is_distributed,
        )  # fmt: skip
        optimizer = get_megatron_optimizer(choices, [run.wrapped])
        run.step(iter(world.loader(rows, plain[0], (4, 2, 8), 3)), 3)
        if not is_distributed:
            run.compare([rows[row] for row in run.seen])
        _, norm, _ = optimizer.step()
        run.dense.zero_grad()
        total, count = loss_alone(run.dense, plain, [rows[row] for row in run.seen])
        (total / count).backward()
        wanted = dict(run.dense.named_parameters())
        whole = torch.stack([weight.grad.norm() for weight in wanted.values()]).norm()
        assert whole > 1
        torch.testing.assert_close(torch.tensor(norm), whole, rtol=1e-4, atol=0)
        for name, weight in run.model.named_parameters():
            gradient = wanted[name].grad * 0.5 / whole
            change = gradient / (gradient.abs() + 1e-8) if is_distributed else gradient
            clear = gradient.abs() > 1e-6  # Adam's first step has the size of the sign
            moved = (wanted[name] - weight)[clear] / 0.1
            torch.testing.assert_close(moved, change[clear], rtol=1e-2, atol=1e-3)


@check(**CONTEXT)
def packed_batches_of_megatron(world):
    """Padded, and filled up as its data sets do."""
    masks, rows = [SPEC.mask("shared")] * 2, documents((25, 14))
    for row, question, answers in zip(rows, (5, 3), ([9, 7, 4], [6, 5]), strict=True):
        row |= {"question": question, "answers": answers}
    run = Run(world, masks)
    planning = Planning(
        ModelShape(4, 2, 8, 4), Cluster(1, 2), PlanConfig("static:zigzag"), 8, world.group
    )
    batches = PlannedBatches(world.executor, masks[0], planning)
    first, second = (row["tokens"] for row in rows)
    tokens = torch.full((1, 70), -1)
    tokens[0, :25], tokens[0, 32:46] = torch.tensor(first), torch.tensor(second)
    labels = tokens.roll(-1, 1)
    counts = torch.zeros(1, 70)
    counts[0, :24] = counts[0, 32:45] = 1
    batch = {"tokens": tokens, "labels": labels, "loss_mask": counts, "attention_mask": None}
    columns = [{name: value for name, value in row.items() if name != "tokens"} for row in rows]

    def forward_step(_, model):
        ends = torch.tensor([[0, 25, 39, 39, 39]]), torch.tensor([[0, 32, 64, -1, -1]])
        cut, sequences = batches.split(batch, *ends, columns)
        given = cut["tokens"], cut["position_ids"], cut["attention_mask"]
        losses = model(*given, labels=cut["labels"], packed_seq_params=sequences)
        mask = cut["loss_mask"]
        return losses, lambda out: ((out * mask).sum(), mask.sum().int(), {})

    run.forward_step = forward_step
    run.step(iter(()), 1)
    run.compare(rows)


@check(replicas=2)
def replicas(world):
    trains(world, count=2)


@check(pipeline_model_parallel_size=2)
def stages_without_embedding(world):
    stages = {"pipeline_model_parallel_size": 2, "variable_seq_lengths": True}
    stages |= {"pipeline_dtype": torch.float32, "batch_p2p_comm": False}
    stages["moe_token_dispatcher_type"] = "alltoall"  # asked for without experts, too
    trains(world, stage=dist.get_rank(), planned=stages)


@check(tensor_model_parallel_size=2)
def tensor_and_sequence_parallel(world):
    """Tokens that do not divide among the tensor-parallel ranks; sinks saved by their heads."""
    for is_shared in (False, True):
        trains(
            world, shape=(2, 1, 8), softmax_type="learnable", tensor_model_parallel_size=2,
            planned={"sequence_parallel": is_shared},
        )  # fmt: skip
    sinks_are_saved_by_head(parallel_state.get_tensor_model_parallel_group())


def sinks_are_saved_by_head(group):
    rank, alone = dist.get_rank(), parallel_state.get_data_parallel_group()
    for softmax_type, shards in (("learnable", [((8,), (4 * rank,))]), ("off-by-one", [])):
        config = SimpleNamespace(
            attention_dropout=0, softmax_type=softmax_type, num_attention_heads=8,
            tensor_model_parallel_size=2,
        )  # fmt: skip
        attention = DCPCoreAttention(config, 1, pg_collection=SimpleNamespace(tp=group))
        saved = sharded_state_dict_default(attention, "a.", metadata={"dp_cp_group": alone})
        assert [(one.global_shape, one.global_offset) for one in saved.values()] == shards
        own = [p.untyped_storage().data_ptr() for p in attention.parameters()]
        assert [one.data.untyped_storage().data_ptr() for one in saved.values()] == own
        assert all(one.data.requires_grad for one in saved.values())


for name, run in megatron_modules.CHECKS.items():
    CHECKS[name] = (lambda _, run=run: run()), CONTEXT


def main():
    dist.init_process_group("gloo")
    wanted = sys.argv[1:] or list(CHECKS)
    layout, world = None, None
    with OnCpu():
        for name in sorted(wanted, key=lambda name: str(CHECKS[name][1])):
            function, sizes = CHECKS[name]
            if sizes != layout:
                if world is not None:
                    world.close()
                layout, world = sizes, World(**sizes)
            function(world)
            print(f"{name} passed", flush=True)
        world.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
