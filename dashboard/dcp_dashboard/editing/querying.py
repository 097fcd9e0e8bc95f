"""SQL over the events of a plan's traces: their table, and one SELECT that DuckDB runs on it.

Anybody may have written the statement. A worker process with a time limit runs it, in a DuckDB that
opens no file, loads no extension and lets nobody change its settings.
"""

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from dcp_dashboard.api.devices import MAX_EVENTS
from dcp_dashboard.facts.traces import event_table
from dcp_dashboard.library.folder import DashboardError
from dcp_dashboard.library.plans import LoadedPlan
from dcp_dsl.extras import install_line

MAX_ROWS, MAX_COLUMNS, MAX_LETTERS = 1_000, 50, 200
"""Most that a page is shown of a result: rows, columns, letters of a cell."""

SETTINGS: dict[str, str | bool | int | float | list[str]] = {
    "enable_external_access": False,  # no COPY, no ATTACH, no file, no variable of Python (LOG.md)
    "temp_directory": "",  # a query that fills the memory fails, without a spill to disk
    "memory_limit": "1GB",  # below the limit of the process, so that DuckDB says it in words
    "threads": 1,
    "lock_configuration": True,  # no SET changes any of these
}

READY = {
    "Longest waits by peer": """SELECT wait.source, wait.device, message.peer, count(*) AS waits,
  sum(wait.duration_ns) / 1e3 AS microseconds
FROM (FROM events WHERE lane = 'wait') AS wait
ASOF JOIN (FROM events WHERE lane IN ('send', 'receive')) AS message
  ON wait.source = message.source AND wait.device = message.device
  AND wait.direction = message.direction AND wait.end_ns >= message.end_ns
WHERE message.end_ns > wait.start_ns
GROUP BY ALL ORDER BY microseconds DESC""",
    "Bytes by link": """SELECT source, node, peer_node, device, peer, count(*) AS messages,
  sum(bytes) AS bytes
FROM events WHERE lane = 'send'
GROUP BY ALL ORDER BY bytes DESC, source, device, peer""",
    "Idle time by device": """SELECT source, device,
  (max(max(end_ns)) OVER (PARTITION BY source)
    - coalesce(sum(duration_ns) FILTER (WHERE lane = 'compute'), 0)) / 1e3 AS microseconds
FROM events
GROUP BY source, device ORDER BY microseconds DESC""",
    "Time by kind and division": """SELECT source, direction, division, kind, count(*) AS events,
  sum(duration_ns) / 1e3 AS microseconds
FROM events
GROUP BY ALL ORDER BY source, direction DESC, division, kind""",
}
"""Statements that a page offers, by their names."""


def events_arrow(loaded: LoadedPlan) -> bytes:
    """Return the table ``events`` of all traces of a plan, as an Arrow stream; O(E).

    Raises:
        DashboardError: if there are more than `MAX_EVENTS`.
    """
    size = sum(map(len, loaded.traces.values()))
    if size > MAX_EVENTS:
        raise DashboardError(
            f"expected at most {MAX_EVENTS} events for SQL, got {size}; take them as CSV"
        )
    node = loaded.plan.cluster.node_of_device
    tables = []
    for trace in loaded.traces.values():
        peer = trace.peer
        of = event_table(trace, np.arange(len(trace)))
        of = of.append_column("node", pa.array(node[trace.device]))
        # A peer of -1 reads the node of the last device; the mask makes it null.
        tables.append(of.append_column("peer_node", pa.array(node[peer], mask=peer < 0)))
    table = pa.concat_tables(tables)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return sink.getvalue().to_pybytes()


def run_query(request: dict[str, Any]) -> dict[str, Any]:
    """Run the statement ``sql`` of a request on the table ``events``, its ``blob``.

    Returns:
        ``columns``: name and `isNumber` of each; ``rows``: lists of texts, at most `MAX_ROWS`;
        ``isCut``: whether there are more.

    Raises:
        DashboardError: if it is no SELECT, DuckDB refuses it, or DuckDB is not installed.
    """
    try:
        import duckdb
    except ModuleNotFoundError:
        raise DashboardError(
            f"SQL needs the library 'duckdb', which is not installed; {install_line('sql')}"
        ) from None
    sql = str(request.get("sql", ""))
    try:
        with duckdb.connect(":memory:", config=SETTINGS) as database:
            database.register("events", pa.ipc.open_stream(request["blob"]).read_all())
            # DuckDB would run every statement of a text, settings included.
            statements = database.extract_statements(sql)
            kinds = [statement.type.name for statement in statements]
            if kinds != ["SELECT"]:
                raise DashboardError(
                    f"expected one SELECT, got {' and '.join(kinds) or 'nothing'}; the table is "
                    "called events"
                )
            # One row more than is shown tells whether there are more.
            found = database.sql(sql).limit(MAX_ROWS + 1)
            names = found.columns
            if len(names) > MAX_COLUMNS:
                raise DashboardError(
                    f"expected at most {MAX_COLUMNS} columns, got {len(names)}; name fewer"
                )
            rows = found.fetchall()
    except (duckdb.Error, MemoryError) as error:
        raise DashboardError(str(error) or "out of memory; ask for less") from None
    shown = rows[:MAX_ROWS]
    columns = [
        {"name": name, "isNumber": all(isinstance(row[at], _NUMBERS) for row in shown)}
        for at, name in enumerate(names)
    ]
    texts = [[_text(value) for value in row] for row in shown]
    return {"columns": columns, "rows": texts, "isCut": len(rows) > MAX_ROWS}


_NUMBERS = (int, float, Decimal, type(None))
"""Python's types of numbers in SQL; a column may have nulls among them."""


def _text(value: Any) -> str:  # Any: whatever SQL has
    if value is None:
        return ""
    text = f"{value:.9g}" if isinstance(value, float) else str(value)
    return text if len(text) <= MAX_LETTERS else f"{text[: MAX_LETTERS - 1]}…"
