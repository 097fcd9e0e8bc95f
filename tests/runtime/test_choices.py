"""Options of a loader: their limits, who is which replica, its cluster, how rows are dealt."""

import json
import os
from dataclasses import asdict

import numpy as np
import pytest
import torch
import torch.distributed as dist

from dcp_dsl import pack
from dcp_planner import Cluster, ModelShape, preset
from dcp_planner.step import StepModel
from dcp_runtime import LookAhead, Packing, Planning, RowRules, RunError
from dcp_runtime.data.choices import dealing_of, find_replicas
from dcp_runtime.data.dealing import Dealing, deal_documents, sub_cluster
from dcp_runtime.plans import own_cluster
from dcp_runtime.plans.own_cluster import cluster_of_ranks, machine_name

SPREAD = {"width": "per_document"}


@pytest.mark.parametrize(
    ("group", "name", "least"),
    [
        (Packing, "token_budget", 1),
        (Packing, "seed", 0),
        (Packing, "micro_batches", 1),
        (Packing, "window", 1),
        (Packing, "replicas", 1),
        (Planning, "block_size", 1),
        (LookAhead, "batches", 0),
        (LookAhead, "processes", 0),
    ],
)
def test_counts_begin_at_their_least_value(group, name, least):
    for count in (least, least + 1, 10**6):
        assert getattr(group(**{name: count}), name) == count
    for wrong in (least - 1, -5, True, float(least), str(least)):
        says = f"^{group.__name__}.{name}: expected at least {least}, got {wrong!r}$"
        with pytest.raises(RunError, match=says):
            group(**{name: wrong})


@pytest.mark.parametrize(
    ("group", "name", "choices"),
    [
        (Packing, "order", ("in_order", "decreasing")),
        (Packing, "balance", ("work", "order")),
        (Packing, "group", ("replica", "all", "best")),
        (Packing, "width", ("group", "per_document")),
        (RowRules, "policy", ("error", "skip", "truncate")),
        (RowRules, "hidden_targets", ("warn", "leave_out", "keep")),
        (RowRules, "shared_targets", ("once", "per_path")),
        (LookAhead, "planner", ("each", "first")),
    ],
)
def test_choices_are_those_that_are_named(group, name, choices):
    for choice in choices:
        assert getattr(group(**{name: choice}), name) == choice
    for wrong in ("other", 1, ""):
        with pytest.raises(RunError, match=f"{', '.join(choices)}, got {wrong!r}$"):
            group(**{name: wrong})


def test_defaults_and_what_follows_from_other_choices(snapshots):
    made = {
        "Packing()": Packing(),
        "Packing(width='per_document')": Packing(**SPREAD),
        "Packing(group='best', window=2)": Packing(group="best", window=2),
        "RowRules()": RowRules(),
        "RowRules(extra_columns=['b', 'a', 'b'])": RowRules(extra_columns=["b", "a", "b"]),
        "LookAhead()": LookAhead(),
    }
    for wrong in ({"group": "replica"}, {"group": "best"}, {"balance": "order"}):
        with pytest.raises(RunError, match="expected group='all' and balance='work', got"):
            Packing(**{**SPREAD, "group": "all", **wrong})
    assert Packing(**SPREAD, group="all", window=3).window == 3
    with pytest.raises(RunError, match=r"Packing.window: 2 global batches are dealt together by w"):
        Packing(window=2, balance="order")
    for wrong in ("a", ("a", 1), [None]):
        for name in ("extra_columns", "unchecked_columns"):
            with pytest.raises(RunError, match=f"RowRules.{name}: expected a tuple of names, got"):
                RowRules(**{name: wrong})
    snapshots.check("choices", {title: repr(value) for title, value in made.items()})


@pytest.mark.parametrize(
    ("cores", "local_ranks", "options", "processes"),
    [
        (1, None, {}, 0),
        (2, None, {}, 1),
        (3, None, {}, 1),
        (2, None, {"batches": 0}, 0),
        (2, None, {"batches": 1}, 1),
        (2, None, {"processes": 0}, 0),
        (1, None, {"processes": 3}, 3),
        (2, "0", {}, 1),
        (3, "2", {}, 0),
        (4, "2", {}, 1),
        (7, "4", {}, 0),
        (8, "4", {}, 1),
        (4, "4", {"planner": "first"}, 0),
        (5, "4", {"planner": "first"}, 1),
        (2, "many", {}, 1),
    ],
)
def test_a_process_plans_where_a_core_is_left_for_it(
    cores, local_ranks, options, processes, monkeypatch
):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    if local_ranks is not None:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", local_ranks)
    assert LookAhead(**options).num_processes == processes


