"""Write and read masks in all formats, by the format's name."""

from dataclasses import replace

from dcp_dsl.errors import ExchangeError
from dcp_dsl.forms.conversion import square_slabs
from dcp_dsl.forms.form import CrossForm, Form
from dcp_dsl.forms.slabs import Slabs
from dcp_dsl.interchange.block_sparse import to_flash4, to_flex
from dcp_dsl.interchange.export import Export, ExportConfig
from dcp_dsl.interchange.lines import (
    from_dcp,
    from_dense,
    from_flashmask,
    to_dcp,
    to_dense,
    to_flashmask,
)
from dcp_dsl.interchange.names import FORMATS
from dcp_dsl.interchange.slices import from_magi, to_magi, to_varlen

_PLAIN = {
    "dense": to_dense, "dcp": to_dcp, "flashmask": to_flashmask, "magi": to_magi,
    "varlen": to_varlen,
}  # fmt: skip
_OF_ONE_SEQUENCE = ("dcp", "flashmask")
_BLOCKED = {"flex": to_flex, "flash4": to_flash4}
READERS = {"dense": from_dense, "dcp": from_dcp, "flashmask": from_flashmask, "magi": from_magi}


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
    if format not in FORMATS:
        raise ExchangeError(f"expected a format out of {', '.join(FORMATS)}, got {format!r}")
    if isinstance(mask, CrossForm) and format in _OF_ONE_SEQUENCE:
        raise ExchangeError(
            f"{format}: expected a mask of one sequence, got {mask.num_tokens} queries and "
            f"{mask.num_kv} keys of another; use `flex`, `magi`, `varlen` or `dense`"
        )
    if format in _BLOCKED:
        found = _BLOCKED[format](mask, config or ExportConfig())
    else:
        found = _PLAIN[format](square_slabs(mask))
    return _cut(found, mask) if isinstance(mask, CrossForm) else found


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
    if export.format not in READERS:
        raise ExchangeError(
            f"{export.format}: can be written but not read; expected one of {', '.join(READERS)}"
        )
    if "keys" in export.values:  # `_cut` wrote it; read as a square it would be another mask
        raise ExchangeError(
            f"{export.format}: expected a mask of one sequence, got {export.num_tokens} queries "
            f"and {export.values['keys']} keys of another: such a mask can be written but not "
            "read; `dcpm diff` compares it with others"
        )
    return READERS[export.format](export)
