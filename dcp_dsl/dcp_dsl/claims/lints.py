"""Warn about texts that are valid, but probably do not mean what their author intended.

These lints, W201 to W208, W210 and W213 to W215, look at texts without errors. They prove what they
say about the meaning of a mask; only the intent is a guess.
"""

from collections.abc import Iterator
from functools import partial

from dcp_dsl.checks.masks import write_out_inside
from dcp_dsl.checks.scope import Scope, keys_of, keys_of_mask, matches, segment_names
from dcp_dsl.claims.static_checks import used_masks
from dcp_dsl.claims.testing import Step, Testing
from dcp_dsl.core.mask import HeadError, build_stack
from dcp_dsl.elaboration import nodes
from dcp_dsl.elaboration.programs import KeySequence
from dcp_dsl.proof.proving import find_redundant, is_total, never
from dcp_dsl.syntax import ast
from dcp_dsl.syntax.diagnostics import Edit, Fix
from dcp_dsl.syntax.tokens import scan
from dcp_dsl.syntax.trees import LayoutParts, mentioned_names, unparse, walk, walk_parts

SMALLEST_WINDOW = 8  # smaller powers of two are too common to mean a window
MAX_PARTS = 6  # items of an `and` or `or` that is searched for redundant ones
_DISTANCE = ast.Binary("-", ast.Name("q"), ast.Name("k"))


def lint_steps(testing: Testing) -> Iterator[Step]:
    """Yield the steps that look for all that the module's docstring lists."""
    for mask in testing.scope.masks.values():
        yield Step("lint", mask, partial(_check_mask, mask, testing))
    yield Step("unused", None, partial(_check_unused, testing))
    yield Step("attachments", None, partial(_check_attachments, testing))


def _check_mask(mask: ast.MaskDef, testing: Testing) -> None:
    _check_windows(mask, testing)
    _check_parameters(mask, testing)
    _check_rules(mask, testing)
    _check_not_per(mask, testing)
    keys = keys_of_mask(mask, testing.scope)
    # With an alignment, queries are tokens of the keys' sequence; proofs speak of one sequence.
    if keys is None or keys.alignment:
        _check_redundant(mask, testing)
    _check_decorators(mask, testing, keys)


def _check_windows(mask: ast.MaskDef, testing: Testing) -> None:
    """Find `q - k <= 4k`, which sees one token more than a window of 4k (W201)."""
    sizes = {p.name.text: p.default.value for p in mask.params if isinstance(p.default, ast.Number)}
    for node in walk(mask):
        if not isinstance(node, ast.Compare):
            continue
        links = zip(node.operands, node.ops, node.operands[1:], strict=False)
        for left, op, right in links:
            distance, size = (left, right) if op == "<=" else (right, left)
            if op not in ("<=", ">=") or distance != _DISTANCE:
                continue
            # The size stands there as a number, or as a parameter whose default is one.
            value = size.value if isinstance(size, ast.Number) else None
            if isinstance(size, ast.Name):
                value = sizes.get(size.text)
            # People choose powers of two as windows; other numbers may well count this way.
            if value is not None and value >= SMALLEST_WINDOW and value & (value - 1) == 0:
                _report_window(left, op, right, value, testing)


def _report_window(left: ast.Expr, op: str, right: ast.Expr, value: int, testing: Testing) -> None:
    message = f"this window sees {value + 1} tokens: a window counts the token itself"
    span = ast.Span(left.span.start, right.span.end)
    # The tree has no place for the operator; brackets or comments may stand beside it.
    tokens = (t for t in scan(testing.scope.program.text) if t.span.start >= left.span.end)
    at = next(token.span.start for token in tokens if token.text == op)
    fix = Fix(f"replace `{op}` by `{op[0]}`", (Edit(at, at + 2, op[0]),))
    testing.report("W201", message, span, f"write `{op[0]}` for {value} tokens", fix)


def _check_parameters(mask: ast.MaskDef, testing: Testing) -> None:
    """Find parameters and bindings that nothing reads (W202)."""
    for part in mask.locals:
        others = [p.default for p in mask.params if p is not part]
        others += [b for b in mask.bindings if b is not part]  # type: ignore[misc]  # any node
        names = {name for node in (mask.value, *others) for name, _ in mentioned_names(node)}
        if part.name.text not in names:
            kind = "parameter" if isinstance(part, ast.Param) else "binding"
            message = f"{kind} `{part.name.text}` is not used"
            testing.report("W202", message, part.name.span, "use it or remove it")


