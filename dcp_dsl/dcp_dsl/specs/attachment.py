"""Find the mask of a data set: `for "pattern" having a, b use MASK with new = column`.

Each file of a data set takes the first `for` statement that matches its path and its columns. A
file that exists is matched by its absolute path as well, so it takes the same statement however
its path was typed.
"""

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcp_dsl.checks.checker import with_columns
from dcp_dsl.checks.scope import Scope, matches
from dcp_dsl.claims.defaults import NO_DEFAULTS, Defaults, misfits
from dcp_dsl.claims.guard import Guard
from dcp_dsl.core.layout import natural_length
from dcp_dsl.core.mask import Mask, Stack, build_mask, build_stack
from dcp_dsl.core.sample import Sample, stated_length
from dcp_dsl.data.dataset import DataFile, file_lengths, summed_layout
from dcp_dsl.data.sources import SAVED_MARKS
from dcp_dsl.errors import DatasetError, DCPError
from dcp_dsl.syntax import ast
from dcp_dsl.syntax.diagnostics import did_you_mean
from dcp_dsl.syntax.trees import column_name

_MOST_NAMED = 3  # files that a message names for each statement


@dataclass(frozen=True, slots=True)
class Attachment:
    """A mask, or a stack of masks, attached to a data set.

    Attributes:
        value: the mask or stack.
        renames: the data set's columns by the mask's columns, where the names differ.
        defaults: the columns' values in rows that lack them.
        where: the `for` statement, such as ``train.dcpm:9``; empty without one.
    """

    value: Mask | Stack
    renames: Mapping[str, str]
    defaults: Defaults = NO_DEFAULTS
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

        Where no column states the length, the layouts of the mask add up to it.

        Raises:
            DatasetError: if the row lacks one of the columns, or nothing says its length.

        >>> from dcp_dsl import Spec
        >>> spec = Spec.from_text('segment doc = [lens]* mask m = same(doc) for "*" use m')
        >>> spec.attachment("rows.jsonl", ["lens"]).sample({"lens": [3, 4]}).length
        7
        """
        renamed = dict(row)
        for new, column in self.renames.items():
            if column in row:
                renamed[new] = row[column]
            elif new in self.defaults.columns:  # another column may have the mask's name
                renamed.pop(new, None)
        renamed = self.defaults.fill(renamed)
        lost = self.defaults.spread.keys() - renamed.keys()
        renamed |= dict.fromkeys(lost, 0)
        if stated_length(renamed) is None and (summed := summed_layout(self.masks)) is not None:
            # `Sample.of` checks the columns that the layout adds up, and wants some length for it.
            columns = Sample.of({**renamed, "len": 0}, self.value).columns
            renamed["len"] = natural_length(*summed, columns)
        found = Sample.of(renamed, self.value)
        if not lost:
            return found
        columns = {name: value for name, value in found.columns.items() if name not in lost}
        return Sample(self.defaults.complete(columns, found.length), found.length)

    def lengths(self, file: DataFile) -> NDArray[np.int64]:
        """Return the tokens of each row of a file that this is attached to, int64 ``[rows]``.

        Lengths that the file states count first; else a layout of the mask adds up to them.

        Raises:
            DatasetError: if nothing says how long a row is, or its lengths contradict each other.
        """
        filled = DataFile(file.name, self.defaults.fill_table(file.table, self.renames))
        return file_lengths(filled, summed_layout(self.masks), self.renames)

    def guard(self) -> Guard:
        """Build the guard that refuses samples that leak or have rows that see nothing."""
        return Guard.of(self.masks)


def attach_files(
    scope: Scope, files: Sequence[tuple[str, Collection[str]]]
) -> tuple[Attachment, ...]:
    """Return the attachment of each file, given by name and columns."""
    statements, found = match_files(scope, files)
    missed = [file for number, file in zip(found, files, strict=True) if number is None]
    if missed:
        raise DatasetError(_say_unmatched(scope, statements, missed))
    chosen = [number for number in found if number is not None]
    values = {number: _value(statements[number], scope) for number in set(chosen)}
    return tuple(
        _attach(statements[number], values[number], scope, _shown(name), columns)
        for number, (name, columns) in zip(chosen, files, strict=True)
    )


def attach_alike(
    scope: Scope, dataset_path: str, files: Sequence[tuple[str, Collection[str]]]
) -> Attachment:
    """Return the attachment that all files of a data set share."""
    statements, found = match_files(scope, files)
    by_statement: dict[int | None, list[str]] = {}
    for number, (name, _) in zip(found, files, strict=True):
        by_statement.setdefault(number, []).append(Path(name).as_posix())
    if len(by_statement) > 1:
        raise DatasetError(_say_different(scope, dataset_path, statements, by_statement))
    return attach_files(scope, files)[0]


def match_files(
    scope: Scope, files: Sequence[tuple[str, Collection[str]]]
) -> tuple[list[ast.Attach], list[int | None]]:
    """Return the `for` statements, and for each file the number of the first that matches it."""
    statements = [s for s in scope.program.statements if isinstance(s, ast.Attach)]

    def first(name: str, columns: Collection[str]) -> int | None:
        paths = _paths(name)
        for number, statement in enumerate(statements):
            asked = (column.text in columns for column in statement.having)
            if all(asked) and any(matches(statement.pattern.text, path) for path in paths):
                return number
        return None

    return statements, [first(name, columns) for name, columns in files]


def _paths(name: str) -> set[str]:
    """Return the paths by which patterns find a source: as given, and absolute if it is a file."""
    # Patterns have forward slashes, on every system.
    found = {Path(name).as_posix()}
    # The splits of a data set that `datasets` saved are named below its folder, `rows/train`.
    near = (name, os.path.dirname(name))
    if name and (
        os.path.exists(name)
        or any(os.path.isfile(os.path.join(at, mark)) for at in near for mark in SAVED_MARKS)
    ):
        found |= {Path(os.path.abspath(name)).as_posix(), Path(os.path.realpath(name)).as_posix()}
    return found


def _shown(name: str) -> str:
    return Path(name).as_posix() if name else "the data set in memory"


def _advice(scope: Scope) -> str:
    """Return a statement that takes every data set, with the masks of the text if it has any."""
    masks, stacks = list(scope.masks), list(scope.stacks)
    names = masks + stacks
    if not names:
        return 'add `for "*" use causal`'
    if len(names) > 1:
        shown = ", ".join(f"`{name}`" for name in names[:_MOST_NAMED])
        more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
        return (
            f'add `for "*" use ...` with a mask of the text ({shown}{more}), or choose one for '
            "all rows (`--mask`, or `spec.mask(call)` in Python)"
        )
    (call,), kind = names, "mask" if masks else "stack"
    needed = [p.name.text for m in scope.masks.values() for p in m.params if p.default is None]
    if needed:
        call += f"({', '.join(f'{name} = ...' for name in needed)})"
    return (
        f'add `for "*" use {call}`, or choose it for all rows (`--mask`, or '
        f'`spec.{kind}("{call}")` in Python)'
    )


def _say_unmatched(
    scope: Scope, statements: Sequence[ast.Attach], missed: Sequence[tuple[str, Collection[str]]]
) -> str:
    tried = ", ".join(f'"{s.pattern.text}"' for s in statements) or "none at all"
    (name, columns), *others = missed
    path = f"the data set {Path(name).as_posix()}" if name else _shown(name)
    more = f" (and {len(others)} more file{'s' if others[1:] else ''})" if others else ""
    return (
        f"{scope.program.name}: no `for` statement matches {path}{more} with the "
        f"columns {', '.join(sorted(columns))}; tried {tried}; {_advice(scope)}"
    )


def _say_different(
    scope: Scope,
    dataset_path: str,
    statements: Sequence[ast.Attach],
    found: Mapping[int | None, Sequence[str]],
) -> str:
    """Name the files that each statement matches, and those that none matches."""
    parts = []
    for number, paths in found.items():
        shown = ", ".join(paths[:_MOST_NAMED])
        more = f" and {len(paths) - _MOST_NAMED} more" if len(paths) > _MOST_NAMED else ""
        whose = "no statement"
        if number is not None:
            statement = statements[number]
            line = statement.span.line(scope.program.text)
            whose = f'`for "{statement.pattern.text}"` in line {line}'
        parts.append(f"{whose} matches {shown}{more}")
    return (
        f"{scope.program.name}: the files of {dataset_path} do not share one `for` statement: "
        f"{'; '.join(parts)}; a plan has one: give those of one statement at a time, or choose one "
        "mask for all (`--mask`, or `spec.mask(call)` in Python); `DCPDataloader` mixes statements"
    )


def _attach(
    statement: ast.Attach, value: Mask | Stack, scope: Scope, path: str, columns: Collection[str]
) -> Attachment:
    """Attach a mask; refuse files without a column that it needs."""
    renames = {r.new.text: r.column.text for r in statement.renames if r.new != r.column}
    masks = value.masks if isinstance(value, Stack) else (value,)
    where = f"{scope.program.name}:{statement.span.line(scope.program.text)}"
    for _, reason in misfits(statement, masks):
        raise DatasetError(f"{where}: {reason}")
    defaults = Defaults.of(statement, masks)
    for column in sorted(value.columns - defaults.columns):
        source = renames.get(column, column)
        if source not in columns:
            hint = did_you_mean(source, list(columns))
            have = ", ".join(sorted(columns)) or "none"
            raise DatasetError(
                f"{scope.program.name}: mask `{value.name}` needs the column `{source}`, which "
                f"{path} does not have{'; ' + hint if hint else ''} (columns: {have}); rename one "
                f"with `with {column_name(column)} = its_name`"
            )
    return Attachment(value, renames, defaults, where)


def _value(statement: ast.Attach, scope: Scope) -> Mask | Stack:
    """Return the stack or the mask that a statement attaches; stacks come before masks."""
    used = statement.value
    if isinstance(used, ast.Name) and (found := scope.find_stack(used.text)) is not None:
        return build_stack(*found)
    return build_mask(with_columns(statement, scope), scope, scope.program)
