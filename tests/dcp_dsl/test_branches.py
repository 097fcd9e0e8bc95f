"""Layouts with branches: masks, positions and targets equal those of the separate sequences."""

from random import Random

import numpy as np
import pytest

from dcp_dsl import DatasetError, Sample, Spec, check, dense_mask, token_paths

GROUPS = """
segment batch = branch group(prompt[prompt_lens] branch rollout[rollout_lens]*)*
mask own = paths
mask near(w: tokens = 3) = paths and q.path - k.path < w
mask sinks = paths and (k.path < 2 or q.path - k.path < 2)
mask per_group = paths per group
"""
TREE = """
segment tree = root[root_len] branch node[node_lens]* from parents
mask own = paths
mask near(w: tokens = 3) = paths and q.path - k.path < w
mask sinks = paths and (k.path < 2 or q.path - k.path < 2)
"""
FORKS = """
segment tree = root[root_len] branch node[node_lens]* from token forks
mask own = paths
mask near(w: tokens = 3) = paths and q.path - k.path < w
mask sinks = paths and (k.path < 2 or q.path - k.path < 2)
"""
PLAIN = "mask own = causal  mask near(w: tokens = 3) = sliding(w)  mask sinks = streaming(2, 2)"


def a_tree(rng):
    lens = [rng.randint(0, 3) for _ in range(6)]
    parents = [rng.randint(-1, i - 1) for i in range(6)]
    root = rng.randint(0, 3)
    return Sample({"root_len": root, "node_lens": lens, "parents": parents}, root + sum(lens))


def a_tree_of_tokens(rng):
    lens, root = [rng.randint(0, 3) for _ in range(6)], rng.randint(0, 3)
    forks = [rng.randint(-1, root + sum(lens[:i]) - 1) for i in range(6)]
    return Sample({"root_len": root, "node_lens": lens, "forks": forks}, root + sum(lens))


def some_groups(rng):
    prompts = [rng.randint(0, 3) for _ in range(3)]
    rollouts = [[rng.randint(0, 3) for _ in range(rng.randint(0, 3))] for _ in prompts]
    total = sum(prompts) + sum(map(sum, rollouts))
    return Sample({"prompt_lens": prompts, "rollout_lens": rollouts}, total)


def separate_sequences(sample):
    """Write out the tokens of every path of a tree, or of groups, from its columns alone."""
    columns, at = sample.columns, 0

    def take(count):
        nonlocal at
        at += count
        return list(range(at - count, at))

    found = []
    if "forks" in columns:
        before = {-1: take(columns["root_len"])}  # up to each token, itself included
        before |= {token: before[-1][: token + 1] for token in before[-1]}
        found.append(before[-1])
        for length, fork in zip(columns["node_lens"], columns["forks"], strict=True):
            own = take(length)
            before |= {token: before[fork] + own[: i + 1] for i, token in enumerate(own)}
            found.append(before[fork] + own)
    elif "parents" in columns:
        found.append(take(columns["root_len"]))
        nodes = []
        for length, parent in zip(columns["node_lens"], columns["parents"], strict=True):
            nodes.append((found[0] if parent < 0 else nodes[parent]) + take(length))
        found += nodes
    else:
        for prompt, rollouts in zip(columns["prompt_lens"], columns["rollout_lens"], strict=True):
            begin = take(prompt)
            found += [begin, *(begin + take(length) for length in rollouts)]
    return [path for path in found if not any(o != path and o[: len(path)] == path for o in found)]


CASES = [(TREE, a_tree), (FORKS, a_tree_of_tokens), (GROUPS, some_groups)]


@pytest.mark.parametrize(("text", "draw"), CASES)
@pytest.mark.parametrize("mask", ["own", "near", "sinks"])
def test_a_packed_sample_is_its_separate_sequences(text, draw, mask):
    rng, spec, plain = Random(3), Spec.from_text(text), Spec.from_text(PLAIN)
    for _ in range(15):
        sample = draw(rng)
        packed = dense_mask(spec.mask(mask), sample)
        seen = np.zeros_like(packed)
        for path in {tuple(path): None for path in separate_sequences(sample)}:
            alone = dense_mask(plain.mask(mask), Sample(length=len(path)))
            tokens = list(path)
            np.testing.assert_array_equal(packed[np.ix_(tokens, tokens)], alone)
            seen[np.ix_(tokens, tokens)] = alone
        np.testing.assert_array_equal(packed, seen)  # and nothing crosses


