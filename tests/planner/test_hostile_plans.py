"""Plan files of strangers that once ended the process, or were called valid and were not."""

import dataclasses
import io
import json
import os
import re
import zipfile
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner
from mortal_reader import make_deadly

from dcp_dsl import DCPError, Sample, Slabs, Spec, load
from dcp_planner import (
    Cluster,
    ModelShape,
    Plan,
    PlanConfig,
    PlanError,
    PlanFileError,
    Provenance,
    build_plan,
    read_plan,
    simulate,
    validate,
    write_plan,
)
from dcp_planner.batches.batch import batch_of_samples
from dcp_planner.commands.simulate import simulate as simulate_command
from dcp_planner.commands.validate import validate as validate_command
from dcp_planner.commands.why import why
from dcp_planner.model.problem import PlanWarning
from dcp_planner.plan import arrow_tables, columns
from dcp_planner.plan.arrow_tables import TABLES, decode_table, encode_table
from dcp_planner.plan.columns import columns_of_plan, columns_of_traces
from dcp_planner.plan.file_check import check_file
from dcp_planner.tables.programs import LAUNCH, WAIT, Programs, ProgramTable, tabulate_programs

HOSTILE = Path(__file__).parents[1] / "fixtures" / "hostile"
SAMPLES = [Sample({"answer_lens": [50, 20, 30], "question_len": 30}, 130)]


@pytest.fixture(scope="module")
def sourced() -> Plan:
    """A plan of four devices that names its text."""
    return planned(load(HOSTILE / "s.dcpm"), "sq", SAMPLES)


def planned(spec: Spec, mask: str, samples: list[Sample], text: Spec | None = None) -> Plan:
    """Plan samples under a mask; `text` is the spec that the plan claims to be from."""
    (batch,) = batch_of_samples(spec, spec.mask(mask), samples, 16)
    named = text or spec
    provenance = replace(batch.provenance, spec=named.source, files=tuple(named.files.items()))
    config = PlanConfig(partitioner="static:zigzag")
    return build_plan(batch.sparsity, ModelShape(), Cluster(2, 2), config, provenance=provenance)


def checked(path, plan, traces=()):
    write_plan(path, plan, traces)
    return check_file(str(path))


def test_a_table_that_begins_with_no_schema_is_refused():  # Arrow reads it as one and dies
    with zipfile.ZipFile(HOSTILE / "segfault.dcpplan") as archive:
        rows = json.loads(archive.read("meta.json"))["tables"]["events"]
        data = archive.read("events.arrow")
    with pytest.raises(PlanFileError, match="expected an Arrow schema first, got a unknown"):
        decode_table("events", data, rows, 1 << 30)


@pytest.mark.parametrize("file", sorted(HOSTILE.glob("*.dcpplan")), ids=lambda path: path.stem)
@pytest.mark.parametrize("schema", ["", "dcp.plan/1"])
def test_every_plan_of_the_corpus_ends_in_a_message(file, schema, tmp_path):
    """They are of older schemas; under the name of today's their tables are read."""
    with zipfile.ZipFile(file) as archive, zipfile.ZipFile(tmp_path / "x", "w") as changed:
        for name in archive.namelist():
            data = archive.read(name)
            if name == "meta.json" and schema:
                data = json.dumps({**json.loads(data), "schema": schema}).encode()
            changed.writestr(name, data)
    found = check_file(str(tmp_path / "x"))
    assert (found.status, found.exit_code) == ("unreadable", 2)
    assert re.search("expected .*, got", found.message)
    assert schema not in found.message or not schema


def with_key(plan: Plan, row: int, key: int, direction: str = "forward") -> Plan:
    table = tabulate_programs(plan, direction)
    keys = table.key.copy()
    keys[row] = key
    changed = ProgramTable(**{
        name: keys if name == "key" else getattr(table, name) for name in table.__slots__
    })  # fmt: skip
    return replace(plan, **{direction: Programs(changed, plan.num_devices)})


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_a_wait_for_what_another_device_launched_is_refused(sourced, direction):
    table = tabulate_programs(sourced, direction)
    span, tried = int(table.key.max()) + 2, 0
    for row in np.flatnonzero(table.op == WAIT).tolist():
        others = table.device < table.device[row]
        for launch in np.flatnonzero((table.op == LAUNCH) & others)[-3:].tolist():
            # The number that the launch had when keys of all devices were counted as one.
            away = int(table.device[row] - table.device[launch])
            key = int(table.key[launch]) - away * span
            with pytest.raises(PlanError, match="keys are at least 0"):
                validate(with_key(sourced, row, key, direction))
            tried += 1
    assert tried > 8


