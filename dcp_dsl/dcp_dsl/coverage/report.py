"""Report what `dcpm check --dataset` found: as values, as JSON and in words.

Numbers such as lengths are shown in their distribution over the rows.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcp_dsl.coverage.row_checker import RefusedRow

BARS = "▁▂▃▄▅▆▇█"
MAX_BINS = 12
SHOWN_ROWS = 10


@dataclass(frozen=True, slots=True)
class Distribution:
    """The spread of some values.

    Attributes:
        count: how many values.
        smallest, median, mean, largest: of them; 0 without values.
        total: their sum.
        edges: ``B + 1`` borders of equally wide bins, on a logarithmic scale for lengths.
        bins: ``B`` counts.
    """

    count: int
    smallest: float
    median: float
    mean: float
    largest: float
    total: float
    edges: tuple[float, ...]
    bins: tuple[int, ...]

    @classmethod
    def of(cls, values: "NDArray[Any]", *, is_logarithmic: bool = False) -> "Distribution":
        """Describe values; the bins of a logarithmic scale double.

        >>> Distribution.of(np.array([1, 2, 3, 9]), is_logarithmic=True).bins
        (1, 2, 0, 1)
        """
        if not len(values):
            return cls(0, 0, 0, 0, 0, 0, (), ())
        edges = _doubling(values) if is_logarithmic else _even(values)
        bins, _ = np.histogram(values, edges)
        return cls(
            len(values), values.min().item(), float(np.median(values)), float(values.mean()),
            values.max().item(), values.sum().item(), tuple(edges.tolist()), tuple(bins.tolist()),
        )  # fmt: skip

    def bars(self) -> str:
        """Draw the bins as bars of eight heights; a bin with any value in it shows one."""
        most = max(self.bins, default=0)
        return "".join(
            " " if not count else BARS[min(7, 8 * count // (most + 1))] for count in self.bins
        )

    def to_json(self) -> dict[str, Any]:  # Any: numbers, ready for json.dumps
        """Return all fields but the total of shares."""
        return {
            "count": self.count, "min": self.smallest, "median": self.median, "mean": self.mean,
            "max": self.largest, "total": self.total, "edges": list(self.edges),
            "bins": list(self.bins),
        }  # fmt: skip


def _doubling(values: "NDArray[Any]") -> NDArray[Any]:
    first = int(np.log2(max(1, values.min())))
    last = int(np.log2(max(1, values.max()))) + 1
    step = -(-(last - first) // MAX_BINS)
    edges = 2.0 ** np.arange(first, last + step, step)
    edges[0] = min(edges[0], values.min())
    return edges


def _even(values: "NDArray[Any]") -> NDArray[np.float64]:
    low, high = float(values.min()), float(values.max())
    return np.linspace(low, high, 9) if high > low else np.array([low, low + 1])


@dataclass(frozen=True, slots=True)
class StatementCoverage:
    """The rows that one `for` statement took.

    Attributes:
        statement: its text.
        line: where it stands in the spec.
        masks: calls of the attached masks.
        sources: files or splits, with their rows.
        lengths: tokens of the accepted rows.
        densities: pairs / tokens² by mask, of some accepted rows spread evenly.
        is_causal_proved, is_total_proved: proved for every sample, so not decided row by row.
        num_refused: rows that must not be trained on.
        refused: the first of them.
        problems: why whole sources are refused.
    """

    statement: str
    line: int
    masks: tuple[str, ...]
    sources: tuple[tuple[str, int], ...]
    lengths: Distribution
    densities: dict[str, Distribution]
    is_causal_proved: bool
    is_total_proved: bool
    num_refused: int
    refused: tuple[RefusedRow, ...]
    problems: tuple[str, ...]

    @property
    def num_rows(self) -> int:
        """Rows of all its sources."""
        return sum(rows for _, rows in self.sources)


@dataclass(frozen=True, slots=True)
class DatasetCoverage:
    """A data set under a spec.

    Attributes:
        path: the data set.
        statements: by their place in the spec, those that took rows.
        unmatched: files or splits that no statement matches: (name, rows, columns).
    """

    path: str
    statements: tuple[StatementCoverage, ...]
    unmatched: tuple[tuple[str, int, tuple[str, ...]], ...]

    @property
    def num_rows(self) -> int:
        """All rows."""
        return sum(s.num_rows for s in self.statements) + sum(rows for _, rows, _ in self.unmatched)

    @property
    def num_refused(self) -> int:
        """Rows that are refused or match nothing."""
        matched = sum(s.num_refused for s in self.statements)
        return matched + sum(rows for _, rows, _ in self.unmatched)

    def to_json(self) -> dict[str, Any]:  # Any: a JSON document
        """Return the document that `dcpm check --dataset --json` prints."""
        return {
            "schema": "dcp.dataset/1",
            "dataset": self.path,
            "rows": self.num_rows,
            "refused": self.num_refused,
            "statements": [_statement_json(s) for s in self.statements],
            "unmatched": [
                {"source": name, "rows": rows, "columns": list(columns)}
                for name, rows, columns in self.unmatched
            ],
        }

    def text(self) -> str:
        """Return the report in words."""
        lines = [f"{self.path}: {_count(self.num_rows, 'row')}"]
        for statement in self.statements:
            lines += ["", *_statement_lines(statement)]
        for name, rows, columns in self.unmatched:
            have = ", ".join(columns) or "none"
            lines += ["", f"no statement matches {name}: {_count(rows, 'row')} (columns: {have})"]
        return "\n".join(lines)


def _statement_json(statement: StatementCoverage) -> dict[str, Any]:  # Any: as above
    return {
        "statement": statement.statement,
        "line": statement.line,
        "masks": list(statement.masks),
        "sources": [{"source": name, "rows": rows} for name, rows in statement.sources],
        "rows": statement.num_rows,
        "refused": statement.num_refused,
        "lengths": statement.lengths.to_json(),
        "densities": {call: d.to_json() for call, d in statement.densities.items()},
        "proved": {"causal": statement.is_causal_proved, "total": statement.is_total_proved},
        "problems": list(statement.problems),
        "refused_rows": [
            {"source": r.source, "row": r.row, "columns": dict(r.columns), "reason": r.reason}
            for r in statement.refused
        ],
    }


def _statement_lines(statement: StatementCoverage) -> Iterator[str]:
    yield f"line {statement.line}: {statement.statement}"
    refused = f", {statement.num_refused:,} refused" if statement.num_refused else ""
    sources = _count(len(statement.sources), "source")
    yield f"  rows     {statement.num_rows:,} of {sources}{refused}"
    if statement.lengths.count:
        yield f"  lengths  {_lengths(statement.lengths)}"
    for call, density in statement.densities.items():
        yield f"  density  {_density(density)}  {call}"
    yield f"  checked  {_proved(statement)}"
    for problem in statement.problems:
        yield f"  refused  {problem}"
    for row in statement.refused[:SHOWN_ROWS]:
        yield f"  refused  row {row.row} of {row.source}: {row.reason}"
        shown = ", ".join(f"{name} = {_short(value)}" for name, value in row.columns.items())
        if shown:
            yield f"           with {shown}"
    shown_rows = min(SHOWN_ROWS, len(statement.refused))
    more = statement.num_refused - shown_rows
    if more > 0 and shown_rows:
        yield f"           and {_count(more, 'more row')}"


def _lengths(lengths: Distribution) -> str:
    return (
        f"{int(lengths.total):,} tokens; {int(lengths.smallest):,} to {int(lengths.largest):,}, "
        f"median {int(lengths.median):,}  {lengths.bars()}"
    )


def _density(density: Distribution) -> str:
    low, middle, high = (
        f"{100 * part:.3g} %" for part in (density.smallest, density.median, density.largest)
    )
    return f"{low} to {high}, median {middle} in {_count(density.count, 'row')}  {density.bars()}"


def _proved(statement: StatementCoverage) -> str:
    said = []
    for what, is_proved in (
        ("no look-ahead", statement.is_causal_proved),
        ("every token sees something", statement.is_total_proved),
    ):
        said.append(f"{what} {'(proved)' if is_proved else '(decided for these rows)'}")
    return ", ".join([*said, "layouts fill every row"])


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _short(value: Any) -> str:  # Any: an integer or nested lists of them
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."