def _used_names(scope: Scope) -> set[str] | None:
    """Return the names that statements use; None if a text only defines segments and tokens."""
    users = (ast.MaskDef, ast.StackDef, ast.Attach, ast.Check)
    if not any(isinstance(statement, users) for statement in scope.program.statements):
        return None
    used: set[str] = set()
    for statement in scope.program.statements:
        if isinstance(statement, users):
            used.update(name for name, _ in mentioned_names(statement))
        if isinstance(statement, ast.Segment) and isinstance(statement.source, ast.Every):
            used.update(name for name, _ in mentioned_names(statement.source))
        if isinstance(statement, ast.MaskDef):
            used.update(name.text for d in statement.decorators for name in d.segments)
    # `paths` and `q.path` read the layout with branches without naming it.
    if used & {"path", "paths"}:
        used.update(tree.name.text for tree in scope.trees())
    return used


def _check_unused(testing: Testing) -> None:
    """Find segments and columns that no mask reads (W203), unless the text only defines such."""
    used = _used_names(testing.scope)
    if used is None:
        return
    for statement in testing.scope.program.statements:
        if isinstance(statement, ast.Segment):
            _check_forks(statement, testing)
            if not used & {name.text for name in segment_names(statement)}:
                message = f"no mask reads the segment `{statement.name.text}`"
                testing.report("W203", message, statement.name.span, "use it or remove it")
        elif isinstance(statement, ast.Token) and statement.name.text not in used:
            message = f"no mask reads the token column `{statement.name.text}`"
            testing.report("W203", message, statement.name.span, "use it or remove it")


def _check_forks(statement: ast.Segment, testing: Testing) -> None:
    """Find branches beside which nothing stands (W215): what they hold is one path all the same."""
    if not isinstance(statement.source, ast.Layout):
        return
    parts = statement.source.parts
    for part, path, _, _ in walk_parts(parts):
        if part.is_branch and not _has_beside(parts, path):
            message = "nothing branches here: no other part continues from the same place"
            hint = "repeat the part, as `branch answer[lens]*`, or put `branch` before what repeats"
            testing.report("W215", message, part.span, hint)


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


def _check_attachments(testing: Testing) -> None:
    """Find `for` statements behind another that takes all their data sets (W204)."""
    earlier: list[ast.Attach] = []
    for statement in testing.scope.program.statements:
        if not isinstance(statement, ast.Attach):
            continue
        for first in earlier:
            if _takes_all(first, statement):
                line = first.span.line(testing.scope.program.text)
                message = f'`for "{statement.pattern.text}"` is never reached'
                hint = f'`for "{first.pattern.text}"` in line {line} takes its data sets'
                testing.report("W204", message, statement.pattern.span, hint)
                break
        earlier.append(statement)
        _check_keys(statement, testing)
        _check_heads(statement, testing)


def _check_keys(statement: ast.Attach, testing: Testing) -> None:
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


def _check_heads(statement: ast.Attach, testing: Testing) -> None:
    """Find stacks whose heads have masks of their own, which no plan can have (W213)."""
    stack = testing.scope.find_stack(unparse(statement.value))
    if stack is None:
        return
    try:
        build_stack(*stack).cycle()
    except HeadError as error:
        testing.report("W213", "no plan takes these rows", statement.value.span, str(error))


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


def _check_rules(mask: ast.MaskDef, testing: Testing) -> None:
    """Find rules that say the same twice (W205)."""
    for node in walk(mask.value):
        if not isinstance(node, ast.Rules):
            continue
        seen: set[tuple[str, ast.Target]] = set()
        for rule in node.rules:
            for target in rule.targets:
                if (rule.subject.text, target) in seen:
                    message = f"a rule already says that `{rule.subject.text}` sees this"
                    testing.report("W205", message, target.span, "remove one of them")
                seen.add((rule.subject.text, target))


