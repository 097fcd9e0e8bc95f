"""Whole steps: documents dealt to devices, the time of each part, batches planned for a step."""

import json
from dataclasses import replace
from itertools import chain, product

import numpy as np
import pytest
from bench_step import bound_seconds
from command_runs import run
from hypothesis import given, settings
from hypothesis import strategies as st

from dcp_dsl import Sample, Spec, block_sparsity, load, read_dataset
from dcp_planner import (
    Cluster,
    ModelShape,
    PlanConfig,
    build_plan,
    build_stack,
    measure,
    predict,
    preset,
)
from dcp_planner.commands.plan import plan as plan_command
from dcp_planner.commands.step import step
from dcp_planner.step.dealing import deal
from dcp_planner.step.iteration import Groups, StepTime, attention_seconds, predict_step
from dcp_planner.step.plan_step import PACKS, choose_level, levels, nested, plan_step
from dcp_planner.step.policies import RIVALS, StepProblem, StepSetting, differencing, round_robin
from dcp_planner.step.report import steps_of_dataset
from dcp_planner.step.setting import Assignment, Documents, StepMesh, StepModel, step_model

LLAMA = step_model("llama-8b")
BUDGET = 32_768


def cluster_of(mesh):
    return preset("h100-dgx", mesh.devices // 4, 4)


def placed(mesh, *columns):
    """Put documents by hand: the micro-batch, the first device and the width of each."""
    return Assignment(mesh, *(np.array(column, np.int32) for column in columns))


def setting_of(mesh, token_budget=BUDGET, **more):
    return StepSetting(mesh, LLAMA, cluster_of(mesh), token_budget, **more)


def drawn_lengths(seed, mean, spread, count):
    tokens = np.random.default_rng(seed).lognormal(mean, spread, count)
    return Documents.causal(np.clip(tokens, 64, BUDGET).astype(np.int64))


@st.composite
def steps(draw):
    replicas, ranks = draw(st.sampled_from([(1, 4), (2, 4), (4, 2), (3, 4)]))
    mesh = StepMesh(replicas, ranks, draw(st.integers(1, 3)), draw(st.sampled_from([1, 2])))
    count = draw(st.integers(mesh.micro_batches, 40))
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    tokens = np.clip(rng.lognormal(7.5, 1.5, count), 1, BUDGET).astype(np.int64)
    share = rng.uniform(0.1, 1.0, count)
    return Documents(tokens, share * tokens * (tokens + 1) / 2.0), mesh


@given(steps())
@settings(max_examples=14)
def test_a_plan_repeats_itself_no_slower_than_packs_no_faster_than_the_bound(drawn):
    documents, mesh = drawn
    problem = StepProblem.of(documents, setting_of(mesh))
    plan = plan_step(documents, setting_of(mesh))
    rows = np.concatenate([rows for *_, rows in plan.assignment.groups()])
    assert sorted(rows.tolist()) == list(range(len(documents)))
    again = plan_step(documents, setting_of(mesh))
    for name in ("micro_batch", "first", "width"):
        assert np.array_equal(getattr(plan.assignment, name), getattr(again.assignment, name))
    assert plan.time == plan.considered[plan.policy]
    assert plan.time.balance >= 0.999
    assert problem.most_tokens == pytest.approx(problem.room / problem.mean_tokens)
    check_choice(plan.time, list(plan.considered.values()), problem.most_tokens)
    if "packs in order" in plan.considered:
        packs = predict_step(documents, round_robin(problem), LLAMA, cluster_of(mesh))
        assert plan.time.seconds <= packs.seconds * (1 + 1e-9)
    bound = bound_seconds(problem)
    mean_tokens = documents.tokens.sum() / (mesh.devices * mesh.micro_batches)
    for time in plan.considered.values():
        if time.max_tokens <= BUDGET / mesh.context_ranks / mean_tokens:
            seconds = time.seconds - time.synchronisation_s - time.bubble_s
            assert seconds * mesh.stages >= bound * (1 - 1e-6)


def check_choice(chosen, considered, most):
    """The fastest that holds the budget, or one of even tokens at most 5 % behind it."""
    holding = [time for time in considered if time.max_tokens <= most] or considered
    fastest = min(time.seconds for time in holding)
    assert chosen in holding
    is_even = chosen.max_tokens <= 1.02 * (1 + 1e-9)
    assert chosen.seconds <= 1.05 * fastest if is_even else chosen.seconds == fastest


@given(steps())
@settings(max_examples=14)
def test_every_policy_runs_each_document_once_inside_the_mesh(drawn):
    documents, mesh = drawn
    cluster = cluster_of(mesh)
    problem = StepProblem.of(documents, setting_of(mesh))
    variants = chain(*levels(mesh, len(documents)).values())
    ours = [(assign, "planned") for assign in variants]
    for assign, sharding in (*((r.assign, r.sharding) for r in RIVALS), *ours):
        found = assign(problem)
        time = predict_step(documents, found, LLAMA, cluster, sharding=sharding)
        assert len(found.width) == len(documents)
        assert time.waiting_s >= -1e-9
        assert time.max_tokens >= 1 - 1e-9


def test_documents_over_as_many_devices_as_their_tokens_need_by_hand():
    """1,000 tokens of room a device; runs of six devices that are aligned have four at most."""
    setting = StepSetting(StepMesh(3, 2, 2), LLAMA, Cluster(1, 6), 2000)
    documents = Documents.causal([2500, 9000, 500, 1000, 1800, 1500])
    (policy,) = (rival for rival in RIVALS if rival.name == "megatron:dynamic")
    found = policy.assign(StepProblem.of(documents, setting))
    assert found.width.tolist() == [4, 4, 1, 1, 2, 2]
    # The widest and longest first, each where least lies.
    assert found.micro_batch.tolist() == [1, 0, 1, 1, 0, 1]
    assert found.first.tolist() == [0, 0, 1, 0, 4, 4]


def test_time_of_a_step_by_hand():
    """Two devices alone, then both together: each part of the time is a sum over documents."""
    mesh, cluster = StepMesh(2, 1, 2), Cluster(1, 2)
    documents = Documents.causal([4000, 1000, 2000])
    place = placed(mesh, [0, 0, 1], [0, 1, 0], [1, 1, 2])
    time = predict_step(documents, place, LLAMA, cluster, synchronisation="step")

    def attention(tokens):
        flops = LLAMA.layers * LLAMA.shape.flops_per_pair * 3.5 * tokens * (tokens + 1) / 2
        return flops / cluster.flops_per_s

    linear = [tokens * 45e9 / LLAMA.matmul_flops_per_s for tokens in (4000, 1000, 2000)]
    alone = linear[0] + attention(4000)
    key_bytes = 2000 * 0.5 * LLAMA.shape.kv_bytes  # of the halves that the other device holds
    assert key_bytes / cluster.intra_bytes_per_s * LLAMA.layers < attention(2000) / 2  # hidden
    together = linear[2] / 2 + attention(2000) / 2 * 1.145  # the allowance of groups
    assert time.seconds == pytest.approx(alone + together)
    assert time.linear_s == pytest.approx(sum(linear) / 2)
    assert time.waiting_s == pytest.approx((alone - linear[1] - attention(1000)) / 2)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_the_bubble_is_as_long_as_the_longest_micro_batch(order):
    mesh, cluster = StepMesh(1, 1, 2, stages=2), Cluster(1, 1)
    documents = Documents.causal([(4000, 1000)[i] for i in order])
    alone = placed(StepMesh(1, 1), [0], [0], [1])
    longest = predict_step(Documents.causal([4000]), alone, LLAMA, cluster)
    found = predict_step(documents, placed(mesh, [0, 1], [0, 0], [1, 1]), LLAMA, cluster)
    assert found.bubble_s == pytest.approx((longest.linear_s + longest.attention_s) / 2)


def test_a_wide_group_waits_for_its_last_device_only_without_synchronisation():
    mesh, cluster = StepMesh(4, 1, 2), Cluster(1, 4)
    documents = Documents.causal([8000, 1000, 1000, 1000, 4000])
    every = documents, placed(mesh, [0, 0, 0, 0, 1], [0, 1, 2, 3, 2], [1, 1, 1, 1, 2])
    longest = Documents.causal([8000]), placed(mesh, [0], [0], [1])
    met, free, only = (
        predict_step(*case, LLAMA, cluster, synchronisation=kind).seconds
        for case, kind in ((every, "micro_batch"), (every, "step"), (longest, "step"))
    )
    assert free == pytest.approx(only)
    assert met > free


@given(st.lists(st.integers(1, 60), min_size=1, max_size=7), st.integers(1, 3))
@settings(max_examples=40)
def test_dealing_is_near_the_optimum(work, bins):
    best = min(
        max(sum(w for w, b in zip(work, chosen, strict=True) if b == bin_) for bin_ in range(bins))
        for chosen in product(range(bins), repeat=len(work))
    )
    seconds, tokens = np.array(work, np.float64), np.ones(len(work), np.int64)
    one = np.ones(len(work), np.int64)
    dealt = deal(seconds, tokens, one, (1, bins), cap=len(work))
    parts = differencing(seconds, bins)
    for found in (dealt.first, parts):
        assert np.bincount(found, seconds, bins).max() <= (4 / 3) * best + 1e-9


def test_sums_of_a_dealing_are_those_of_its_documents_and_within_the_cap_on_tokens():
    """Bins full of tokens: only documents that change places relieve the fullest one."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        work, one = rng.random(12) ** 3, np.ones(12, np.int64)
        dealt = deal(work, one, one, (1, 3), cap=4)
        assert np.allclose(dealt.load, np.bincount(dealt.first, work, 3))
        assert np.bincount(dealt.first, minlength=3).tolist() == dealt.held[0].tolist() == [4] * 3
    tokens, one = rng.integers(100, 3000, 200), np.ones(200, np.int64)
    cap = 1.02 * tokens.sum() / 8
    dealt = deal(tokens.astype(np.float64) ** 2, tokens, one, (2, 4), cap)
    held = np.zeros((2, 4))
    np.add.at(held, (dealt.micro_batch, dealt.first), tokens)
    assert held.max() <= cap
    assert np.allclose(held, dealt.held)


@given(steps(), st.sampled_from([2.0, 1.0, 0.5]), st.sampled_from([None, 0.02]))
@settings(max_examples=25)
def test_nested_groups_share_devices_in_full_or_not_at_all(drawn, share, tolerance):
    documents, mesh = drawn
    problem = StepProblem.of(documents, setting_of(mesh))
    found = list(nested(2, share, tolerance)(problem).groups())
    for batch, first, width, _ in found:
        for other, start, size, _ in found:
            inside = max(0, min(first + width, start + size) - max(first, start))
            assert batch != other or inside in (0, min(width, size))


def test_even_tokens_are_taken_as_long_as_their_price_allows():
    documents, mesh = drawn_lengths(5, 9.5, 1.2, 60), StepMesh(4, 4, 4)
    even, fast = (
        plan_step(documents, setting_of(mesh, 2 * BUDGET, even_price=price)).time
        for price in (0.05, 0.0)
    )
    assert even.max_tokens <= 1.02 + 1e-9 < fast.max_tokens
    assert fast.seconds < even.seconds <= 1.05 * fast.seconds


@pytest.mark.parametrize(
    ("packs", "price", "chosen"),
    [(9.0, 0.05, "even"), (9.0, 0.01, "held"), (1.21, 0.05, "held"), (9.0, 0.0, "held")],
)
def test_levels_over_the_budget_are_the_last_choice(packs, price, chosen):
    """The fastest is over the budget; of the others even tokens cost 3 %, packs as is said."""

    def level(seconds, tokens):
        return StepTime(seconds, 0.0, 0.0, 0.0, 0.0, balance=1.0, max_tokens=tokens)

    found = {
        "over": level(1.0, 1.3), "held": level(1.2, 1.1), "even": level(1.236, 1.0),
        PACKS: level(packs, 1.2),
    }  # fmt: skip
    assert choose_level(found, 1.25, price) == chosen
    assert choose_level({"over": found["over"]}, 1.25, price) == "over"


def test_long_documents_are_spread_and_short_ones_stay_together():
    """One document needs all nodes; with it in a group of its own, others need no second node."""
    mesh = StepMesh(4, 4, 1)
    documents = Documents.causal([60_000] + [2_000] * 64)
    plan = plan_step(documents, setting_of(mesh, 2 * BUDGET))
    width = plan.assignment.width
    assert width[0] > 4 >= width[1:].max()
    assert "from" in plan.policy


def test_documents_longer_than_a_replica_holds_are_planned():
    plan = plan_step(Documents.causal([40_000, 3000, 3000]), setting_of(StepMesh(2, 4)))
    assert plan.assignment.width[0] == 8


def test_replicas_that_meet_once_a_step_get_equal_sums():
    """Alike packs share a micro-batch, and no replica gets the longest pack of each."""
    documents, mesh = drawn_lengths(3, 8.0, 1.3, 90), StepMesh(4, 4, 8)
    times = [
        plan_step(documents, setting_of(mesh, synchronisation=kind)).considered["packs in order"]
        for kind in ("step", "micro_batch")
    ]
    assert times[0].waiting_s < 0.5 * times[1].waiting_s


def test_files_of_a_data_set_keep_their_own_masks(tmp_path):
    """Chats under a window and pages under causal masks share the steps."""
    spec = tmp_path / "mix.dcpm"
    spec.write_text('for "chat/*" use sliding(window = 64)\nfor "*" use causal\n')
    rng = np.random.default_rng(4)
    wanted = 0.0
    for name, window in (("chat", 64), ("web", None)):
        path = tmp_path / "data" / name / "rows.jsonl"
        path.parent.mkdir(parents=True)
        sizes = rng.integers(200, 2000, 40).tolist()
        rows = [0, *sizes, 100_001]  # the first and the last are left out
        path.write_text("".join(json.dumps({"tokens": [1] * n}) + "\n" for n in rows))
        for n in sizes:
            near = min(n, window or n)
            wanted += near * (near + 1) / 2 + (n - near) * near
    dataset = read_dataset(str(tmp_path / "data"))
    steps, left_out = steps_of_dataset(load(str(spec)), dataset, None, 100_000, 1)
    (documents,) = steps
    assert left_out == 4
    assert documents.pairs.sum() == wanted


@pytest.mark.parametrize("window", [None, 1024])
@pytest.mark.parametrize("nodes", [1, 2, 4])
def test_estimated_attention_is_near_that_of_a_plan(window, nodes):
    text = "mask m = causal" + (f" and q - k < {window}" if window else "")
    mask = Spec.from_text(text).mask("m")
    rng = np.random.default_rng(nodes)
    lengths = np.clip(rng.lognormal(9.0, 1.0, 6 * nodes), 512, 60_000).astype(int).tolist()
    forms = [mask.compile(Sample({}, length)) for length in lengths]
    # The estimate knows no blocks, so it cannot count what the host does for each message.
    cluster, shape = replace(preset("h100-dgx", nodes, 8), host_message_s=0.0), LLAMA.shape
    config = PlanConfig("native", budget="fast", compute_tolerance=0.03)
    plan = build_plan(block_sparsity(forms, 512, 512), shape, cluster, config)
    pairs = np.array([form.num_pairs for form in forms], np.float64)
    of_group = np.zeros(len(lengths), np.int64)
    group = Groups(np.array(lengths, np.float64), pairs, of_group, np.array([8.0 * nodes]))
    estimate = float(attention_seconds(group, shape, cluster)[0])
    assert 0.75 < predict(plan).seconds / estimate < 1.4


TEXT = "mask m = causal\nmask w = causal and q - k < 512\nstack s = 3 of w, m"
SPEC = Spec.from_text(TEXT)
TWO_NODES, SHAPE = Cluster(2, 4), ModelShape(8, 2)


def packed(mask: str, seed: int = 0):
    rng = np.random.default_rng(seed)
    lengths = np.clip(rng.lognormal(7.5, 1.0, 12), 64, 12_000).astype(int).tolist()
    return block_sparsity([SPEC.mask(mask).compile(Sample({}, n)) for n in lengths], 512, 512)


def seconds_of_layer(plan, price: float) -> float:
    return predict(plan).seconds + price * max(measure(plan).owned_tokens)


@pytest.mark.parametrize(("seed", "price"), [(0, 1e-9), (1, 1e-6)])
def test_a_priced_plan_has_the_shorter_step(seed: int, price: float) -> None:
    sparsity = packed("m", seed)
    # One type of partial results: float32 may cost each plan 3 % of its own.
    config = PlanConfig(budget="fast", partials="input")
    default = build_plan(sparsity, SHAPE, TWO_NODES, config)
    priced = build_plan(sparsity, SHAPE, TWO_NODES, replace(config, token_seconds=price))
    assert seconds_of_layer(priced, price) <= seconds_of_layer(default, price) * (1 + 1e-9)


def test_dear_tokens_are_even_and_cheap_ones_follow_the_attention() -> None:
    """As the price falls, attention gets shorter and the fullest device fuller."""
    dear, cheap = (
        build_plan(packed("m"), SHAPE, TWO_NODES, PlanConfig(budget="fast", token_seconds=price))
        for price in (1e-3, 1e-12)
    )
    assert max(measure(dear).owned_tokens) < max(measure(cheap).owned_tokens)
    assert predict(dear).seconds > predict(cheap).seconds
    assert not any("tokens" in warning.code for warning in cheap.warnings)


def test_tokens_above_the_largest_tried_tolerance_are_told_though_they_have_a_price() -> None:
    """Eight devices cannot share nine whole blocks evenly."""
    config = PlanConfig(budget="fast", token_seconds=1e-6, token_tolerance=0.01)
    sparsity = block_sparsity([SPEC.mask("m").compile(Sample({}, 512 * 9))], 512, 512)
    (told,) = (
        warning
        for warning in build_plan(sparsity, SHAPE, TWO_NODES, config).warnings
        if warning.code == "tokens_above_tolerance"
    )
    assert "more than the tolerated 1.020" in told.message  # twice the tolerance, as is tried


def test_masks_of_a_stack_pay_for_their_tokens_together() -> None:
    price = 1e-6
    masks = [(packed("w"), 3), (packed("m"), 1)]
    steps = []
    for config in (PlanConfig(budget="fast"), PlanConfig(budget="fast", token_seconds=price)):
        stack = build_stack(masks, SHAPE, TWO_NODES, config)
        tokens = max(measure(stack.plans[0]).owned_tokens)
        steps.append(stack.seconds() + sum(stack.layers) * price * tokens)
    assert steps[1] < steps[0]


def test_plan_prints_attention_and_step(tmp_path):
    (tmp_path / "s.dcpm").write_text(TEXT)
    result = run(
        plan_command, tmp_path / "s.dcpm", "--mask", "s", "--sample", "len = 9000",
        "--sample", "len = 3000", "--cluster", "h100-dgx:1x4", "--budget", "fast",
        "--model", "llama-8b", "--json",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    cycle = sum(found["total"][f"predicted_{side}_s"]["mean"] for side in ("forward", "backward"))
    fullest = found["masks"][0]["batches"][0]["token_imbalance"] * 12_000 / 4
    step = {name: found["step"][name]["mean"] for name in ("attention_s", "linear_s", "step_s")}
    assert step["attention_s"] == pytest.approx(32 * cycle / 4)  # 32 layers, in cycles of 4
    assert step["linear_s"] == pytest.approx(6 * 7.5e9 * fullest / (0.55 * 989e12))
    assert step["step_s"] == pytest.approx(step["attention_s"] + step["linear_s"])
    assert found["masks"][0]["shape"]["q_heads"] == 32


@pytest.mark.parametrize(("when", "exchange_s"), [("micro_batch", 12 + 20), ("step", 4 + 20)])
def test_collectives_cost_what_rings_move_less_what_compute_hides(when, exchange_s):
    """4 GB a stage: in a node of two 2 s for each of 6 (or 2) passes, between two nodes 20 s."""
    mesh = StepMesh(2, 2, micro_batches=2, stages=2)
    model = StepModel(ModelShape(), 1, 1e12, 8e9, 1e15)
    place = {"micro_batch": [0] * 4 + [1] * 4, "first": [*range(4)] * 2, "width": [1] * 8}
    columns = {name: np.array(values, np.int32) for name, values in place.items()}
    cluster = Cluster(2, 2, intra_bytes_per_s=1e9, inter_bytes_per_s=1e8)
    time = predict_step(
        Documents.causal([1000] * 8), Assignment(mesh, **columns), model, cluster,
        synchronisation=when,
    )  # fmt: skip
    busy = time.linear_s + time.attention_s + time.waiting_s
    assert time.linear_s == pytest.approx(1.0)  # two micro-batches of 1 s, over two stages
    assert time.synchronisation_s == pytest.approx(exchange_s - 0.9 * busy)
    half = model.with_heads(ModelShape(4, 2))
    assert (half.parameter_bytes, half.linear_flops) == (4e9, 5e11)


def test_masks_decide_the_work(tmp_path):
    (tmp_path / "a.dcpm").write_text("mask near = causal and q - k < 256\n")
    (tmp_path / "lengths.json").write_text(json.dumps([30_000, 20_000] * 2))
    asked = ("--lengths", tmp_path / "lengths.json", "--mesh", "1x8", "--tokens", "32k", "--json")
    whole, near = (
        json.loads(run(step, tmp_path / "a.dcpm", "--mask", mask, *asked).stdout)
        for mask in ("causal", "near")
    )
    assert near["policies"][0]["attention_s"] < 0.2 * whole["policies"][0]["attention_s"]
