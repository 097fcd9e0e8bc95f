"""One rank of Hugging Face's trainer over our loader: ``trainer_ranks.py OUT``.

Trains models under one mask and under two, saves logs and weights, and trains the Llama again from
its checkpoint.
"""

import sys
import warnings
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
from loader_options import make_loader
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GptOssConfig,
    LlamaConfig,
    Qwen3Config,
    Trainer,
    TrainingArguments,
    set_seed,
)

from dcp_dsl import Spec
from dcp_planner import Cluster, ModelShape, PlanConfig
from dcp_runtime import DCPTrainerMixin, register_dcp

SPEC = Spec.from_text(
    "segment s = question[question] answer[answers]*\n"
    "mask shared = causal and (k in question or same(answer))\n"
    "mask local = causal and q - k < 8\n"
    "stack one = shared\n"
    "stack two = local, shared\n"
)
SIZES = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 50, "attention_dropout": 0.0, "head_dim": 8,
    "initializer_range": 0.2,
}  # fmt: skip
TWO_MASKS = {
    **SIZES, "sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]
}  # fmt: skip
CONFIGS = {
    "llama": ("one", LlamaConfig, SIZES),
    "qwen3": ("one", Qwen3Config, SIZES),
    "gemma_2": ("two", Gemma2Config, TWO_MASKS | {"attn_logit_softcapping": 2.0}),
    "gemma_3": ("two", Gemma3TextConfig, TWO_MASKS),
    "gpt_oss": (
        "two",
        GptOssConfig,
        TWO_MASKS | {"num_local_experts": 2, "num_experts_per_tok": 1},
    ),
}
"""For each model its stack of masks; the scores of Gemma 2 are capped, GPT-OSS has sinks."""
STEPS = dict.fromkeys(CONFIGS, 2) | {"llama": 5}
"""An epoch has two; the Llama is saved within its second, and goes on into a third."""
ACCUMULATED, RATE, NORM = 2, 0.2, 0.5


class MaskTrainer(DCPTrainerMixin, Trainer):
    pass


def rows():
    generator = torch.Generator().manual_seed(3)
    found = []
    for number in range(8):
        answers = [4 + number % 5, 3 + number * 7 % 11]
        length = 5 + sum(answers)
        tokens = torch.randint(0, 50, (length,), generator=generator).tolist()
        found.append({"tokens": tokens, "question": 5, "answers": answers})
    return found


def loader_of(stack, ranks, **options):
    return make_loader(
        rows(), SPEC.stack(stack), token_budget=48, shape=ModelShape(4, 2, 8, 4), block_size=8,
        cluster=Cluster(devices_per_node=ranks), config=PlanConfig("static:zigzag"),
        hidden_targets="leave_out", shuffle=True, **options,
    )  # fmt: skip


def model_of(name, attention):
    register_dcp()
    set_seed(0)
    _, config, sizes = CONFIGS[name]
    return AutoModelForCausalLM.from_config(config(**sizes), attn_implementation=attention)


def arguments(name, folder):
    return TrainingArguments(
        str(folder), max_steps=STEPS[name], gradient_accumulation_steps=ACCUMULATED,
        learning_rate=RATE, max_grad_norm=NORM, optim="sgd", lr_scheduler_type="constant",
        logging_steps=1, save_steps=3, use_cpu=True, ddp_backend="gloo", report_to=[],
        disable_tqdm=True, remove_unused_columns=False, dataloader_pin_memory=False,
    )  # fmt: skip


def trained(name, folder, resume=None):
    options_of = arguments(name, folder)  # makes the process group
    loader = loader_of(CONFIGS[name][0], options_of.world_size)
    trainer = MaskTrainer(model_of(name, "dcp"), options_of, train_dataset=loader)
    trainer.train(resume_from_checkpoint=resume)
    logs = [{k: log[k] for k in ("loss", "grad_norm")} for log in trainer.state.log_history[:-1]]
    return logs, trainer.model.state_dict()


def main():
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    out = Path(sys.argv[1])
    found = {name: trained(name, out / name) for name in CONFIGS}
    checkpoint = str(out / "llama" / "checkpoint-3")
    found["resumed"] = trained("llama", out / "resumed", checkpoint)
    if torch.distributed.get_rank() == 0:
        torch.save(found, out / "found.pt")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
