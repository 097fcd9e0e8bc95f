"""Check a whole data set against the `for` statements of a spec, file by file, in batches.

The report is a value that prints itself as JSON or as text. It shows how numbers such as lengths
are distributed over the rows.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcp_dsl.arrays import Ints
from dcp_dsl.core.sample import Sample
from dcp_dsl.coverage.row_checker import RefusedRow, RowChecker
from dcp_dsl.coverage.unread_columns import unread_columns
from dcp_dsl.data.sources import Source, find_sources
from dcp_dsl.errors import DatasetError
from dcp_dsl.specs.attachment import Attachment, match_files
from dcp_dsl.specs.spec import Spec
from dcp_dsl.syntax import ast
from dcp_dsl.syntax.diagnostics import SpecError

BARS = "▁▂▃▄▅▆▇█"
MAX_BINS = 12  # of a logarithmic scale
SHOWN_ROWS = 10  # refused rows that the text lists


@dataclass(frozen=True, slots=True)
class Distribution:
    """The distribution of some values; all 0 without any.

    `edges` are ``B + 1`` borders of equally wide bins, on a logarithmic scale for lengths; `bins`
    their ``B`` counts.
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
        """Describe values; on a logarithmic scale the borders of bins are powers of two."""
        if not len(values):
            return cls(0, 0, 0, 0, 0, 0, (), ())
        edges = _doubling(values) if is_logarithmic else _even(values)
        bins, _ = np.histogram(values, edges)
        return cls(
            len(values), values.min().item(), float(np.median(values)), float(values.mean()),
            values.max().item(), values.sum().item(), tuple(edges.tolist()), tuple(bins.tolist()),
        )  # fmt: skip

    def bars(self) -> str:
        """Draw the bins as bars of eight heights; a bin with any value shows a bar."""
        # Divided by most + 1, so that the fullest bin stays among the heights 0 to 7.
        most = max(self.bins, default=0)
        return "".join(
            " " if not count else BARS[min(7, 8 * count // (most + 1))] for count in self.bins
        )

    def to_json(self) -> dict[str, Any]:  # Any: numbers, ready for json.dumps
        """Return all fields."""
        return {
            "count": self.count, "min": self.smallest, "median": self.median, "mean": self.mean,
            "max": self.largest, "total": self.total, "edges": list(self.edges),
            "bins": list(self.bins),
        }  # fmt: skip


def _doubling(values: "NDArray[Any]") -> NDArray[Any]:
    """Return powers of two around the values, or of 4, 8, ... where these are too many bins."""
    first = int(np.log2(max(1, values.min())))
    last = int(np.log2(max(1, values.max()))) + 1
    step = -(-(last - first) // MAX_BINS)
    edges = 2.0 ** np.arange(first, last + step, step)
    # A length of 0 lies below every power of two: the first bin takes it, too.
    edges[0] = min(edges[0], values.min())
    return edges


def _even(values: "NDArray[Any]") -> NDArray[np.float64]:
    """Return the borders of eight bins, or of one where all values are equal."""
    low, high = float(values.min()), float(values.max())
    return np.linspace(low, high, 9) if high > low else np.array([low, low + 1])


@dataclass(frozen=True, slots=True)
class StatementCoverage:
    """The rows that one `for` statement took.

    `densities` are pairs / tokens² by mask, of accepted rows at even distances. What is proved for
    every sample is not decided row by row. `refused` are the first `MAX_REFUSED` rows; `problems`
    refuse whole sources.
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
    warnings: tuple[str, ...] = ()

    @property
    def num_rows(self) -> int:
        """Rows of all its sources."""
        return sum(rows for _, rows in self.sources)


@dataclass(frozen=True, slots=True)
class DatasetCoverage:
    """A data set under a spec: the statements that took rows, in the order of the spec.

    `unmatched` are files or splits that no statement matches: (name, rows, columns).
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
        "warnings": list(statement.warnings),
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
    for warning in statement.warnings:
        yield f"  warning  {warning}"
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
    low, middle, high = (
        f"{int(length):,}" for length in (lengths.smallest, lengths.median, lengths.largest)
    )
    total = _count(int(lengths.total), "token")
    return f"{total}; {low} to {high}, median {middle}  {lengths.bars()}"


def _density(density: Distribution) -> str:
    low, middle, high = (
        f"{100 * part:.3g} %" for part in (density.smallest, density.median, density.largest)
    )
    return f"{low} to {high}, median {middle} in {_count(density.count, 'row')}  {density.bars()}"


def _proved(statement: StatementCoverage) -> str:
    causal, total = (
        "(proved)" if is_proved else "(decided for these rows)"
        for is_proved in (statement.is_causal_proved, statement.is_total_proved)
    )
    return f"no look-ahead {causal}, every token sees something {total}, layouts fill every row"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _short(value: Any) -> str:  # Any: an integer, None, or nested lists of them
    text = str(value).replace("None", "null")
    return text if len(text) <= 60 else text[:57] + "..."


DENSITY_ROWS = 200  # rows whose density is measured, which binds their masks: a millisecond each
MAX_REFUSED = 1000  # refused rows that are kept with their columns

Progress = Callable[[int, int], None]
"""Told how many rows there are to check in all, and how many are done since the last call."""


def check_dataset(spec: Spec, path: str, progress: Progress | None = None) -> DatasetCoverage:
    """Decide for every row of a data set whether it may be trained on, and measure lengths.

    The first `for` statement that matches a file takes its rows. `progress` is called for each
    batch.
    """
    sources = find_sources(path)
    taken: dict[int, list[Source]] = {}  # by the number of the statement
    unmatched = []
    statements, numbers = match_files(spec.scope, [(s.name, s.columns) for s in sources])
    for source, found in zip(sources, numbers, strict=True):
        if found is None:
            unmatched.append((source.name, source.num_rows, tuple(source.columns)))
        else:
            taken.setdefault(found, []).append(source)
    total = sum(source.num_rows for chosen in taken.values() for source in chosen)
    done = partial(progress or (lambda _, __: None), total)
    covered = [
        _Statement(spec, statements[index], chosen, done).check()
        for index, chosen in sorted(taken.items())
    ]
    return DatasetCoverage(path, tuple(covered), tuple(unmatched))


@dataclass(slots=True)
class _Statement:
    """Collects the findings in the sources of one `for` statement."""

    spec: Spec
    statement: ast.Attach
    sources: list[Source]
    done: Callable[[int], None]
    attachment: Attachment | None = None
    lengths: list[Ints] = field(default_factory=list)
    densities: dict[str, list[float]] = field(default_factory=dict)
    refused: list[RefusedRow] = field(default_factory=list)
    num_refused: int = 0
    problems: list[str] = field(default_factory=list)
    warnings: dict[str, None] = field(default_factory=dict)  # each once
    is_causal_proved: bool = True
    is_total_proved: bool = True

    def check(self) -> StatementCoverage:
        """Read and decide all rows."""
        total = sum(source.num_rows for source in self.sources)
        # Densities of rows at even distances: data sets may be sorted, so the first rows alone say
        # little about the rest.
        stride = max(1, -(-total // DENSITY_ROWS))
        at = 0
        for source in self.sources:
            try:
                attachment = self.spec.attachment(source.name, source.columns)
                checker = RowChecker(attachment, source)
            except DatasetError as error:  # a column is missing or has another type in every row
                self.problems.append(str(error))
                self.num_refused += source.num_rows
                self.done(source.num_rows)
                continue
            self.attachment = attachment
            self.warnings |= dict.fromkeys(unread_columns(attachment, source))
            self._check_source(checker, at, stride)
            at += source.num_rows
        return self._report()

    def _check_source(self, checker: RowChecker, at: int, stride: int) -> None:
        """Check the rows of a source; `at` counts the statement's rows before it."""
        self.is_causal_proved &= checker.guard.is_causal_proved
        self.is_total_proved &= checker.guard.is_total_proved
        first = 0
        for batch in checker.source.batches(checker.columns):
            wanted = (at + first + np.arange(batch.num_rows)) % stride == 0
            found = checker.check(batch, first, wanted)
            self.lengths.append(found.lengths)
            self.num_refused += len(found.refused)
            self.refused += found.refused[: MAX_REFUSED - len(self.refused)]
            for sample in found.samples:
                self._measure(checker.attachment, sample)
            first += batch.num_rows
            self.done(batch.num_rows)

    def _measure(self, attachment: Attachment, sample: Sample) -> None:
        for mask in attachment.masks:
            try:
                pairs = mask.compile(sample).num_pairs
            except (DatasetError, SpecError):  # too large to bind; the row itself is fine
                continue
            self.densities.setdefault(mask.call, []).append(pairs / max(1, sample.length) ** 2)

    def _report(self) -> StatementCoverage:
        text = self.spec.source
        lengths = np.concatenate([np.empty(0, np.int64), *self.lengths])
        masks = () if self.attachment is None else self.attachment.masks
        return StatementCoverage(
            statement=" ".join(self.statement.span.text(text).split()),
            line=self.statement.span.line(text),
            masks=tuple(mask.call for mask in masks),
            sources=tuple((source.name, source.num_rows) for source in self.sources),
            lengths=Distribution.of(lengths, is_logarithmic=True),
            densities={
                call: Distribution.of(np.array(values)) for call, values in self.densities.items()
            },
            is_causal_proved=self.is_causal_proved,
            is_total_proved=self.is_total_proved,
            num_refused=self.num_refused,
            refused=tuple(self.refused),
            problems=tuple(self.problems),
            warnings=tuple(self.warnings),
        )
