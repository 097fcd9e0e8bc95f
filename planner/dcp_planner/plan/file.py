"""Write and read plan files: a stored zip of ``meta.json`` and Arrow tables, with traces.

``docs/dcpplan.md`` documents the layout. Reading trusts nothing: sizes are bounded before anything
is unpacked, every table must have its columns, the plan is validated and its digest computed anew.
"""

import io
import json
import os
import stat
import struct
import zipfile
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, get_args

from dcp_dsl import DatasetError, printable
from dcp_dsl.files import check_writable, replacing
from dcp_planner.errors import PlanError, PlanFileError
from dcp_planner.model.cluster import (
    FIRST_FIELDS,
    Cluster,
    MessageOrder,
    ModelShape,
    PortSharing,
    devices_of_json,
)
from dcp_planner.model.config import MOST_HEAD_GROUPS
from dcp_planner.model.problem import PlanWarning, WarningCode
from dcp_planner.plan.arrow_tables import (
    OPTIONAL_TABLES,
    TABLES,
    Columns,
    decode_foreign,
    decode_table,
    encode_table,
)
from dcp_planner.plan.columns import (
    columns_of_plan,
    columns_of_traces,
    plan_of_columns,
    traces_of_columns,
)
from dcp_planner.plan.validation import check_ranges, validate
from dcp_planner.simulation.trace import Trace
from dcp_planner.tables.metrics import measure
from dcp_planner.tables.plan import SCHEMA, Plan, Provenance
from dcp_planner.tables.programs import digest

LIMIT_BYTES = 1 << 30
"""Most bytes of a plan file, and of each of its tables unpacked."""
META_LIMIT_BYTES = 1 << 25
"""Most bytes of ``meta.json``; a plan for 65,536 devices has some 10 MB."""
_SOURCE_LIMIT_BYTES = 1 << 24
"""Most bytes of a provenance; metrics and cluster get the rest of ``meta.json``."""
_NAMES_LIMIT_BYTES = 1 << 20
"""Most bytes of the names of sequences; some 15,000 names."""

_META = "meta.json"
_MEMBERS = frozenset([_META, *(f"{name}.arrow" for name in TABLES)])
_AGAIN = "write it again with `dcpm plan ... --out FILE.dcpplan`"
_Record = TypeVar("_Record", Cluster, ModelShape)


@dataclass(frozen=True, slots=True)
class PlanFile:
    """Content of a plan file."""

    plan: Plan  # validated
    traces: tuple[Trace, ...]  # in the order they were written, at most one per source
    meta: Mapping[str, Any]  # `meta.json` as it is; `Any`: a JSON object


def write_plan(
    path: str | Path,
    plan: Plan,
    traces: Sequence[Trace] = (),
    *,
    against: Mapping[str, Any] | None = None,
) -> None:
    """Write a plan and its traces; the same arguments give the same bytes.

    The file appears under its name only when it is whole; a failure leaves nothing behind and an
    older file as it was. A provenance of more than 16 MiB is left out, as `left_out` says, and so
    are names of sequences of more than 1 MiB. `against` is for people (`Any`: JSON values): figures
    of other methods by their name, as in the report of a data set.

    Raises:
        PlanFileError: if it cannot be written.
    """
    check_writable(path, PlanFileError)  # before the work
    data = encode_plan(plan, traces, against=against)
    with replacing(path, PlanFileError) as draft:
        draft.write_bytes(data)


