"""Parts that go on from all branches in front of them: masks, positions, targets, claims."""

from random import Random

import numpy as np
import pytest

from dcp_dsl import Sample, Spec, check, dense_mask, token_paths
from dcp_dsl.language_server import complete_at

RAG = "segment rag = system[s] branch chunk[lens]* join ask[n] branch answer[m]*\n"
TURNS = "segment log = branch chat(turn(branch found[found_lens]* join say[say_lens])*)*\n"


def some_rag(rng):
    columns = {
        "s": rng.randint(0, 2), "lens": [rng.randint(0, 3) for _ in range(rng.randint(0, 3))],
        "n": rng.randint(0, 3), "m": [rng.randint(0, 2) for _ in range(rng.randint(0, 3))],
    }  # fmt: skip
    return columns, columns["s"] + sum(columns["lens"]) + columns["n"] + sum(columns["m"])


def some_turns(rng):
    found = [
        [[rng.randint(0, 2) for _ in range(rng.randint(0, 2))] for _ in range(rng.randint(0, 2))]
        for _ in range(rng.randint(1, 3))
    ]
    say = [[rng.randint(0, 2) for _ in turns] for turns in found]
    size = sum(sum(map(sum, turns)) for turns in found) + sum(map(sum, say))
    return {"found_lens": found, "say_lens": say}, size


def sights_of_rag(columns):
    """Return the tokens that each token sees, by the words of the page alone."""
    seen, at = [], 0

    def grow(before, length):
        nonlocal at
        own = list(before)
        for _ in range(length):
            own = [*own, at]
            seen.append(own)
            at += 1
        return own

    trunk = grow([], columns["s"])
    for length in columns["lens"]:
        grow(trunk, length)
    trunk = grow(range(at), columns["n"])
    for length in columns["m"]:
        grow(trunk, length)
    return seen


def sights_of_turns(columns):
    seen, at = [], 0
    for chat, says in zip(columns["found_lens"], columns["say_lens"], strict=True):
        trunk, begin = [], at
        for lengths, say in zip(chat, says, strict=True):
            for length in lengths:
                own = trunk
                for _ in range(length):
                    own, at = [*own, at], at + 1
                    seen.append(own)
            trunk = list(range(begin, at))
            for _ in range(say):
                trunk, at = [*trunk, at], at + 1
                seen.append(trunk)
    return seen


def places_of(seen):
    """Return how long the longest path in front of each token is."""
    places = []
    for token, own in enumerate(seen):
        places.append(max((places[k] + 1 for k in own if k != token), default=0))
    return places


CASES = [(RAG, some_rag, sights_of_rag), (TURNS, some_turns, sights_of_turns)]


@pytest.mark.parametrize(("layout", "draw", "sights"), CASES, ids=["rag", "turns"])
def test_masks_positions_and_targets_are_those_of_the_words(layout, draw, sights):
    spec = Spec.from_text(
        layout + "mask own = paths  mask near = paths and q.path - k.path < 2"
        "  mask later = paths and q.path // 2 == k.path // 2"
    )
    rng = Random(5)
    for _ in range(60):
        columns, n = draw(rng)
        sample, seen = Sample(columns, n), sights(columns)
        places = places_of(seen)
        wanted = np.zeros((n, n), bool)
        for q, own in enumerate(seen):
            wanted[q, own] = True
        at = np.array(places, int)
        near = at[:, None] - at < 2
        later = at[:, None] // 2 == at // 2
        for name, pairs in (("own", wanted), ("near", wanted & near), ("later", wanted & later)):
            mask = spec.mask(name)
            assert np.array_equal(dense_mask(mask, sample), pairs), columns
            assert np.array_equal(mask.compile(sample).tile(0, n, 0, n), pairs), columns
        paths = token_paths(spec.mask("own"), sample)
        ends = [t for t in range(n) if not wanted[t + 1 :, t].any()]
        assert paths.position.tolist() == places
        assert paths.ends.tolist() == ends
        assert [tokens.tolist() for tokens in paths.sequences()] == [seen[end] for end in ends]
        assert paths.num_paths.tolist() == [sum(t in seen[e] for e in ends) for t in range(n)]
        joins = set(paths.joins[:, 0].tolist())
        for token, before in enumerate(paths.previous.tolist()):
            if token in joins:
                assert before == -1
            else:  # what predicts a token sees all that stands before it
                assert seen[token][:-1] == ([] if before < 0 else seen[before])


