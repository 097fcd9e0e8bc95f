"""Warn about statements that do nothing: unread names, and attachments that no row can follow."""

from dcp_dsl.checks.scope import Scope, keys_of, matches, segment_names
from dcp_dsl.claims.defaults import misfits
from dcp_dsl.claims.lints.subject import used_masks
from dcp_dsl.claims.testing import Testing
from dcp_dsl.core.mask import HeadError, build_stack, read_mask
from dcp_dsl.elaboration.programs import has_branches
from dcp_dsl.syntax import ast
from dcp_dsl.syntax.trees import LayoutParts, mentioned_names, unparse, walk_parts


def unused_statements(testing: Testing) -> None:
    """Find segments and columns that no mask reads (W203), and lone branches (W215).

    A text that only defines such is meant for others.
    """
    used = _used_names(testing.scope)
    if used is None:
        return
    for statement in testing.scope.program.statements:
        if isinstance(statement, ast.Segment):
            _lone_branches(statement, testing)
            if not used & {name.text for name in segment_names(statement)}:
                message = f"no mask reads the segment `{statement.name.text}`"
                testing.report("W203", message, statement.name.span, "use it or remove it")
        elif isinstance(statement, ast.Token) and statement.name.text not in used:
            message = f"no mask reads the token column `{statement.name.text}`"
            testing.report("W203", message, statement.name.span, "use it or remove it")


def _lone_branches(statement: ast.Segment, testing: Testing) -> None:
    """Find branches beside which nothing stands (W215): what they hold is one path all the same."""
    if not isinstance(statement.source, ast.Layout):
        return
    parts = statement.source.parts
    for part, path, _, _ in walk_parts(parts):
        if part.is_join and not has_branches(ast.Layout(_before(parts, path))):
            message = "this joins nothing: no part in front of it branches"
            hint = "put `branch` before what repeats in front of it, or leave `join` out"
            testing.report("W215", message, part.span, hint)
        if part.is_branch and not _has_beside(parts, path):
            message = "nothing branches here: no other part continues from the same place"
            hint = "repeat the part, as `branch answer[lens]*`, or put `branch` before what repeats"
            testing.report("W215", message, part.span, hint)


def _before(parts: LayoutParts, path: tuple[int, ...]) -> LayoutParts:
    """Return the parts in front of the one at a path, among those around it."""
    for index in path[:-1]:
        part = parts[index]
        assert isinstance(part, ast.Group), "a path ends at a leaf"
        parts = part.parts
    return parts[: path[-1]]


def _has_beside(parts: LayoutParts, path: tuple[int, ...]) -> bool:
    """Return whether a part repeats, or another one continues where a branch at a path began."""
    is_second, around = False, list[tuple[ast.Leaf | ast.Group, bool]]()
    for index in path:
        part = parts[index]
        around.append((part, index + 1 < len(parts)))
        is_second = index > 0 and parts[index - 1].is_branch  # both begin at the same place
        parts = part.parts if isinstance(part, ast.Group) else ()
    for depth, (part, has_next) in enumerate(reversed(around)):
        if depth and part.is_branch:
            return False  # what follows goes on from where this branch began
        if part.is_repeated or has_next:
            return True
    return is_second


def _used_names(scope: Scope) -> set[str] | None:
    """Return the names that statements use; None if a text only defines segments and tokens."""
    users = (ast.MaskDef, ast.StackDef, ast.Attach, ast.Check)
    if not any(isinstance(statement, users) for statement in scope.program.statements):
        return None
    used: set[str] = set()
    for statement in scope.program.statements:
        if isinstance(statement, users):
            used.update(name for name, _ in mentioned_names(statement))
        if isinstance(statement, ast.Segment) and isinstance(
            statement.source, ast.Every | ast.Filter | ast.Union
        ):
            used.update(name for name, _ in mentioned_names(statement.source))
        if isinstance(statement, ast.MaskDef):
            used.update(name.text for d in statement.decorators for name in d.segments)
    # `paths` and `q.path` read the layout with branches without naming it.
    if used & {"path", "paths"}:
        used.update(tree.name.text for tree in scope.trees())
    return used


def unreached(statement: ast.Attach, testing: Testing) -> None:
    """Find `for` statements behind another that takes all their data sets (W204)."""
    for first in testing.scope.program.statements:
        if first is statement:
            return
        if isinstance(first, ast.Attach) and _takes_all(first, statement):
            line = first.span.line(testing.scope.program.text)
            message = f'`for "{statement.pattern.text}"` is never reached'
            hint = f'`for "{first.pattern.text}"` in line {line} takes its data sets'
            testing.report("W204", message, statement.pattern.span, hint)
            return


def _takes_all(first: ast.Attach, second: ast.Attach) -> bool:
    asked = {column.text for column in first.having}
    if not asked <= {column.text for column in second.having}:
        return False
    pattern, other = first.pattern.text, second.pattern.text
    # Reading the other pattern as a path decides for all its paths if `*` is the only wildcard
    # here: the stars then cover the wildcards of the other like any characters.
    is_plain = not any(c in pattern.replace("*", "") for c in "?[")
    # A leading `*/` also takes files without a folder; in folders `matches` finds the same tails.
    shortest = other.removeprefix("*/").removeprefix("**/")
    return pattern == other or (is_plain and "[" not in other and matches(pattern, shortest))


def keys_of_another_sequence(statement: ast.Attach, testing: Testing) -> None:
    """Find masks with keys of another sequence, which no row of a data set can have (W210)."""
    stack = testing.scope.find_stack(unparse(statement.value))
    definition, scope = stack or (statement, testing.scope)
    for value in used_masks(definition, scope):
        keys = keys_of(value, scope)
        if keys is not None:
            shown, name = unparse(value), keys.statement.name.text
            testing.report(
                "W210", f"every row will be refused: `{shown}` looks at keys of `{name}`",
                statement.value.span, "loaders and planners take masks of one sequence: attach one;"
                f" `dcpm blocks --mask` and `dcpm export --mask` take `{shown}` as it is",
            )  # fmt: skip


def unfit_defaults(statement: ast.Attach, testing: Testing) -> None:
    """Find values for absent columns that no mask can read (E117)."""
    if all(rename.default is None for rename in statement.renames):
        return
    stack = testing.scope.find_stack(unparse(statement.value))
    if stack is None:
        masks = tuple(
            read_mask(value, testing.scope) for value in used_masks(statement, testing.scope)
        )
    else:
        masks = build_stack(*stack).masks
    for rename, reason in misfits(statement, masks):
        testing.report("E117", reason, rename.span)


def masks_of_heads(statement: ast.Attach, testing: Testing) -> None:
    """Find stacks whose heads have masks of their own, which no plan can have (W213)."""
    stack = testing.scope.find_stack(unparse(statement.value))
    if stack is None:
        return
    try:
        build_stack(*stack).cycle()
    except HeadError as error:
        testing.report("W213", "no plan takes these rows", statement.value.span, str(error))