def encode_plan(
    plan: Plan, traces: Sequence[Trace] = (), *, against: Mapping[str, Any] | None = None
) -> bytes:
    """Return the bytes that `write_plan` writes."""
    check_ranges(plan)  # `measure` indexes tables by devices and blocks
    tables = {**columns_of_plan(plan), "events": columns_of_traces(tuple(traces))}
    # Any: what JSON holds
    meta: dict[str, Any] = {
        "schema": SCHEMA,
        "digest": digest(plan),
        "partitioner": plan.partitioner,
        "warnings": [asdict(warning) for warning in plan.warnings],
        "cluster": plan.cluster.to_json(),
        "shape": plan.shape.to_json(),
        "provenance": _provenance_json(plan.provenance),
        "metrics": measure(plan).to_json(),
        # Rows are counted in the first column, which is never a list of items.
        "tables": {n: len(tables[n][next(iter(TABLES[n]))]) for n in TABLES if n in tables},
        "traces": [{"source": t.source, "events": len(t), "seconds": t.seconds()} for t in traces],
    }
    if plan.head_groups > 1:
        meta["head_groups"] = plan.head_groups
    if plan.sequence_names and len(json.dumps(plan.sequence_names)) <= _NAMES_LIMIT_BYTES:
        meta["sequence_names"] = plan.sequence_names
    if against:
        meta["against"] = dict(against)
    members = {_META: json.dumps(meta, indent=1).encode()}
    members |= {
        f"{name}.arrow": encode_table(name, tables[name]) for name in TABLES if name in tables
    }
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, data in members.items():
            archive.writestr(zipfile.ZipInfo(name), data)  # a fixed date: equal plans, equal bytes
    return file.getvalue()


def left_out(plan: Plan) -> str:
    """Name the parts that a plan file leaves out, in a sentence for people; empty if none."""
    if plan.provenance is None or _provenance_json(plan.provenance) is not None:
        return ""
    return (
        f"the file holds no text of the mask and the samples, which takes more than "
        f"{_SOURCE_LIMIT_BYTES >> 20} MiB: the dashboard cannot name them, and `dcpm validate` "
        "compares no mask; smaller batches keep theirs"
    )


def read_plan(
    path: str | Path, *, limit_bytes: int = LIMIT_BYTES, is_foreign: bool | None = None
) -> PlanFile:
    """Read and validate a plan file.

    Args:
        path: a file that `write_plan` wrote.
        limit_bytes: most bytes of the file, and of each table unpacked.
        is_foreign: whether to decode its tables in a worker process, so that no file can crash
            this one; ``None``: only if the file belongs to another user.

    Raises:
        PlanFileError: if it is missing, damaged, of another schema, too large, or breaks an
        invariant.
    """
    path = Path(path)
    with _named(path):
        status = _check_regular(path)
        if status.st_size > limit_bytes:
            raise PlanFileError(
                f"expected at most {limit_bytes} bytes, got {status.st_size}; in Python "
                "read_plan(path, limit_bytes=...) allows more"
            )
        is_foreign = status.st_uid != os.geteuid() if is_foreign is None else is_foreign
        return decode_plan(path.read_bytes(), limit_bytes=limit_bytes, is_foreign=is_foreign)


def read_meta(path: str | Path) -> Mapping[str, Any]:
    """Read ``meta.json`` of a plan file, `Any`: JSON values; its tables may be damaged.

    Raises:
        PlanFileError: if the file is missing, no whole archive, or of another schema.
    """
    path = Path(path)
    with _named(path):
        _check_regular(path)
        with path.open("rb") as file:
            return _read_meta(_read_members(file, (_META,))[_META])


