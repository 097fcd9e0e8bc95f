"""A .dcpm file as a value: its masks and samples by name, and the masks of data sets.

A command line names a sample by its name, its columns, JSON, or a file of JSON.
"""

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dcp_dsl.checks.checker import check_scope
from dcp_dsl.checks.findings import UNKNOWN_HINT
from dcp_dsl.checks.imports import build_scope
from dcp_dsl.checks.scope import Scope, library_names
from dcp_dsl.core.columns import Column
from dcp_dsl.core.mask import Mask, Stack, build_mask, build_stack
from dcp_dsl.core.sample import (
    Sample,
    column_values,
    complete_sample,
    declared_sample,
    read_columns,
)
from dcp_dsl.errors import DatasetError, list_names
from dcp_dsl.specs.attachment import Attachment, attach_alike, attach_files
from dcp_dsl.syntax import ast
from dcp_dsl.syntax.diagnostics import (
    Diagnostic,
    MaskCallError,
    Report,
    SpecError,
    Verdict,
    did_you_mean,
)
from dcp_dsl.syntax.parser import parse, parse_all, parse_expression
from dcp_dsl.syntax.source import read_text

if TYPE_CHECKING:
    from dcp_dsl.data.dataset import Dataset


def check(text: str, name: str = "<text>") -> tuple[Diagnostic, ...]:
    """Find all errors in a text: syntax, names, kinds, layouts, leaks, failing `check`s.

    Never raises for a bad text. Diagnostics are in the order of the text.

    >>> [d.code for d in check("mask a = casual  mask b = q <")]
    ['E101', 'E005']
    """
    return check_report(text, name).diagnostics


def check_report(text: str, name: str = "<text>") -> Report:
    """Check a text as `check` does; also report which claims are proved and which only tested.

    Masks and claims are checked once the text is free of errors.

    Args:
        text: of a .dcpm file.
        name: its path, from which imports are found, or another name for messages.
    """
    scope, found = _read(text, name)
    verdicts: tuple[Verdict, ...] = ()
    if not any(d.severity == "error" for d in found):
        # Loaded on use: these need numpy, which texts with errors of syntax need not wait for.
        from dcp_dsl.claims.steps import all_steps
        from dcp_dsl.claims.testing import Testing

        testing = Testing(scope)
        for step in all_steps(testing):
            step.look()
        found += testing.found
        verdicts = tuple(testing.verdicts)
    diagnostics = tuple(sorted(found, key=lambda d: (d.line, d.column, d.code)))
    return Report(diagnostics, verdicts)


