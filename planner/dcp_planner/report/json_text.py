"""JSON for every reader: infinity and NaN, which JSON does not know, become ``null``."""

import json
import math
from typing import Any


def json_text(document: Any) -> str:
    r"""Return the text of a JSON document; `Any`: what JSON holds.

    >>> json_text({"ratio": float("inf")})
    '{\n "ratio": null\n}'
    """
    return json.dumps(_finite(document), indent=1, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
