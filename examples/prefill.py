"""Prefill three prompts over all ranks, then decode each of them on one rank.

torchrun --nproc-per-node 2 examples/prefill.py

The model is a small Llama with random weights. Every rank compares the keys and values that prefill
leaves it, and the tokens that it decodes from them, with those that it computes alone.
"""

import torch
import torch.distributed as dist
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, set_seed

from dcp_dsl import Spec
from dcp_planner import Cluster, ModelShape
from dcp_runtime import DCPDataloader, DCPExecutor, Planning, prefill, register_dcp

LENGTHS, NEW_TOKENS = (301, 40, 130), 8
CONFIG = LlamaConfig(
    vocab_size=100, hidden_size=64, intermediate_size=96, num_hidden_layers=3,
    num_attention_heads=4, num_key_value_heads=2, initializer_range=0.2,
)  # fmt: skip


def main() -> None:
    """Prefill on all ranks, decode on one rank per prompt, and compare."""
    dist.init_process_group("gloo")
    register_dcp()
    set_seed(0)
    model = LlamaForCausalLM(CONFIG).eval()
    prompts = [torch.randint(0, CONFIG.vocab_size, (1, length)) for length in LENGTHS]
    planning = Planning(ModelShape(4, 2, 16, 4), cluster=Cluster(1, dist.get_world_size()))
    rows = [{"tokens": prompt[0].tolist()} for prompt in prompts]
    (batch,) = DCPDataloader(rows, Spec.from_text("").mask("causal"), planning=planning)
    decoders = [number % dist.get_world_size() for number in range(len(prompts))]

    model.set_attn_implementation("dcp")
    with DCPExecutor() as executor:
        caches = prefill(model, executor, batch, decoders)
    model.set_attn_implementation("sdpa")
    for number, cache in caches.items():
        prompt, alone = prompts[number], DynamicCache()
        model(prompt[:, :-1], past_key_values=alone)
        for ours, theirs in zip(cache.layers, alone.layers, strict=True):
            torch.testing.assert_close(ours.keys, theirs.keys, rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(ours.values, theirs.values, rtol=1e-4, atol=1e-4)
        options = {"max_new_tokens": NEW_TOKENS, "do_sample": False, "pad_token_id": 0}
        options["attention_mask"] = torch.ones_like(prompt)
        found, wanted = (
            model.generate(prompt, past_key_values=start, **options)[0, prompt.shape[1] :].tolist()
            for start in (cache, None)
        )
        assert found == wanted, (found, wanted)
        print(f"prompt {number}, {prompt.shape[1]} tokens, rank {dist.get_rank()}:", *found)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
