"""The text that `dcpm init` writes: the mask that fits a data set, or the choices as comments.

A mask fits by the names of its columns, or by what columns hold, whatever they are called. Where
several masks fit alike, or none does, a person has to choose: the file attaches no mask.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dcp_dsl.data.documents import BITS, Kind, is_of_other_things, kind_by_name
from dcp_dsl.data.sums import ColumnSums, Cut, attach, lists_of
from dcp_dsl.errors import DCPError, printable
from dcp_dsl.syntax.trees import column_name

if TYPE_CHECKING:
    from dcp_dsl.data.sources import Source

ROWS = 64
"""Rows of the first file that a mask has to fit."""

MOST_NAMED = 8  # columns of a data set, and masks that fit it, that the file mentions
MOST_SHOWN = 64  # numbers of a sample that is written into the file

# How the language reads a column that spells documents out; -1 marks tokens of none, which see
# nothing. Borders have no reader.
_PER_TOKEN: dict[Kind, tuple[str, str]] = {
    "numbers": ("ids", "@partial mask documents"), "positions": ("positions", "mask documents")
}  # fmt: skip
CAUSAL = 'for "*" use causal'


@dataclass(frozen=True, slots=True)
class Fit:
    """A mask that fits the rows of a file.

    `mask` is a call of a mask of the library, or the name of the mask that `text` defines;
    `columns` are its own names to those of the data set.
    """

    mask: str
    columns: Mapping[str, str]
    row: Mapping[str, Any]  # Any: what a column holds
    is_certain: bool = True
    text: str = ""

    @property
    def statement(self) -> str:
        """The `for` statement that attaches the mask."""
        return attach(self.mask, self.columns)

    @property
    def name(self) -> str:
        """The name of the mask without its arguments."""
        return self.mask.partition("(")[0]


@dataclass(frozen=True, slots=True)
class FirstFile:
    """What `dcpm init` found; `cuts` are other columns that add up to the tokens of every row."""

    dataset: str | None
    seen: str = ""
    fits: tuple[Fit, ...] = ()
    cuts: tuple[Cut, ...] = ()

    @property
    def chosen(self) -> Fit | None:
        """The mask that the file attaches; None where a person has to choose."""
        if not self.fits or not self.fits[0].is_certain:
            return None
        best = self.fits[0]
        alike = [fit for fit in self.fits[1:] if len(fit.columns) == len(best.columns)]
        is_plain = best.name in _BRANCHES and all(
            {*fit.columns.values()} == {*best.columns.values()} or fit.row == best.row
            for fit in alike
        )
        return best if is_plain or not alike else None

    @property
    def summary(self) -> str:
        """How many masks fit, and whether one is attached."""
        fit = f"{len(self.fits)} masks of the library fit"
        return fit if self.chosen else f"{fit}; none is attached, the file lists choices"

    def text(self) -> str:
        """Return the file: the mask, its layout, sample and checks; then the others."""
        # Names may hold ends of lines.
        words = f"Masks for {self.dataset}, with columns {self.seen}.".split()
        lines = [f"# {' '.join(words)}"] if self.dataset else []
        if self.chosen or self.dataset is None:
            lines += self._mask_lines(self.chosen)
        return "\n".join([*lines, *self._statements(), ""])

    def _mask_lines(self, fit: Fit | None) -> Iterator[str]:
        """Yield a copy of the library's file, which a person may change, and the first row."""
        from dcp_grammar import MASKS

        name = fit.name if fit else "document"
        yield f"# `dcpm show FILE --mask {name}` draws it,"
        yield f"# `dcpm explain FILE --mask {name}` says what it costs."
        yield ""
        own = fit.text if fit else ""
        yield own or (MASKS / f"{name}.dcpm").read_text(encoding="utf-8").rstrip()
        # A number and the comma behind it take four characters or so.
        if fit and fit.row and len(str(dict(fit.row))) <= 4 * MOST_SHOWN:
            values = ", ".join(f"{column_name(n)} = {v}" for n, v in fit.row.items())
            yield from ("", "# The first row.", f"sample first_row({values})")
        yield ""

    def _statements(self) -> Iterator[str]:
        if self.dataset is None:
            yield "# Rows with other columns get no mask, so they are refused."
            yield 'for "*" having doc_lens use document'
            return
        chosen, others = self.chosen, [fit.statement for fit in self.fits]
        if chosen:
            yield "# The first statement that matches a file takes its rows; others are refused."
            yield chosen.statement
            yield from (f"# {line}" for line in others[1:MOST_NAMED])
            return
        yield "# Nothing in the columns decides how the rows are read: no mask is attached yet."
        yield "# Take the `#` off one line, or write your own mask; docs/datasets.md shows how."
        for cut in self.cuts:
            names = " and ".join(f"`{printable(name)}`" for name in cut.lengths)
            verb = "add up" if len(cut.lengths) > 1 else "adds up"
            yield f"# In the first rows {' '.join(names.split())} {verb} to the tokens."
            yield from (f"# {line}" for line in _other_readings(cut))
        yield from (f"# {line}" for line in others[:MOST_NAMED])
        yield f"# {CAUSAL}"


def _other_readings(cut: Cut) -> list[str]:
    """Return texts for columns that a mask of the library does not read, or may read wrongly."""
    names, columns = list(cut.names), [column_name(name) for name in cut.names]
    if cut.mask is not None:
        is_behind = len(names) == 2 and not cut.is_in_order
        return [attach("rag", {"passage_lens": names[0 if cut.depths[0] else 1]})] * is_behind
    if set(cut.depths) == {1}:
        parts = " ".join(f"part{at}[{column}]" for at, column in enumerate(columns, start=1))
    elif cut.depths == (2,):
        parts = f"part[{columns[0]}]*"
    else:
        return []
    text = f"segment pack = branch doc({parts})* mask documents = paths"
    return [f"{text} {attach('documents', {name: name for name in names})}"]