def replicas_line(packing, planning):
    try:
        found = find_replicas(Packing(**packing), Planning(**planning))
    except RunError as error:
        return str(error)
    nodes = f"{found.cluster.nodes} x {found.cluster.devices_per_node}"
    return (
        f"{found.count} of {found.context_ranks} ranks, device {found.device} of replica "
        f"{found.replica}, cluster {nodes}, group {found.group}"
    )


REPLICAS = [  # replicas, the cluster and the rank that are asked for
    (None, None, None),
    (2, None, None),
    (3, None, None),
    (2, (2, 3), 5),
    (6, (2, 3), 0),
    (None, (1, 2), 1),
    (None, (1, 2), 2),
    (None, (1, 2), -1),
]


def replicas_text():
    lines = []
    for replicas, sizes, rank in REPLICAS:
        planning = {"cluster": sizes and Cluster(*sizes), "rank": rank}
        found = replicas_line({"replicas": replicas}, planning)
        lines.append(f"replicas {replicas}, cluster {sizes}, rank {rank}: {found}")
    return "\n".join(lines)


def test_replicas_of_one_process_are_those_of_the_cluster(snapshots):
    snapshots.check("replicas_alone", {"no process group": replicas_text()})


@pytest.mark.usefixtures("rank_2_of_4")
def test_replicas_of_ranks_are_those_of_the_group(snapshots):
    many = replicas_line({"replicas": 2}, {"group": dist.new_group([0, 1, 2, 3])})
    assert "2 replicas, but Planning.group holds the ranks of one" in many
    assert LookAhead().num_processes == int(len(os.sched_getaffinity(0)) >= 8)
    snapshots.check("replicas_of_ranks", {"rank 2 of 4": replicas_text()})


DEALINGS = {
    "one replica": ({}, 2),
    "one device": (SPREAD, 1),
    "two replicas": ({"replicas": 2, "token_budget": 20}, 4),
    "two replicas, in turn": ({"replicas": 2, "balance": "order", "token_budget": 20}, 4),
    "all ranks share": ({"replicas": 2, "group": "all", "token_budget": 20}, 4),
    "two replicas, two micro-batches": (
        {"replicas": 2, "micro_batches": 2, "token_budget": 40}, 4,
    ),
    "the best of both": ({"replicas": 2, "group": "best", "token_budget": 20}, 4),
    "a width per document": ({**SPREAD, "replicas": 2, "token_budget": 20}, 4),
    "two micro-batches": ({"micro_batches": 2, "token_budget": 20}, 1),
    "three micro-batches in turn": (
        {"micro_batches": 3, "balance": "order", "token_budget": 12, "replicas": 2}, 2,
    ),
    "a window of three": ({"window": 3, "replicas": 2, "token_budget": 20}, 2),
}  # fmt: skip
LENGTHS = (
    (11, 9, 4, 16, 1, 39, 32, 8, 20, 15, 5),  # by work, two replicas would get 41 of 40
    (9, 3, 8, 2, 7, 5, 6, 10, 4, 4, 1, 12), (12,), (11, 9, 4, 1, 2, 12, 8, 3, 3, 9), (5,) * 9
)  # fmt: skip