@pytest.mark.parametrize(("text", "draw"), CASES)
def test_positions_targets_and_weights_are_those_of_the_separate_sequences(text, draw):
    rng, mask = Random(4), Spec.from_text(text).mask("own")
    for _ in range(40):
        sample = draw(rng)
        found = token_paths(mask, sample)
        wanted = sorted({tuple(path) for path in separate_sequences(sample)} - {()})
        assert sorted(tuple(path.tolist()) for path in found.sequences()) == wanted
        times = np.zeros(sample.length, int)
        for path in wanted:
            times[list(path)] += 1
            assert found.position[list(path)].tolist() == list(range(len(path)))
            assert found.previous[list(path)].tolist() == [-1, *path[:-1]]
        assert found.num_paths.tolist() == times.tolist()


def test_a_part_behind_branches_goes_on_from_where_they_begin():
    text = "segment chat = turn(user[users] branch think[thinks] reply[replies])*  mask m = paths"
    columns = {"users": [1, 1], "thinks": [2, 1], "replies": [1, 1]}
    found = token_paths(Spec.from_text(text).mask("m"), Sample(columns, 7))
    assert found.position.tolist() == [0, 1, 2, 1, 2, 3, 3]
    assert found.previous.tolist() == [-1, 0, 1, 0, 3, 4, 4]
    assert found.ends.tolist() == [2, 5, 6]


def test_paths_inside_per_count_from_the_first_token_of_the_instance():
    text = TREE + "segment tile = every 3\n@partial mask a = (k.path == 0) per tile"
    sample = Sample({"root_len": 2, "node_lens": [2, 2], "parents": [-1, -1]}, 6)
    seen = dense_mask(Spec.from_text(text).mask("a and causal"), sample)
    assert np.flatnonzero(seen[2]).tolist() == [0]
    assert np.flatnonzero(seen[5]).tolist() == [3, 5]  # paths 3, 2, 3


@pytest.mark.parametrize(
    ("forks", "said"),
    [
        ([0, 3], "column `forks`: branch 1 goes on from token 3; expected a token from 0 to 2, or"),
        ([1, -1], "branch 0 goes on from token 1; expected token 0, or -1 for the"),
        ([-2, -1], "branch 0 goes on from token -2"),
        ([-1], "has 1 forks for 2 branches"),
        ([[-1], [-1]], "to be a list of integers"),
    ],
)
def test_a_column_of_forks_that_is_none_is_refused(forks, said):
    mask = Spec.from_text(FORKS).mask("own")
    with pytest.raises(DatasetError, match=said):
        mask.compile(Sample({"root_len": 1, "node_lens": [2, 1], "forks": forks}, 4))
    nothing = Sample({"root_len": 0, "node_lens": [1], "forks": [0]}, 1)
    with pytest.raises(DatasetError, match="token 0; expected -1 for the place where the part"):
        mask.compile(nothing)
    mask.compile(Sample({"root_len": 1, "node_lens": [2, 1], "forks": [0, 2]}, 4))  # as it says


def test_forks_in_groups_are_tokens_of_the_row_and_stay_in_the_group():
    text = "segment a = head[..] branch grp(prompt[ps] branch run[ls]* from token forks)*"
    mask = Spec.from_text(f"{text}  mask own = paths").mask("own")
    columns = {"ps": [2, 1], "ls": [[2, 1], [2, 2]], "forks": [[-1, 2], [5 + 2, -1]]}
    columns["forks"][1][0] = 7  # the prompt of the second group: tokens 1 + 5 to 6
    with pytest.raises(DatasetError, match="token 7; expected token 6, or -1"):
        mask.compile(Sample(columns, 11))
    columns["forks"][1] = [6, 8]
    found = token_paths(mask, Sample(columns, 11))
    assert found.previous.tolist() == [-1, 0, 1, 2, 3, 2, 0, 6, 7, 8, 9]
    columns["forks"][0][1] = 3
    assert token_paths(mask, Sample(columns, 11)).previous.tolist()[5] == 3


