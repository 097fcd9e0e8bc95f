"""Drawn rollouts of agents, which share prefixes, and what plain code says of them."""

import numpy as np
from losses_model import WORDS


def agent_log(seed, rollouts=9, turns=4, longest=6, words=WORDS):
    """Draw rollouts of one task: retries, edits, calls of tools that branch, repeats and prefixes.

    Columns hold numbers that float32 holds exactly; rollouts differ in them also where they share
    tokens.
    """
    rng = np.random.default_rng(seed)
    found = []
    system = rng.integers(0, words, rng.integers(1, longest + 1)).tolist()
    for _ in range(rollouts):
        kind = rng.choice(["new", "retry", "edit", "repeat", "prefix"]) if found else "new"
        base = found[rng.integers(len(found))] if found else system
        cut = int(rng.integers(1, len(base) + 1))
        tokens = {"new": system, "repeat": base, "edit": base, "retry": base[:cut]}.get(
            kind, base[:cut]
        )
        if kind in ("new", "retry"):
            for _turn in range(int(rng.integers(1, turns))):
                tokens = tokens + rng.integers(0, words, rng.integers(1, longest)).tolist()
        elif kind == "edit":
            tokens = [*tokens]
            tokens[cut - 1] = int(rng.integers(0, words))
        found.append(tokens)
    return [row_of(rng, tokens, number) for number, tokens in enumerate(found)]


def row_of(rng, tokens, number):
    count = len(tokens)
    return {
        "tokens": tokens,
        "response_mask": rng.integers(0, 4, count).clip(0, 1).tolist(),
        "advantages": [float(rng.integers(-4, 5)) / 4] * count,
        "old": (-rng.integers(20, 40, count) / 8).tolist(),
        "reward": number / 2,
    }


def nodes_of_trie(rows):
    """Count the tokens of a trie, by hashing every prefix."""
    return len({tuple(row["tokens"][: n + 1]) for row in rows for n in range(len(row["tokens"]))})


def shares(rows):
    """Return for each token of each rollout how many rollouts count the same token as a target."""
    counted = {}
    for row in rows:
        for n in range(1, len(row["tokens"])):
            prefix = tuple(row["tokens"][: n + 1])
            counted[prefix] = counted.get(prefix, 0) + row["response_mask"][n]
    return [
        [0, *(counted[tuple(row["tokens"][: n + 1])] for n in range(1, len(row["tokens"])))]
        for row in rows
    ]
