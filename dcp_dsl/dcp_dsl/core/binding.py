"""Choose the form of a mask on a sample: try the symbolic ones, fall back to bounds and tiles."""

from collections.abc import Mapping

from dcp_dsl.budget import Budget, OverBudget
from dcp_dsl.core.environment import Env, Frame
from dcp_dsl.core.layout import Column
from dcp_dsl.core.lowering import Lowering, Place
from dcp_dsl.core.orientation import reads_keys_only
from dcp_dsl.forms.conversion import slabs_of, to_form
from dcp_dsl.forms.form import Form
from dcp_dsl.symbolic.piecewise import TooManyPieces
from dcp_dsl.symbolic.region import Region
from dcp_dsl.symbolic.terms import NotSeparable
from dcp_dsl.syntax import ast

MAX_STEPS = 2**23  # slabs and nodes; one or two seconds


def bind_expression(
    value: ast.Expr, env: Env, columns: Mapping[str, Column], num_tokens: int
) -> Form:
    """Give the pairs that a mask expression allows on a sample.

    Args:
        value: expression of kind mask, already checked.
        env: where its names are looked up.
        columns: of the sample.
        num_tokens: tokens of the sample.

    Raises:
        LoweringError: for constants out of range, and masks too large for every form.
        DatasetError: if the sample does not fit a layout.
    """
    if num_tokens == 0:
        return slabs_of(Region.empty(0))
    has_tokens = any(isinstance(c, list) and len(c) == num_tokens for c in columns.values())
    keys_first = has_tokens and reads_keys_only(value, env.scope)
    place: Place | None = None
    for is_transposed in (keys_first, not keys_first):
        frame = Frame.of(num_tokens, columns, Budget(MAX_STEPS), is_transposed=is_transposed)
        lowering = Lowering(frame)
        try:
            found = lowering.mask(value, env)
        except (TooManyPieces, OverBudget, NotSeparable) as error:
            place = place or lowering.obstacle
            if isinstance(error, NotSeparable):
                break  # the same from the keys
            continue
        return to_form(found, is_transposed=is_transposed and isinstance(found, Region))
    assert place is not None, "something was too wide"
    from dcp_dsl.core.tiling import bind_tiles  # rarely needed

    return bind_tiles(value, env, columns, num_tokens, place)
