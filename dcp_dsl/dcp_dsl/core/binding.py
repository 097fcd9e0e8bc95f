"""Choose the form of a mask on a sample: try the symbolic ones, fall back to bounds and tiles.

A mask is tried from the side it is simple from, the queries or the keys, and then from the other.
"""

from collections.abc import Mapping

from dcp_dsl.budget import Budget
from dcp_dsl.core.frame import Frame
from dcp_dsl.core.layout import Column
from dcp_dsl.core.lowering import Lowering, NoForm
from dcp_dsl.elaboration import nodes
from dcp_dsl.forms.conversion import slabs_of, to_form
from dcp_dsl.forms.form import Form
from dcp_dsl.symbolic.region import Region
from dcp_dsl.symbolic.terms import NotSeparable

MAX_STEPS = 2**23  # slabs and nodes; one or two seconds


def bind_core(core: nodes.Mask, columns: Mapping[str, Column], num_tokens: int) -> Form:
    """Return the pairs that a mask allows on a sample.

    Args:
        core: the mask as a core program.
        columns: of the sample.
        num_tokens: tokens of the sample.

    Raises:
        SpecError: for constants out of range, and for masks too large for every form.
        DatasetError: if the sample does not fit a layout.
    """
    if num_tokens == 0:
        return slabs_of(Region.empty(0))
    has_tokens = any(isinstance(c, list) and len(c) == num_tokens for c in columns.values())
    keys_first = has_tokens and reads_keys_only(core)
    place: nodes.Place | None = None
    for is_transposed in (keys_first, not keys_first):
        frame = Frame.of(num_tokens, columns, Budget(MAX_STEPS))
        try:
            found = Lowering(frame, is_transposed=is_transposed).mask(core)
        except NoForm as error:
            place = place or error.place
            if isinstance(error.why, NotSeparable):
                break  # the same from the keys
            continue
        return to_form(found, is_transposed=is_transposed and isinstance(found, Region))
    assert place is not None, "something was too wide"
    from dcp_dsl.core.tiling import bind_tiles  # rarely needed

    return bind_tiles(core, columns, num_tokens, place)


def reads_keys_only(core: nodes.Mask) -> bool:
    """Return whether a mask reads token columns at keys only, as eviction and trees do."""
    sides = {
        node.at.side if isinstance(node.at, nodes.Pos) else "any"
        for node in nodes.walk(core)
        if isinstance(node, nodes.Lookup) and isinstance(node.table, nodes.TokenColumn)
    }
    return sides == {"k"}
