"""Read and write clusters as files: presets, and files by a person or by `dcpm calibrate`.

A TOML file holds the fields of `Cluster` by their names, and a table ``[sources]`` that says for
each constant where it comes from; a file whose name ends in ``.json`` holds the same as one object:

    schema = "dcp.cluster/1"
    name = "mine"
    nodes = 2
    devices_per_node = 8
    flops_per_s = 600e12
    intra_bytes_per_s = 360e9
    inter_bytes_per_s = 47e9
    latency_s = 12e-6
    memory_bytes = 80_000_000_000

    [sources]
    flops_per_s = "measured on the 3rd of May"

Nodes that are not equal are listed instead of counted: ``devices = [[1, 1, 1, 0.8], [1, 1, 1]]``.
"""

import json
import os
import re
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from dcp_dsl import printable
from dcp_dsl.files import replacing
from dcp_planner.errors import ClusterError, nearest
from dcp_planner.model.cluster import Cluster, devices_of_json

SCHEMA = "dcp.cluster/1"
PRESETS = (
    "a100-p4de", "h100-dgx", "h200-dgx", "b200-dgx", "gb200-nvl72", "mi300x", "cpu-gloo",
)  # fmt: skip
"""Names of the clusters in this package; `preset` reads them."""
LIMIT_BYTES = 1 << 16
"""Most bytes of a cluster file."""