def test_forks_may_be_groups_and_lie_in_branches_of_others():
    text = """segment run = branch turn(ask[asks] branch tool[tools]* reply[replies])* from token at
    mask own = paths"""
    columns = {"asks": [2, 1], "tools": [[1, 2], []], "replies": [1, 2], "at": [-1, 3]}
    found = token_paths(Spec.from_text(text).mask("own"), Sample(columns, 9))
    assert found.previous.tolist() == [-1, 0, 1, 1, 3, 1, 3, 6, 7]
    assert found.position.tolist() == [0, 1, 2, 2, 3, 2, 3, 4, 5]


def test_a_chain_of_forks_and_many_forks_of_one_branch():
    mask, count = Spec.from_text(FORKS).mask("own"), 3000
    chain = [-1, *(4 * i - 3 for i in range(1, count))]  # each leaves the one before in its middle
    columns = {"root_len": 0, "node_lens": [4] * count, "forks": chain}
    paths = token_paths(mask, Sample(columns, 4 * count))
    assert paths.position[-1] == 2 * count + 1
    assert len(paths.ends) == count


def test_a_column_named_token_is_written_in_quotes():
    (found,) = check("segment p = branch b[y]* from token")
    assert 'one named `token` is written `from "token"`' in found.hint
    assert not check('segment p = branch b[y]* from "token"  mask m = paths')


def test_positions_of_two_layouts_with_branches_are_refused():
    text = "segment a = branch [m]*  segment b = branch [n]*  mask m = paths(a) and paths(b)"
    with pytest.raises(DatasetError, match="those of `a` and `b`"):
        token_paths(Spec.from_text(text).mask("m"), Sample({"m": [2], "n": [2]}, 2))


def test_a_mask_without_branches_has_no_paths():
    assert token_paths(Spec.from_text("mask m = causal").mask("m"), Sample(length=3)) is None


def test_a_tree_of_many_nodes_binds_in_depth_first_order():
    spec, count = Spec.from_text(TREE), 2000
    parents = [-1, *((i - 1) // 2 for i in range(1, count))]
    form = spec.mask("own").compile(
        Sample({"root_len": 5, "node_lens": [4] * count, "parents": parents}, 5 + 4 * count)
    )
    depth = np.zeros(count, int)
    for i in range(1, count):
        depth[i] = depth[(i - 1) // 2] + 1
    assert form.num_pairs == 15 + sum(4 * (5 + 4 * d) + 10 for d in depth.tolist())


@pytest.mark.parametrize(
    ("layout", "is_empty"),
    [
        ("branch(ask[n] answer[lens]*)", True),
        ("ask[n] branch answer[m]", True),
        ("ask[n] branch(x[a] y[b])", True),
        ("branch g(ask[ns] branch tail[ms])*", True),
        ("ask[n] branch answer[lens]*", False),
        ("ask[n] branch good[a] branch bad[b]", False),
        ("ask[n] branch think[t] reply[r]", False),
        ("s[n] turn(user[us] branch think[ts])*", False),
        ("s[n] turn(user[u] branch think[t]) tail[r]", False),
        ("branch [lens]*", False),
    ],
)
def test_a_branch_beside_which_nothing_stands_is_found(layout, is_empty):
    """Such a layout has the paths of the one without the word: none is told apart from another."""
    spec = f"segment part = {layout}\nmask m = paths"
    assert ("W215" in {d.code for d in check(spec)}) == is_empty
    columns = dict.fromkeys(("n", "m", "a", "b", "t", "r", "u"), 2)
    columns |= {name: [2, 2] for name in ("lens", "ns", "ms", "us", "ts")}
    mask = Spec.from_text(spec).mask("m")
    own = {name: columns[name] for name in mask.columns}
    length = sum(sum(value) if isinstance(value, list) else value for value in own.values())
    mine = dense_mask(mask, Sample(own, length))
    # without the word that changes nothing, or, where it changes something, without any
    last = layout.rindex("branch")
    plain = layout[:last] + layout[last + len("branch") :]
    plain = plain if is_empty else layout.replace("branch", "")
    meant = "paths" if "branch" in plain else "causal"  # one path: all that comes before
    other = Spec.from_text(f"segment part = {plain}\nmask m = {meant}").mask("m")
    read = {name: own[name] for name in other.columns}
    assert np.array_equal(mine, dense_mask(other, Sample(read, length))) == is_empty