def test_a_negative_key_is_refused_even_if_launched(sourced, tmp_path):
    table = tabulate_programs(sourced, "forward")
    own = table.device == 3
    chosen = own & (table.key == table.key[own].max())
    plan = sourced
    for row in np.flatnonzero(chosen).tolist():
        plan = with_key(plan, row, -7)
    assert chosen.sum() >= 2
    assert "keys are at least 0" in checked(tmp_path / "x.dcpplan", plan).message


def test_the_mask_of_a_valid_plan_is_that_of_its_text(sourced, tmp_path):
    found = checked(tmp_path / "x.dcpplan", sourced)
    assert (found.status, found.not_compared) == ("valid", "")
    assert found.to_text().endswith("x.dcpplan: valid")


@pytest.mark.parametrize(
    "mask", ["causal", "sq and q - k < 9", "sliding(128) or sq", "sq or causal and q < 9"]
)
def test_a_plan_of_another_mask_than_its_text_says_is_refused(sourced, tmp_path, mask):
    """Slabs, tiles, pairs, transfers and programs all fit each other, only not the text."""
    spec = load(HOSTILE / "s.dcpm")
    lie = planned(spec, mask, SAMPLES)
    same = mask == "sq or causal and q < 9"
    lie = replace(lie, provenance=replace(lie.provenance, mask="sq"))
    found = checked(tmp_path / "x.dcpplan", lie)
    assert found.status == ("valid" if same else "broken")
    if not same:
        assert "the mask is `sq` of the plan's text: sequence 0 sees" in found.message


def test_samples_of_another_length_are_refused(sourced, tmp_path):
    source = replace(sourced.provenance, mask="causal", samples=('{"len": 129}',))
    found = checked(tmp_path / "x.dcpplan", replace(sourced, provenance=source))
    assert "samples of the plan's text are as long as its sequences" in found.message


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (None, "the plan names no text"),
        (Provenance("mask m = cau", "m", ('{"len": 130}',)), "gives no mask `m`: "),
        (Provenance("", "causal", ("{}",)), "gives no mask `causal`: "),
        (Provenance('import base from "lib.dcpm"', "base", ('{"len": 130}',)), "gives no mask"),
    ],
)
def test_what_was_not_compared_is_said(sourced, tmp_path, source, why):
    found = checked(tmp_path / "x.dcpplan", replace(sourced, provenance=source))
    assert found.status == "valid"
    assert why in found.not_compared
    assert f"valid; mask not compared: {found.not_compared}" in found.to_text()


def test_a_plan_of_a_text_with_imports_brings_them_along(tmp_path):
    spec = load(HOSTILE / "imp.dcpm")
    samples = [Sample({"doc_lens": [100, 200]}, 300)]
    plan = planned(spec, "mine", samples)
    found = checked(tmp_path / "x.dcpplan", plan)
    assert (found.status, found.not_compared) == ("valid", "")
    assert read_plan(tmp_path / "x.dcpplan").plan.provenance == plan.provenance
    lie = planned(Spec.from_text(spec.source, "<plan>", {
        "lib.dcpm": spec.files["lib.dcpm"].replace("causal", "sliding(8)")
    }), "mine", samples, text=spec)  # fmt: skip
    assert checked(tmp_path / "x.dcpplan", lie).status == "broken"


def test_a_mask_in_any_form_and_order_is_compared_by_its_pairs(tmp_path):
    spec = Spec.from_text("mask dil = sliding(64) and (q - k) % 3 == 0 or q == k")
    samples = [Sample({}, 90), Sample({}, 40)]
    plan = planned(spec, "dil", samples)
    assert checked(tmp_path / "x.dcpplan", plan).to_text().endswith(": valid")
    turned = planned(spec, "causal", samples)
    table = turned.slabs.table()[::-1]
    turned = replace(turned, slabs=Slabs(turned.num_tokens, *table.T))
    assert checked(tmp_path / "x.dcpplan", turned).to_text().endswith(": valid")


def test_a_slab_that_reaches_into_another_sequence_is_refused(tmp_path):
    """Each token sees itself alone, as one slab over both sequences: the pairs are right."""
    spec = Spec.from_text("mask own = q == k")
    plan = planned(spec, "own", [Sample({}, 20), Sample({}, 12)])
    joined = replace(plan, slabs=Slabs(32, [0], [32], [0], [1], [1], [1]))
    found = checked(tmp_path / "x.dcpplan", joined)
    assert (found.status, found.invariant) == ("broken", "every slab lies in one sequence")


