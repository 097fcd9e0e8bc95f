"""Values of columns that a row lacks: ``for "*" use near with reach or 128``.

A column of the row, of a layout or of spans takes the value as it is written. Of a column of
tokens, or of the instances of a segment, the value is that of every token or instance; so it can be
filled in once the row has its length.
"""

from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dcp_dsl.claims.column_samples import ColumnContents, column_kinds, count_values
from dcp_dsl.core.columns import Column
from dcp_dsl.core.mask import Mask
from dcp_dsl.elaboration.programs import column_depths, parent_columns
from dcp_dsl.syntax import ast
from dcp_dsl.syntax.trees import column_name

if TYPE_CHECKING:
    import pyarrow as pa

_NUMBER = "one integer"


@dataclass(frozen=True, slots=True)
class Defaults:
    """What the columns of some masks are where a row has none, by the masks' names.

    `written` are columns of the row, of layouts and of spans, with their depth; `spread` those with
    a value for each token or instance.
    """

    written: Mapping[str, tuple[Column, int]]
    spread: Mapping[str, tuple[Column, ColumnContents]]

    @classmethod
    def of(cls, statement: ast.Attach, masks: Iterable[Mask]) -> "Defaults":
        """Read the values of a `for` statement that has no `misfits` with these masks."""
        kinds: dict[str, ColumnContents] = {}
        depths: dict[str, int] = {}
        for mask in masks:
            kinds |= column_kinds(mask.core)
            for _, layout in mask.layouts:
                depths |= column_depths(layout)
        written: dict[str, tuple[Column, int]] = {}
        spread: dict[str, tuple[Column, ColumnContents]] = {}
        for rename in statement.renames:
            if rename.default is None:
                continue
            name, value = rename.new.text, _lists(rename.default)
            kind = kinds.get(name, ColumnContents("row"))
            if name not in depths and _is_spread(kind):
                spread[name] = value, kind
            else:
                written[name] = value, depths.get(name, 2 * (kind.source == "spans"))
        return cls(written, spread)

    @property
    def columns(self) -> Set[str]:
        """Columns that a row may lack."""
        return self.written.keys() | self.spread.keys()

    def fill(self, row: Mapping[str, Any]) -> dict[str, Any]:  # Any: whatever rows hold
        """Return the columns of a row, by the masks' names, with those that are as written.

        Columns with a value per token or instance stay away, also where the row has None.
        """
        found = {n: v for n, v in row.items() if v is not None or n not in self.columns}
        return {name: value for name, (value, _) in self.written.items()} | found

    def complete(self, columns: Mapping[str, Column], length: int) -> dict[str, Column]:
        """Return the columns of a row of so many tokens, also those with a value per token."""
        found = dict(columns)
        for name, (value, kind) in self.spread.items():
            if name not in found:
                segment = kind.segment
                count = length if segment is None else count_values(segment, found, length)
                found[name] = [value] * count
        return found

    def fill_table(self, table: "pa.Table", renames: Mapping[str, str]) -> "pa.Table":
        """Return a table in which the columns that are as written have a value in every row."""
        import pyarrow as pa

        for name, (value, depth) in self.written.items():
            own = renames.get(name, name)
            kind: pa.DataType = pa.int64()
            for _ in range(depth):
                kind = pa.list_(kind)
            if own not in table.column_names:
                table = table.append_column(own, pa.array([value] * len(table), kind))
            elif (column := table.column(own)).null_count:
                filled = [value if item is None else item for item in column.to_pylist()]
                kind = kind if pa.types.is_null(column.type) else column.type
                place = table.column_names.index(own)
                table = table.set_column(place, own, pa.array(filled, kind))
        return table


NO_DEFAULTS = Defaults({}, {})


def misfits(statement: ast.Attach, masks: Collection[Mask]) -> Iterable[tuple[ast.Rename, str]]:
    """Yield the values of a `for` statement that its masks cannot read, each with the reason."""
    for rename in statement.renames:
        if rename.default is not None and (reason := _misfit(rename, masks)):
            yield rename, reason


def _misfit(rename: ast.Rename, masks: Collection[Mask]) -> str:
    """Return why no mask can read a value, empty if all that read the column can."""
    name, value = rename.new.text, rename.default
    assert value is not None, "the caller has seen it"
    found = [_misfit_of_layout(name, value, layout) for m in masks for _, layout in m.layouts]
    kinds = (column_kinds(mask.core).get(name) for mask in masks)
    found += [_misfit_of_kind(name, value, kind) for kind in kinds if kind is not None]
    reasons = [reason for reason in found if reason is not None]
    return max(reasons, default=f"no mask here reads a column `{column_name(name)}`; leave it out")


def _misfit_of_layout(name: str, value: ast.Literals, layout: ast.Layout) -> str | None:
    """Return why a layout cannot read a value, None if it does not read the column."""
    if (depth := column_depths(layout).get(name)) is None:
        return None
    shown, example = column_name(name), f"`or {'[]' if depth else 0}`"
    if not _nests(value, depth):
        wanted = (_NUMBER, "a list of integers", "lists of lists of integers")[min(depth, 2)]
        return f"the layout reads {wanted} from `{shown}`; write one, such as {example}"
    if name not in parent_columns(layout) and _least(value) < 0:
        return f"`{shown}` holds lengths, which are at least 0; write {example}"
    return ""


def _misfit_of_kind(name: str, value: ast.Literals, kind: ColumnContents) -> str:
    shown = column_name(name)
    if kind.source == "spans":
        is_fit = _nests(value, 2)
        return "" if is_fit else f"`{shown}` holds spans; write a list of them, such as `or []`"
    wanted = _NUMBER if kind.size is None else f"a list of {kind.size} integers"
    is_sized = kind.size is None or (isinstance(value, tuple) and len(value) == kind.size)
    if is_sized and _nests(value, 0 if kind.size is None else 1):
        return ""
    of = "the value of every token or instance" if _is_spread(kind) else "the value of the row"
    return f"expected {wanted} for `{shown}`, {of}"


def _is_spread(kind: ColumnContents) -> bool:
    return kind.is_per_token or kind.segment is not None


def _nests(value: ast.Literals, depth: int) -> bool:
    """Return whether a value is integers in lists that nest so deep."""
    if depth == 0:
        return isinstance(value, int)
    return isinstance(value, tuple) and all(_nests(item, depth - 1) for item in value)


def _least(value: ast.Literals) -> int:
    return min(map(_least, value), default=0) if isinstance(value, tuple) else value


def _lists(value: ast.Literals) -> Column:
    return [_lists(item) for item in value] if isinstance(value, tuple) else value
