"""A small model in float64 and its rows, for the losses of docs/losses.md."""

import re
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

WORDS, WIDTH, HEADS, EXPERTS = 30, 16, 2, 3
PAGE = Path(__file__).parents[2] / "docs" / "losses.md"


def shown():
    """Return what the code blocks of the page define."""
    text, names = PAGE.read_text(encoding="utf-8"), {}
    for block in re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        exec(block, names)
    return names


class Layer(nn.Module):
    """Attention and experts, which a router weighs."""

    def __init__(self):
        super().__init__()
        self.q, self.kv = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * WIDTH)
        self.router = nn.Linear(WIDTH, EXPERTS)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(EXPERTS))

    def forward(self, hidden, attend):
        q = self.q(hidden).unflatten(-1, (HEADS, -1))
        hidden = hidden + attend(q, self.kv(hidden).unflatten(-1, (2, HEADS, -1))).flatten(1)
        logits = self.router(hidden)
        found = torch.stack([expert(hidden).tanh() for expert in self.experts], 1)
        return hidden + (logits.softmax(-1)[..., None] * found).sum(1), logits


class Model(nn.Module):
    """Gives logits, a reward for each token, and the logits of the routers."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(32, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(3))
        self.head, self.reward = nn.Linear(WIDTH, WORDS), nn.Linear(WIDTH, 1)
        self.double()

    def forward(self, tokens, positions, attend, kept=(True, True, True)):
        hidden, routers = self.words(tokens) + self.places(positions), []
        for number, layer in enumerate(self.layers):
            if kept[number]:
                hidden, logits = layer(hidden, lambda q, kv, n=number: attend(n, q, kv))
                routers.append(logits)
        return self.head(hidden), self.reward(hidden)[:, 0], routers


def attend_causally(lengths):
    """Return dense causal attention over packed documents of some lengths."""
    seen = torch.block_diag(*(torch.ones(n, n).tril() for n in lengths)).bool()

    def attend(_, q, kv):
        k, v = kv.unbind(1)
        q, k, v = (x.transpose(0, 1) for x in (q, k, v))
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=seen).transpose(0, 1)

    return attend


def pairs():
    """Return rows of a prompt with two answers; numbers that float32 holds exactly."""
    draws = torch.Generator().manual_seed(1)

    def drawn(count, low, high):
        return torch.randint(low, high, (count,), generator=draws).tolist()

    found = []
    for prompt, chosen, rejected in ((5, 4, 7), (3, 6, 2), (8, 1, 5)):
        answers = [0] * (prompt + chosen) + [1] * rejected
        count, advantages = len(answers), drawn(2, -4, 5)
        found.append({
            "tokens": drawn(count, 0, WORDS),
            "prompt_len": prompt, "chosen_len": chosen, "rejected_len": rejected,
            "is_answer": [0] * prompt + [1] * (chosen + rejected), "answer": answers,
            "reference": [-n / 8 for n in drawn(count, 8, 40)],
            "old": [-n / 8 for n in drawn(count, 20, 40)],
            "advantages": [advantages[answer] / 4 for answer in answers],
            "is_last": [int(n in (prompt + chosen - 1, count - 1)) for n in range(count)],
        })  # fmt: skip
    return found


def documents():
    """Return rows; the first batch has fewer tokens than there are ranks."""
    draws = torch.Generator().manual_seed(2)
    return [
        {"tokens": torch.randint(0, WORDS, (n,), generator=draws).tolist()} for n in (2, 29, 13, 17)
    ]
