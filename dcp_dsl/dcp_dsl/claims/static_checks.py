"""Find masks and stacks that would train garbage: look-ahead, tokens that see nothing, leaks.

Each mask of a text is first proved sound for every sample. Where the proof fails, small samples
that fit the mask's columns are searched for a fault, and the error shows the smallest sample that
has it. A claim that can be neither proved nor tested is a warning. A mask on paths or on packed
documents should mean the same in a packed sample and in each of its sequences alone. In a stack,
values pass from layer to layer: documents or branches that one layer keeps apart still reach each
other where a window of another layer crosses their border.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from dcp_dsl.checks.checker import with_columns
from dcp_dsl.checks.masks import write_out_inside
from dcp_dsl.checks.scope import Scope, find_definition
from dcp_dsl.claims.alone import alone, difference, packed_part, search_long
from dcp_dsl.claims.column_samples import column_kinds
from dcp_dsl.claims.confining import advise
from dcp_dsl.claims.guard import leaking_pairs, read_decorators
from dcp_dsl.claims.testing import (
    IF_FITTING,
    Failure,
    Finder,
    Step,
    Testing,
    Tried,
    first_empty_row,
    first_wrong_pair,
    search_fault,
)
from dcp_dsl.core.mask import Mask, may_begin_before, on_keys, read_mask
from dcp_dsl.core.per_token import first_pair, token_paths
from dcp_dsl.core.sample import Sample
from dcp_dsl.elaboration import nodes
from dcp_dsl.elaboration.programs import substitute
from dcp_dsl.proof.proving import is_total, never
from dcp_dsl.syntax import ast
from dcp_dsl.syntax.diagnostics import MAX_FINDINGS, Outcome
from dcp_dsl.syntax.trees import unparse


def layouts_of_paths(core: nodes.Mask) -> list[nodes.Laid]:
    """Return the layouts whose paths a mask reads, by `paths` or `.path`, each once."""
    found: dict[int, nodes.Laid] = {}
    for node in nodes.walk(core):
        match node:
            case nodes.Along(layout) | nodes.Lookup(nodes.Laid() as layout, "path"):
                found[id(layout.statement)] = layout
    return list(found.values())


_NUMBER = 3  # value of parameters without a default on samples


@dataclass(frozen=True, slots=True)
class _Subject:
    """A mask to check: a definition of the text, or an expression that is attached or stacked.

    Parameters without a default are free in its core program: a proof holds for all their values.

    Attributes:
        given: the mask as it is written; `mask` has the sequence of the keys alone (`on_keys`).
    """

    what: str
    given: Mask
    span: ast.Span

    @property
    def mask(self) -> Mask:
        return on_keys(self.given)


@dataclass(frozen=True, slots=True)
class _Claim:
    """A statement that must hold of a mask.

    Attributes:
        what: the statement, for the verdict.
        question: the statement as a question, for the warning that it is not tested.
        find: finds the place on a sample that contradicts the statement.
        code, message, hint: of the error for such a place.
        way_out: how to avoid the claim, for the warning.
    """

    what: str
    question: str
    find: Finder
    code: str
    message: str
    hint: str
    way_out: str


_MOST_TRIED = 4  # segments that `@ahead` may name


def mask_steps(testing: Testing) -> Iterator[Step]:
    """Yield the steps that check every mask of a text, and those that it attaches or stacks.

    They find E111 for divisors and tiles below 1, E120 for look-ahead, E121 for tokens that see
    nothing, E122 for masks without pairs, W209 for masks on paths that see another branch, W212
    for masks on paths or packed documents that count in the row, and W293 for what can be neither
    proved nor tested.
    """
    for definition in testing.scope.masks.values():
        yield Step("mask", definition, partial(_check_mask, definition, testing))
    for statement in testing.scope.program.statements:
        if isinstance(statement, ast.Attach | ast.StackDef):
            yield Step("use", statement, partial(_check_uses, statement, testing))


def _check_mask(definition: ast.MaskDef, testing: Testing) -> None:
    """Check a definition, unless it has a parameter that only a caller can give, such as a mask."""
    needed = [param for param in definition.params if param.default is None]
    if any(param.type.text in ("mask", "bool", "pos") for param in needed):
        return
    names = [ast.Ident(param.name.text) for param in needed]
    value: ast.Expr = ast.Name(definition.name.text)
    if needed:
        numbers = (ast.Argument(name, ast.Number(_NUMBER)) for name in names)
        value = ast.Call(definition.name, tuple(numbers))
    mask = read_mask(value, testing.scope)
    if needed:
        free = tuple(ast.Argument(name, ast.Name(name.text)) for name in names)
        call = ast.Call(definition.name, free)
        (core,) = write_out_inside((call,), definition, testing.scope)
        mask = replace(mask, core=core)
    what, span = f"mask {definition.name.text}", definition.name.span
    _check_subject(_Subject(what, mask, span), testing)


def _check_uses(statement: ast.Attach | ast.StackDef, testing: Testing) -> None:
    """Check the masks of a statement that are not checked as definitions."""
    for value in used_masks(statement, testing.scope):
        if isinstance(value, ast.Name):
            own = testing.scope.own_mask(value.text)
            if own is None or own[1] is testing.scope:
                continue  # a mask of the library, or one of this text
        mask = read_mask(value, testing.scope)
        _check_subject(_Subject(f"use of {unparse(value)}", mask, value.span), testing)


def used_masks(statement: ast.Attach | ast.StackDef, scope: Scope) -> list[ast.Expr]:
    """Return the expressions that are attached to data sets or stacked into layers."""
    match statement:
        case ast.Attach(value=ast.Name(text)) if scope.find_stack(text) is not None:
            return []  # the statement of the stack is checked itself
        case ast.Attach():
            return [with_columns(statement, scope)]
        case ast.StackDef(layers=layers):
            found = [layer.value for layer in layers if layer.value is not None]
            return found + [group.value for layer in layers for group in layer.heads]


def _check_subject(subject: _Subject, testing: Testing) -> None:
    if len(testing.found) < MAX_FINDINGS:
        # Binding refuses such a mask on every sample, so it has no other faults.
        if _has_zeros(subject, testing):
            return
        _check_empty(subject, testing)
        if subject.mask.keys is None:  # between two sequences no token is later than another
            _check_ahead(subject, testing)
        _check_branches(subject, testing)
        _check_documents(subject, testing)


def _has_zeros(subject: _Subject, testing: Testing) -> bool:
    """Report divisors and sizes of tiles below 1 that arguments or defaults bring (E111)."""
    has_found = False
    for node in nodes.walk(subject.mask.core):
        match node:
            case nodes.Arithmetic("//" | "%", _, nodes.Const(value, place=place)) | nodes.Tiles(
                nodes.Const(value, place=place)
            ) if value < 1:
                has_found = True
                # A place in another file cannot be shown here; the use of that mask can.
                span = place.span if place.program is testing.scope.program else subject.span
                message = f"expected at least 1, got {value}"
                testing.report("E111", message, span, "sizes and divisors are positive")
    return has_found


def _given(core: nodes.Mask, value: Callable[[str], nodes.Number]) -> nodes.Mask:
    """Return a core program with values for its free parameters, by name."""
    names = {node.name for node in nodes.walk(core) if isinstance(node, nodes.Free)}
    return substitute(core, {name: value(name) for name in names})


def _search(mask: Mask, find: Finder, testing: Testing, *, with_open: bool = True) -> Tried:
    """Look for a fault on samples, with small numbers for free parameters."""
    core = _given(mask.core, lambda _: nodes.Const(_NUMBER))
    return search_fault(replace(mask, core=core), find, testing, with_open=with_open)


def _check_empty(subject: _Subject, testing: Testing) -> None:
    """Look for tokens that see nothing.

    Two proofs come first: that every token sees itself, and that no token ever sees any.
    """
    _, _, is_partial = read_decorators(_definition(subject))
    what, core = f"{subject.what}: every token sees something", subject.mask.core
    if may_begin_before(subject.given):
        what += IF_FITTING
        # Only samples of the text may break the condition, and then they show it.
        tried = Tried(None, 0) if is_partial else _search(subject.given, first_empty_row, testing)
        if tried.failure is not None:
            _conclude(_sees_something(what), tried, subject, testing)
            return
    is_one = subject.mask.keys is None  # proofs speak of one sequence
    if is_one and is_total(core, testing.proofs):
        if not is_partial:
            testing.decide(what, "proved", subject.span)
        return
    # Other proofs take parameters to be at least 1; an error must hold for all that may be given.
    any_number = _given(core, lambda name: nodes.RowColumn(f"parameter {name}"))
    if is_one and never(any_number, budget=testing.proofs):
        message = "this mask is empty: no token ever sees anything"
        testing.report(
            "E122", message, subject.span, "look for two conditions that exclude each other"
        )
        testing.decide(what, "failed", subject.span)
    elif not is_partial:
        _test_empty(what, subject, testing)


def _sees_something(what: str) -> _Claim:
    return _Claim(
        what, "whether every token sees something", first_empty_row,
        "E121", "a token sees nothing",
        "mend the mask, or mark it `@partial` if such rows are meant", "mark the mask `@partial`",
    )  # fmt: skip


def _test_empty(what: str, subject: _Subject, testing: Testing) -> None:
    """Look on samples for tokens that see nothing.

    A made-up token column proves nothing here: `q < k.evict` hides every key where the column is
    0, but no data set has such a column. Only declared samples test such a mask. Without them, the
    made-up sample becomes part of the warning.
    """
    claim = _sees_something(what)
    tried = _search(subject.mask, claim.find, testing, with_open=False)
    if not tried.samples and not tried.code:
        guess = _search(subject.mask, claim.find, testing)
        if guess.failure is not None:
            _report_untested(claim, guess, subject, testing)
            return
        tried = guess
    _conclude(claim, tried, subject, testing)


def _check_ahead(subject: _Subject, testing: Testing) -> None:
    """Look for tokens that see a later one where no `@ahead` allows it."""
    found = _definition(subject)
    is_anywhere, segments, _ = read_decorators(found)
    if is_anywhere:
        return
    mask, where = leaking_pairs(subject.mask, segments, found[1] if found else testing.scope), ""
    if segments:
        where = f" outside {' and '.join(f'`{s.text}`' for s in segments)}"
    what = f"{subject.what}: no look-ahead{where}"
    if never(mask.core, budget=testing.proofs):
        testing.decide(what, "proved", subject.span)
        return
    claim = _Claim(
        what, f"whether a token sees a later one{where}", first_wrong_pair,
        "E120", f"a token sees a later one{where}",
        f"add `causal and`, or mark the mask {_ahead_of(subject, testing)} if it is meant",
        "add `causal and`",
    )  # fmt: skip
    _conclude(claim, _search(mask, claim.find, testing), subject, testing)


def _ahead_of(subject: _Subject, testing: Testing) -> str:
    """Return the decorators that allow the look-ahead, with the segment that holds all of it."""
    found = _definition(subject)
    _, marked, _ = read_decorators(found)
    # The parts of a layout come behind its own name, and say more.
    for name in [*found[1].segments][: -_MOST_TRIED - 1 : -1] if found else ():
        segments = (*marked, ast.Ident(name))
        leak = leaking_pairs(subject.mask, segments, found[1] if found else testing.scope)
        if never(leak.core, budget=testing.proofs):
            shown = ", ".join(segment.text for segment in segments)
            return f"`@ahead({shown})`, or `@ahead` for look-ahead anywhere,"
    return "`@ahead`"


def _check_branches(subject: _Subject, testing: Testing) -> None:
    """Look for tokens that see another branch, in masks that read paths.

    A mask that shows a token only its own path, and asks only for facts that a separate sequence
    has as well, shows every path what the path would see alone. With a bare `@ahead` other branches
    may be meant; the rest is asked where no earlier token of one is seen.
    """
    core = subject.mask.core
    trees = layouts_of_paths(core)
    if not trees:
        return
    off_path = nodes.And((core, *(nodes.Not(nodes.Along(tree)) for tree in trees)))
    if read_decorators(_definition(subject))[0]:
        off_path = nodes.And((off_path, nodes.Not(nodes.AHEAD)))
        if len(trees) == 1 and never(off_path, budget=testing.proofs):
            _check_alone(subject, _Whole(trees[0], is_tree=True), testing)
        return
    what = f"{subject.what}: nothing outside a token's path is seen"
    if len(trees) == 1 and alone(core, trees[0], is_tree=True) is core:
        what = f"{subject.what}: every path sees what it would see alone"
    if never(off_path, budget=testing.proofs):
        testing.decide(what, "proved", subject.span)
        if len(trees) == 1:
            _check_alone(subject, _Whole(trees[0], is_tree=True), testing)
        return
    claim = _Claim(
        what, "whether a token sees another branch", _leaks_between_branches(subject.mask),
        "W209", "a token sees another branch",
        "add `paths and`, or state what is meant without `paths` and `.path`", "add `paths and`",
    )  # fmt: skip
    leak = replace(subject.mask, core=off_path)
    _conclude(claim, _search(leak, claim.find, testing), subject, testing)


def _leaks_between_branches(mask: Mask) -> Finder:
    """Return the finder of pairs whose key is on no path of the query.

    A later token may be on all paths of the query, as the rest of an image is for its first patch.
    """

    def find(seen: NDArray[np.bool_], sample: Sample) -> Failure | None:
        paths = token_paths(mask, sample)
        if paths is not None:
            passed = np.eye(len(seen), dtype=np.bool_)  # by a path on its way to a token
            for token, before in enumerate(paths.previous.tolist()):
                if before >= 0:
                    passed[token] |= passed[before]
            # No path parts from another one in between.
            seen = seen & ~(passed.T & (paths.num_paths[:, None] == paths.num_paths))
        return first_wrong_pair(seen, sample)

    return find


def _check_documents(subject: _Subject, testing: Testing) -> None:
    """Look for positions of the row in masks that keep packed documents apart."""
    if subject.mask.keys is not None:
        return
    found: dict[tuple[int, str], nodes.Laid] = {}
    for node in _of_the_sample(subject.mask.core):
        if isinstance(node, nodes.Same | nodes.Per) and packed_part(node.segment) is not None:
            assert isinstance(node.segment, nodes.Laid), "packed parts are laid out"
            found[id(node.segment.statement), node.segment.name] = node.segment
    for segment in found.values():
        _check_alone(subject, _Whole(segment, is_tree=False), testing)


@dataclass(frozen=True, slots=True)
class _Whole:
    """The separate sequences in a packed sample: paths of a tree, or packed documents."""

    segment: nodes.Laid
    is_tree: bool

    @property
    def inside(self) -> nodes.Mask:
        """The pairs of tokens of one sequence."""
        return nodes.Along(self.segment) if self.is_tree else nodes.Same(self.segment)

    @property
    def words(self) -> str:
        """One of the sequences, in words."""
        return "path" if self.is_tree else f"`{self.segment.name}`"

    @property
    def hint(self) -> str:
        """How a mask counts in the sequences."""
        if self.is_tree:
            return "count along the path: `q.path - k.path` for `q - k`, `k.path` for `k`"
        name = self.segment.name
        return f"count in each `{name}`: write `... per {name}`, or `k.{name}.pos` for `k`"


def _check_alone(subject: _Subject, whole: _Whole, testing: Testing) -> None:
    """Look for pairs that a separate sequence shows and the packed sample hides, or vice versa.

    Masks that show pairs outside the sequences are not asked. A failed proof says nothing: W212
    shows a sample.
    """
    core = subject.mask.core
    separate = alone(core, whole.segment, is_tree=whole.is_tree)
    what = f"{subject.what}: every {whole.words} sees what it would see alone"
    if separate is None and whole.is_tree:
        reason = "it reads facts of the row, such as `len`, of which a path alone may have others"
        testing.decide(what, "untested", subject.span, reason=reason)
    if separate is None or separate is core:
        return
    outside = _outside(subject.mask, whole.inside)
    if not whole.is_tree and not never(outside.core, budget=testing.proofs):
        return
    differs = difference(core, separate, whole.inside)
    if never(differs, budget=testing.proofs):
        return
    # A made-up token column or `row` column proves nothing here: no data set may have such a one.
    tried = _search(replace(subject.mask, core=differs), first_wrong_pair, testing, with_open=False)
    found = tried.failure or search_long(replace(subject.mask, core=_small(differs)), testing)
    if found is None:
        return
    # The pair is the first that differs, so it is the first shown of these if it is shown at all.
    shown = replace(subject.mask, core=_small(nodes.And((core, differs))))
    is_seen = first_pair(shown, found.sample) == (found.q, found.k)
    packed, other = ("shows", "hides") if is_seen else ("hides", "shows")
    message = (
        f"a packed sample is not its separate sequences: it {packed} a pair that the "
        f"{whole.words} alone {other}, {found.described()}"
    )
    hint = whole.hint
    if any(isinstance(n, nodes.Lookup) and n.fact in ("number", "count") for n in nodes.walk(core)):
        hint += f"; numbers begin anew: a {whole.words} alone has one such part, number 0"
    testing.report("W212", message, subject.span, hint)
    testing.decide(what, "failed", subject.span, tried.samples)


def _small(core: nodes.Mask) -> nodes.Mask:
    """Return a core program with small numbers for free parameters, as searches have it."""
    return _given(core, lambda _: nodes.Const(_NUMBER))


def _conclude(claim: _Claim, tried: Tried, subject: _Subject, testing: Testing) -> None:
    """Report the outcome of a search: a fault, samples without a fault, or nothing to test."""
    if tried.failure is not None:
        message = f"{claim.message}: {tried.failure.described()}"
        testing.report(claim.code, message, subject.span, claim.hint)
        testing.decide(claim.what, "failed", subject.span, tried.samples)
    elif tried.samples and not tried.code:
        testing.decide(claim.what, "tested", subject.span, tried.samples)
    else:
        _report_untested(claim, tried, subject, testing)


def _report_untested(claim: _Claim, tried: Tried, subject: _Subject, testing: Testing) -> None:
    """Warn that a claim is neither proved nor tested, and say what a `sample` must give."""
    reason, hint = tried.reason, tried.hint
    if not reason:
        # There was no sample: name the columns for which none could be made up.
        mask = subject.mask
        kinds = column_kinds(mask.core)
        unknown = [column for column in sorted(mask.columns) if column not in kinds]
        open_ = [column for column, kind in sorted(kinds.items()) if kind.is_open]
        wanted = " and ".join(f"`{column}`" for column in open_ or unknown)
        reason = f"no sample gives {wanted or 'a length'}"
        given = "".join(f"{column} = ..., " for column in sorted(mask.columns))
        hint = f"add `sample tiny({given}len = ...)` as in your data, or {claim.way_out}"
    if tried.failure is not None:
        hint += f"; made-up values break it {tried.failure.described()}"
    message = f"{claim.question} is not tested: {reason}"
    testing.report("W293", message, subject.span, hint)
    testing.decide(claim.what, "untested", subject.span, reason=reason)


def _definition(subject: _Subject) -> tuple[ast.MaskDef, Scope] | None:
    return find_definition(subject.mask.expression, subject.mask.scope)


def leak_steps(testing: Testing) -> Iterator[Step]:
    """Yield the steps that check every stack of a text; they find W211."""
    for statement in testing.scope.program.statements:
        if isinstance(statement, ast.StackDef):
            yield Step("stack", statement, partial(_check_layers, statement, testing))


def _check_layers(stack: ast.StackDef, testing: Testing) -> None:
    """Look for layers whose masks cross the documents or branches that another layer keeps apart.

    O(different masks² * borders) proofs; a stack has few different masks.
    """
    values = {unparse(value): value for value in used_masks(stack, testing.scope)}
    masks = {call: on_keys(read_mask(value, testing.scope)) for call, value in values.items()}
    borders = {call: _borders(mask, testing) for call, mask in masks.items() if mask.keys is None}
    if not any(borders.values()):
        return
    what = f"stack {stack.name.text}: no layer sees across borders that another keeps"
    samples, is_proved, has_failed = 0, True, False
    for call in borders:
        for other, border in ((o, b) for o, found in borders.items() if o != call for b in found):
            across = _outside(masks[call], border, masks[other].columns)
            if never(across.core, budget=testing.proofs):
                continue
            tried = _search(across, first_wrong_pair, testing)
            is_proved, samples = False, samples + tried.samples
            if tried.failure is not None:  # one border is enough to warn of this layer
                has_failed = True
                testing.report(
                    "W211",
                    f"a layer with `{call}` sees across borders that `{other}` keeps: "
                    f"{tried.failure.described()}",
                    values[call].span, advise(values[call], masks[call], border, testing),
                )  # fmt: skip
                break
    outcome: Outcome = "failed" if has_failed else "proved" if is_proved else "tested"
    testing.decide(what, outcome, stack.name.span, samples)


def _borders(mask: Mask, testing: Testing) -> list[nodes.Mask]:
    """Return the borders that a mask keeps: relations outside which it shows no pair.

    Candidates are the paths and instances that it mentions; a proof decides about each.
    """
    found: dict[tuple[type, int, str], nodes.Mask] = {}
    for node in _of_the_sample(mask.core):
        match node:
            case nodes.Along(layout):
                # `Along` also excludes later keys; these are look-ahead (E120), not other branches.
                border = nodes.Or((nodes.Along(layout), nodes.AHEAD))
                found[nodes.Along, id(layout.statement), ""] = border
            case nodes.Same(nodes.Laid() as laid) | nodes.Per(nodes.Laid() as laid):
                found[nodes.Same, id(laid.statement), laid.name] = nodes.Same(laid)
    return [
        border
        for border in found.values()
        if never(_outside(mask, border).core, budget=testing.proofs)
    ]


def _outside(mask: Mask, border: nodes.Mask, columns: frozenset[str] = frozenset()) -> Mask:
    """Return the pairs of a mask outside a relation that needs `columns`."""
    core = nodes.And((mask.core, nodes.Not(border)))
    return replace(mask, core=core, columns=mask.columns | columns)


def _of_the_sample(core: nodes.Mask) -> Iterator[nodes.Mask]:
    """Yield the parts of a mask outside `per`: inside, positions count from an instance."""
    yield core
    match core:
        case nodes.Not(item):
            yield from _of_the_sample(item)
        case nodes.And(items) | nodes.Or(items):
            for item in items:
                yield from _of_the_sample(item)