def test_a_path_written_as_a_sample_of_its_own_sees_the_same_at_the_same_places():
    spec = Spec.from_text(RAG + "mask near = paths and q.path - k.path < 3")
    mask, rng = spec.mask("near"), Random(9)
    for _ in range(40):
        columns, n = some_rag(rng)
        if not columns["n"]:
            continue
        packed, paths = dense_mask(mask, Sample(columns, n)), token_paths(mask, Sample(columns, n))
        lengths = [length for length in columns["m"] if length] or [0]
        for tokens, length in zip(paths.sequences(), lengths, strict=True):
            alone = Sample({**columns, "m": [length]}, len(tokens))
            assert np.array_equal(dense_mask(mask, alone), packed[np.ix_(tokens, tokens)])
            places = token_paths(mask, alone).position
            assert places.tolist() == paths.position[tokens].tolist()


def test_what_follows_an_empty_join_goes_on_from_all_that_it_joins():
    spec = Spec.from_text(
        "segment s = branch a[xs]* join b[n] branch g(branch c[cs]* join d[ds])*  mask m = paths"
    )
    sample = Sample({"xs": [1, 1], "n": 0, "cs": [[1, 1], [1]], "ds": [1, 1]}, 7)
    seen = [[0], [1], [0, 1, 2], [0, 1, 3], [0, 1, 2, 3, 4], [0, 1, 5], [0, 1, 5, 6]]
    found = dense_mask(spec.mask("m"), sample)
    assert [np.flatnonzero(row).tolist() for row in found] == seen
    paths = token_paths(spec.mask("m"), sample)
    assert paths.position.tolist() == [0, 0, 1, 1, 2, 1, 2]
    assert [tokens.tolist() for tokens in paths.sequences()] == [[0, 1, 2, 3, 4], [0, 1, 5, 6]]


def test_forks_and_parents_behind_a_join_take_what_it_joins_along():
    spec = Spec.from_text(
        "segment s = branch a[xs]* join b[n] branch c[cs]* from token fs  mask m = paths"
    )
    sample = Sample({"xs": [2, 1], "n": 2, "cs": [1, 1], "fs": [3, 1]}, 7)
    seen = [[0], [0, 1], [2], [0, 1, 2, 3], [0, 1, 2, 3, 4], [0, 1, 2, 3, 5], [0, 1, 6]]
    found = dense_mask(spec.mask("m"), sample)
    assert [np.flatnonzero(row).tolist() for row in found] == seen
    assert token_paths(spec.mask("m"), sample).position.tolist() == [0, 1, 0, 2, 3, 3, 2]


def test_many_joins_of_one_row_are_counted():
    spec = Spec.from_text(
        "segment log = turn(branch found[found_lens]* join say[say_lens])*  mask m = paths"
    )
    turns = 2000
    sample = Sample({"found_lens": [[3, 2]] * turns, "say_lens": [4] * turns}, 9 * turns)
    inside = 6 + 3 + (4 * 5 + 10)  # passages, and words that see all five tokens and themselves
    assert spec.mask("m").bind(sample).num_pairs == turns * inside + 81 * turns * (turns - 1) // 2
    assert token_paths(spec.mask("m"), sample).position.max() == 7 * turns - 1


@pytest.mark.parametrize("layout", ["doc[ds]* join ask[n]", "join ask[n] branch doc[ds]*"])
def test_a_join_of_no_branch_is_found_and_its_remedy_helps(layout):
    text = f"segment s = {layout}  mask m = causal and same(s)"
    found = [d for d in check(text) if d.code == "W215"]
    assert any(d.message.startswith("this joins nothing") for d in found)
    assert not [d for d in check(text.replace("join ", "")) if "joins nothing" in d.message]
    mended = "segment s = branch doc[ds]* join ask[n]  mask m = causal and same(s)"
    assert not [d for d in check(mended) if d.code == "W215"]


def test_joins_are_proposed():
    head = "segment s = branch a[xs]* "
    assert {"join", "branch", "from"} <= {p.text for p in complete_at(head, len(head))}
