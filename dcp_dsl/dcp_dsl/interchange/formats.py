"""Write and read masks in all formats, by the format's name."""

from dataclasses import replace
from importlib import import_module
from typing import Any

from dcp_dsl.errors import ExchangeError
from dcp_dsl.forms.conversion import square_slabs
from dcp_dsl.forms.form import CrossForm, Form
from dcp_dsl.forms.slabs import Slabs
from dcp_dsl.interchange.export import Export, ExportConfig
from dcp_dsl.interchange.names import FORMATS, READABLE


def export_mask(mask: Form, format: str, config: ExportConfig | None = None) -> Export:
    """Write a bound mask in the format of an attention kernel.

    Args:
        mask: bound to a sample, in any exact form, or a packed batch (`BlockSparsity.slabs`).
        format: one of `FORMATS`.
        config: block sizes and a title, for the formats that have them.

    Raises:
        ExchangeError: with a code X3xx if the format cannot hold the mask, naming the first row or
            key that needs more; without one for an unknown format.

    >>> causal = Slabs(3, [0], [3], [0], [1], [0], [1])
    >>> export_mask(causal, "magi").arrays["attn_type_map"].tolist()
    [1]
    >>> export_mask(causal, "flashmask").arrays["startend_row_indices"].ravel().tolist()
    [3, 3, 3]
    """
    if format not in tuple(FORMATS):
        raise ExchangeError(f"expected a format out of {', '.join(FORMATS)}, got {format!r}")
    if isinstance(mask, CrossForm) and not FORMATS[format].may_cross:
        raise ExchangeError(
            f"{format}: expected a mask of one sequence, got {mask.num_tokens} queries and "
            f"{mask.num_kv} keys of another; use one of "
            f"{', '.join(name for name, each in FORMATS.items() if each.may_cross)}"
        )
    write = _function("to", format)
    if FORMATS[format].has_blocks:
        found: Export = write(mask, config or ExportConfig())
    else:
        found = write(square_slabs(mask))
    return _cut(found, mask) if isinstance(mask, CrossForm) else found


def _function(way: str, format: str) -> Any:  # Any: `to_` and `from_` differ in what they take
    """Return `to_NAME` or `from_NAME` of a format."""
    module = import_module(f"dcp_dsl.interchange.{FORMATS[format].module}")
    return getattr(module, f"{way}_{format}")


def _cut(export: Export, mask: CrossForm) -> Export:
    """Cut an export of the square around a mask between two sequences to the mask.

    Only `dense` has entries outside the mask; other formats list what is visible.
    """
    arrays = dict(export.arrays)
    if export.format == "dense":
        arrays["mask"] = arrays["mask"][: mask.num_tokens, : mask.num_kv]
    values = {**export.values, "keys": mask.num_kv}
    return replace(export, num_tokens=mask.num_tokens, arrays=arrays, values=values)


def import_mask(export: Export) -> Slabs:
    """Read a mask back to its normal form; cost grows with rows and runs, for dense with pairs.

    Args:
        export: of one of the formats `READABLE`; the arrays may come from anywhere.

    Raises:
        ExchangeError: if arrays are missing or make no sense, or the keys are another sequence;
            X303 if Magi slices overlap.

    >>> import_mask(Export("dcp", 2, {"attn_mask": [[0, 1], [0, 2]]})).table().tolist()
    [[0, 2, 0, 1, 0, 1]]
    """
    if export.format not in READABLE:
        raise ExchangeError(
            f"{export.format}: can be written but not read; expected one of {', '.join(READABLE)}"
        )
    if "keys" in export.values:  # `_cut` wrote it; read as a square it would be another mask
        raise ExchangeError(
            f"{export.format}: expected a mask of one sequence, got {export.num_tokens} queries "
            f"and {export.values['keys']} keys of another: such a mask can be written but not "
            "read; `dcpm diff` compares it with others"
        )
    found: Slabs = _function("from", export.format)(export)
    return found
