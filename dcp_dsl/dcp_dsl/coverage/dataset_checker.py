"""Check a whole data set against the `for` statements of a spec, file by file, in batches."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from dcp_dsl.arrays import Ints
from dcp_dsl.core.sample import Sample
from dcp_dsl.coverage.report import DatasetCoverage, Distribution, StatementCoverage
from dcp_dsl.coverage.row_checker import RefusedRow, RowChecker
from dcp_dsl.data.sources import Source, find_sources
from dcp_dsl.errors import DatasetError
from dcp_dsl.specs.attachment import Attachment, match_files
from dcp_dsl.specs.spec import Spec
from dcp_dsl.syntax import ast
from dcp_dsl.syntax.diagnostics import SpecError

DENSITY_ROWS = 200  # bound to measure densities; a millisecond each
MAX_REFUSED = 1000  # kept with their columns

Progress = Callable[[int], None]


def check_dataset(spec: Spec, path: str, progress: Progress | None = None) -> DatasetCoverage:
    """Decide for every row of a data set whether it may be trained on, and measure it.

    Args:
        spec: with `for` statements; the first that matches a file takes its rows.
        path: see `find_sources`.
        progress: called with the number of rows done since the last call.

    Raises:
        DatasetError: if the data set cannot be read.
        SpecError: if a `for` statement cannot be compiled.
    """
    sources = find_sources(path)
    taken: dict[int, list[Source]] = {}
    unmatched = []
    statements, numbers = match_files(spec.scope, [(s.name, s.columns) for s in sources])
    for source, found in zip(sources, numbers, strict=True):
        if found is None:
            unmatched.append((source.name, source.num_rows, tuple(source.columns)))
        else:
            taken.setdefault(found, []).append(source)
    covered = [
        _Statement(spec, statements[index], chosen).check(progress or _ignore)
        for index, chosen in sorted(taken.items())
    ]
    return DatasetCoverage(path, tuple(covered), tuple(unmatched))


def count_rows(path: str) -> int:
    """Return the rows of a data set without reading them, where its format allows that."""
    return sum(source.num_rows for source in find_sources(path))


def _ignore(_: int) -> None:
    pass


@dataclass(slots=True)
class _Statement:
    """Collects the findings in the sources of one `for` statement."""

    spec: Spec
    statement: ast.Attach
    sources: list[Source]
    attachment: Attachment | None = None
    lengths: list[Ints] = field(default_factory=list)
    densities: dict[str, list[float]] = field(default_factory=dict)
    refused: list[RefusedRow] = field(default_factory=list)
    num_refused: int = 0
    problems: list[str] = field(default_factory=list)
    is_causal_proved: bool = True
    is_total_proved: bool = True

    def check(self, progress: Progress) -> StatementCoverage:
        """Read and decide all rows."""
        total = sum(source.num_rows for source in self.sources)
        stride = max(1, -(-total // DENSITY_ROWS))
        at = 0
        for source in self.sources:
            try:
                attachment = self.spec.attachment(source.name, source.columns)
                checker = RowChecker(attachment, source)
            except DatasetError as error:
                self.problems.append(str(error))
                self.num_refused += source.num_rows
                progress(source.num_rows)
                continue
            self.attachment = attachment
            self._check_source(checker, at, stride, progress)
            at += source.num_rows
        return self._report()

    def _check_source(self, checker: RowChecker, at: int, stride: int, progress: Progress) -> None:
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
            progress(batch.num_rows)

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
            line=text.count("\n", 0, self.statement.span.start) + 1,
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
        )
