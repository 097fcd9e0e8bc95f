"""Find masks whose packed sequences do not see what each of them would see alone.

The sequences are the paths of a tree, or packed documents. A mask that reads paths should show no
other branch, and a mask on either should mean the same in a packed sample and in each sequence.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dcp_dsl.claims.alone import alone, difference, packed_part, search_long
from dcp_dsl.claims.guard import read_decorators
from dcp_dsl.claims.lints.claim import Claim, conclude, search
from dcp_dsl.claims.lints.subject import Subject, definition_of, of_the_sample, outside, small
from dcp_dsl.claims.testing import Failure, Finder, Testing, first_wrong_pair
from dcp_dsl.core.mask import Mask
from dcp_dsl.core.per_token import first_pair, token_paths
from dcp_dsl.core.sample import Sample
from dcp_dsl.elaboration import nodes
from dcp_dsl.elaboration.programs import fork_columns, has_branches
from dcp_dsl.proof.proving import never
from dcp_dsl.syntax import ast
from dcp_dsl.syntax.trees import walk_parts


def other_branches(subject: Subject, testing: Testing) -> None:
    """Look for tokens that see another branch, in masks that read paths (W209).

    A mask that shows a token only its own path, and asks only for facts that a separate sequence
    has as well, shows every path what the path would see alone. With a bare `@ahead` other branches
    may be meant; the rest is asked where no earlier token of one is seen.
    """
    core = subject.mask.core
    trees = _layouts_of_paths(core)
    if not trees:
        return
    off_path = nodes.And((core, *(nodes.Not(near) for tree in trees for near in _on_path(tree))))
    if read_decorators(definition_of(subject))[0]:
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
    claim = Claim(
        what, "whether a token sees another branch", _leaks_between_branches(subject.mask),
        "W209", "a token sees another branch",
        "add `paths and`, or state what is meant without `paths` and `.path`", "add `paths and`",
    )  # fmt: skip
    leak = replace(subject.mask, core=off_path)
    conclude(claim, search(leak, claim.find, testing), subject, testing)


def _on_path(tree: nodes.Laid) -> list[nodes.Mask]:
    """Return relations whose keys lie on every path of the query: before it, or in its branch.

    A later token of the same part lies there if nothing branches inside the part; forks at tokens
    may.
    """
    layout = tree.statement.source
    assert isinstance(layout, ast.Layout), "only layouts have branches"
    straight = [
        part.name.text
        for part, *_ in walk_parts(layout.parts)
        if part.name is not None
        and not fork_columns(layout)
        and (isinstance(part, ast.Leaf) or not has_branches(ast.Layout(part.parts)))
    ]
    same = [nodes.Same(nodes.Laid(tree.statement, name)) for name in straight]
    return [nodes.Along(tree), *(nodes.And((nodes.AHEAD, each)) for each in same)]


def rows_of_documents(subject: Subject, testing: Testing) -> None:
    """Look for positions of the row in masks that keep packed documents apart (W212)."""
    if subject.mask.keys is not None:
        return
    found: dict[tuple[int, str], nodes.Laid] = {}
    for node in of_the_sample(subject.mask.core):
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


def _check_alone(subject: Subject, whole: _Whole, testing: Testing) -> None:
    """Look for pairs that a sequence shows alone and hides when packed, or vice versa (W212).

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
    apart = outside(subject.mask, whole.inside)
    if not whole.is_tree and not never(apart.core, budget=testing.proofs):
        return
    differs = difference(core, separate, whole.inside)
    if never(differs, budget=testing.proofs):
        return
    # A made-up token column or `row` column proves nothing here: no data set may have such a one.
    tried = search(replace(subject.mask, core=differs), first_wrong_pair, testing, with_open=False)
    found = tried.failure or search_long(replace(subject.mask, core=small(differs)), testing)
    if found is None:
        return
    # The pair is the first that differs, so it is the first shown of these if it is shown at all.
    shown = replace(subject.mask, core=small(nodes.And((core, differs))))
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


def _leaks_between_branches(mask: Mask) -> Finder:
    """Return the finder of pairs whose key is on no path of the query.

    A later token may be on all paths of the query, as the rest of an image is for its first patch.
    """

    def find(seen: NDArray[np.bool_], sample: Sample) -> Failure | None:
        paths = token_paths(mask, sample)
        if paths is not None:
            passed = np.eye(len(seen), dtype=np.bool_)  # by a path on its way to a token
            before = paths.previous.copy()
            for token, since, until, last in paths.joins.tolist():
                passed[token, since:until], before[token] = True, last
            for token, last in enumerate(before.tolist()):
                if last >= 0:
                    passed[token] |= passed[last]
            # No path parts from another one in between.
            seen = seen & ~(passed.T & (paths.num_paths[:, None] == paths.num_paths))
        return first_wrong_pair(seen, sample)

    return find


def _layouts_of_paths(core: nodes.Mask) -> list[nodes.Laid]:
    """Return the layouts whose paths a mask reads, by `paths` or `.path`, each once."""
    found: dict[int, nodes.Laid] = {}
    for node in nodes.walk(core):
        match node:
            case nodes.Along(layout) | nodes.Lookup(nodes.Laid() as layout, "path"):
                found[id(layout.statement)] = layout
    return list(found.values())