_BRANCHES = ("document", "shared_question", "dpo", "grpo", "prompt_tree", "rollout_tree", "forks")
"""Masks that say no more than their layout: of those with the same columns the plain one."""


def first_file(dataset: str | None, source: "Source | None") -> FirstFile:
    """Find the masks that fit the first rows of a file."""
    if source is None:
        return FirstFile(dataset)
    rows, tokens = _first_rows(source)
    seen = ", ".join(f"`{printable(column)}`" for column in list(source.columns)[:MOST_NAMED])
    cuts = _cuts(rows, tokens)
    found = [*_fits_by_name(rows, list(source.columns))]
    said = {fit.statement for fit in found}
    found += [fit for fit in _fits_of_cuts(cuts, rows, tokens) if fit.statement not in said]
    # The more columns a mask reads, the more of the data set it explains.
    found.sort(key=lambda fit: (-len(fit.columns), not fit.is_certain, fit.mask))
    if not found:
        found += _fits_per_token(rows, tokens)
    return FirstFile(dataset, seen, tuple(found), tuple(cuts))


def _first_rows(source: "Source") -> "tuple[list[dict[str, Any]], list[int] | None]":
    """Return the first rows, without their tokens, and their lengths where columns state them."""
    from dcp_dsl.data.dataset import TOKEN_COLUMNS, DataFile
    from dcp_dsl.data.nesting import column_depth

    # No others: a date beyond those of Python has no value here.
    read = [n for n, kind in source.columns.items() if column_depth(kind) is not None]
    table = next(iter(source.batches([*read, *TOKEN_COLUMNS])), None)
    if table is None:
        return [], None
    table = table.slice(0, ROWS)
    try:
        lengths = DataFile(source.name, table).stated_lengths()
    except DCPError:
        lengths = None
    rows = table.drop_columns([c for c in TOKEN_COLUMNS if c in table.column_names]).to_pylist()
    if lengths is None:
        return rows, None
    tokens = lengths.tolist()
    return [{**row, "len": n} for row, n in zip(rows, tokens, strict=True)], tokens


def _fits_by_name(rows: list[dict[str, Any]], columns: list[str]) -> Iterator[Fit]:
    """Try every mask of the library that reads columns which the data set has."""
    from dcp_dsl.checks.scope import library_names
    from dcp_dsl.specs.spec import Spec

    library = Spec.from_text("")
    for name in library_names():
        try:
            wanted = sorted(library.mask(name).columns)
        except DCPError:  # it has parameters without a default
            continue
        if not wanted or not set(wanted) <= set(columns) or not rows:
            continue
        fit = Fit(name, {column: column for column in wanted}, {m: rows[0].get(m) for m in wanted})
        if _takes(fit, rows):
            yield fit


def _takes(fit: Fit, rows: list[dict[str, Any]]) -> bool:
    """Return whether the rows match the layouts: names and types alone prove little."""
    from dcp_dsl.specs.spec import Spec

    try:
        attached = Spec.from_text(f"{fit.text}\n{fit.statement}").attachment("rows", [*rows[0]])
        for row in rows:
            attached.mask.bind(attached.sample(row))
    except DCPError:
        return False
    return True


def _cuts(rows: list[dict[str, Any]], tokens: list[int] | None) -> list[Cut]:
    """Return the columns that add up to the tokens of all rows."""
    sums, cuts = ColumnSums(others_too=True), []
    for number, (row, length) in enumerate(zip(rows, tokens or (), strict=tokens is not None)):
        cuts = sums.see(number, row, length, ("len", "length"))
    return cuts


def _fits_of_cuts(
    cuts: list[Cut], rows: list[dict[str, Any]], tokens: list[int] | None
) -> Iterator[Fit]:
    """Return the masks of the library that read what adds up.

    Where no column states lengths, each list may hold those of documents: nothing proves it.
    """
    if rows and tokens is None:
        given = {name: value for name, value in rows[0].items() if isinstance(value, list)}
        cuts = [Cut({name: value}) for name, value in given.items()]
    for cut in cuts:
        if cut.mask is None:
            continue
        call, columns = cut.mask
        is_plain = cut.is_in_order and not any(map(is_of_other_things, cut.names))
        is_certain = is_plain and tokens is not None
        fit = Fit(call, columns, {m: rows[0][c] for m, c in columns.items()}, is_certain)
        if _takes(fit, rows):
            yield fit


def _fits_per_token(rows: list[dict[str, Any]], tokens: list[int] | None) -> Iterator[Fit]:
    """Return masks that read a number, or a position, of each token."""
    for name in rows[0] if rows and tokens else ():
        kinds = [kind for kind in _PER_TOKEN if _says(kind, name, rows, tokens or [])]
        if len(kinds) == 1:
            source, head = _PER_TOKEN[kinds[0]]
            column = column_name(name)
            text = f"segment doc = {source}({column})\n{head} = causal per doc"
            fit = Fit("documents", {name: name}, {}, text=text)
            if _takes(fit, rows):
                yield fit


def _says(kind: Kind, name: str, rows: list[dict[str, Any]], tokens: list[int]) -> bool:
    """Return whether a column numbers documents or holds positions, by its name or content."""
    bits = 0.0
    for row, length in zip(rows, tokens, strict=True):
        values = lists_of(row[name])
        if values is None or len(values) != length:
            return False
        more = BITS[kind](values, length)
        if more is None:
            return kind_by_name(name) == kind and "attention" not in name
        bits += more
    return bits > 0 or kind_by_name(name) == kind
