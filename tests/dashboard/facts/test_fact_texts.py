"""Details of things that can be selected, and numbers, as texts: one of every kind of thing."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from shown_texts import details_text

from dcp_dashboard.facts import quantities
from dcp_dashboard.facts.devices import device_facts, division_facts, find_sequences, sequence_facts
from dcp_dashboard.facts.findings import findings, longest_waits
from dcp_dashboard.facts.text import DIRECTIONS
from dcp_dashboard.facts.tiles import (
    chain_behind,
    event_facts,
    pair_facts,
    serving_transfers,
    tile_facts,
    transfer_facts,
)
from dcp_dashboard.facts.traces import EventFilter, find_waits, found_by, matching
from dcp_dashboard.library.folder import PlanEntry
from dcp_dashboard.library.plans import loaded_plan
from dcp_dashboard.library.summary import count_divisions
from dcp_dsl import DCPError
from dcp_planner import LANES, Trace
from dcp_planner.simulation import EVENT_KINDS


def told(make, *arguments):
    """The details of a thing, or why there are none."""
    try:
        return details_text(make(*arguments).to_json())
    except DCPError as error:
        return f"refused: {error}"


def first_of_each(*columns):
    """Rows with a combination of values that no row before them has."""
    return sorted(np.unique(np.stack(columns, axis=1), axis=0, return_index=True)[1].tolist())


@pytest.fixture(scope="module")
def large(large_plan):
    return loaded_plan(PlanEntry("large", "large.dcpplan", Path("large"), 1, 2), large_plan, [])


def test_tiles_and_messages(shown, large, snapshots):
    texts = {}
    for name in ("small", "grouped", "unequal", "lone"):
        loaded = shown[name]
        plan, table = loaded.plan, loaded.plan.transfers
        served = [len(serving_transfers(plan, tile)) for tile in range(len(plan.tiles))]
        chosen = {0, int(np.argmax(served)), int(np.argmin(served)), len(plan.tiles) - 1}
        for tile in sorted(chosen | {len(plan.tiles)}):
            texts[f"{name}, tile {tile}"] = told(tile_facts, loaded, tile)
        for transfer in first_of_each(table.kind, table.is_backward, table.hop > 0):
            texts[f"{name}, message {transfer}"] = told(transfer_facts, loaded, transfer)
        texts[f"{name}, no message"] = told(transfer_facts, loaded, len(table))
    kept = np.bincount(large.plan.transfers.block, minlength=1).argmax()
    busy = int(np.flatnonzero(large.plan.transfers.block == kept)[-1])
    texts["large, a message to many tiles"] = told(transfer_facts, large, busy)
    most = max(
        range(0, len(large.plan.tiles), 97), key=lambda t: len(serving_transfers(large.plan, t))
    )
    texts["large, a tile of many messages"] = told(tile_facts, large, most)
    snapshots.check("tiles", texts)


def test_devices_and_pairs(shown, large, snapshots):
    texts = {}
    for name, devices in (("small", 4), ("grouped", 1), ("unequal", 3), ("lone", 2), ("empty", 1)):
        for device in range(devices):
            texts[f"{name}, device {device}"] = told(device_facts, shown[name], device)
    texts["large, device 31"] = told(device_facts, large, 31)
    for name, pairs in (
        ("small", [(0, 1), (2, 0), (3, 3), (4, 0), (0, -1)]), ("grouped", [(1, 3)]),
        ("lone", [(0, 0)]),
    ):  # fmt: skip
        for pair in pairs:
            texts[f"{name}, pair {pair}"] = told(pair_facts, shown[name], *pair)
    traffic = large.totals.traffic_bytes
    source, target = divmod(int((traffic > 0).argmax()), len(traffic))
    texts["large, a pair"] = told(pair_facts, large, source, target)
    snapshots.check("devices", texts)


def test_divisions(shown, large, snapshots):
    texts = {}
    for name in ("small", "grouped", "unequal", "lone", "empty"):
        for direction in DIRECTIONS:
            for division in range(count_divisions(shown[name].plan, direction) + 1):
                title = f"{name}, {direction} {division}"
                texts[title] = told(division_facts, shown[name], division, direction)
    for device in (1, 4):
        title = f"small, forward 1 of device {device}"
        texts[title] = told(division_facts, shown["small"], 1, "forward", device)
    texts["large, backward 1"] = told(division_facts, large, 1, "backward")
    nothing = Trace.of_rows("simulated", np.empty((0, 10), int), ())
    still = replace(shown["small"], traces={"simulated": nothing})
    texts["small without events, forward 1"] = told(division_facts, still, 1, "forward")
    snapshots.check("divisions", texts)


def named(count):
    """A plan of as many sequences as names that all begin alike."""
    names = tuple(f"Row {at}: id-{at}" for at in range(count))
    return SimpleNamespace(plan=SimpleNamespace(sequence_names=names))


def test_sequences(shown, large, snapshots):
    texts = {}
    numbers = {"small": 3, "grouped": 1, "unequal": 1, "lone": 2, "empty": 1}
    for name, sequences in numbers.items():
        for sequence in range(sequences):
            texts[f"{name}, sequence {sequence}"] = told(sequence_facts, shown[name], sequence)
    texts["large, sequence 0"] = told(sequence_facts, large, 0)
    long = replace(shown["small"].plan.provenance, samples=("x" * 300,) * 3)
    cut = replace(shown["small"], plan=replace(shown["small"].plan, provenance=long))
    texts["a long sample"] = told(sequence_facts, cut, 0)
    few = replace(cut.plan.provenance, samples=("first",))
    one = replace(cut, plan=replace(cut.plan, provenance=few))
    texts["no sample of its own"] = told(sequence_facts, one, 1)
    for asked in ("row 7", " ROW ", "chat-9F3A", "", "nothing"):
        texts[f"named {asked!r}"] = told(find_sequences, shown["small"], asked)
    texts["no names"] = told(find_sequences, shown["lone"], "row 7")
    texts["two of a name"] = told(find_sequences, named(2), "id-")
    snapshots.check("sequences", texts)
    for count, more in ((50, ""), (51, "and 1 more"), (52, "and 2 more")):
        rows = find_sequences(named(count), "id-").sections[0].rows
        assert len(rows) == 50 + bool(more)
        assert rows[-1].parts[0].text == (more or "49, Row 49: id-49")


KIND = {lane: kind for kind, lane in ((0, "compute"), (3, "send"), (4, "receive"), (5, "wait"))}


def trace_of(rows):
    """A run by (device, lane, start, end, backward, division, peer, bytes, transfer)."""
    columns = [
        (start, end, start, device, KIND[lane], backward, division, peer, size, transfer)
        for device, lane, start, end, backward, division, peer, size, transfer in rows
    ]
    return Trace.of_rows("measured", np.array(columns), [f"{row[1]} {row[-1]}" for row in rows])


ODD = [
    (0, "send", 0, 10, 0, 1, 1, 500, 3),  # of two sends one arrives
    (0, "send", 20, 20, 0, 1, 1, 500, 3),
    (1, "receive", 5, 30, 0, 1, 0, 500, 3),
    (1, "wait", 2, 30, 0, 1, -1, 0, -1),
    (1, "wait", 40, 50, 0, -1, -1, 0, -1),  # nothing ends it
    (2, "send", 0, 8, 1, 0, 3, 70, -1),  # of no message of the plan
    (2, "send", 9, 12, 1, 0, -1, 70, -1),  # to nobody
    (2, "wait", 0, 8, 1, 0, -1, 0, -1),  # ends with a message that leaves
    (3, "compute", 0, 12, 1, 2, -1, 0, -1),
]


def test_events(shown, snapshots):
    texts = {}
    for name, source in (("small", "simulated"), ("unequal", "measured"), ("grouped", "simulated")):
        trace = shown[name].traces[source]
        waits = np.flatnonzero(trace.lane == LANES.index("wait"))
        chains = [len(event_facts(shown[name], source, w).values["chain"]) for w in waits.tolist()]
        last = np.flatnonzero(trace.lane == LANES.index("receive"))[-1]
        chosen = {*first_of_each(trace.kind, trace.is_backward), int(waits[np.argmax(chains)])}
        for event in sorted({*chosen, int(last), len(trace)} if name != "grouped" else {int(last)}):
            texts[f"{name}, {source} {event}"] = told(event_facts, shown[name], source, event)
    trace = trace_of(ODD)
    odd = replace(shown["small"], traces={"measured": trace})
    odd.__dict__["recorded"] = {
        "measured": SimpleNamespace(
            dependencies=SimpleNamespace(
                predecessor=np.full(len(trace), -1), end_ns=np.zeros(len(trace), np.int64)
            )
        )
    }
    for event in range(len(trace)):
        texts[f"odd {event}"] = told(event_facts, odd, "measured", event)
    texts["waits of the odd"] = "\n".join(map(str, find_waits(trace, 9)))
    texts["findings of the odd"] = "\n".join(
        f"{f.text} <{f.selected}> {f.time_ns}" for f in longest_waits(trace)
    )
    snapshots.check("events", texts)


def test_a_chain_is_followed_so_far(shown):
    """A chain of 20 events, each ended by the one before it; the wait begins with the fifth."""
    ends = np.arange(21, 0, -1) * 10
    trace = SimpleNamespace(start_ns=np.full(21, 40))
    found = SimpleNamespace(predecessor=np.append(np.arange(1, 21), -1), end_ns=ends)
    loaded = SimpleNamespace(
        traces={"measured": trace}, recorded={"measured": SimpleNamespace(dependencies=found)}
    )
    assert chain_behind(loaded, "measured", 0) == [*range(1, 13)]
    # The one that ends at 40 is out.
    assert chain_behind(loaded, "measured", 10) == [*range(11, 17)]
    assert chain_behind(loaded, "measured", 20) == []


SEARCHES = (
    "gpu 1", "device 2 backward", "division 1 forward", "from 0 kv", "kv 1", "kv", "WAIT",
    "to 3 dkv 1", "rank 9", "backward attention", "forward backward",
)  # fmt: skip


def test_searches_and_filters(shown, snapshots):
    trace = shown["small"].traces["simulated"]
    lines = [f"{text!r}: {np.flatnonzero(found_by(text, trace)).tolist()}" for text in SEARCHES]
    filters = (
        EventFilter(kinds=("wait", "copy")), EventFilter(kinds=("none",)),
        EventFilter(longer_ns=10_486), EventFilter(longer_ns=10_487),
        EventFilter(kinds=("wait",), sort="-duration_ns"), EventFilter(find="dkv 1", sort="peer"),
        EventFilter(find="gpu 3 forward", sort="bytes"),
        EventFilter(find=" gpu 0", sort="-division"),
    )  # fmt: skip
    lines += [f"{chosen}: {matching(trace, chosen).tolist()}" for chosen in filters]
    snapshots.check("searches", {"rows": "\n".join(lines), "kinds": ", ".join(EVENT_KINDS)})


NUMBERS = (
    0, 1, 9.994, 9.996, 99.94, 99.96, 999, 999.6, 1000, 1536, 999_499, 999_999.6, 1e6, 4.2949e9,
    1e12, 7e15, 0.5, 0.0123456, 9.996e-4, 1e-3, 1e-6, 9.99e-7, 4.2e-8, 1e-9, 3e-10,
)  # fmt: skip


def test_numbers(snapshots):
    q = quantities
    writers = (q.count, q.size, q.duration, q.percent, q.ratio, q.digits)
    lines = [f"{value:g}: " + " | ".join(text(value) for text in writers) for value in NUMBERS]
    columns = [
        (q.duration, (0.0019, 4.2e-5, 0, 2e-9, 1.9e-6)), (q.size, (999, 20, 0)),
        (q.size, (5e9, 5e6, 4.9e6, 0, 12)), (q.count, (999_999, 12)),
        (q.count, (-3e6, 3e3, 2.9e3, 0)),
        (q.percent, (0.5, 0.001)), (q.duration, ()), (q.count, (1e6, 1e3, 999)),
    ]  # fmt: skip
    lines += [
        f"{text.__name__} {values}: " + " | ".join(map(q.alike(values, text), values))
        for text, values in columns
    ]
    lines += [
        f"{name} {value:g}: {q.constant(name, value)}"
        for name, value in (("flops_per_s", 2.25e14), ("a_flops_per_s", 0), ("latency_s", 1e-5),
                            ("bytes_per_s", 3e11), ("per_s", 12.0))
    ]  # fmt: skip
    lines += [
        f"{value:g}: {q.signed(value, q.size)} {q.signed(value, q.duration)}"
        for value in (-3, 0, 2e3)
    ]
    lines += [q.counted(n, "batch", "es") for n in (0, 1, 2)]
    lines += [q.counted(n, "a") for n in (1, 2)]
    snapshots.check("numbers", {"as written": "\n".join(lines).replace("\u00a0", "␣")})


def test_what_stands_out(shown, snapshots):
    snapshots.check(
        "findings",
        {
            f"{name}, {source}": "\n".join(
                f"{f.text} <{f.selected}> {f.time_ns}".replace("\u00a0", "␣")
                for f in findings(loaded, source)
            )
            for name, loaded in shown.items()
            for source in loaded.traces
        },
    )
