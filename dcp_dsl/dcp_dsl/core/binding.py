"""Choose the form of a mask on a sample: try the symbolic ones, fall back to bounds and tiles.

A mask is tried from the side it is simple from, the queries or the keys, and then from the other.
"""

from collections.abc import Mapping

from dcp_dsl.budget import Budget, OverBudget
from dcp_dsl.checks.scope import Scope
from dcp_dsl.core.environment import Env, Frame
from dcp_dsl.core.layout import Column
from dcp_dsl.core.lowering import Lowering, Place
from dcp_dsl.forms.conversion import slabs_of, to_form
from dcp_dsl.forms.form import Form
from dcp_dsl.symbolic.piecewise import TooManyPieces
from dcp_dsl.symbolic.region import Region
from dcp_dsl.symbolic.terms import NotSeparable
from dcp_dsl.syntax import ast
from dcp_dsl.syntax.walk import mentioned_names, walk


def reads_keys_only(value: ast.Expr, scope: Scope) -> bool:
    """Return whether a mask reads token columns at keys only, as eviction and trees do."""
    positions: set[str] = set()
    seen: set[tuple[int, str]] = set()
    pending: list[tuple[object, Scope]] = [(value, scope)]
    while pending:
        node, at = pending.pop()
        for inner in walk(node):
            match inner:
                case ast.Attribute(ast.Name(text), name) if _is_token(name.text, at):
                    positions.add(text)
                case ast.Attribute(_, name) if _is_token(name.text, at):
                    positions.add("")
        for mentioned, is_attribute in mentioned_names(node):
            found = None if is_attribute else at.find_mask(mentioned)
            if found is not None and (id(at), mentioned) not in seen:
                seen.add((id(at), mentioned))
                pending.append(found)
    return positions == {"k"}


def _is_token(name: str, scope: Scope) -> bool:
    return name in scope.tokens and name not in scope.segments


MAX_STEPS = 2**23  # slabs and nodes; one or two seconds


def bind_expression(
    value: ast.Expr, env: Env, columns: Mapping[str, Column], num_tokens: int
) -> Form:
    """Return the pairs that a mask expression allows on a sample.

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
