"""Planted errors of masks are found, named by layer and pair; right models raise no alarm."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from dcp_dsl import Sample, Spec
from dcp_runtime import probe

TOKENS, DIM, HEADS, KV_HEADS = 23, 16, 4, 2
LENS = [9, 5, 9]
Q, K = np.mgrid[:TOKENS, :TOKENS]
DOC = np.repeat([0, 1, 2], LENS)
START = np.repeat([0, 9, 14], LENS)
SAME = DOC[Q] == DOC[K]
CAUSAL = K <= Q
PACKED = CAUSAL & SAME
IMAGE = np.repeat([-1, 0, -1, 1, -1], [4, 5, 3, 6, 5])
SEES_IMAGE = (IMAGE[Q] >= 0) & (IMAGE[Q] == IMAGE[K])


def window(size: int) -> np.ndarray:
    return CAUSAL & (Q - size < K)


def chunks(size: int, shift: int = 0) -> np.ndarray:
    return CAUSAL & ((Q + shift) // size == (K + shift) // size)


class Attention(nn.Module):
    """Grouped-query attention under a fixed mask, which may differ between heads."""

    def __init__(self, mask: np.ndarray, hidden: float = -torch.inf) -> None:
        super().__init__()
        self.mask, self.hidden = torch.tensor(mask), hidden
        self.q, self.kv = nn.Linear(DIM, DIM), nn.Linear(DIM, 2 * DIM * KV_HEADS // HEADS)
        self.out = nn.Linear(DIM, DIM)

    def forward(self, x):
        q = self.q(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        k, v = self.kv(x).unflatten(-1, (2, KV_HEADS, -1)).permute(2, 0, 3, 1, 4)
        k, v = (each.repeat_interleave(HEADS // KV_HEADS, 1) for each in (k, v))
        scores = q @ k.mT / (DIM // HEADS) ** 0.5
        scores = torch.where(self.mask, scores, scores + self.hidden)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class WithoutGradient(Attention):
    """The same by a kernel that has no backward pass."""

    def forward(self, x):
        return x[..., :1].detach() * 0 + self.out.bias + super().forward(x.detach()).detach()


class Recurrent(nn.Module):
    """Linear attention with decay; its state begins anew where it is told to."""

    def __init__(self, starts: list[int]) -> None:
        super().__init__()
        self.starts, self.qkv = starts, nn.Linear(DIM, 3 * DIM)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        state, found = 0, []
        for t in range(x.shape[1]):
            state = (0 if t in self.starts else 0.9 * state) + k[:, t, :, None] * v[:, t, None]
            found.append((q[:, t, None] @ state)[:, 0])
        return torch.stack(found, 1)


class Convolution(nn.Module):
    """A causal convolution over three tokens, document by document or over the whole row."""

    def __init__(self, lens: list[int]) -> None:
        super().__init__()
        self.lens, self.conv = lens, nn.Conv1d(DIM, DIM, 3, groups=DIM)

    def forward(self, x):
        parts = x.mT.split(self.lens, -1)
        return torch.cat([self.conv(functional.pad(part, (2, 0))) for part in parts], -1).mT


class Gru(nn.Module):
    """A recurrent network of torch, over the whole row or document by document."""

    def __init__(self, lens: list[int]) -> None:
        super().__init__()
        self.lens, self.gru = lens, nn.GRU(DIM, DIM, batch_first=True)

    def forward(self, x):
        return torch.cat([self.gru(part)[0] for part in x.split(self.lens, 1)], 1)


class Cached(nn.Module):
    """Attention over a row in two parts; the second sees the first through a cache, or does not."""

    def __init__(self, keeps: bool, mask: np.ndarray) -> None:
        super().__init__()
        self.keeps, self.mask, self.qkv = keeps, torch.tensor(mask), nn.Linear(DIM, 3 * DIM)

    def forward(self, x):
        found, cache = [], []
        for rows in torch.arange(TOKENS).split(12):
            q, k, v = self.qkv(x[:, rows]).chunk(3, -1)
            cache = [*cache, (rows, k, v)] if self.keeps else [(rows, k, v)]
            at, k, v = (
                torch.cat(each, -2 if n else -1) for n, each in enumerate(zip(*cache, strict=True))
            )
            scores = (q @ k.mT).masked_fill(~self.mask[rows][:, at], -torch.inf)
            found.append(scores.softmax(-1) @ v)
        return torch.cat(found, 1)


class Block(nn.Module):
    """A layer: what mixes tokens, experts, and code that a test plants."""

    def __init__(self, mixer: nn.Module, planted: Callable[..., Any] | None = None) -> None:
        super().__init__()
        self.norm, self.mixer, self.planted = nn.LayerNorm(DIM), mixer, planted
        self.mlp = nn.Sequential(nn.Linear(DIM, DIM), nn.GELU(), nn.Linear(DIM, DIM))

    def forward(self, x):
        x = x + self.mixer(self.norm(x))
        x = x + self.mlp(self.norm(x))
        return x if self.planted is None else x + self.planted(x)


class Checkpointed(nn.Module):
    """A layer that is computed again in the backward pass."""

    def __init__(self, layer: nn.Module, *, use_reentrant: bool) -> None:
        super().__init__()
        self.layer, self.use_reentrant = layer, use_reentrant

    def forward(self, x):
        return checkpoint(self.layer, x, use_reentrant=self.use_reentrant)


class Tiny(nn.Module):
    """Token ids to logits through layers."""

    def __init__(self, layers: list[nn.Module], planted: Callable[..., Any] | None = None) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(50, DIM), nn.Linear(DIM, 50)
        self.layers, self.planted = nn.ModuleList(layers), planted

    def forward(self, input_ids):
        x = self.embed(input_ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x if self.planted is None else x + self.planted(x))


class OneModule(nn.Module):
    """All layers in one forward, with an embedding that is no module."""

    def __init__(self, masks: list[np.ndarray]) -> None:
        super().__init__()
        self.masks = [torch.tensor(mask) for mask in masks]
        self.table = nn.Parameter(torch.randn(50, DIM))

    def forward(self, input_ids):
        x = self.table[input_ids]
        for mask in self.masks:
            x = x + (x @ x.mT / 64).masked_fill(~mask, -torch.inf).softmax(-1) @ x
        return x


@dataclass(frozen=True)
class Planted:
    """A model with an error.

    Attributes:
        text: what is written, as expression of a mask or layers of a stack.
        model: makes the model.
        wrong: what the wrong layers see, by number; ``None`` for code outside the layers.
        options: of `probe`.
        is_exact: whether the probe sees exactly that, not a part of it.
    """

    text: str
    model: Callable[[], nn.Module]
    wrong: dict[int | None, np.ndarray]
    options: dict[str, Any] = field(default_factory=dict)
    is_exact: bool = True


def of_masks(text: str, right: list[np.ndarray], **wrong: np.ndarray) -> Planted:
    """Return layers of attention of which some have another mask: `at3=` is that of layer 3."""
    changed = {int(name[2:]): mask for name, mask in wrong.items()}
    masks = [changed.get(n, mask) for n, mask in enumerate(right)]
    return Planted(text, lambda: Tiny([Block(Attention(m)) for m in masks]), changed)


def with_pair(mask: np.ndarray, query: int, key: int, value: bool) -> np.ndarray:
    found = mask.copy()
    found[query, key] = value
    return found


def by_head(mask: np.ndarray, head: int, other: np.ndarray) -> np.ndarray:
    return np.stack([other if n == head else mask for n in range(HEADS)])


def mean(x):
    return x - x.mean(1, keepdim=True)


def largest(x):
    """Experts that choose their tokens: which ones has no gradient."""
    return x * (x[..., :1] >= x[..., :1].topk(5, 1).values[:, -1:]).to(x.dtype)


STREAMING = CAUSAL & ((K < 2) | (Q - K < 5))
PATHS = CAUSAL & ((K < 9) | SAME)  # a question of 9 tokens, answers of 5 and 9
PREFIX = CAUSAL | (Q < 9) & (K < 9)
MULTIMODAL = CAUSAL | SEES_IMAGE
OWN_STARTS = [0, 9, 14]
TWO = [PACKED] * 2
SHIFTED = np.repeat([0, 1, 2], [10, 5, 8])
EARLY = np.repeat([0, 1, 2], [8, 5, 10])
EMPTY = PACKED & (Q != 11)
EVERYTHING = CAUSAL | True

PLANTED: dict[str, Planted] = {
    "window one too wide": of_masks("sliding(4)", [window(4)] * 2, at1=window(5)),
    "window one too narrow": of_masks("sliding(4)", [window(4)] * 2, at0=window(3)),
    "window of another layer": of_masks(
        "2 of sliding(4), causal", [window(4), window(4), CAUSAL] * 2, at2=window(4)
    ),
    "window missing in one of 12": of_masks(
        "5 of sliding(4), causal", ([window(4)] * 5 + [CAUSAL]) * 2, at7=CAUSAL
    ),
    "window counted in the row": of_masks(
        "sliding(4) per doc", [window(4) & SAME] * 2, at1=window(4)
    ),
    "window to both sides": of_masks("sliding(4)", [window(4)] * 2, at0=abs(Q - K) < 4),
    "order of the layers": of_masks(
        "2 of sliding(4), causal", [window(4), window(4), CAUSAL], at0=CAUSAL, at2=window(4)
    ),
    "a layer that sees itself alone": of_masks(
        "2 of sliding(4), causal", [window(4), window(4), CAUSAL] * 2, at3=window(1)
    ),
    "look-ahead by one": of_masks("causal", [CAUSAL] * 2, at1=K <= Q + 1),
    "mask transposed": of_masks("causal", [CAUSAL] * 2, at0=K >= Q),
    "no mask": of_masks("causal", [CAUSAL] * 2, at1=EVERYTHING),
    "encoder made causal": of_masks("full", [EVERYTHING] * 2, at1=CAUSAL),
    "documents dropped": of_masks("causal per doc", TWO, at0=CAUSAL, at1=CAUSAL),
    "documents dropped in one of 12": of_masks("causal per doc", [PACKED] * 12, at8=CAUSAL),
    "documents transposed": of_masks("causal per doc", TWO, at1=PACKED.T),
    "documents begin late": of_masks(
        "causal per doc", TWO, at0=CAUSAL & (SHIFTED[Q] == SHIFTED[K])
    ),
    "documents begin early": of_masks("causal per doc", TWO, at1=CAUSAL & (EARLY[Q] == EARLY[K])),
    "last document joined": of_masks(
        "causal per doc", TWO, at1=CAUSAL & ((DOC > 0)[Q] == (DOC > 0)[K])
    ),
    "one pair leaks": of_masks(
        "causal per doc", [PACKED] * 12, at7=with_pair(PACKED, 20, 3, value=True)
    ),
    "one pair hidden": of_masks(
        "causal per doc", [PACKED] * 12, at5=with_pair(PACKED, 20, 16, value=False)
    ),
    "prefix causal": of_masks("prefix", [PREFIX] * 2, at1=CAUSAL),
    "prefix one too long": of_masks(
        "prefix", [PREFIX] * 2, at0=CAUSAL | (Q < 10) & (K < 10)
    ),
    "prefix seen by nobody": of_masks("prefix", [PREFIX] * 2, at1=PREFIX & ((Q < 9) | (K >= 9))),
    "chunks misaligned": of_masks("chunked(5)", [chunks(5)] * 2, at1=chunks(5, 1)),
    "chunks one too long": of_masks("chunked(5)", [chunks(5)] * 2, at0=chunks(6)),
    "chunks counted in the row": of_masks(
        "chunked(5) per doc",
        [PACKED & ((Q - START[Q]) // 5 == (K - START[K]) // 5)] * 2, at1=chunks(5) & SAME,
    ),
    "chunks as windows": of_masks("chunked(5)", [chunks(5)] * 2, at0=window(5)),
    "sinks missing": of_masks("streaming(2, 5)", [STREAMING] * 2, at1=window(5)),
    "a sink too many": of_masks(
        "streaming(2, 5)", [STREAMING] * 2, at0=STREAMING | CAUSAL & (K < 3)
    ),
    "answers see each other": of_masks("paths", [PATHS] * 2, at1=CAUSAL),
    "answers without question": of_masks("paths", [PATHS] * 2, at0=PACKED),
    "image causal": of_masks("images", [MULTIMODAL] * 2, at1=CAUSAL),
    "images see each other": of_masks(
        "images", [MULTIMODAL] * 2, at0=CAUSAL | (IMAGE[Q] >= 0) & (IMAGE[K] >= 0)
    ),
    "one head leaks": Planted(
        "causal per doc",
        lambda: Tiny([Block(Attention(PACKED)), Block(Attention(by_head(PACKED, 3, CAUSAL)))]),
        {1: CAUSAL},
    ),
    "masked by a finite number": Planted(
        "causal per doc",
        lambda: Tiny([Block(Attention(PACKED)), Block(Attention(PACKED, hidden=-20.0))]),
        {1: EVERYTHING},
    ),
    "a row that sees nothing": Planted(  # equal scores for all
        "causal per doc and q != 11",
        lambda: Tiny([Block(Attention(EMPTY, hidden=torch.finfo(torch.float32).min))]),
        {0: EMPTY | (Q == 11)},
    ),
    "state crosses documents": Planted(
        "linear, causal per doc",
        lambda: Tiny([Block(Recurrent([0])), Block(Attention(PACKED))]),
        {0: CAUSAL},
    ),
    "state begins late": Planted(
        "causal per doc",
        lambda: Tiny([Block(Recurrent(OWN_STARTS)), Block(Recurrent([0, 10, 14]))]),
        {1: CAUSAL & (np.repeat([0, 1, 2], [10, 4, 9])[Q] == np.repeat([0, 1, 2], [10, 4, 9])[K])},
    ),
    "convolution crosses documents": Planted(
        "linear, causal per doc",
        lambda: Tiny([Block(Convolution([TOKENS])), Block(Attention(PACKED))]),
        {0: window(3)},
    ),
    "network crosses documents": Planted(
        "causal per doc", lambda: Tiny([Block(Gru(LENS)), Block(Gru([TOKENS]))]), {1: CAUSAL}
    ),
    "cache dropped": Planted(
        "causal",
        lambda: Tiny([Block(Cached(True, CAUSAL)), Block(Cached(False, CAUSAL))]),
        {1: CAUSAL & ((Q < 12) == (K < 12))},
    ),
    "cache of another document": Planted(
        "causal per doc",
        lambda: Tiny([Block(Cached(True, PACKED)), Block(Cached(True, CAUSAL))]),
        {1: CAUSAL},
    ),
    "a layer's own code": Planted(
        "causal",
        lambda: Tiny([Block(Attention(CAUSAL)), Block(Attention(CAUSAL), mean)]),
        {1: EVERYTHING},
    ),
    "code around the layers": Planted(
        "causal", lambda: Tiny([Block(Attention(CAUSAL))], lambda x: x.roll(1, 1)),
        {None: Q == (K + 1) % TOKENS},
    ),
    "experts choose tokens": Planted(
        "causal", lambda: Tiny([Block(Attention(CAUSAL)), Block(Attention(CAUSAL), largest)]),
        {1: EVERYTHING}, is_exact=False,
    ),
    "a kernel without gradients": Planted(
        "causal per doc",
        lambda: Tiny([Block(WithoutGradient(PACKED)), Block(WithoutGradient(CAUSAL))]),
        {1: CAUSAL},
    ),
    "checkpointed layers": Planted(
        "causal per doc",
        lambda: Tiny([
            Checkpointed(Block(Attention(PACKED)), use_reentrant=False),
            Checkpointed(Block(Attention(CAUSAL)), use_reentrant=False),
            Checkpointed(Block(Attention(PACKED)), use_reentrant=True),
        ]),
        {1: CAUSAL},
    ),
    "layers in one module": Planted(
        "sliding(2)", lambda: OneModule([window(2), window(3)]), {0: window(4)}, {"layers": 2}
    ),
    "layers in one module, too few": Planted(
        "sliding(2)", lambda: OneModule([window(2), window(2)]), {0: window(3)}, {"layers": 3}
    ),
}  # fmt: skip

SPEC = """
segment pack = doc[doc_lens]*
segment part = question[question_len] branch answer[answer_lens]*
segment head = front[question_len] behind[..]
segment seq = (text[text_lens] image[image_lens])* tail[tail_len]
@ahead(front) mask prefix = causal or same(front)
@ahead(image) mask images = causal or same(image)
"""
COLUMNS = {
    "doc_lens": LENS, "question_len": 9, "answer_lens": [5, 9],
    "text_lens": [4, 3], "image_lens": [5, 6], "tail_len": 5,
}  # fmt: skip


OFF = ~np.eye(TOKENS, dtype=bool)
QUICK = [
    "window one too narrow", "state crosses documents", "a layer's own code",
    "a kernel without gradients",
]  # fmt: skip


def found_in(planted):
    stack = Spec.from_text(f"{SPEC}stack s = {planted.text}").stack("s")
    torch.manual_seed(0)
    model = planted.model()
    row = Sample({name: COLUMNS[name] for name in stack.columns}, TOKENS)
    ids = torch.randint(50, (1, TOKENS))
    return probe(model, {"input_ids": ids}, stack, row, **planted.options)


def check(name):
    planted = PLANTED[name]
    report = found_in(planted)
    wrong = {layer.layer: layer for layer in report.layers if layer.first}
    assert wrong.keys() == planted.wrong.keys()
    assert report.first_wrong is wrong[min(wrong, key=lambda n: -1 if n is None else n)]
    for number, sees in planted.wrong.items():
        if planted.is_exact:
            assert np.array_equal(wrong[number].sees[OFF], sees[OFF]), f"layer {number}"
        else:
            assert wrong[number].leaks.any()
            assert not (wrong[number].sees & ~sees).any()


@pytest.mark.parametrize("name", QUICK)
def test_a_planted_error_is_found_and_named(name):
    check(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(PLANTED.keys() - set(QUICK)))
def test_every_planted_error_is_found_and_named(name):
    check(name)
