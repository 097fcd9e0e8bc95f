"""Plan files come back as they were; damaged and crafted ones are refused."""

import json
import os
import re
import struct
import zipfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from second_validator import check

from dcp_planner import (
    ModelShape,
    PlanConfig,
    PlanFileError,
    Provenance,
    Trace,
    build_plan,
    digest,
    read_plan,
    simulate,
    write_plan,
)
from dcp_planner.batches import report_file
from dcp_planner.model.cluster import Cluster
from dcp_planner.model.problem import PlanWarning
from dcp_planner.plan import arrow_tables, build
from dcp_planner.plan import columns as plan_columns
from dcp_planner.plan import file as plan_file
from dcp_planner.plan.arrow_tables import TABLES, encode_table
from dcp_planner.plan.file import META_LIMIT_BYTES, decode_plan, read_meta
from dcp_planner.plan.file_check import check_file
from dcp_planner.step import file as step_file
from dcp_planner.step import report as step_report

PROVENANCE = Provenance("mask m { allow true }\n", "m", ('{"len": 3}',), "a file, batch 0")


def equal_traces(one, two):
    names = [n for n in Trace.__slots__ if n not in ("source", "names")]
    return (one.source, one.names) == (two.source, two.names) and all(
        np.array_equal(getattr(one, n), getattr(two, n)) for n in names
    )


@pytest.fixture(scope="module")
def written(plan, tmp_path_factory):
    """A plan file as bytes, with the plan and trace it was written from."""
    path = tmp_path_factory.mktemp("plan") / "x.dcpplan"
    warnings = (PlanWarning("placed_by_layout", "a: b"),)
    trace, plan = simulate(plan), replace(plan, provenance=PROVENANCE, warnings=warnings)
    write_plan(path, plan, [trace])
    return path.read_bytes(), plan, trace


def members_of(data, path):
    path.write_bytes(data)
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def rewrite(path, members, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name), content, compression)


def test_every_plan_and_trace_comes_back_as_it_was(sparsity, tmp_path):
    plan = build_plan(
        sparsity, ModelShape(), Cluster(2, 2), PlanConfig(partitioner="static:zigzag"),
        provenance=PROVENANCE,
    )  # fmt: skip
    trace = simulate(plan)
    measured = replace(trace, source="measured")
    write_plan(tmp_path / "a.dcpplan", plan, [trace, measured])
    found = read_plan(tmp_path / "a.dcpplan")
    assert digest(found.plan) == digest(plan) == found.meta["digest"]
    assert (found.plan.forward, found.plan.backward) == (plan.forward, plan.backward)
    assert (found.plan.cluster, found.plan.shape) == (plan.cluster, plan.shape)
    assert found.plan.provenance == PROVENANCE
    assert (found.plan.partitioner, found.plan.warnings) == ("static:zigzag", plan.warnings)
    assert [t.source for t in found.traces] == ["simulated", "measured"]
    assert equal_traces(found.traces[0], trace)
    assert equal_traces(found.traces[1], measured)


def test_names_of_sequences_come_back_unless_they_are_many_and_change_nothing_else(
    plan, tmp_path, monkeypatch
):
    sequences = len(plan.cu_seqlens) - 1
    names = ("row 7: <script>alert(1)</script>", *(f"row {n}" for n in range(sequences - 1)))
    named = replace(plan, sequence_names=names)
    write_plan(tmp_path / "named", named)
    write_plan(tmp_path / "plain", plan)
    assert digest(named) == digest(plan)
    assert read_plan(tmp_path / "named").plan.sequence_names == names
    assert read_plan(tmp_path / "plain").plan.sequence_names == ()
    assert "sequence_names" not in read_meta(tmp_path / "plain")
    monkeypatch.setattr("dcp_planner.plan.file._NAMES_LIMIT_BYTES", 20)
    write_plan(tmp_path / "many", named)
    assert read_plan(tmp_path / "many").plan.sequence_names == ()


def test_bytes_of_this_process_are_decoded_in_it(written, monkeypatch):
    monkeypatch.delattr("dcp_planner.plan.file.decode_foreign")
    assert digest(decode_plan(written[0]).plan) == digest(written[1])


