"""Read a sample from a command line: a name, columns, JSON, or a file of JSON."""

import os
from pathlib import Path

from dcp_dsl.core.layout_columns import Column
from dcp_dsl.core.sample import Sample, read_columns
from dcp_dsl.core.sample_statement import column_values, complete_sample
from dcp_dsl.errors import DatasetError
from dcp_dsl.specs.spec import Spec
from dcp_dsl.syntax import ast
from dcp_dsl.syntax.diagnostics import SpecError
from dcp_dsl.syntax.parser import parse

MAX_BYTES = 2**28
_OPTION = "--sample"


def sample_from_argument(spec: Spec, text: str, length: int | None = None) -> Sample:
    """Read a sample that a command was given.

    Args:
        spec: the text whose samples and layouts count.
        text: an inline JSON object of columns with an optional ``len``, else the name of a `sample`
            statement of the text, else a file with such an object, else columns as they stand in
            a `sample` statement. Without ``len`` the layouts whose columns are there say it.
        length: tokens, instead of what columns say.

    Raises:
        DatasetError: if it is none of them, a column stands there twice, or nothing says the
            length.

    >>> spec = Spec.from_text("segment doc = [lens]*  sample tiny(lens = [3, 4])")
    >>> [sample_from_argument(spec, t).length for t in ("tiny", '{"lens": [5]}', "lens = [2, 1]")]
    [7, 5, 3]
    """
    if text.lstrip().startswith("{"):
        where, columns = _OPTION, read_columns(text, _OPTION)
    elif text in spec.samples:
        return spec.sample(text)
    elif os.path.isfile(text):  # unlike Path's, false for what is too long for a name
        where, columns = text, _read_file(Path(text))
    elif "=" in text:
        where, columns = _OPTION, _read_fields(text)
    else:
        have = ", ".join(f"`{name}`" for name in spec.samples) or "none"
        raise DatasetError(
            f"{spec.name}: no sample `{text:.80}` (samples: {have}) and no such file; expected "
            "a sample of the text, columns such as 'len = 4096', a JSON object such as "
            "'{\"len\": 4096}', or a file with one"
        )
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
    try:
        statement, *more = parse(f"sample given({text})", _OPTION).statements
    except SpecError as error:
        raise DatasetError(str(error)) from None  # wrong usage, not a finding in a text
    if more:
        raise DatasetError(
            f"{_OPTION}: expected columns such as 'len = 4096, rows = [1, 2]' and nothing behind "
            "them; statements belong into the file"
        )
    assert isinstance(statement, ast.SampleDef), "the text says so"
    names = [entry.name.text for entry in statement.fields]
    for name in names:
        if names.count(name) > 1:
            raise DatasetError(f"{_OPTION}: `{name}` is given twice; leave one of them out")
    return column_values(statement)