def test_documents_are_dealt_as_the_choices_say(snapshots):
    texts = {}
    for title, (packing, devices) in DEALINGS.items():
        cluster, chosen = Cluster(1, devices), Packing(**packing)
        planning = Planning(ModelShape(2, 1, 8, 4), cluster)
        dealing = dealing_of(chosen, planning, find_replicas(chosen, planning))
        assert Dealing.from_json(json.loads(json.dumps(asdict(dealing)))) == dealing
        dealing = dealing.over(chosen.window)
        lines = [
            f"{dealing.devices} devices in groups of {dealing.widths}, widest {dealing.widest}, "
            f"{dealing.packs} packs, {dealing.micro_batches} micro-batches, "
            f"trivial {dealing.is_trivial}, room {[dealing.room(w) for w in (1, 2, devices)]}",
            dealing.way_out,
        ]
        for drawn in LENGTHS:
            asked, room = [], dealing.room(dealing.widest)
            short = [n for n in drawn if n <= room]
            lengths = [short[i] for own in pack(short, room)[: dealing.packs] for i in own]

            def pairs(lengths=lengths, asked=asked):
                asked.append(1)
                return np.array([n * (n + 1) / 2 for n in lengths])

            micro_batches, overflow = deal_documents(dealing, lengths, pairs, cluster)
            shares = "; ".join(
                ", ".join(f"{s.documents} on {s.first}+{s.width}" for s in own) or "none"
                for own in micro_batches
            )
            lines.append(f"{lengths}: {shares}, overflow {overflow}, pairs {len(asked)}")
        texts[title] = "\n".join(lines)
    snapshots.check("dealings", {**texts, "all choices": dealing.name})


def test_the_model_that_deals_is_the_one_that_is_given():
    model = StepModel(ModelShape(4, 2, 16, 2), 3, 5.0, 7.0, 11.0)
    packing, planning = Packing(), Planning(model=model, cluster=Cluster(1, 2))
    assert dealing_of(packing, planning, find_replicas(packing, planning)).model == model


def test_devices_of_a_group_lie_on_their_nodes():
    cluster = Cluster(3, 4, devices=((1.0, 0.5, 1.0, 2.0), (1.0,) * 4, (3.0, 1.0, 1.0, 1.0)))
    for (first, width), devices in {
        (0, 12): cluster.devices,
        (2, 4): ((1.0, 2.0), (1.0, 1.0)),
        (3, 6): ((2.0,), (1.0,) * 4, (3.0,)),
        (1, 2): ((0.5, 1.0),),
        (8, 1): ((3.0,),),
    }.items():
        found = sub_cluster(cluster, first, width)
        assert (found.num_devices, found.nodes) == (width, len(devices))
        assert found.devices == devices
        assert found.devices_per_node == max(map(len, devices))


def test_part_of_a_cluster_keeps_the_slow_ports_of_its_devices() -> None:
    slow = Cluster(2, 4, slow_ports=((3, 0.25), (6, 0.5)))
    assert sub_cluster(slow, 4, 4).slow_ports == ((2, 0.5),)
    assert sub_cluster(slow, 0, 2).slow_ports == ()
    assert sub_cluster(slow, 0, 8).slow_ports == slow.slow_ports


@pytest.mark.parametrize(
    ("has_gpus", "backends", "gpus", "name"),
    [
        (False, None, (), "cpu-gloo"),
        (True, None, ("NVIDIA H200",), "h200-dgx"),
        (True, "cpu:gloo,cuda:nccl", ("NVIDIA H200",), "h200-dgx"),
        (True, "cpu:gloo,cuda:nccl", (), "h100-dgx"),  # the container hides the drivers' files
        (False, "cpu:gloo,cuda:nccl", (), "cpu-gloo"),
        (True, "cpu:gloo,cuda:gloo", ("NVIDIA H200",), "cpu-gloo"),
    ],
)
def test_the_cluster_is_that_of_the_ranks(monkeypatch, caplog, has_gpus, backends, gpus, name):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpus)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H100 80GB HBM3")
    monkeypatch.setattr(dist, "is_initialized", lambda: backends is not None)
    monkeypatch.setattr(dist, "get_backend_config", lambda group: backends)
    monkeypatch.setattr(own_cluster, "gpus_here", lambda: gpus)
    assert cluster_of_ranks(6) == preset(name, 1, 6)
    assert machine_name(on_gpu=name != "cpu-gloo") == name
    assert not caplog.records


def test_a_gpu_without_a_preset_is_said(monkeypatch, caplog):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(own_cluster, "gpus_here", lambda: ("NVIDIA L40S",))
    assert cluster_of_ranks(2) == preset("a100-p4de", 1, 2)
    (record,) = caplog.records
    assert "no preset describes NVIDIA L40S: batches are planned for a100-p4de" in record.message
    assert machine_name(on_gpu=True) == "NVIDIA L40S"