def test_whole_numbers_of_a_cluster_come_back_with_the_digest_that_was_written(masks, tmp_path):
    rates = Cluster(
        1, 2, flops_per_s=10**12, latency_s=0, spine_bytes_per_s=10**9, devices=((1, 2),)
    )
    config = PlanConfig(partitioner="static:zigzag")
    plan = build_plan(masks.pack([masks.causal(20)], 8), ModelShape(), rates, config)
    write_plan(tmp_path / "a.dcpplan", plan)
    found = read_plan(tmp_path / "a.dcpplan")
    assert digest(found.plan) == digest(plan)
    assert (found.plan.cluster, repr(found.plan.cluster)) == (rates, repr(rates))


def test_a_verdict_that_anyone_could_write_is_not_read(written, tmp_path):
    members = members_of(written[0], tmp_path / "x")
    assert "verified" not in json.loads(members["meta.json"])
    rewrite(tmp_path / "x", edited_meta(members, "verified", True))
    assert not hasattr(read_plan(tmp_path / "x"), "verified")
    assert "verified" not in check_file(str(tmp_path / "x")).to_text()


def test_the_same_plan_gives_the_same_bytes_and_leaves_no_other_file(plan, tmp_path):
    for name in ("a", "b"):
        write_plan(tmp_path / name, plan, [simulate(plan)])
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_the_layout_is_the_documented_one(written, tmp_path):
    members = members_of(written[0], tmp_path / "x")
    names = [name for name in TABLES if name != "forms"]  # not needed here
    assert list(members) == ["meta.json", *(f"{name}.arrow" for name in names)]
    check(tmp_path / "x")


def test_every_documented_column_is_in_the_documentation(request):
    text = (request.config.rootpath / "docs" / "dcpplan.md").read_text()
    for name, columns in TABLES.items():
        section = text.split(f"### `{name}`")[1].split("\n### ")[0]
        for column, kind in columns.items():
            kind_text = str(kind).replace("item: ", "")
            assert f"| `{column}` | {kind_text} |" in section


def test_a_failed_write_leaves_nothing_and_keeps_the_older_file(plan, tmp_path, monkeypatch):
    target = tmp_path / "x.dcpplan"
    target.write_text("older")

    def full_disk(path, data):
        with path.open("wb") as file:
            file.write(data[:100])
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full_disk)
    with pytest.raises(PlanFileError, match=r"x\.dcpplan: cannot be written: No space left"):
        write_plan(target, plan)
    assert [p.name for p in tmp_path.iterdir()] == ["x.dcpplan"]
    assert target.read_text() == "older"


def test_a_trace_that_no_file_can_hold_is_refused_and_nothing_is_written(plan, tmp_path):
    trace = simulate(plan)
    long, longer = (replace(trace, end_ns=trace.end_ns + ns) for ns in (2**53, 2**54))
    with pytest.raises(PlanFileError, match="at most 104 days, got one of 208; plan fewer tokens"):
        write_plan(tmp_path / "a.dcpplan", plan, [long, trace, longer])
    assert list(tmp_path.iterdir()) == []


def declare_too_much(path, members):
    rewrite(path, members)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("extra", b"x")
        info = archive.getinfo("extra")
        info.file_size = info.compress_size = 2**31


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path, _: None, "there is no such file; write it again with `dcpm plan"),
        (lambda path, _: path.mkdir(), r"got a folder; name one in it: .*/NAME\.dcpplan"),
        (lambda path, _: path.write_bytes(b""), "expected a whole zip archive, got: an empty file"),
        (lambda path, _: path.write_text("hello"), "zip archive, got: another kind of file;"),
        (lambda path, _: path.write_bytes(b"PK\3\4"), "got: one that is cut short or damaged"),
        (lambda path, _: rewrite(path, {"a": b"b"}), "meta.json is missing"),
        (lambda path, members: rewrite(path, members, zipfile.ZIP_DEFLATED),
         "meta.json: expected a stored member, got a compressed one"),
        (declare_too_much, r"its members declare \d+ bytes, the file has"),
    ],
)  # fmt: skip
def test_what_is_no_plan_file_is_refused(written, tmp_path, make, message):
    path = tmp_path / "x.dcpplan"
    make(path, members_of(written[0], tmp_path / "whole"))
    with pytest.raises(PlanFileError, match=f"plan file .*x.dcpplan: .*{message}"):
        read_plan(path)


def edited_meta(members, key, value):
    meta = json.loads(members["meta.json"])
    *parents, last = key.split(".")
    place = meta
    for parent in parents:
        place = place[parent]
    place[last] = value
    return members | {"meta.json": json.dumps(meta).encode()}


