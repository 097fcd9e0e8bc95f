"""What a person types for a sample on a command line: a name, JSON, or a file of JSON."""

import json
from pathlib import Path
from typing import Any

from dcp_dsl.errors import DatasetError
from dcp_dsl.sample import Sample
from dcp_dsl.sample_statement import complete_sample
from dcp_dsl.spec import Spec

MAX_BYTES = 2**28


def sample_from_argument(spec: Spec, text: str, length: int | None = None) -> Sample:
    """Read a sample that a command was given.

    Args:
        spec: the text whose samples and layouts count.
        text: an inline JSON object of columns with an optional ``len``, else the name of a `sample`
            statement of the text, else a file with such an object. Without ``len`` the layouts
            whose columns are there say the length.
        length: tokens, instead of what JSON says.

    Raises:
        DatasetError: if it is none of them, or nothing says the length.

    >>> spec = Spec.from_text("segment doc = [lens]*  sample tiny(lens = [3, 4])")
    >>> sample_from_argument(spec, "tiny").length
    7
    >>> sample_from_argument(spec, '{"lens": [5]}').length
    5
    """
    if text.lstrip().startswith("{"):
        return complete_sample(_columns(text, "--sample", length), spec.scope, "--sample")
    if text in spec.samples:
        return spec.sample(text)
    path = Path(text)
    if not path.is_file():
        have = ", ".join(f"`{name}`" for name in spec.samples) or "none"
        raise DatasetError(
            f"{spec.name}: no sample `{text}` (samples: {have}) and no such file; expected "
            f"a sample of the text, a JSON object such as '{{\"len\": 4096}}', or a file with one"
        )
    if path.stat().st_size > MAX_BYTES:
        raise DatasetError(f"{text}: expected one JSON object, got more than {MAX_BYTES:_} bytes")
    try:
        content = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DatasetError(f"{text}: cannot be read as JSON: {error}") from None
    return complete_sample(_columns(content, text, length), spec.scope, text)


def _columns(text: str, name: str, length: int | None) -> dict[str, Any]:  # Any: see Sample
    try:
        columns = json.loads(text)
    except ValueError as error:
        raise DatasetError(f"{name}: not JSON: {error}; got {text[:80]!r}") from None
    except RecursionError:
        raise DatasetError(f"{name}: the JSON is nested too deeply") from None
    if not isinstance(columns, dict):
        raise DatasetError(f"{name}: expected a JSON object of columns, got {text[:80]!r}")
    return columns if length is None else columns | {"len": length}
