"""Model families of transformers, small, with the masks of their layers, or why they are refused.

The tests run every one of them, and the table of docs/adoption.md lists them.
"""

from dataclasses import dataclass, field
from typing import Any

SIZES = {
    "vocab_size": 67, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    "initializer_range": 0.2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
HEADS = {"head_dim": 8}
WINDOW = {**HEADS, "sliding_window": 6}
ALTERNATING = {**WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
EXPERTS = {
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
}  # fmt: skip
LATENT = {
    "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8,
    "v_head_dim": 8, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1,
}  # fmt: skip
OLD = {"n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 64}
NO_DROPOUT = dict.fromkeys(
    ("attn_pdrop", "resid_pdrop", "embd_pdrop", "attention_dropout", "dropout", "hidden_dropout"),
    0.0,
)
LINEAR = {
    "linear_num_value_heads": 2, "linear_num_key_heads": 2, "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}  # fmt: skip
MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_n_groups": 1}

MASKS = """
mask full = causal
mask near = sliding(6)
mask tiles = chunked(5)
@ahead mask both = k >= 0
stack one = full
stack windows = near
stack mixed = near, full
stack chunks = tiles, full
stack two_ways = both
"""


@dataclass(frozen=True)
class Family:
    """A family: its config class, its stack in `MASKS`, or why it is refused.

    `heads` are query and key heads as attention sees them, `head_dim` the larger of two sizes.
    """

    name: str
    config: str
    stack: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    refused: str = ""
    heads: tuple[int, int] = (4, 2)
    head_dim: int = 8
    note: str = ""


MIXES = "gives a token another result among other tokens"
OWN_TABLE = "needs layers that take their attention from transformers' AttentionInterface"

LLAMA_4 = {
    "attention_chunk_size": 5, "no_rope_layers": [1, 0], "moe_layers": [], "use_qk_norm": False,
    "intermediate_size_mlp": 48,
}  # fmt: skip
BERT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
SMALL_OPT = {"ffn_dim": 48, "word_embed_proj_dim": 32}
ALL_HEADS = {"num_key_value_heads": 4}
SUPPORTED = [
    Family("Llama 2, 3", "LlamaConfig", "one", HEADS),
    Family("Mistral", "MistralConfig", "windows", WINDOW),
    Family("Qwen 2, 2.5", "Qwen2Config", "one"),
    Family("Qwen 3", "Qwen3Config", "one", HEADS),
    Family("Qwen 3 MoE", "Qwen3MoeConfig", "one", HEADS | EXPERTS),
    Family("Mixtral", "MixtralConfig", "one", HEADS | EXPERTS),
    Family("Gemma", "GemmaConfig", "one", HEADS),
    Family("Gemma 2", "Gemma2Config", "mixed", ALTERNATING | {"attn_logit_softcapping": 2.0}),
    Family("Gemma 3", "Gemma3TextConfig", "mixed", ALTERNATING),
    Family("GPT-OSS", "GptOssConfig", "mixed", ALTERNATING | EXPERTS, note="with sinks"),
    Family(
        "Llama 4", "Llama4TextConfig", "chunks", HEADS | EXPERTS | LLAMA_4,
        note="batches below `floor_scale` tokens, or `attn_temperature_tuning=False`",
    ),
    Family(
        "Phi 3, 4", "Phi3Config", "one",
        note="LongRoPE: short rows, or equal factors",
    ),
    Family("OLMo 2", "Olmo2Config", "one"),
    Family("OLMo 3", "Olmo3Config", "mixed", ALTERNATING),
    Family("Cohere 2", "Cohere2Config", "mixed", ALTERNATING),
    Family("SmolLM 3", "SmolLM3Config", "one", HEADS),
    Family("Starcoder 2", "Starcoder2Config", "one", NO_DROPOUT),
    Family("Granite 3", "GraniteConfig", "one"),
    Family("GLM 4", "Glm4Config", "one", HEADS),
    Family("DeepSeek V3", "DeepseekV3Config", "one", EXPERTS | LATENT | ALL_HEADS, "", (4, 4), 16),
    Family("GPT-NeoX, Pythia", "GPTNeoXConfig", "one", NO_DROPOUT, heads=(4, 4)),
    Family("GPT-2", "GPT2Config", "one", OLD | NO_DROPOUT, heads=(4, 4)),
    Family("OPT", "OPTConfig", "one", SMALL_OPT | NO_DROPOUT, heads=(4, 4)),
    Family("BERT, under a mask of both directions", "BertConfig", "two_ways", BERT, heads=(4, 4)),
]  # fmt: skip

NEXT = {
    "layer_types": ["linear_attention", "full_attention"], "num_experts": 0,
    "mlp_only_layers": [0, 1],
}  # fmt: skip
GRANITE_4 = {
    "layer_types": ["mamba", "attention"], "num_local_experts": 0, "shared_intermediate_size": 48,
}  # fmt: skip
LFM_2 = {"layer_types": ["conv", "full_attention"], "block_ff_dim": 48}
JAMBA = {"mamba_d_state": 8, "mamba_dt_rank": 4, "num_experts": 2}
INDEXER = {"index_n_heads": 2, "index_head_dim": 16, "index_topk": 4}
BART = {
    "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
}  # fmt: skip
OF_LAYERS = [
    ("Qwen 3 Next", "Qwen3NextConfig", HEADS | LINEAR | NEXT, "Qwen3NextGatedDeltaNet"),
    ("Granite 4 hybrid", "GraniteMoeHybridConfig", MAMBA | GRANITE_4, "GraniteMoeHybridMambaLayer"),
    ("Bamba", "BambaConfig", MAMBA | {"attn_layer_indices": [1]}, "BambaMixer"),
    ("Falcon H1", "FalconH1Config", HEADS | MAMBA | {"mamba_d_ssm": 64}, "FalconH1Mixer"),
    ("LFM 2", "Lfm2Config", LFM_2, "Lfm2ShortConv"),
    ("Jamba", "JambaConfig", JAMBA, "JambaMambaMixer"),
    ("Mamba", "MambaConfig", {"state_size": 8}, "MambaMixer"),
    ("DeepSeek V3.2", "DeepseekV32Config", EXPERTS | LATENT | INDEXER, "DeepseekV32Indexer"),
    ("BART's decoder", "BartConfig", BART, "BartDecoder"),
]
REFUSED = [
    Family(name, config, "", options, rf"`[\w.]+ \({module}\)` {MIXES}", note=f"`{module}`")
    for name, config, options, module in OF_LAYERS
] + [
    Family(name, config, "", options, OWN_TABLE, note="attention of its own")
    for name, config, options in (
        ("Bloom (ALiBi)", "BloomConfig", OLD),
        ("GPT-J", "GPTJConfig", OLD | {"rotary_dim": 8}),
        ("Falcon", "FalconConfig", {}),
    )
]