def edited_table(members, name, column, value):
    """Change the first cell of a column, keeping everything else, the digest included."""
    table = pa.ipc.open_file(members[f"{name}.arrow"]).read_all()
    rows = table.to_pylist()
    rows[0][column] = value
    changed = pa.RecordBatch.from_pylist(rows, schema=table.schema)
    return members | {f"{name}.arrow": arrow_file(changed)}


def arrow_file(batch, **options):
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def dreamt(members):
    """Name a source that is none, in the list of traces and in all events."""
    table = pa.ipc.open_file(members["events.arrow"]).read_all()
    rows = [{**row, "source": "dreamt"} for row in table.to_pylist()]
    changed = arrow_file(pa.RecordBatch.from_pylist(rows, schema=table.schema))
    members = members | {"events.arrow": changed}
    return edited_meta(members, "traces", [{"source": "dreamt", "events": len(rows)}])


META = (
    ("schema", "dcp.plan/9"), ("digest", "0" * 64), ("digest", 3), ("cluster", {"nodes": 2}),
    ("cluster.nodes", "2"), ("cluster.nodes", True), ("cluster.nodes", 0),
    ("cluster.flops_per_s", 10**400), ("cluster.flops_per_s", 1e12),
    ("cluster.flops_per_s", True), ("cluster.inter_latency_s", "1"), ("cluster.devices", 3),
    ("cluster.message_order", 1), ("shape", []), ("shape.kv_heads", 3), ("shape.head_dim", 64),
    ("tables", []), ("tables.tiles", 1), ("tables.tiles", 10**6), ("tables.tiles", -1),
    ("traces", {}), ("traces", []), ("traces", [3]), ("head_groups", 1), ("head_groups", 2),
    ("head_groups", 257), ("head_groups", "2"), ("partitioner", None), ("warnings", "x"),
    ("warnings", ["x"]), ("warnings", [{"code": "x", "message": ""}]),
    ("provenance", {"samples": {}}), ("provenance", {"samples": [], "spec": 1}),
    ("provenance.files", {"a": 1}), ("sequence_names", "row 0"), ("sequence_names", [3]),
)  # fmt: skip
CELLS = (
    ("blocks", "block", 4), ("tiles", "kind", 9), ("tiles", "device", None),
    ("slabs", "kv_end", 10**12), ("sequences", "start", 1), ("sequences", "sequence", 1),
    ("transfers", "transfer", 1), ("instructions", "op", "jump"),
    ("instructions", "direction", "up"), ("instructions", "device", -1),
    ("instructions", "position", 7), ("instructions", "items", [-5]), ("events", "kind", "up"),
    ("events", "transfer", 10**6), ("events", "source", "dreamt"), ("events", "start_ns", 2**40),
    ("events", "peer", 9),
)  # fmt: skip
CASES = {
    **{f"{key} {value!r:.40}": partial(edited_meta, key=key, value=value) for key, value in META},
    **{f"{name}.{column} {value!r}": partial(edited_table, name=name, column=column, value=value)
       for name, column, value in CELLS},
    "a list": lambda m: m | {"meta.json": b"[]"},
    "half a text": lambda m: m | {"meta.json": b"{"},
    "binary": lambda m: m | {"meta.json": b"\xff\xfe\x00"},
    "deep": lambda m: m | {"meta.json": b"[" * 100_000},
    "no arrow": lambda m: m | {"tiles.arrow": b"hello"},
    "half arrow": lambda m: m | {"tiles.arrow": m["tiles.arrow"][:300]},
    "other table": lambda m: m | {"tiles.arrow": m["blocks.arrow"]},
    "unknown source": dreamt,
    "no meta": lambda m: {k: v for k, v in m.items() if k != "meta.json"},
    "no events": lambda m: {k: v for k, v in m.items() if k != "events.arrow"},
}  # fmt: skip


def test_wrong_parts_are_refused_by_name(written, tmp_path, snapshots):
    path, told = tmp_path / "x.dcpplan", {}
    members = members_of(written[0], tmp_path / "old")
    for name, edit in CASES.items():
        rewrite(path, edit(members))
        with pytest.raises(PlanFileError) as caught:
            read_plan(path)
        text = str(caught.value).replace(str(path), "x.dcpplan")[:400]
        text = re.sub(r"[0-9a-f]{64}", "DIGEST", text)
        told[name] = re.sub(r"(expected JSON, got|Arrow cannot read it): .*", r"\1: ...", text)
    snapshots.check("damaged_plan_files", told)