# Seven digits reach beyond `MOST_NODES`: `Cluster` names the field that is too large.
_SIZE = re.compile(r"(\d{1,7})x(\d{1,7})")
_NAMES = tuple(field.name for field in fields(Cluster))
# `Cluster` has an A100's values for these; a file that omits one must not get it by accident.
_REQUIRED = (
    "nodes", "devices_per_node", "flops_per_s", "intra_bytes_per_s", "inter_bytes_per_s",
    "latency_s", "memory_bytes",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ClusterFile:
    """Content of a cluster file."""

    cluster: Cluster  # the constants
    sources: Mapping[str, str]  # where each constant comes from, by its name; may lack some


def preset(name: str, nodes: int | None = None, devices_per_node: int | None = None) -> Cluster:
    """Return a preset, with other numbers of nodes and devices if wanted.

    Rates between nodes are per device, so they stay when a node has fewer devices.

    Raises:
        ClusterError: if there is no such preset, or the size is out of range.

    >>> preset("h100-dgx", 2, 8).num_devices
    16
    """
    return _resized(preset_file(name).cluster, nodes, devices_per_node)


def preset_file(name: str) -> ClusterFile:
    """Return a preset together with the sources of its constants."""
    if name not in PRESETS:
        raise ClusterError(
            f"unknown cluster preset {name!r}; expected one of {', '.join(PRESETS)}"
            f"{nearest(name, PRESETS)}"
        )
    text = (files("dcp_planner.model") / "clusters" / f"{name}.toml").read_text(encoding="utf-8")
    return parse_cluster(text, f"preset {name}")


def find_cluster(text: str) -> Cluster:
    """Return the cluster that a command line names: ``NxD``, a preset or a file.

    ``:NxD`` behind a preset or a file changes its size. ``4x8`` alone means 4 nodes of 8 devices of
    the preset `a100-p4de`.

    Raises:
        ClusterError: if nothing has that name, or its content makes no sense.

    >>> find_cluster("h200-dgx:8x8").num_devices, find_cluster("2x4").name
    (64, 'a100-p4de')
    """
    if match := _SIZE.fullmatch(text):
        return preset("a100-p4de", int(match[1]), int(match[2]))
    # From the right: the name of a file may hold colons of its own.
    name, _, size = text.rpartition(":")
    match = _SIZE.fullmatch(size)
    if not name or not match:
        name, match = text, None
    wanted = (int(match[1]), int(match[2])) if match else (None, None)
    if name in PRESETS:
        return preset(name, *wanted)
    # Not Path.exists, which raises for long names.
    if name.endswith((".toml", ".json")) or os.path.exists(name):
        return _resized(read_cluster(name).cluster, *wanted)
    raise ClusterError(
        f"unknown cluster {text!r}; expected NODESxDEVICES such as 4x8, a preset "
        f"({', '.join(PRESETS)}) or a .toml or .json file, the last two also with :4x8 behind"
        f"{nearest(name, PRESETS)}"
    )


def read_cluster(path: str | Path) -> ClusterFile:
    """Read a cluster file."""
    path = Path(path)
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # a pipe would never end
            raise ClusterError(f"{path}: expected a regular file, got something else")
        with path.open("rb") as file:
            # One byte above the limit shows that a file is too large, however long it is.
            data = file.read(LIMIT_BYTES + 1)
        if len(data) > LIMIT_BYTES:
            raise ClusterError(
                f"{path}: expected at most {LIMIT_BYTES} bytes, got {status.st_size}"
            )
        text = data.decode()
    except FileNotFoundError:
        raise ClusterError(
            f"{path}: there is no such file; write one with `dcpm calibrate --out {path}`"
        ) from None
    except UnicodeDecodeError as error:
        raise ClusterError(f"{path}: expected UTF-8 text, byte {error.start} is invalid") from None
    except OSError as error:
        raise ClusterError(f"{path}: cannot be read: {error.strerror or error}") from error
    return parse_cluster(text, str(path), name=path.stem, is_json=path.suffix == ".json")


def parse_cluster(text: str, where: str, name: str = "", *, is_json: bool = False) -> ClusterFile:
    """Parse the text of a cluster file, TOML or JSON; `where` names it in messages.

    The cluster is called `name` if the text gives none.
    """
    language = "JSON" if is_json else "TOML"
    try:
        values = json.loads(text) if is_json else tomllib.loads(text)
        repr(values)  # hexadecimal numbers of TOML may be longer than Python prints in a message
    except (ValueError, RecursionError) as error:  # both decoders' errors are ValueErrors
        raise ClusterError(f"{where}: expected {language}, got: {error}") from None
    if not isinstance(values, dict):
        raise ClusterError(f"{where}: expected a JSON object, got {values!r:.60}")
    schema, sources = values.pop("schema", SCHEMA), values.pop("sources", {})
    if schema != SCHEMA:
        raise ClusterError(f"{_at(text, where, 'schema')}: expected {SCHEMA!r}, got {schema!r:.60}")
    _count_devices(values, text, where)
    _check_keys(values, text, where)
    if not isinstance(sources, dict) or not all(isinstance(v, str) for v in sources.values()):
        raise ClusterError(f"{where}: expected [sources] to map keys to texts, got {sources!r:.60}")
    for key in sources:
        if key not in _NAMES:
            raise ClusterError(f"{where}: [sources]: unknown key {key!r:.60}{nearest(key, _NAMES)}")
    given: dict[str, Any] = {"name": name or "unnamed", "source": where} | values
    # Tables print both, and a file of a stranger may hold control characters.
    given |= {key: printable(given[key]) for key in ("name", "source")}
    memory = given["memory_bytes"]
    if isinstance(memory, float) and memory.is_integer():  # 80e9 is a whole number to people
        given["memory_bytes"] = int(memory)
    try:
        return ClusterFile(Cluster(**given), sources)
    except ClusterError as error:
        raise ClusterError(f"{_at(text, where, error.key)}: {error}", error.key) from None


def write_cluster(path: str | Path, cluster: Cluster, sources: Mapping[str, str]) -> None:
    """Write a cluster file that `read_cluster` reads back as the same cluster.

    The file appears under its name only when it is complete.

    Raises:
        ClusterError: if it cannot be written.
    """
    with replacing(path, ClusterError) as draft:
        draft.write_text(format_cluster(cluster, sources), encoding="utf-8")


def format_cluster(cluster: Cluster, sources: Mapping[str, str]) -> str:
    """Return the text of a cluster file: identity, then constants, then their sources."""
    lines = [f"schema = {_literal(SCHEMA)}"]
    names = dict.fromkeys(("name", "source", *_NAMES))  # these two first
    values = cluster.to_json()
    # TOML has no null: a constant that is None is left out, which reads as None again.
    given = {name: values[name] for name in names if values.get(name) is not None}
    lines += [f"{name} = {_literal(value)}" for name, value in given.items()]
    if sources:
        lines += ["", "[sources]"]
        lines += [f"{name} = {_literal(sources[name])}" for name in _NAMES if name in sources]
    return "\n".join(lines) + "\n"


def _literal(value: object) -> str:
    """Return a TOML literal; JSON strings are TOML strings, except for one control character."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_literal, value))}]"
    # The repr of a numpy float contains its type, so it becomes a float of Python first.
    return repr(float(value) if isinstance(value, float) else value)


def _resized(cluster: Cluster, nodes: int | None, devices_per_node: int | None) -> Cluster:
    if cluster.devices and (nodes is not None or devices_per_node is not None):
        raise ClusterError(
            f"{cluster.name} lists its devices one by one, so its size cannot be changed; name it "
            "without NODESxDEVICES, or change its `devices`",
            "devices",
        )
    if cluster.slow_ports and (nodes is not None or devices_per_node is not None):
        raise ClusterError(
            f"{cluster.name} names slow ports by device, so its size cannot be changed; name it "
            "without NODESxDEVICES, or leave out its `slow_ports`",
            "slow_ports",
        )
    nodes = cluster.nodes if nodes is None else nodes
    devices = cluster.devices_per_node if devices_per_node is None else devices_per_node
    return replace(cluster, nodes=nodes, devices_per_node=devices)


def _count_devices(values: dict[str, Any], text: str, where: str) -> None:
    """Read the devices that a file lists, and count them where the file does not."""
    if "devices" not in values:
        return
    try:
        values["devices"] = devices_of_json(values["devices"])
    except ClusterError as error:
        raise ClusterError(f"{_at(text, where, 'devices')}: {error}", "devices") from None
    values.setdefault("nodes", len(values["devices"]))
    values.setdefault("devices_per_node", max(map(len, values["devices"]), default=0))


def _check_keys(values: Mapping[str, object], text: str, where: str) -> None:
    for key, value in values.items():
        if key not in _NAMES:
            raise ClusterError(
                f"{_at(text, where, key)}: unknown key {key!r:.60}{nearest(key, _NAMES)}", key
            )
        if key in (
            "name",
            "source",
            "kernel_schedule",
            "message_order",
            "port_sharing",
        ) and not isinstance(value, str):
            raise ClusterError(
                f"{_at(text, where, key)}: {key}: expected a text, got {value!r:.60}", key
            )
    missing = [key for key in _REQUIRED if key not in values]
    if missing:
        raise ClusterError(
            f"{where}: expected {', '.join(_REQUIRED)}; {', '.join(missing)} missing", missing[0]
        )


def _at(text: str, where: str, key: str) -> str:
    """Return ``where:line`` of a key; only `where` if no line begins with the key."""
    for number, line in enumerate(text.splitlines(), 1):
        # `key =`, `[key]` and `key.x` of TOML, `"key":` of JSON.
        if re.match(rf"\s*[\[{{]*\s*[\"']?{re.escape(key)}[\"']?\s*[=.\]:]", line):
            return f"{where}:{number}"
    return where