def decode_plan(
    data: bytes, *, limit_bytes: int = LIMIT_BYTES, is_foreign: bool = False
) -> PlanFile:
    """Read and validate the bytes of a plan file; as `read_plan`."""
    members = _read_members(io.BytesIO(data), _MEMBERS)
    meta = _read_meta(members[_META])
    is_grouped = "head_groups" in meta
    groups = _member(meta, "head_groups", int) if is_grouped else 1
    if is_grouped and not 1 < groups <= MOST_HEAD_GROUPS:
        raise PlanFileError(
            f"{_META}: expected 2 to {MOST_HEAD_GROUPS} head groups, or no such key, got {groups}"
        )
    tables = _read_tables(members, meta, limit_bytes, is_foreign=is_foreign)
    try:
        plan = plan_of_columns(
            tables,
            cluster=_record(Cluster, _member(meta, "cluster", dict)),
            shape=_record(ModelShape, _member(meta, "shape", dict)),
            partitioner=_member(meta, "partitioner", str),
            provenance=_read_provenance(meta),
            warnings=tuple(_read_warning(item) for item in _member(meta, "warnings", list)),
            head_groups=groups,
        )
        plan = replace(plan, sequence_names=_read_names(meta))
        kept = _member(meta, "traces", list)
        sizes = [_member(trace, "events", int) for trace in kept]
        sources = [_member(trace, "source", str) for trace in kept]
        traces = traces_of_columns(tables["events"], sources, sizes, plan)
        # Anybody may have written the file, and all users of a plan rely on its invariants.
        validate(plan)
    except (ValueError, OverflowError, PlanError, DatasetError) as error:
        # OverflowError: JSON has whole numbers larger than any float.
        raise PlanFileError(f"holds no valid plan: {error}; {_AGAIN}") from error
    found, expected = digest(plan), _member(meta, "digest", str)
    if found != expected:
        raise PlanFileError(f"expected the digest {expected}, its content has {found}; {_AGAIN}")
    return PlanFile(plan, traces, meta)


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Turn errors of reading a file into a `PlanFileError` that names the file."""
    try:
        yield
    except FileNotFoundError as error:
        raise PlanFileError(f"there is no such file; {_AGAIN}", f"plan file {path}") from error
    except OSError as error:
        reason = f"cannot be read: {error.strerror or error}"
        raise PlanFileError(reason, f"plan file {path}") from error
    except PlanFileError as error:
        raise PlanFileError(error.reason, f"plan file {path}") from error


def _check_regular(path: Path) -> os.stat_result:
    """Return the status of a regular file; reading a pipe might never end."""
    status = path.stat()
    if stat.S_ISDIR(status.st_mode):
        raise PlanFileError(
            f"expected a regular file, got a folder; name one in it: {path}/NAME.dcpplan"
        )
    if not stat.S_ISREG(status.st_mode):
        raise PlanFileError(f"expected a regular file, got something else; {_AGAIN}")
    return status


def _read_members(file: BinaryIO, wanted: Container[str]) -> dict[str, bytes]:
    size = file.seek(0, io.SEEK_END)
    try:
        with zipfile.ZipFile(file) as archive:
            infos = archive.infolist()
            _check_members(infos, size)
            return {info.filename: archive.read(info) for info in infos if info.filename in wanted}
    except zipfile.BadZipFile as error:
        file.seek(0)
        known = {b"PK\x03\x04": f"one that is cut short or damaged ({error})", b"": "an empty file"}
        found = known.get(file.read(4), "another kind of file")
        raise PlanFileError(f"expected a whole zip archive, got: {found}; {_AGAIN}") from error
    except (
        OSError, NotImplementedError, RuntimeError, EOFError, ValueError, OverflowError,
        struct.error,
    ) as error:  # fmt: skip
        # Errors that zipfile raises for encrypted, foreign or damaged headers.
        raise PlanFileError(f"damaged zip archive: {error}; {_AGAIN}") from error


def _check_members(infos: list[zipfile.ZipInfo], size: int) -> None:
    expected = [_META, *(f"{name}.arrow" for name in TABLES if name not in OPTIONAL_TABLES)]
    names = [info.filename for info in infos]
    missing = [name for name in expected if name not in names]
    if missing:
        raise PlanFileError(
            f"expected {', '.join(expected)} inside, {missing[0]} is missing; {_AGAIN}"
        )
    if len(set(names)) != len(names):
        raise PlanFileError(f"a name appears twice inside; {_AGAIN}")
    for info in infos:
        # Buffers of tables are compressed inside Arrow: a compressed member could be a zip bomb.
        if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
            raise PlanFileError(f"{info.filename}: expected a stored member, got a compressed one")
        if info.filename == _META and info.file_size > META_LIMIT_BYTES:
            raise PlanFileError(
                f"{_META}: expected at most {META_LIMIT_BYTES} bytes, got {info.file_size}"
            )
    # Stored members lie side by side, so together they cannot be larger than the file. Members that
    # overlap could each claim the whole of it.
    total = sum(info.file_size for info in infos)
    if total > size:
        raise PlanFileError(f"its members declare {total} bytes, the file has {size}")


def _read_names(meta: dict[str, Any]) -> tuple[str, ...]:
    names = _member(meta, "sequence_names", list) if "sequence_names" in meta else []
    return tuple(_member({"sequence_names": name}, "sequence_names", str) for name in names)


def _read_tables(
    members: dict[str, bytes], meta: dict[str, Any], limit_bytes: int, *, is_foreign: bool
) -> dict[str, Columns]:
    found = _member(meta, "tables", dict)
    names = [name for name in TABLES if name not in OPTIONAL_TABLES or name in found]
    missing = [name for name in names if f"{name}.arrow" not in members]
    if missing:
        raise PlanFileError(f"expected {missing[0]}.arrow inside, it is missing; {_AGAIN}")
    parts = {name: members[f"{name}.arrow"] for name in names}
    rows = {name: _member(found, name, int) for name in names}
    is_grouped = "head_groups" in meta
    if is_foreign:
        return decode_foreign(parts, rows, limit_bytes, is_grouped=is_grouped)
    return {
        name: decode_table(name, parts[name], rows[name], limit_bytes, is_grouped=is_grouped)
        for name in names
    }


def _read_meta(data: bytes) -> dict[str, Any]:
    try:
        meta = json.loads(data, object_pairs_hook=_printable)
    except (ValueError, RecursionError) as error:
        raise PlanFileError(f"{_META}: expected JSON, got: {error}; {_AGAIN}") from error
    if not isinstance(meta, dict):
        raise PlanFileError(f"{_META}: expected a JSON object, got {type(meta).__name__}")
    if meta.get("schema") != SCHEMA:
        raise PlanFileError(f"expected schema {SCHEMA!r}, got {meta.get('schema')!r:.60}; {_AGAIN}")
    return meta


def _printable(pairs: list[tuple[str, Any]]) -> dict[str, Any]:  # Any: JSON values
    """Spell out control characters in the texts of an object, and of the lists in it.

    JSON calls this for every object, the innermost first. So no text of a file can move the cursor
    of a terminal that shows it.
    """

    def clean(value: Any) -> Any:
        if isinstance(value, list):
            return list(map(clean, value))
        return printable(value) if isinstance(value, str) else value

    return {printable(name): clean(value) for name, value in pairs}


def _member(values: object, key: str, kind: type) -> Any:  # Any: checked to be a `kind`
    value = values.get(key) if isinstance(values, dict) else None
    # True is an int to Python; all whole numbers of a file count something.
    is_wrong_number = (
        isinstance(value, int) and kind is int and (isinstance(value, bool) or value < 0)
    )
    if not isinstance(value, kind) or is_wrong_number:
        raise PlanFileError(f"{_META}: expected {key!r} as {kind.__name__}, got {value!r:.60}")
    return value


def _record(cls: type[_Record], values: dict[str, Any]) -> _Record:
    kinds: dict[object, type] = {kind: kind for kind in (int, float, str, bool)}
    kinds |= {float | None: float, int | None: int, MessageOrder: str, PortSharing | None: str}
    given: dict[str, Any] = {}
    for field in fields(cls):
        value = values.get(field.name)
        if field.name not in FIRST_FIELDS and field.name not in values:
            continue  # a file names such a field only where it is not the default
        if field.name == "devices":
            given["devices"] = devices_of_json(value)
            continue
        if field.name == "slow_ports":
            given["slow_ports"] = value  # the cluster checks it
            continue
        kind = kinds[field.type]
        if value is None and field.default is None:
            given[field.name] = None
            continue
        # JSON of other writers has 1 for 1.0.
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        given[field.name] = _member({field.name: value}, field.name, kind)
    return cls(**given)


def _read_warning(values: object) -> PlanWarning:
    code, message = (_member(values, key, str) for key in ("code", "message"))
    if code not in get_args(WarningCode):
        raise PlanFileError(
            f"{_META}: expected the code of a warning, one of {', '.join(get_args(WarningCode))}, "
            f"got {code!r:.60}"
        )
    return PlanWarning(code, message)


def _provenance_json(source: Provenance | None) -> dict[str, Any] | None:
    if source is None:
        return None
    found = asdict(source) | {"files": dict(source.files)}
    return found if len(json.dumps(found, indent=1)) <= _SOURCE_LIMIT_BYTES else None


def _read_provenance(meta: dict[str, Any]) -> Provenance | None:
    if meta.get("provenance") is None:
        return None
    values = _member(meta, "provenance", dict)
    samples = _member(values, "samples", list)
    files = _member(values, "files", dict) if "files" in values else {}
    texts = {key: _member(values, key, str) for key in ("spec", "mask", "origin")}
    held = tuple((path, _member(files, path, str)) for path in files)
    return Provenance(samples=tuple(str(sample) for sample in samples), files=held, **texts)
