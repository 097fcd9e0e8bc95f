"""Refuse samples that would train garbage: a token that sees a later one, a row that sees nothing.

Rules of a mask that hold for every sample are proved once. The others are decided exactly on each
sample, from the mask bound to it.
"""

import reprlib
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from dcp_dsl.checks.masks import write_out_segment
from dcp_dsl.checks.scope import Scope, find_definition
from dcp_dsl.core.layout import bind_layout
from dcp_dsl.core.mask import Mask
from dcp_dsl.core.sample import Sample
from dcp_dsl.elaboration import nodes
from dcp_dsl.elaboration.programs import column_readers
from dcp_dsl.errors import DatasetError
from dcp_dsl.forms.algebra import first_pair, rows_with_pairs
from dcp_dsl.forms.form import Form
from dcp_dsl.forms.slabs import Slabs
from dcp_dsl.syntax import ast


@dataclass(frozen=True, slots=True, eq=False)
class MaskRule:
    """The decorators of a mask, and the statements proved about it.

    `leaks` are pairs that look ahead outside the segments of `@ahead(segment)`. What `@ahead` and
    `@partial` allow counts as proved.
    """

    mask: Mask
    leaks: Mask | None = None
    is_causal_proved: bool = False
    is_total_proved: bool = False

    @classmethod
    def of(cls, mask: Mask) -> "MaskRule":
        """Read the decorators of the mask that is called, and try to prove the rest."""
        # Loaded on use: reading a text needs no proofs.
        from dcp_dsl.proof.proving import is_total, never

        # `Mask.compile` refuses masks over two sequences, so `check` must bind these every time.
        if mask.keys is not None:
            return cls(mask)
        definition = find_definition(mask.expression, mask.scope)
        ahead, segments, is_partial = read_decorators(definition)
        leaks = None
        if segments and definition is not None:
            leaks = leaking_pairs(mask, segments, definition[1])
        is_causal = ahead or never((leaks or mask).core, ("before",))
        return cls(mask, leaks, is_causal, is_partial or is_total(mask.core))

    def check(self, sample: Sample) -> None:
        """Raise a `DatasetError` if the mask leaks or has an empty row on this sample."""
        bound = self.mask.compile(sample)
        if not self.is_total_proved:
            row = _first_empty(bound)
            if row is not None:
                raise DatasetError(
                    f"mask `{self.mask.name}`: token {row} sees nothing{_told(self.mask, sample)}; "
                    f"mend the columns, or mark the mask `@partial`"
                )
        if self.is_causal_proved:
            return
        if self.leaks is None and isinstance(bound, Slabs):
            # The slabs answer at once; the general way binds a second mask.
            pair = _first_ahead(bound)
        else:
            leaks = self.leaks or leaking_pairs(self.mask, (), self.mask.scope)
            pair = first_pair(leaks.compile(sample))
        if pair is not None:
            raise DatasetError(
                f"mask `{self.mask.name}`: token {pair[0]} sees the later token {pair[1]}"
                f"{_told(self.mask, sample)}; mend the columns, or mark the mask `@ahead`"
            )


@dataclass(frozen=True, slots=True, eq=False)
class Guard:
    """Decides for each sample whether masks may be trained on it.

    >>> from dcp_dsl import Spec
    >>> mask = Spec.from_text("token evict  mask kept = causal and q < k.evict").mask("kept")
    >>> Guard.of([mask]).check(Sample({"evict": [2, 2, 2]}, 3))
    Traceback (most recent call last):
    ...
    dcp_dsl.errors.DatasetError: mask `kept`: token 2 sees ... with evict = [2, 2, 2]; ...
    """

    rules: tuple[MaskRule, ...]

    @classmethod
    def of(cls, masks: Iterable[Mask]) -> "Guard":
        """Try to prove the rules of these masks for every sample; some milliseconds per mask."""
        return cls(tuple(map(MaskRule.of, masks)))

    @property
    def is_causal_proved(self) -> bool:
        """True if no sample can have a look-ahead that is not allowed."""
        return all(rule.is_causal_proved for rule in self.rules)

    @property
    def is_total_proved(self) -> bool:
        """True if in every sample every token sees something, or need not."""
        return all(rule.is_total_proved for rule in self.rules)

    def check(self, sample: Sample) -> None:
        """Refuse a sample that leaks, has a row that sees nothing, or does not fit its layout.

        Binds each mask of which not everything is proved; of the others only the layouts.

        Raises:
            DatasetError: naming the tokens and the columns.
        """
        for rule in self.rules:
            if rule.is_causal_proved and rule.is_total_proved:
                rule.mask.require(sample)
                for statement, layout in rule.mask.layouts:  # much cheaper than binding the mask
                    bind_layout(statement, layout, sample.columns, sample.length)
            else:
                rule.check(sample)


def read_decorators(
    found: tuple[ast.MaskDef, Scope] | None,
) -> tuple[bool, tuple[ast.Ident, ...], bool]:
    """Return if a mask may look ahead anywhere, in which segments, and if it is `@partial`."""
    decorators = () if found is None else found[0].decorators
    ahead = [d for d in decorators if d.name.text == "ahead"]
    is_anywhere = any(not d.arguments for d in ahead)
    segments = tuple(name for d in ahead for name in d.arguments)
    return is_anywhere, segments, any(d.name.text == "partial" for d in decorators)


def leaking_pairs(mask: Mask, segments: tuple[ast.Ident, ...], scope: Scope) -> Mask:
    """Return the mask of the pairs that look ahead outside one instance of any of the segments."""
    outside = [nodes.Not(nodes.Same(write_out_segment(s.text, scope))) for s in segments]
    core = nodes.And((nodes.AHEAD, mask.core, *outside))
    columns = mask.columns | {column for column, _ in column_readers(core)}
    return replace(mask, core=core, columns=columns)


def _first_empty(bound: Form) -> int | None:
    """Return the first row that sees nothing, None if every row sees something."""
    # Slabs are sorted by their first row. Where one begins behind the ends of all before it, the
    # rows between are empty. This takes O(slabs); counting the pairs of each row takes O(tokens).
    if isinstance(bound, Slabs):
        covered = np.maximum.accumulate(np.concatenate([[0], bound.q_end]))
        gaps = np.flatnonzero(np.append(bound.q_start, bound.num_tokens) > covered)
        return int(covered[gaps[0]]) if len(gaps) else None
    is_seeing = np.zeros(bound.num_tokens, np.bool_)
    is_seeing[rows_with_pairs(bound)] = True
    return None if is_seeing.all() else int(is_seeing.argmin())


def _first_ahead(bound: Slabs) -> tuple[int, int] | None:
    """Return a row that sees a later token, and that token."""
    # Ends have slope 0 or 1, so no row of a slab looks further ahead than its first row does.
    ahead = np.flatnonzero(bound.kv_end - 1 > bound.q_start)
    if not len(ahead):
        return None
    row, first = int(bound.q_start[ahead[0]]), int(bound.kv_start[ahead[0]])
    return row, max(first, row + 1)


def _told(mask: Mask, sample: Sample) -> str:
    """Show the columns of a sample that a mask reads, shortened, or else its length."""
    short = reprlib.Repr()
    short.maxlist = 8
    shown = [f"{name} = {short.repr(sample.columns[name])}" for name in sorted(mask.columns)]
    return f" with {', '.join(shown)}" if shown else f" in a sample of {sample.length} tokens"
