"""One rank of two that train every supported family on the same rows: ``family_ranks.py OUT``.

The second global batch has fewer tokens than a block, so that a rank has none. Saves the gradients
of both batches, summed over ranks.
"""

import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parent))
import transformers
from loader_options import make_loader
from model_families import MASKS, SIZES, SUPPORTED
from torch.distributed.fsdp import fully_shard

from dcp_dsl import Spec
from dcp_planner import Cluster, ModelShape, PlanConfig
from dcp_runtime import DCPExecutor, LayerPlans, next_token_loss, register_dcp

LENGTHS, BUDGET, BLOCK = (23, 7, 5), 30, 8
SPEC = Spec.from_text(MASKS)


def rows():
    draw = torch.Generator().manual_seed(1)
    return [torch.randint(3, 67, (length,), generator=draw).tolist() for length in LENGTHS]


def model_of(family, attention):
    config = getattr(transformers, family.config)(**{**SIZES, **family.options})
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    if "num_experts" in family.options:
        model.set_experts_implementation("eager")  # the default knows no float64
    return model.double().eval()


def loader_of(family, ranks):
    return make_loader(
        [{"tokens": row} for row in rows()], SPEC.stack(family.stack), token_budget=BUDGET,
        shape=ModelShape(*family.heads, family.head_dim), cluster=Cluster(1, ranks),
        config=PlanConfig("static:zigzag"), block_size=BLOCK,
    )  # fmt: skip


def train(family, model, executor, ranks):
    owned = []
    for data, plan in loader_of(family, ranks):
        layers = LayerPlans.prepare(executor, plan)
        out = model(
            data.tokens[None], position_ids=data.position_ids[None], dcp=layers, use_cache=False
        )
        assert out.logits.shape[1] == len(data.tokens)
        next_token_loss(out.logits, data).backward()
        owned.append(len(data.tokens))
    return owned


def main():
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo")
    register_dcp()
    found = {}
    with DCPExecutor() as executor:
        for family in SUPPORTED:
            model = model_of(family, "dcp")
            owned = train(family, model, executor, 2)
            gradients = {}
            for name, weight in model.named_parameters():
                gradients[name] = torch.zeros_like(weight) if weight.grad is None else weight.grad
                dist.all_reduce(gradients[name])
            found[family.name] = gradients
            assert owned[1] in (0, 5), owned
        # The check of a sharded model is collective, too.
        model = model_of(SUPPORTED[0], "dcp")
        for part in (*model.model.layers, model):
            fully_shard(part)
        train(SUPPORTED[0], model, executor, 2)
        # FSDP2 averages over ranks.
        found["sharded"] = {n: 2 * w.grad.full_tensor() for n, w in model.named_parameters()}
    if dist.get_rank() == 0:
        torch.save(found, Path(sys.argv[1]) / "found.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
