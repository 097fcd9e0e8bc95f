"""Plans whose heads are placed in groups, against counts made head by head from the dense mask."""

import json
import zipfile
from dataclasses import replace

import numpy as np
import pytest
from command_runs import planned
from dense_blocks import causal_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from second_validator import dense_of

from dcp_dsl import block_sparsity
from dcp_planner import (
    Cluster,
    ModelShape,
    PlanConfig,
    PlanError,
    PlanFileError,
    TransferKind,
    build_plan,
    build_stack,
    digest,
    measure,
    predict,
    read_plan,
    simulate,
    validate,
    write_plan,
)
from dcp_planner.model.problem import build_workload, caps_of
from dcp_planner.plan import decode_part, encode_parts
from dcp_planner.report import bound_ratios
from dcp_planner.search.partitioners import place, static_layouts
from dcp_planner.tables import expand_head_groups, receive_buffer_bytes
from dcp_planner.tables.head_groups import _expanded_cu_seqlens, possible_groups

SHAPES = {"mha": ModelShape(8, 8, 4, 2), "gqa": ModelShape(8, 2, 4, 2), "mqa": ModelShape(8, 1, 4)}
FAST = PlanConfig(budget="fast")


def computed_by_head(plan):
    """Count how often each pair is computed for each query head, ``[Hq, T, T]``, and where."""
    shape, blocks, seen = plan.shape, plan.blocks, dense_of(plan.slabs)
    times = np.zeros((shape.q_heads, plan.num_tokens, plan.num_tokens), int)
    inputs, each = set(), shape.q_heads // plan.head_groups
    for q, kv, group, device in zip(
        plan.tiles.q_block, plan.tiles.kv_block, groups_of(plan.tiles), plan.tiles.device,
        strict=True,
    ):  # fmt: skip
        rows, keys = (slice(blocks.start[b], blocks.end[b]) for b in (q, kv))
        for head in range(group * each, (group + 1) * each):
            times[head, rows, keys] += seen[rows, keys]
            inputs.add(("q", head, int(q), int(device)))
            inputs.add(("kv", head * shape.kv_heads // shape.q_heads, int(kv), int(device)))
    return times, inputs


def groups_of(table):
    return np.zeros(len(table), int) if table.group is None else table.group.astype(int)


def forward_bytes_by_head(plan, inputs):
    """Count what travels if every head of every block that a device needs comes to it once."""
    shape, tokens, total = plan.shape, plan.blocks.num_tokens, 0
    row = shape.head_dim * shape.dtype_bytes
    out = shape.head_dim * 4 if shape.float32_partials else row
    for side, _, block, device in inputs:
        if plan.blocks.owner[block] != device:
            total += int(tokens[block]) * (row + (out if side == "q" else row))
            total += 4 * int(tokens[block]) if side == "q" else 0  # lse of the way back
    return total


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_every_pair_is_computed_once_for_every_head(strategies, data):
    sparsity, cluster = data.draw(strategies.sparsities()), data.draw(strategies.clusters())
    shape = SHAPES[data.draw(st.sampled_from(sorted(SHAPES)))]
    config = PlanConfig(
        partitioner=data.draw(st.sampled_from(["static:zigzag", "static:documents", "native"])),
        head_groups=data.draw(st.sampled_from([1, 2, 4, 8])),
        routing=data.draw(st.sampled_from(["direct", "node"])),
        budget="fast",
    )
    plan = build_plan(sparsity, shape, cluster, config)
    times, inputs = computed_by_head(plan)
    assert (times == dense_of(plan.slabs)).all()
    found = measure(plan)
    assert found.forward.total_bytes == forward_bytes_by_head(plan, inputs)
    assert sum(found.flops) == found.pairs * shape.flops_per_pair
    assert found.pairs == int(sparsity.pairs.sum())
    assert min(bound_ratios(plan).values(), default=1) >= 1 - 1e-9


@pytest.fixture(scope="module")
def sparsity(masks):
    return masks.pack([masks.causal(70), masks.shared_question(9, [20, 14]), masks.causal(3)], 8)


@pytest.fixture(scope="module")
def grouped(sparsity):
    config = PlanConfig("native", head_groups=4, budget="fast")
    return build_plan(sparsity, SHAPES["gqa"], Cluster(2, 2), config)


def test_one_group_is_the_plan_without_groups(sparsity):
    plan = build_plan(sparsity, ModelShape(), Cluster(2, 2), PlanConfig("static:zigzag"))
    assert plan.head_groups == 1
    assert plan.tiles.group is None
    assert plan.transfers.group is None
    assert expand_head_groups(plan) is plan


def test_tokens_have_one_owner_for_all_their_heads(grouped):
    validate(grouped)
    flat = expand_head_groups(grouped)
    blocks, groups = len(grouped.blocks), grouped.head_groups
    assert len(flat.blocks) == blocks * groups
    assert (flat.blocks.owner.reshape(groups, blocks) == grouped.blocks.owner).all()
    assert flat.num_tokens == groups * grouped.num_tokens
    assert (flat.shape.q_heads, flat.shape.kv_heads) == (2, 1)


def test_groups_of_one_key_head_share_its_keys(grouped):
    # Two key/value heads in four groups: keys are named by groups 0 and 2, queries by all.
    table = grouped.transfers
    of_keys = np.isin(table.kind, (TransferKind.KV, TransferKind.DKV))
    assert set(table.group[of_keys].tolist()) == {0, 2}
    assert set(table.group[~of_keys].tolist()) == {0, 1, 2, 3}


def test_a_file_and_parts_keep_the_groups(grouped, tmp_path):
    trace = simulate(grouped)
    write_plan(tmp_path / "g.dcpplan", grouped, [trace])
    found = read_plan(tmp_path / "g.dcpplan")
    assert found.plan.head_groups == 4
    assert found.meta["head_groups"] == 4
    assert digest(found.plan) == digest(grouped)
    assert np.array_equal(found.plan.tiles.group, grouped.tiles.group)
    assert predict(found.plan) == predict(grouped)
    for device, data in enumerate(encode_parts(grouped)):
        part = decode_part(data)
        mine = grouped.tiles.device == device
        assert (part.digest, part.plan.head_groups) == (digest(grouped), 4)
        assert np.array_equal(part.plan.tiles.group[mine], grouped.tiles.group[mine])


def test_a_message_is_named_by_block_and_group(grouped):
    named = {name for name in simulate(grouped).names if name.startswith("q ")}
    table = grouped.transfers
    rows = np.flatnonzero(table.kind == TransferKind.Q)
    assert named == {f"q {table.block[x]}.{table.group[x]}" for x in rows}


def with_column(plan, table, **columns):
    return replace(plan, **{table: replace(getattr(plan, table), **columns)})


BROKEN = {
    "no groups": lambda p: replace(p, head_groups=0),
    "another number": lambda p: replace(p, head_groups=2),
    "more": lambda p: replace(p, head_groups=8),
    "heads": lambda p: replace(p, shape=ModelShape(6, 2)),
    "tiles": lambda p: with_column(p, "tiles", group=None),
    "transfers": lambda p: with_column(p, "transfers", group=None),
    "block": lambda p: with_column(p, "transfers", block=p.transfers.block + len(p.blocks)),
    "keys": lambda p: with_column(
        p, "transfers", group=p.transfers.group + (p.transfers.kind == TransferKind.KV)
    ),
    "order": lambda p: with_column(p, "tiles", group=p.tiles.group[::-1].copy()),
}


def test_broken_groups_are_refused(grouped, snapshots):
    told = {}
    for name, damage in BROKEN.items():
        with pytest.raises(PlanError) as caught:
            validate(damage(grouped))
        told[name] = str(caught.value)
    snapshots.check("broken_groups", told)


def test_a_file_that_lies_about_groups_is_refused(grouped, tmp_path):
    path = tmp_path / "g.dcpplan"
    write_plan(path, grouped)
    data = path.read_bytes()
    for new in (b'"head_groups": 1', b'"head_groups": 8'):
        (tmp_path / "bad.dcpplan").write_bytes(data)
        edit_meta(tmp_path / "bad.dcpplan", b'"head_groups": 4', new)
        with pytest.raises(PlanFileError, match=r"head groups|exactly once"):
            read_plan(tmp_path / "bad.dcpplan")


def edit_meta(path, old, new):
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    assert old in members["meta.json"]
    members["meta.json"] = members["meta.json"].replace(old, new)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)


@pytest.mark.parametrize(
    ("shape", "wanted"),
    [((8, 8), (1, 2, 4, 8)), ((8, 2), (1, 2, 4, 8)), ((6, 2), (1, 2, 6)), ((7, 1), (1, 7)),
     ((12, 4), (1, 2, 4, 12))],
)  # fmt: skip
def test_groups_have_whole_key_heads_or_readers_of_one(shape, wanted):
    assert possible_groups(ModelShape(*shape)) == wanted


def test_impossible_groups_are_refused_with_what_is_possible(sparsity):
    with pytest.raises(PlanError, match="into 3 groups; possible are 1, 2, 4, 8"):
        build_plan(sparsity, ModelShape(), Cluster(1, 2), PlanConfig(head_groups=3, budget="fast"))


def test_all_devices_split_the_heads(masks):
    workload = build_workload(masks.pack([masks.causal(32)], 4), ModelShape(4, 4, 8))
    found = place(workload, Cluster(1, 4), PlanConfig("static:heads"))
    assert found.head_groups == 4
    device = found.device_of_compute.reshape(4, workload.num_tiles)
    assert (device == np.arange(4)[:, None]).all()
    assert np.bincount(found.device_of_data).tolist() == [2, 2, 2, 2]


def test_a_node_splits_heads_and_nodes_split_tokens(masks):
    workload = build_workload(masks.pack([masks.causal(64)], 4), ModelShape(4, 2, 8))
    found = place(workload, Cluster(2, 2), PlanConfig("static:heads_context"))
    assert found.head_groups == 2
    device = found.device_of_compute.reshape(2, workload.num_tiles)
    assert (device % 2 == [[0], [1]]).all()
    assert (device[0] // 2 == device[1] // 2).all()
    # Zigzag over the nodes: the first and the last quarter, and what lies between.
    node = found.device_of_data // 2
    assert node.tolist() == [0] * 4 + [1] * 8 + [0] * 4
    load = np.bincount(found.device_of_compute, np.tile(workload.compute_pairs, 2))
    assert load.max() == load.min()


def test_layouts_of_heads_say_why_they_cannot_be_made(masks):
    workload = build_workload(masks.pack([masks.causal(32)], 4), ModelShape(4, 2, 8))
    for cluster, name, says in (
        (Cluster(2, 4), "heads", "cannot cut 4 query and 2 key/value heads into 8 groups"),
        (Cluster(1, 3), "heads_context", "the 3 devices of a node cannot split 4 query"),
    ):
        assert f"static:{name}" not in static_layouts(workload.shape, cluster)
        with pytest.raises(PlanError, match=says):
            place(workload, cluster, PlanConfig(f"static:{name}"))
    with pytest.raises(PlanError, match="all 4 devices split the heads, so 2 head groups"):
        place(workload, Cluster(1, 4), PlanConfig("static:heads", head_groups=2))


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_auto_is_never_slower_than_any_layout_or_one_group(strategies, data):
    sparsity, cluster = data.draw(strategies.sparsities()), data.draw(strategies.clusters())
    shape = SHAPES["gqa"]
    workload = build_workload(sparsity, shape)

    def seconds(**choices):
        # In one type: a choice takes float32 after it is made, where that costs at most a percent.
        config = replace(FAST, partials="input", **choices)
        return predict(build_plan(sparsity, shape, cluster, config)).seconds

    chosen = seconds(head_groups="auto")
    assert chosen <= seconds()
    for name in static_layouts(shape, cluster):
        if not place(workload, cluster, replace(FAST, partitioner=name)).warnings:
            assert chosen <= seconds(partitioner=name)


def test_splitting_heads_of_one_document_sends_less(masks):
    sparsity = masks.pack([masks.causal(512)], 16)
    plans = [
        build_plan(sparsity, ModelShape(8, 8, 16), Cluster(1, 8), PlanConfig(name))
        for name in ("static:zigzag", "static:heads")
    ]
    whole, split = (measure(plan).forward.total_bytes for plan in plans)
    assert split < 0.6 * whole


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_members_of_teams_own_no_more_than_the_cap(strategies, data):
    sparsity = data.draw(strategies.sparsities())
    cluster = Cluster(data.draw(st.integers(1, 2)), data.draw(st.sampled_from([2, 4])))
    workload = build_workload(sparsity, SHAPES["gqa"])
    config = replace(FAST, partitioner="static:contiguous", head_groups=4)
    found = place(workload, cluster, config)
    tokens = np.bincount(found.device_of_data, workload.block_tokens, cluster.num_devices)
    assert tokens.max() <= caps_of(workload, cluster.num_devices, config).tokens


def test_a_memory_limit_holds_in_groups(sparsity):
    config = PlanConfig("static:zigzag", head_groups=2)
    free = build_plan(sparsity, SHAPES["gqa"], Cluster(2, 2), config)
    most = int(receive_buffer_bytes(free).max())
    limited = build_plan(
        sparsity, SHAPES["gqa"], Cluster(2, 2), replace(config, memory_limit_bytes=2 * most)
    )
    validate(limited)
    assert int(receive_buffer_bytes(limited).max()) <= 2 * most


def test_a_stack_has_no_head_groups(sparsity):
    with pytest.raises(PlanError, match="a stack of masks has one head group"):
        build_stack([(sparsity, 1)], ModelShape(), Cluster(1, 2), PlanConfig(head_groups=2))


def test_the_command_takes_head_groups(tmp_path):
    (tmp_path / "a.dcpm").write_text("mask local = causal\n")
    result, _ = planned(tmp_path, "--sample", "len = 60", "--json", "--head-groups", "2")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["batches"][0]["head_groups"] == document["config"]["head_groups"] == 2


def test_auto_keeps_one_group_where_the_batch_is_too_long_for_more():
    sparsity = block_sparsity([causal_of(2**30)], 2**26, 2**26)
    for shape, groups in ((SHAPES["mha"], 8), (SHAPES["gqa"], 2)):
        with pytest.raises(PlanError, match="expected tokens times groups up to 2,147,483,647"):
            build_plan(sparsity, shape, Cluster(2, 2), replace(FAST, head_groups=groups))
        plan = build_plan(sparsity, shape, Cluster(2, 2), replace(FAST, head_groups="auto"))
        assert plan.head_groups == 1


def test_tokens_times_groups_may_be_the_most(monkeypatch):
    monkeypatch.setattr("dcp_planner.tables.head_groups._MOST_TOKENS", 12)
    assert _expanded_cu_seqlens(np.array([0, 4, 6], np.int32), 2).tolist() == [0, 4, 6, 10, 12]
    with pytest.raises(PlanError, match="up to 12, got 7 times 2"):
        _expanded_cu_seqlens(np.array([0, 4, 7], np.int32), 2)