def _read(
    text: str, name: str, files: Mapping[str, str] | None = None
) -> tuple[Scope, list[Diagnostic]]:
    """Return the definitions of a text, and its errors of syntax, imports, names and kinds."""
    parsed = parse_all(text, name)
    scope, problems = build_scope(parsed.program, files)
    return scope, [*parsed.diagnostics, *problems, *check_scope(scope, parsed.lost_names)]


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
        name: its path, or another name for messages.
        scope: its definitions.
        warnings: findings of the text that are not errors; claims and lints are not among them.
    """

    source: str
    name: str
    scope: Scope
    warnings: tuple[Diagnostic, ...]

    def __repr__(self) -> str:
        return f"<Spec {self.name}: {', '.join(self.masks) or 'no masks'}>"

    @classmethod
    def from_text(
        cls, text: str, name: str = "<text>", files: Mapping[str, str] | None = None
    ) -> "Spec":
        """Parse and check a text.

        The claims of `check` statements are not tested here; `check` and `dcpm check` do that.

        Args:
            text: of a .dcpm file.
            name: its path, from which imports are found, or another name for messages.
            files: texts of the files that it imports, by path, such as `files` of another spec; if
                given, no file is read.

        Raises:
            SpecError: with all errors of the text.

        >>> Spec.from_text("mask a = causal").masks
        ('a',)
        """
        scope, found = _read(text, name, files)
        errors = tuple(d for d in found if d.severity == "error")
        if errors:
            raise SpecError(tuple(sorted(errors, key=lambda d: (d.line, d.column))))
        return cls(text, name, scope, tuple(found))

    @property
    def masks(self) -> tuple[str, ...]:
        """Names of the masks defined in the text, in its order."""
        return tuple(self.scope.masks)

    @property
    def files(self) -> Mapping[str, str]:
        """Texts of the files that the text imports, by their paths below its folder."""
        return self.scope.imported.files

    @property
    def samples(self) -> tuple[str, ...]:
        """Names of the samples defined in the text, in its order."""
        return tuple(self.scope.samples)

    @property
    def stacks(self) -> tuple[str, ...]:
        """Names of the stacks defined in the text, in its order."""
        return tuple(self.scope.stacks)

    def stack(self, name: str) -> Stack:
        """Return a stack of the text, or one it imports, by name.

        Raises:
            DatasetError: if there is none of this name.

        >>> spec = Spec.from_text("stack duo = heads { 0..1: causal  rest: sliding(4) }")
        >>> [(heads, mask.call) for heads, mask in spec.stack("duo").heads(0, kv_heads=4)]
        [(range(0, 2), 'causal'), (range(2, 4), 'sliding(window = 4)')]
        """
        found = self.scope.find_stack(name)
        if found is None:
            raise DatasetError(self._none("stack", name, self.stacks))
        return build_stack(*found)

    def mask(self, call: str) -> Mask:
        """Return a mask by name or call, or any mask expression over the names of the text.

        Args:
            call: for example ``"causal"`` (the standard library is always there) or
                ``"streaming(sink = 4, window = 1k)"``.

        Raises:
            MaskCallError: if it does not parse, or names or arguments are wrong.
        """
        name = "<mask>"
        program = ast.Program((), call, name)
        try:
            return build_mask(parse_expression(call, name), self.scope, program)
        except SpecError as error:
            raise MaskCallError(tuple(map(self._with_masks, error.diagnostics))) from None

    def _with_masks(self, found: Diagnostic) -> Diagnostic:
        """Add the known masks to the error of an unknown name."""
        if not found.is_unknown_name:
            return found
        # A name that is nearly right gets its suggestion, without the long list of the library.
        near = "" if found.hint == UNKNOWN_HINT else found.hint
        own = (*self.masks, *self.scope.imported.masks)
        known = [f"masks of {self.name}: {', '.join(own)}"] if own else []
        if not near:
            known.append(f"masks of the standard library: {', '.join(library_names())}")
        return replace(found, hint=" ".join(filter(None, (near, "; ".join(known)))))

    def sample(self, name: str) -> Sample:
        """Return the sample that a `sample` statement of the text declares.

        Its length is its `len`; without it, the layouts whose columns the sample has add up to it.

        Raises:
            DatasetError: if there is no such sample, nothing says its length, or its columns do
                not fit the layouts.

        >>> spec = Spec.from_text("segment doc = [lens]*  sample tiny(lens = [3, 4])")
        >>> spec.sample("tiny")
        Sample(columns={'lens': [3, 4]}, length=7)
        """
        if name not in self.scope.samples:
            raise DatasetError(
                f"{self._none('sample', name, self.samples)}; "
                f"add one with `sample {name}(column = ..., len = ...)`"
            )
        try:
            return declared_sample(self.scope.samples[name], self.scope)
        except DatasetError as error:
            raise DatasetError(f"{self.name}: {error}") from None

    def _none(self, kind: str, name: str, known: tuple[str, ...]) -> str:
        """Return the message that a name is unknown, with a near one and all known ones."""
        hint = did_you_mean(name, known)
        near = f"; {hint}" if hint else ""
        return f"{self.name}: no {kind} `{name}`{near} ({kind}s: {list_names(known, 'none')})"

    def attachment(self, dataset_path: str | Path, columns: Collection[str]) -> "Attachment":
        """Find the mask or stack that the first matching `for` statement attaches to a data set.

        A pattern matches the path as it is given, or any part of it that begins behind a ``/``;
        ``*`` stands for any characters, ``/`` among them. A ``*/`` in front asks for a folder only
        where the path has one: ``*/rows.parquet`` and ``rows.parquet`` both match
        ``rows.parquet`` and ``/data/rows.parquet``. The absolute path of a file that exists is
        matched as well. `having` asks for columns.

        Raises:
            DatasetError: if no statement matches, or the data set lacks a column the mask needs.
        """
        return attach_files(self.scope, [(str(dataset_path), columns)])[0]

    def attachments_of(self, dataset: "Dataset") -> "tuple[Attachment, ...]":
        """Return the attachment of each file of a data set, in the order of its `files`.

        Each file is matched by its own path and its own columns: one data set may mix masks.

        Raises:
            DatasetError: if a file matches no `for` statement or lacks a column its mask needs.
        """
        return attach_files(self.scope, _named_columns(dataset))

    def attachment_of(self, dataset: "Dataset") -> "Attachment":
        """Return the attachment that all files of a data set share.

        Raises:
            DatasetError: as `attachments_of`, and if files match different `for` statements.
        """
        return attach_alike(self.scope, dataset.path, _named_columns(dataset))


def _named_columns(dataset: "Dataset") -> list[tuple[str, Collection[str]]]:
    return [(part.name, part.columns) for part in dataset.parts]


MAX_BYTES = 2**28  # of a file with a sample
_OPTION = "--sample"  # the place of a typed sample, for messages


def sample_from_argument(spec: Spec, text: str, length: int | None = None) -> Sample:
    """Read the sample that an argument of a command describes.

    Args:
        spec: the text whose samples and layouts count.
        text: a JSON object of columns with an optional ``len``, else the name of a `sample`
            statement of the text, else a file with such an object, else columns as they stand in
            a `sample` statement. Without ``len`` the layouts whose columns are there add up to it.
        length: tokens; replaces the length that columns state.

    Raises:
        DatasetError: if it is none of them, gives a column twice, or nothing says the length.

    >>> spec = Spec.from_text("segment doc = [lens]*  sample tiny(lens = [3, 4])")
    >>> [sample_from_argument(spec, t).length for t in ("tiny", '{"lens": [5]}', "lens = [2, 1]")]
    [7, 5, 3]
    """
    if text.lstrip().startswith("{"):
        where, columns = _OPTION, read_columns(text, _OPTION)
    elif text in spec.samples:
        sample = spec.sample(text)
        return sample if length is None else Sample(sample.columns, length)
    elif os.path.isfile(text):  # False for a text too long for a name, where `Path` raises
        where, columns = text, _read_file(Path(text))
    elif "=" in text:
        where, columns = _OPTION, _read_fields(text)
    else:
        have = list_names(spec.samples, "none")
        raise DatasetError(
            f"{spec.name}: no sample `{text:.80}` (samples: {have}) and no such file; expected "
            "a sample of the text, columns such as 'len = 4096', a JSON object such as "
            "'{\"len\": 4096}', or a file with one"
        )
    # A given length replaces `len`, before the layouts are asked whether they agree with it.
    if length is not None:
        columns |= {"len": length}
    return complete_sample(columns, spec.scope, where)


def _read_file(path: Path) -> dict[str, Column]:
    if path.stat().st_size > MAX_BYTES:
        raise DatasetError(f"{path}: expected one JSON object, got more than {MAX_BYTES:_} bytes")
    try:
        content = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DatasetError(f"{path}: cannot be read as JSON: {error}") from None
    return read_columns(content, str(path))


def _read_fields(text: str) -> dict[str, Column]:
    """Read columns as they stand in a `sample` statement."""
    # The parser reads them as a statement; a bracket that closes it early leaves more behind.
    try:
        statement, *more = parse(f"sample given({text})", _OPTION).statements
    except SpecError as error:
        raise DatasetError(str(error)) from None  # exit code 2, for wrong usage
    if more:
        raise DatasetError(
            f"{_OPTION}: expected columns such as 'len = 4096, rows = [1, 2]' and nothing behind "
            "them; statements belong in the file"
        )
    assert isinstance(statement, ast.SampleDef), "the text says so"
    names = [entry.name.text for entry in statement.fields]
    for name in names:  # a text's check finds this; here nothing has checked the statement
        if names.count(name) > 1:
            raise DatasetError(f"{_OPTION}: `{name}` is given twice; leave one of them out")
    return column_values(statement)