def _check_not_per(mask: ast.MaskDef, testing: Testing) -> None:
    """Find `not a per S`, which may be read as `(not a) per S` (W214)."""
    text = testing.scope.program.text
    for node in walk(mask):
        if isinstance(node, ast.Not) and isinstance(node.value, ast.Per):
            whole = node.value.span.text(text)  # with the brackets around it
            if whole.startswith("(") and whole.endswith(")"):
                continue
            inner, segment = node.value.value.span.text(text), node.value.segment.text
            testing.report(
                "W214", f"`not` turns round all of `{whole}`", node.span,
                f"tokens of another `{segment}` are seen; write `not ({inner} per {segment})` if "
                f"they are meant, `(not {inner}) per {segment}` if they are not",
            )  # fmt: skip


def _check_redundant(mask: ast.MaskDef, testing: Testing) -> None:
    """Find conditions that the others imply, for every value of the parameters (W206)."""
    for node in walk(mask.value):
        if not isinstance(node, ast.And | ast.Or) or len(node.items) > MAX_PARTS:
            continue
        if any(isinstance(item, ast.Bool) for item in node.items):
            continue
        is_and = isinstance(node, ast.And)
        items = write_out_inside(node.items, mask, testing.scope)
        index = find_redundant(items, testing.proofs, is_and=is_and)
        if index is not None:
            word = "and" if is_and else "or"
            message = f"the other parts of this `{word}` already say this"
            span = node.items[index].span
            testing.report("W206", message, span, "remove it, or mend the others")


def _check_decorators(mask: ast.MaskDef, testing: Testing, keys: KeySequence | None) -> None:
    """Find `@ahead` on masks without look-ahead, `@partial` where every token sees itself (W207).

    Between two sequences no token is later than another, so `@ahead` is always needless there.
    Queries before the first key see nothing, so `bottom_right` may always need `@partial`.
    """
    is_one = keys is None or bool(keys.alignment)
    is_total_possible = keys is None or keys.alignment == "top_left"
    (core,) = write_out_inside((mask.value,), mask, testing.scope)
    for decorator in mask.decorators:
        if decorator.name.text == "ahead":
            is_needless = not is_one or never(core, ("before",), testing.proofs)
            what = "no token ever sees a later one"
        else:
            is_partial = is_total_possible and decorator.name.text == "partial"
            is_needless = is_partial and is_total(core, testing.proofs)
            what = "every token sees itself"
        if is_needless:
            # The fix also removes the blanks and line ends behind the decorator.
            end, text = decorator.span.end, testing.scope.program.text
            end += len(text[end:]) - len(text[end:].lstrip())
            fix = Fix("remove the decorator", (Edit(decorator.span.start, end, ""),))
            message = f"`@{decorator.name.text}` is not needed: {what}"
            testing.report("W207", message, decorator.span, "remove it", fix)
    if is_one:
        _check_documents(mask, core, testing)


def _check_documents(mask: ast.MaskDef, core: nodes.Mask, testing: Testing) -> None:
    """Find masks over packed documents that let one document see another (W208)."""
    mentioned = {name for name, _ in mentioned_names(mask)}
    for segment, document in _packed(testing):
        inner = {name.text for name in segment_names(segment)}
        # A mask that names no part of the layout may be for other data.
        if not mentioned & inner or _is_asked_for(mask, document):
            continue
        outside = nodes.Not(nodes.Same(nodes.Laid(segment, document)))
        if not never(nodes.And((core, outside)), budget=testing.proofs):
            message = f"a token may see another `{document}`"
            hint = f"confine it: `... per {document}` or `same({document}) and ...`"
            testing.report("W208", message, mask.name.span, hint)


def _packed(testing: Testing) -> Iterator[tuple[ast.Segment, str]]:
    """Yield the layouts of packed documents: one named part that repeats and fills the sample."""
    for segment, layout in testing.scope.layouts():
        if len(layout.parts) == 1 and layout.parts[0].is_repeated:
            part = layout.parts[0]
            if part.parents is not None:  # nodes of a tree go on from others
                continue
            # `segment doc = [lens]*` names the part by the statement.
            if part.name is not None:
                yield segment, part.name.text
            elif isinstance(part, ast.Leaf):
                yield segment, segment.name.text


def _is_asked_for(mask: ast.MaskDef, document: str) -> bool:
    """Return whether a mask speaks of documents by `in`, a dot or a rule, not `same` or `per`."""
    for node in walk(mask):
        match node:
            case ast.In(_, container) if document in {n for n, _ in mentioned_names(container)}:
                return True
            case ast.Attribute(_, name) if name.text == document:
                return True
            case ast.Rule() if document in {n for n, _ in mentioned_names(node)}:
                return True
    return False
