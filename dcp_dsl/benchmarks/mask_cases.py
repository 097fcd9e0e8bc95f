"""Masks and samples of `bench_blocks`: the library, scattered tokens, and refused masks."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dcp_dsl import Mask, Sample, Spec

SPEC = """
segment is_global = flags(global_token)
segment topic = ids(topic_id)
segment photo = [photo_lens]*
token rank
segment run = every 64
column chosen[16] in run
column photo_width in photo
mask packed = causal per doc
segment doc = [doc_lens]*
mask patches = same(photo) and abs(y(q) - y(k)) <= 3 and abs(x(q) - x(k)) <= 3
  where y(t) = t.photo.pos // 32, x(t) = t.photo.pos % 32
mask sized_patches = same(photo) and abs(y(q) - y(k)) <= 3 and abs(x(q) - x(k)) <= 3
  where y(t) = t.photo.pos // t.photo.photo_width, x(t) = t.photo.pos % t.photo.photo_width
mask global_tokens = local(256) or q in is_global or k in is_global
mask topics = causal and same(topic)
mask selected = causal and k // 64 in q.run.chosen
mask products = q * k % 7 < 3
mask combs = q % 7 < 3 and k % 11 < 5 and (q // 3 - k // 5) % 2 == 0
mask lower_rank = causal and q.rank < k.rank
"""
QUICK_MS, LIBRARY_MS, VERY_LONG_MS = 0.5, 20.0, 150.0
LONG, VERY_LONG = 131_072, 1_048_576


@dataclass(frozen=True, slots=True)
class Case:
    """A mask on a sample.

    Attributes:
        name: for the table.
        call: the mask.
        wanted_ms: compile and count together.
        tokens, block: of the sample.
    """

    name: str
    call: str
    wanted_ms: float
    tokens: int = LONG
    block: int = 512


def _library() -> tuple[Case, ...]:
    quick = ("causal", "sliding(4k)", "streaming(64, 4k)", "shared_question", "document",
             "multimodal", "grpo")  # fmt: skip
    others = (
        "agent", "block_causal", "block_diffusion(1k)", "block_diffusion", "blockwise",
        "blockwise_dcp", "chunked(512)", "demonstrations", "dilated(4k, 2)", "document_full",
        "document_streaming", "dpo", "eviction", "fa_window", "fixed", "forks", "full", "local(1k)",
        "longformer(256, 16)", "moba", "modality", "natten(512, 256, 6)", "natten(64, 2048, 6)",
        "parallel_context", "prefix_lm", "prefix_lm_packed", "prompt_tree", "qk_sparse", "rag",
        "rollout_tree", "shared_prefix", "sta(64, 8, 256, 1)", "strided", "svg_spatial", "tree",
    )  # fmt: skip
    return (
        *(Case(call, call, QUICK_MS) for call in quick),
        *(Case(call, call, LIBRARY_MS) for call in others),
        *(Case(call, call, VERY_LONG_MS, VERY_LONG, 1024) for call in (*quick, *others)),
    )


CASES = (
    *_library(),
    Case("2-D windows in 256 images of 512 tokens", "patches", 200),
    Case("the same in images 8 to 64 wide", "sized_patches", 200),
    Case("window, 2 % random global tokens", "global_tokens", 100),
    Case("1,000 random ids", "topics", 100),
    Case("10,000 documents", "packed", 20, VERY_LONG, 1024),
    Case("cross attention of 200 pairs", "cross", 20),
    Case("a chunk behind a cache as long", "prefill", 20),
    Case("16 selected blocks per 64 queries", "selected", 300, VERY_LONG, 1024),
)
# Name, mask, tokens, and what is asked of it: `Mask.compile`, or `Mask.bind` for slabs.
REFUSALS = (
    ("fixed as slabs", "fixed", LONG, "bind"), ("strided as slabs", "strided", LONG, "bind"),
    ("eviction as slabs", "eviction", LONG, "bind"),
    ("qk_sparse as slabs", "qk_sparse", LONG, "bind"),
    ("1,000 random ids as slabs", "topics", LONG, "bind"),
    ("q * k % 7 < 3", "products", VERY_LONG, "compile"),
    ("three combs", "combs", LONG, "compile"),
    ("comparison of random numbers", "lower_rank", LONG, "compile"),
    ("q // 2 == k // 2", "q // 2 == k // 2", 2**31 - 1, "compile"),
)  # fmt: skip


def spec() -> Spec:
    """Return the text whose masks are measured, with the library around it."""
    return Spec.from_text(SPEC)


def sample(mask: Mask, tokens: int, seed: int) -> Sample:
    """Draw the columns that a mask reads."""
    rng = np.random.default_rng(seed)
    draw = _DRAW | _DRAW_FOR.get(mask.name, {})
    return Sample({name: draw[name](tokens, rng) for name in sorted(mask.columns)}, tokens)


def _cut(tokens: int, parts: int, rng: np.random.Generator) -> list[int]:
    """Cut a length into parts of random lengths, none of them empty."""
    borders = np.sort(rng.choice(np.arange(1, tokens), parts - 1, replace=False))
    return np.diff([0, *borders, tokens]).tolist()


def _flags(share: float) -> "Draw":
    return lambda n, rng: (rng.random(n) < share).astype(int).tolist()


def _tree(tokens: int, rng: np.random.Generator) -> list[int]:
    """Return the end of each token's subtree in a random tree, tokens in depth-first order."""
    ends = np.full(tokens, tokens)
    open_: list[int] = []
    closing = rng.geometric(0.5, tokens) - 1
    for token in range(tokens):
        for _ in range(min(int(closing[token]), len(open_) - 1)):
            ends[open_.pop()] = token
        open_.append(token)
    return ends.tolist()


def _every_third(first: int) -> "Draw":
    """Return a column of three that share the tokens left by one part of a sixteenth."""
    return lambda n, rng: _cut(n - n // 16, 48, np.random.default_rng(0))[first::3]


def _alternate(first: int) -> "Draw":
    return lambda n, rng: _cut(n, 128, np.random.default_rng(0))[first::2]


def _groups(n: int) -> list[int]:
    return _cut(n, 36, np.random.default_rng(0))


def _chosen(n: int, rng: np.random.Generator) -> list[list[int]]:
    """Return three blocks of 512 tokens for each token, none behind its own."""
    return (rng.random((n, 3)) * (1 + np.arange(n) // 512)[:, None]).astype(int).tolist()


def _parents(size: int) -> "Draw":
    """Return a column of parents of so many branches, each one of the 20 before."""
    return lambda n, rng: [int(rng.integers(max(-1, i - 20), i)) if i else -1 for i in range(size)]


def _forks(size: int) -> "Draw":
    """Return forks of equal branches, each a token of one of the 20 before."""

    def draw(n: int, rng: np.random.Generator) -> list[int]:
        starts = _even(n, size)[0]
        return [int(rng.integers(starts[max(0, i - 20)], at)) if i else -1 for i, at in
                enumerate(starts)]  # fmt: skip

    return draw


def _even(tokens: int, parts: int) -> tuple[list[int], list[int]]:
    """Cut a length evenly; return where the parts start, and their lengths."""
    borders = np.linspace(0, tokens, parts + 1).astype(int)
    return borders[:-1].tolist(), np.diff(borders).tolist()


Draw = Callable[[int, np.random.Generator], Any]  # Any: integers and lists of them
_DRAW: dict[str, Draw] = {
    "doc_lens": lambda n, rng: _cut(n, 10_000 if n == VERY_LONG else 200, rng),
    "demo_lens": lambda n, rng: _cut(n, 20, rng),
    "chunk_lens": lambda n, rng: [c.tolist() for c in np.reshape(_cut(n, 64, rng), (8, 8))],
    "question_len": lambda n, rng: n // 9,
    "answer_lens": lambda n, rng: _cut(n - n // 9, 8, rng),
    "text_lens": _alternate(0), "image_lens": _alternate(1),
    "prefix_lens": _alternate(0), "body_lens": _alternate(1),
    "prompt_lens": lambda n, rng: _groups(n)[::9],
    "rollout_lens": lambda n, rng: [_groups(n)[i + 1 : i + 9] for i in range(0, 36, 9)],
    "system_len": lambda n, rng: n // 16,
    "user_lens": _every_third(0), "think_lens": _every_third(1), "reply_lens": _every_third(2),
    "prefix_len": lambda n, rng: n // 3, "chat_lens": lambda n, rng: _cut(n - n // 3, 7, rng),
    "prompt_len": lambda n, rng: n // 4, "chosen_len": lambda n, rng: n // 2,
    "rejected_len": lambda n, rng: n - n // 4 - n // 2,
    "target_lens": lambda n, rng: _cut(n, 200, rng),
    "source_lens": lambda n, rng: _cut(n, 200, rng),
    "past_len": lambda n, rng: n, "chunk_len": lambda n, rng: n,
    "window_lens": lambda n, rng: _cut(n - n // 8, 10, rng),
    "passage_lens": lambda n, rng: _cut(n - n // 8, 10, rng),
    "photo_lens": lambda n, rng: [512] * (n // 512),
    "photo_width": lambda n, rng: rng.choice([8, 16, 32, 64], n // 512).tolist(),
    "evict": lambda n, rng: (np.arange(n) + rng.integers(1, n // 4, n)).tolist(),
    "subtree_end": _tree, "keep_q": _flags(0.7), "keep_k": _flags(0.7),
    "global_token": _flags(0.02), "topic_id": lambda n, rng: rng.integers(0, 1000, n).tolist(),
    "chosen": lambda n, rng: (rng.random((n // 64, 16)) * np.arange(1, n // 64 + 1)[:, None])
    .astype(int).tolist(),
    "rank": lambda n, rng: rng.integers(0, 2**20, n).tolist(),
}  # fmt: skip
_DRAW_FOR: dict[str, dict[str, Draw]] = {
    "moba": {"chosen": _chosen},
    "forks": {
        "prompt_len": lambda n, rng: n // 4, "rollout_parents": _parents(64),
        "rollout_lens": lambda n, rng: _cut(n - n // 4, 64, rng),
    },
    "prompt_tree": {
        "node_lens": lambda n, rng: _cut(n, 1000, rng), "node_parents": _parents(1000),
    },
    "rollout_tree": {
        "branch_lens": lambda n, rng: _even(n, 1000)[1], "branch_forks": _forks(1000),
    },
}  # fmt: skip