def test_a_name_that_appears_twice_is_refused(written, tmp_path):
    path = tmp_path / "x.dcpplan"
    path.write_bytes(written[0])
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(path, "a") as archive:
        archive.writestr("meta.json", b"{}")
    with pytest.raises(PlanFileError, match="a name appears twice"):
        read_plan(path)


def test_a_file_over_the_limit_is_refused_unread(written, tmp_path):
    path = tmp_path / "x.dcpplan"
    path.write_bytes(written[0])
    with pytest.raises(PlanFileError, match="expected at most 1000 bytes"):
        read_plan(path, limit_bytes=1000)


def test_a_meta_of_the_limit_is_read_and_a_larger_one_refused(written, tmp_path, monkeypatch):
    path = tmp_path / "x"
    size = len(members_of(written[0], path)["meta.json"])
    monkeypatch.setattr("dcp_planner.plan.file.META_LIMIT_BYTES", size)
    assert read_plan(path).meta == read_meta(path)
    monkeypatch.setattr("dcp_planner.plan.file.META_LIMIT_BYTES", size - 1)
    for read in (read_plan, read_meta):
        with pytest.raises(PlanFileError, match=rf"expected at most {size - 1} bytes, got {size}"):
            read(path)


def test_a_provenance_above_the_limit_is_left_out(written, tmp_path, monkeypatch):
    path = tmp_path / "x"
    size = len(json.dumps(json.loads(members_of(written[0], path)["meta.json"])["provenance"],
                          indent=1))  # fmt: skip
    for limit, kept in ((size, PROVENANCE), (size - 1, None)):
        monkeypatch.setattr(plan_file, "_SOURCE_LIMIT_BYTES", limit)
        write_plan(path, written[1])
        assert read_plan(path).plan.provenance == kept


def test_figures_of_65536_devices_leave_room_for_any_provenance_that_is_kept(masks, tmp_path):
    cluster = Cluster(512, 8, devices=((1.0,) * 7 + (0.12345678901234567,),) * 512)  # of 8,192
    sparsity = masks.pack([masks.causal(8)], 8)
    plan = build_plan(sparsity, ModelShape(), cluster, PlanConfig("static:ring"))
    write_plan(tmp_path / "x", plan)
    meta = json.dumps(read_meta(tmp_path / "x"), indent=1)
    most = 16 * len(re.sub(r"\b0,", "1234567890123456,", meta)) + plan_file._NAMES_LIMIT_BYTES
    assert META_LIMIT_BYTES * 0.9 < most + plan_file._SOURCE_LIMIT_BYTES <= META_LIMIT_BYTES


def test_a_table_that_unpacks_to_more_than_the_limit_is_refused_before_unpacking(written, tmp_path):
    rows = 2_000_000  # 50 MB of zeros in a few kilobytes
    columns = {k: np.zeros(rows, np.uint8) for k in TABLES["tiles"]}
    bomb = encode_table("tiles", columns)
    assert len(bomb) < 20_000
    path = tmp_path / "x.dcpplan"
    members = edited_meta(members_of(written[0], tmp_path / "old"), "tables.tiles", rows)
    rewrite(path, members | {"tiles.arrow": bomb})
    before = pa.total_allocated_bytes()
    with pytest.raises(PlanFileError, match=r"table tiles: declares more .* unpacks to more than"):
        read_plan(path, limit_bytes=1_000_000)
    assert pa.total_allocated_bytes() - before < 1_000_000


def test_a_buffer_that_is_stored_as_it_is_counts_as_long_as_it_is():
    """Writers may store what compression does not shrink, with -1 in the place of its size."""
    rng, rows = np.random.default_rng(0), 4096
    columns = {name: np.zeros(rows, np.uint8) for name in TABLES["tiles"]}
    columns["pairs"] = rng.integers(-(2**63), 2**63 - 1, rows)
    data, raw = encode_table("tiles", columns), columns["pairs"].tobytes()
    at = data.index(struct.pack("<q", len(raw)) + b"\x28\xb5\x2f\xfd")  # a frame of zstd
    data = data[:at] + struct.pack("<q", -1) + raw + data[at + 8 + len(raw) :]
    size = rows * sum(kind.bit_width for kind in TABLES["tiles"].values()) // 8
    found = arrow_tables.decode_table("tiles", data, rows, size + 64)
    assert np.array_equal(found["pairs"], columns["pairs"])
    with pytest.raises(PlanFileError, match="unpacks to more than"):
        arrow_tables.decode_table("tiles", data, rows, size)


