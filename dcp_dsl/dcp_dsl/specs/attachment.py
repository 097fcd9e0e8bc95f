"""Find the mask of a data set: `for "pattern" having a, b use MASK with new = column`."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from dcp_dsl.checks.scope import Scope
from dcp_dsl.claims.guard import Guard
from dcp_dsl.core.mask import Mask, build_mask, with_columns
from dcp_dsl.core.sample import Sample
from dcp_dsl.core.stack import Stack, build_stack
from dcp_dsl.errors import DatasetError, DCPError
from dcp_dsl.syntax import ast
from dcp_dsl.syntax.diagnostics import did_you_mean

_MOST_NAMED = 3  # files that a message names of each statement


@dataclass(frozen=True, slots=True)
class Attachment:
    """A mask, or a stack of masks, attached to a data set.

    Attributes:
        value: what the data set's samples are masked with.
        renames: the mask's column -> the data set's column, where they differ.
        where: the `for` statement, such as ``train.dcpm:9``; empty without one.
    """

    value: Mask | Stack
    renames: Mapping[str, str]
    where: str = field(default="", compare=False)

    @property
    def mask(self) -> Mask:
        """The attached mask.

        Raises:
            DCPError: if a stack is attached; see `stack` and `masks`.
        """
        if isinstance(self.value, Stack):
            raise DCPError(
                f"the stack `{self.value.name}` is attached here, one mask per layer; expected "
                f"one mask: use one of {', '.join(f'`{m.call}`' for m in self.masks)}"
            )
        return self.value

    @property
    def stack(self) -> Stack | None:
        """The attached stack, None where a mask is attached."""
        return self.value if isinstance(self.value, Stack) else None

    @property
    def masks(self) -> tuple[Mask, ...]:
        """All masks that the samples need: one, or the different ones of the stack."""
        return self.value.masks if isinstance(self.value, Stack) else (self.value,)

    @property
    def columns(self) -> frozenset[str]:
        """Columns that a sample must have, by the mask's names."""
        return self.value.columns

    def sample(self, row: Mapping[str, Any]) -> Sample:  # Any: whatever the file format gives
        """Return the sample of a row: its length, and the columns the mask needs by its names.

        Raises:
            DatasetError: if the row lacks one of them.
        """
        renamed = dict(row)
        for new, column in self.renames.items():
            if column in row:
                renamed[new] = row[column]
        return Sample.of_columns(renamed, self.columns, self.value.name)

    def guard(self) -> Guard:
        """Build the guard that refuses samples that leak or have rows that see nothing."""
        return Guard.of(self.masks)


def attach(scope: Scope, dataset_path: str | Path, columns: Collection[str]) -> Attachment:
    """Find the mask or stack that the first matching `for` statement attaches to a data set.

    Raises:
        DatasetError: if no statement matches, or the data set lacks a column the mask needs.
    """
    return attach_files(scope, dataset_path, (dataset_path,), columns)


def attach_files(
    scope: Scope,
    dataset_path: str | Path,
    files: Sequence[str | Path],
    columns: Collection[str],
) -> Attachment:
    """Find the mask or stack of a data set of several files, each matched by its own path.

    Raises:
        DatasetError: if files match different statements or none, or lack a column the mask needs.
    """
    found: dict[int | None, list[str]] = {}
    statements = [s for s in scope.program.statements if isinstance(s, ast.Attach)]
    for path in (Path(file).as_posix() for file in files):
        found.setdefault(_first_match(statements, path, columns), []).append(path)
    if len(found) > 1:
        raise DatasetError(_say_different(scope, str(dataset_path), statements, found))
    ((number, paths),) = found.items()
    if number is not None:
        return _attach(statements[number], scope, paths[0], columns)
    tried = ", ".join(f'"{s.pattern.text}"' for s in statements) or "none at all"
    more = f" (and {len(paths) - 1} more files)" if len(paths) > 1 else ""
    raise DatasetError(
        f"{scope.program.name}: no `for` statement matches the data set {paths[0]}{more} with the "
        f'columns {", ".join(sorted(columns))}; tried {tried}; add `for "*" use causal`'
    )


def _first_match(
    statements: Sequence[ast.Attach], path: str, columns: Collection[str]
) -> int | None:
    for number, statement in enumerate(statements):
        if matches(statement.pattern.text, path) and all(
            c.text in columns for c in statement.having
        ):
            return number
    return None


def _say_different(
    scope: Scope,
    dataset_path: str,
    statements: Sequence[ast.Attach],
    found: Mapping[int | None, Sequence[str]],
) -> str:
    """Name the files of every statement, and of none."""
    parts = []
    for number, paths in found.items():
        shown = ", ".join(paths[:_MOST_NAMED])
        more = f" and {len(paths) - _MOST_NAMED} more" if len(paths) > _MOST_NAMED else ""
        statement = None if number is None else statements[number]
        whose = (
            "no statement"
            if statement is None
            else f'`for "{statement.pattern.text}"` in line {_line(statement, scope)}'
        )
        parts.append(f"{whose} matches {shown}{more}")
    return (
        f"{scope.program.name}: the files of {dataset_path} do not share one `for` statement: "
        f"{'; '.join(parts)}; give those of one statement at a time, or choose one mask for all "
        "(`--mask`, or `spec.mask(call)` in Python)"
    )


def _line(statement: ast.Attach, scope: Scope) -> int:
    return scope.program.text.count("\n", 0, statement.span.start) + 1


def _attach(statement: ast.Attach, scope: Scope, path: str, columns: Collection[str]) -> Attachment:
    value = _value(statement, scope)
    renames = {r.new.text: r.column.text for r in statement.renames}
    for column in sorted(value.columns):
        source = renames.get(column, column)
        if source not in columns:
            hint = did_you_mean(source, list(columns))
            have = ", ".join(sorted(columns)) or "none"
            raise DatasetError(
                f"{scope.program.name}: mask `{value.name}` needs the column `{source}`, which "
                f"{path} does "
                f"not have{'; ' + hint if hint else ''} (columns: {have}); rename one with "
                f"`with {column} = its_name`"
            )
    return Attachment(value, renames, f"{scope.program.name}:{_line(statement, scope)}")


def _value(statement: ast.Attach, scope: Scope) -> Mask | Stack:
    used = statement.value
    if isinstance(used, ast.Name) and (found := scope.find_stack(used.text)) is not None:
        return build_stack(*found)
    having = {c.text for c in statement.having}
    return build_mask(with_columns(used, having, scope), scope, scope.program)


def matches(pattern: str, path: str) -> bool:
    """Return whether a pattern matches a path, or a part of it that begins behind a ``/``.

    >>> matches("*/rows.parquet", "rows.parquet"), matches("web/*", "/data/web/a/rows.parquet")
    (True, True)
    """
    parts = path.split("/")
    tails = ["/".join(parts[i:]) for i in range(len(parts))]
    patterns = {pattern, pattern.removeprefix("*/"), pattern.removeprefix("**/")}
    return any(fnmatchcase(tail, each) for tail in tails for each in patterns)