EVENTS = {
    "device": [4, -1, 2**31 - 1],
    "peer": [4, -2],
    "division": [-1],
    "transfer": [10**6, -2],
    "size_bytes": [-1, 2**62],
    "ready_ns": [-1, 2**62],
    "start_ns": [-1, 2**62],
    "end_ns": [2**62],
}


@pytest.mark.parametrize("column", EVENTS)
@pytest.mark.parametrize("row", [0, -1])
def test_events_out_of_range_are_refused(sourced, tmp_path, monkeypatch, column, row):
    trace = simulate(sourced)
    for value in EVENTS[column]:
        values = getattr(trace, column).copy()
        values[row] = value
        fits = {column: values}
        if column == "start_ns" and value > 0:
            fits["end_ns"] = np.maximum(trace.end_ns, values)
        with monkeypatch.context() as patch:  # the writer refuses the longest of them, too
            patch.setattr(columns, "_MOST", 2**63)
            write_plan(tmp_path / "x.dcpplan", sourced, [replace(trace, **fits)])
        with pytest.raises(PlanFileError, match=rf"events\.{column}: expected|events\.end_ns"):
            read_plan(tmp_path / "x.dcpplan")


def test_events_out_of_order_are_refused(sourced, tmp_path):
    trace = simulate(sourced)
    names = [name for name in trace.__slots__ if name not in ("source", "names", "lane")]
    turned = replace(trace, **{name: getattr(trace, name)[::-1] for name in names})
    write_plan(tmp_path / "x.dcpplan", sourced, [turned])
    with pytest.raises(PlanFileError, match="expected each trace sorted by"):
        read_plan(tmp_path / "x.dcpplan")


ESCAPE = (
    "\x1b]0;PWNED\x07\x1b[31mRED\x1b[0m\u202e[bold red]rich[/bold red][/nope]<!--<script>\r\x9b2J"
)


@pytest.fixture
def escaping(sourced, tmp_path):
    """A file with sequences that a terminal obeys in every text that is for people."""
    plan = replace(
        sourced,
        partitioner=ESCAPE,
        cluster=replace(sourced.cluster, name=ESCAPE, source=ESCAPE),
        provenance=Provenance(ESCAPE, ESCAPE, (ESCAPE,), ESCAPE, ((ESCAPE, ESCAPE),)),
        warnings=(PlanWarning("placed_by_layout", ESCAPE),),
    )
    trace = simulate(plan)
    trace = replace(trace, names=tuple(ESCAPE + name for name in trace.names))
    write_plan(tmp_path / "x.dcpplan", plan, [trace])
    return tmp_path / "x.dcpplan"


def test_no_text_of_a_file_holds_what_a_terminal_obeys(escaping):
    found = read_plan(escaping)
    texts = json.dumps([
        found.meta, found.plan.partitioner, found.plan.cluster.to_json(),
        [warning.message for warning in found.plan.warnings], found.traces[0].names,
        dataclasses.asdict(found.plan.provenance),
    ], ensure_ascii=False)  # fmt: skip
    told = [json.loads(f'"{part}"') for part in re.findall(r'"((?:[^"\\]|\\.)*)"', texts)]
    assert sum(r"\x1b]0;PWNED\x07" in text for text in told) > 10
    assert not [text for text in told if not text.replace("\n", "").isprintable()]


@pytest.mark.parametrize("command", [validate_command, simulate_command, why])
def test_commands_print_nothing_that_a_terminal_obeys(escaping, command):
    result = CliRunner().invoke(command, [str(escaping)])
    assert result.exit_code == 0, result.output
    assert result.output
    assert result.output.replace("\n", "").isprintable()


@pytest.mark.usefixtures("mortal_reader")
def test_a_file_that_ends_its_reader_is_unreadable_and_the_next_is_checked(
    sourced, tmp_path, monkeypatch
):
    good, deadly = tmp_path / "good.dcpplan", tmp_path / "deadly.dcpplan"
    write_plan(good, sourced)
    make_deadly(good, deadly)
    result = CliRunner().invoke(validate_command, [str(deadly), str(good)])
    killed, valid = result.output.splitlines()
    said = (
        rf"plan file {deadly}: it cannot be read: the reader of plan files \(process \d+\) was "
        "killed by SIGSEGV"
    )
    assert re.fullmatch(said, killed)
    assert (result.exit_code, valid) == (2, f"{good}: valid")
    read_plan(deadly)  # a file of this user is decoded here
    owner = os.geteuid()
    monkeypatch.setattr("os.geteuid", lambda: owner + 1)
    with pytest.raises(PlanFileError, match=said):
        read_plan(deadly)