def test_a_buffer_that_declares_an_absurd_size_is_refused(written, tmp_path):
    members = members_of(written[0], tmp_path / "old")
    data = members["tiles.arrow"]
    rows = len(written[1].tiles)
    plain = struct.pack("<q", 4 * rows)  # what an int32 column unpacks to
    assert plain in data
    for absurd in (2**62, -3):
        changed = data.replace(plain, struct.pack("<q", absurd), 1)
        rewrite(tmp_path / "x", members | {"tiles.arrow": changed})
        with pytest.raises(PlanFileError, match=r"table tiles: .*(declares|bytes)"):
            read_plan(tmp_path / "x")


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_a_file_cut_short_anywhere_is_refused(written, tmp_path_factory, data):
    content = written[0]
    path = tmp_path_factory.getbasetemp() / "cut.dcpplan"
    path.write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
    with pytest.raises(PlanFileError):
        read_plan(path)


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_a_flipped_byte_is_refused_or_changes_nothing(written, tmp_path_factory, data):
    content, plan, trace = written
    damaged = bytearray(content)
    # Headers lie between the members and at the end; half of the flips go there.
    names = [found.start() for found in re.finditer(b"PK", content)]
    near_header = st.sampled_from(names).flatmap(lambda at: st.integers(at, at + 80))
    anywhere = st.integers(0, len(content) - 1)
    at = min(data.draw(anywhere | near_header), len(content) - 1)
    damaged[at] ^= data.draw(st.integers(1, 255))
    path = tmp_path_factory.getbasetemp() / "flipped.dcpplan"
    path.write_bytes(bytes(damaged))
    try:
        found = read_plan(path)
    except PlanFileError:
        return
    assert digest(found.plan) == digest(plan)
    assert (found.plan.provenance, found.plan.warnings) == (plan.provenance, plan.warnings)
    assert equal_traces(found.traces[0], trace)


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_a_flipped_byte_under_a_right_checksum_is_refused_or_changes_no_work(
    written, tmp_path_factory, data
):
    content, plan, _ = written
    folder = tmp_path_factory.getbasetemp()
    members = members_of(content, folder / "whole")
    name = data.draw(st.sampled_from(sorted(members)))
    damaged = bytearray(members[name])
    damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= data.draw(st.integers(1, 255))
    rewrite(folder / "crafted", members | {name: bytes(damaged)})
    try:
        found = read_plan(folder / "crafted")
    except PlanFileError:
        return
    assert digest(found.plan) == digest(plan)


def test_nothing_but_a_regular_file_is_replaced(plan, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(PlanFileError, match="it is there already and no regular file"):
        write_plan(tmp_path / "pipe", plan)
    assert (tmp_path / "pipe").is_fifo()
    for path, why in (
        ("", "it is a folder"),
        (tmp_path / "no/x", "; make the folder .*no first, or"),
    ):
        with pytest.raises(PlanFileError, match=why):
            write_plan(path, plan)


@pytest.mark.parametrize("read", [read_plan, read_meta])
def test_a_pipe_is_not_waited_for(tmp_path, read):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(PlanFileError, match=r"plan file .*pipe: expected a regular file"):
        read(tmp_path / "pipe")


def test_limits_are_these():
    """They are told in documents and messages, and small files never meet most of them."""
    assert (plan_file.LIMIT_BYTES, META_LIMIT_BYTES) == (2**30, 2**25)
    assert (plan_file._SOURCE_LIMIT_BYTES, plan_file._NAMES_LIMIT_BYTES) == (2**24, 2**20)
    assert (arrow_tables.MEMORY_BYTES, arrow_tables.LIMIT_S) == (2**34, 60.0)
    assert (report_file.LIMIT_BYTES, report_file.MOST_BATCHES) == (2**26, 4096)
    assert (report_file.REWRITE_S, build.MOST_TILES, plan_columns._MOST) == (3.0, 2**22, 2**53)
    assert (step_file.LIMIT_BYTES, step_file.MOST_DEVICES) == (2**26, 2**16)
    assert (step_report.MOST_LENGTHS, step_report.MOST_FILE_BYTES) == (2**24, 2**28)
