"""A .dcpm file as a value: its masks by name, its samples, and which data set gets which mask."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from dcp_dsl import ast
from dcp_dsl.checker import check_expression, check_program
from dcp_dsl.columns import needed_columns
from dcp_dsl.diagnostics import Diagnostic, did_you_mean, make_diagnostic
from dcp_dsl.errors import DatasetError, SpecError
from dcp_dsl.mask import Mask
from dcp_dsl.parser import parse_all, parse_expression
from dcp_dsl.sample import Sample
from dcp_dsl.sample_statement import declared_sample
from dcp_dsl.scope import Scope
from dcp_dsl.text_file import read_text
from dcp_dsl.unparse import unparse


def check(text: str, name: str = "<text>") -> tuple[Diagnostic, ...]:
    """Find everything wrong with a text: syntax, names, kinds, layouts, failing `check`s.

    Never raises for a bad text. Diagnostics are in the order of the text.

    >>> [d.code for d in check("mask a = casual  mask b = q <")]
    ['E101', 'E005']
    """
    parsed = parse_all(text, name)
    found = [*parsed.diagnostics, *check_program(parsed.program, parsed.lost_names)]
    if not any(d.severity == "error" for d in found):
        from dcp_dsl.claims import check_claims  # needs numpy; syntax errors do not

        found += check_claims(parsed.program)
    return tuple(sorted(found, key=lambda d: (d.line, d.column, d.code)))


def load(path: str | Path) -> "Spec":
    """Read and check a .dcpm file.

    Raises:
        SpecError: if it cannot be read, or with all its errors.
    """
    return Spec.from_text(read_text(path), str(path))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Spec:
    """A checked .dcpm text.

    Attributes:
        source: the text.
        name: its path, or what stands for it.
        scope: its definitions.
        warnings: what `check` found that is no error.
    """

    source: str
    name: str
    scope: Scope
    warnings: tuple[Diagnostic, ...]

    def __repr__(self) -> str:
        return f"<Spec {self.name}: {', '.join(self.masks) or 'no masks'}>"

    @classmethod
    def from_text(cls, text: str, name: str = "<text>") -> "Spec":
        """Parse and check a text.

        The claims of `check` statements are not tested here; `check` and `dcpm check` do that.

        Raises:
            SpecError: with all errors of the text.

        >>> Spec.from_text("mask a = causal").masks
        ('a',)
        """
        parsed = parse_all(text, name)
        found = [*parsed.diagnostics, *check_program(parsed.program, parsed.lost_names)]
        errors = tuple(d for d in found if d.severity == "error")
        if errors:
            raise SpecError(tuple(sorted(errors, key=lambda d: (d.line, d.column))))
        return cls(text, name, Scope.of(parsed.program), tuple(found))

    @property
    def masks(self) -> tuple[str, ...]:
        """Names of the masks defined in the text, in its order."""
        return tuple(self.scope.masks)

    @property
    def samples(self) -> tuple[str, ...]:
        """Names of the samples defined in the text, in its order."""
        return tuple(self.scope.samples)

    def mask(self, call: str) -> Mask:
        """Give a mask by name or call, or any mask expression over the names of the text.

        Args:
            call: for example ``"causal"`` (the standard library is always there) or
                ``"streaming(sink = 4, window = 1k)"``.

        Raises:
            SpecError: if it does not parse, or names or arguments are wrong.
        """
        name = "<mask>"
        expression = parse_expression(call, name)
        program = ast.Program((), call, name)
        return self._mask(expression, program)

    def sample(self, name: str) -> Sample:
        """Give the sample that a `sample` statement of the text declares.

        Its length is its `len`, else what the layouts say whose columns it has.

        Raises:
            DatasetError: if there is no such sample, nothing says its length, or its columns do
                not fit the layouts.

        >>> spec = Spec.from_text("segment doc = [lens]*  sample tiny(lens = [3, 4])")
        >>> spec.sample("tiny")
        Sample(columns={'lens': [3, 4]}, length=7)
        """
        if name not in self.scope.samples:
            have = ", ".join(f"`{known}`" for known in self.samples) or "none"
            hint = did_you_mean(name, list(self.samples))
            raise DatasetError(
                f"{self.name}: no sample `{name}`{'; ' + hint if hint else ''} (samples: {have}); "
                f"add one with `sample {name}(column = ..., len = ...)`"
            )
        try:
            return declared_sample(self.scope.samples[name], self.scope)
        except DatasetError as error:
            raise DatasetError(f"{self.name}: {error}") from None

    def _mask(self, expression: ast.Expr, program: ast.Program) -> Mask:
        errors = check_expression(expression, self.scope, program)
        if errors:
            raise SpecError(errors)
        canonical = self._canonical(expression)
        match canonical:
            case ast.Name(text):
                name = text
            case ast.Call(ident):
                name = ident.text
            case _:
                name = unparse(canonical)
        columns = needed_columns(expression, self.scope)
        return Mask(name, unparse(canonical), columns, expression, self.scope, program)

    def _canonical(self, expression: ast.Expr) -> ast.Expr:
        """Name all arguments of a call, in the order of the parameters, without the defaults."""
        if not isinstance(expression, ast.Call):
            return expression
        found = self.scope.find_mask(expression.name.text)
        if found is None:
            return expression
        arguments = []
        for index, param in enumerate(found[0].params):
            for position, argument in enumerate(expression.arguments):
                is_it = (
                    position == index
                    if argument.name is None
                    else argument.name.text == param.name.text
                )
                if is_it and argument.value != param.default:
                    arguments.append(ast.Argument(ast.Ident(param.name.text), argument.value))
        if not arguments:
            return ast.Name(expression.name.text)
        return ast.Call(expression.name, tuple(arguments))

    def attachment(self, dataset_path: str | Path, columns: Collection[str]) -> "Attachment":
        """Give what the first matching `for` statement attaches to a data set.

        A pattern matches the path as it is given, or any part of it that begins behind a ``/``;
        ``*`` stands for any characters, ``/`` among them. A ``*/`` in front asks for a folder only
        where the path has one: ``*/rows.parquet`` and ``rows.parquet`` both match
        ``rows.parquet`` and ``/data/rows.parquet``. `having` asks for columns.

        Raises:
            DatasetError: if no statement matches, or the data set lacks a column the mask needs.
            SpecError: if the statement uses something that is not supported yet, such as a stack.
        """
        path = Path(dataset_path).as_posix()
        statements = [s for s in self.scope.program.statements if isinstance(s, ast.Attach)]
        for statement in statements:
            if not _matches(statement.pattern.text, path):
                continue
            if any(c.text not in columns for c in statement.having):
                continue
            return self._attach(statement, path, columns)
        tried = ", ".join(f'"{s.pattern.text}"' for s in statements) or "none at all"
        raise DatasetError(
            f"{self.name}: no `for` statement matches the data set {path} with the columns "
            f'{", ".join(sorted(columns))}; tried {tried}; add `for "*" use causal`'
        )

    def _attach(self, statement: ast.Attach, path: str, columns: Collection[str]) -> "Attachment":
        value = statement.value
        if isinstance(value, ast.Name) and value.text in self.scope.stacks:
            raise SpecError(
                (make_diagnostic(
                    "E190", f"not supported yet: attaching the stack `{value.text}`", self.source,
                    value.span, name=self.name, hint="attach one mask",
                ),)
            )  # fmt: skip
        mask = self._mask(value, self.scope.program)
        renames = {r.new.text: r.column.text for r in statement.renames}
        for column in sorted(mask.columns):
            source = renames.get(column, column)
            if source not in columns:
                hint = did_you_mean(source, list(columns))
                have = ", ".join(sorted(columns)) or "none"
                raise DatasetError(
                    f"{self.name}: mask `{mask.name}` needs the column `{source}`, which "
                    f"{path} does "
                    f"not have{'; ' + hint if hint else ''} (columns: {have}); rename one with "
                    f"`with {column} = its_name`"
                )
        return Attachment(mask, renames)


@dataclass(frozen=True, slots=True)
class Attachment:
    """A mask attached to a data set.

    Attributes:
        mask: what the data set's samples are masked with.
        renames: the mask's column -> the data set's column, where they differ.
    """

    mask: Mask
    renames: Mapping[str, str]

    def sample(self, row: Mapping[str, Any]) -> Sample:  # Any: whatever the file format gives
        """Give the sample of a row: its length, and the columns the mask needs by its names.

        Raises:
            DatasetError: if the row lacks one of them.
        """
        renamed = dict(row)
        for new, column in self.renames.items():
            if column in row:
                renamed[new] = row[column]
        return Sample.of(renamed, self.mask)


def _matches(pattern: str, path: str) -> bool:
    parts = path.split("/")
    tails = ["/".join(parts[i:]) for i in range(len(parts))]
    patterns = {pattern, pattern.removeprefix("*/"), pattern.removeprefix("**/")}
    return any(fnmatchcase(tail, each) for tail in tails for each in patterns)