@pytest.mark.parametrize(("mask", "groups"), [("m", 1), ("n", 2)])
def test_tables_come_from_another_process_as_they_are_decoded_here(mask, groups, tmp_path):
    spec = Spec.from_text("mask m = causal and q * k % 3 == 0  mask n = sliding(9)")
    (batch,) = batch_of_samples(spec, spec.mask(mask), [Sample({}, 64)], 16)
    layout = "static:zigzag" if groups == 1 else "static:heads_context"
    plan = build_plan(
        batch.sparsity, ModelShape(4, 2, 8), Cluster(1, 2), PlanConfig(partitioner=layout)
    )
    assert plan.head_groups == groups
    tables = {**columns_of_plan(plan), "events": columns_of_traces((simulate(plan),))}
    parts = {name: encode_table(name, table) for name, table in tables.items()}
    rows = {name: len(table[next(iter(TABLES[name]))]) for name, table in tables.items()}
    there = arrow_tables.decode_foreign(parts, rows, 1 << 20, is_grouped=groups > 1)
    here = {
        name: decode_table(name, data, rows[name], 1 << 20, is_grouped=groups > 1)
        for name, data in parts.items()
    }
    assert repr(there) == repr(here)  # with the types
    np.testing.assert_equal(there, here)


BLOCKS = {"block": np.int32, "sequence": np.int32, "start": np.int64, "end": np.int64,
          "owner": np.int32}  # fmt: skip
COLUMNS = {f"blocks.{name}": np.zeros(2, kind) for name, kind in BLOCKS.items()}
COLUMNS |= {f"forms.{name}": np.array([3, 4]) for name in ("q_start", "kv_start", "tokens")}
COLUMNS |= {
    "forms.kind": np.array([1, 0], np.uint32), "forms.items.ptr": np.array([0, 1, 2]),
    "forms.items": np.array([7, 8]),
}  # fmt: skip
SENT = {
    "not a number for each row": ({"blocks.start": np.zeros(3, np.int64)}, ["a", "b"], ""),
    "another type": ({"blocks.start": np.zeros(2)}, ["a", "b"], ""),
    "another shape": ({"blocks.start": np.zeros((2, 1), np.int64)}, ["a", "b"], ""),
    "a pickle": ({"blocks.start": np.array([None] * 2)}, ["a", "b"], ""),
    "no such column": ({"blocks.start": None}, ["a", "b"], ""),
    "lists that fall": ({"forms.items.ptr": [0, 3, 2]}, ["a", "b"], "the lists do not rise"),
    "lists from 1 on": ({"forms.items.ptr": [1, 2, 2]}, ["a", "b"], "the lists do not rise"),
    "fewer lists": ({"forms.items.ptr": [0, 2]}, ["a", "b"], "items.ptr: int64"),
    "more items": ({"forms.items": [7, 8, 9]}, ["a", "b"], "items: int64"),
    "a text that is not there": ({}, ["a"], "list index out of range"),
    "texts of no column": ({}, None, "'forms.kind'"),
}


@pytest.mark.parametrize(("sent", "texts", "says"), [({}, ["a", "b"], None), *SENT.values()],
                         ids=["as they should be", *SENT])  # fmt: skip
def test_a_reader_that_a_file_took_over_can_send_nothing_but_columns(
    sent, texts, says, monkeypatch
):
    file = io.BytesIO()
    columns = {name: value for name, value in (COLUMNS | sent).items() if value is not None}
    np.savez(file, **columns)
    answer = {"texts": {} if texts is None else {"forms.kind": texts}}, file.getvalue()
    stand_in = SimpleNamespace(call=lambda *_, **__: answer)
    monkeypatch.setattr(arrow_tables, "_worker", lambda _: stand_in)
    refused = pytest.raises(PlanFileError, match=f"its reader sent no tables: .*{says}")
    with nullcontext() if says is None else refused:
        asked = {"blocks": b"", "forms": b""}, {"blocks": 2, "forms": 2}
        found = arrow_tables.decode_foreign(*asked, 1 << 20, is_grouped=False)["forms"]
        assert found["kind"] == ["b", "a"]
        assert [part.tolist() for part in found["items"]] == [[0, 1, 2], [7, 8]]


def test_messages_hold_nothing_that_a_terminal_obeys(tmp_path):
    path = tmp_path / "a\x1b[31m\x9b.dcpplan"
    path.write_bytes(b"PK")
    assert check_file(str(path)).to_text().isprintable()
    assert str(DCPError("a\x1b[31m\nb\r", "\x07")) == "\\x07: a\\x1b[31m\nb\\r"
