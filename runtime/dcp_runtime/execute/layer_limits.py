"""`LayerLimits`: what a model's own configuration lets a layer see, beside the mask of its plan.

The mask of a plan decides what a layer attends to. A layer that has a window must not get a wider
mask, which the model was not made for. A proof decides this for all batches; where none is found,
the mask of each batch does.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple, TypeAlias

import numpy as np

from dcp_dsl import Mask, Reach, Sample, Spec
from dcp_planner import Plan
from dcp_runtime.errors import RunError

Bound: TypeAlias = tuple[Mask, Sample]  # the mask of a sequence, and the columns of that sequence


class LayerLimits(NamedTuple):
    """Limits of one layer; 0 for no limit."""

    layer: str  # its name in messages
    window: int = 0  # a query sees its own token and so many less one before it
    chunk: int = 0  # tokens of the chunks, of which a query sees its own
    is_causal: bool = True  # the layer is made for masks that hide all later tokens
    longest: int = 0  # most tokens of a sequence
    tokens: int = 0  # most tokens of a batch

    def __str__(self) -> str:
        window = f"a window of {self.window} tokens" if self.window else ""
        chunk = f"chunks of {self.chunk} tokens" if self.chunk else ""
        return " and ".join(filter(None, (window, chunk))) or "bidirectional attention"


class MaskLimits:
    """The mask of a plan, as a loader or else its spec tells it, beside limits of layers."""

    def __init__(self, plan: Plan, bound: Sequence[Bound] = (), largest_position: int = -1) -> None:
        self._plan, self._told, self._largest = plan, bound, largest_position
        self._checked = set[LayerLimits]()

    @property
    def _bound(self) -> Sequence[Bound]:
        if self._told or (source := self._plan.provenance) is None:
            return self._told
        mask = _mask(source.spec, source.mask, source.files)
        return [(mask, Sample.from_json(sample)) for sample in source.samples]

    def check(self, limits: LayerLimits) -> None:
        """Compare the mask with the limits of a layer, once for all layers of equal limits."""
        key = limits._replace(layer="")
        if key not in self._checked:
            self._check_lengths(limits)
            if not limits.is_causal or limits.window or limits.chunk:
                self._check_masks(limits)
            self._checked.add(key)

    def _check_lengths(self, limits: LayerLimits) -> None:
        lengths = np.diff(self._plan.cu_seqlens)
        longest = max(int(lengths.max(initial=0)), self._largest + 1)
        for what, most, found in (
            ("sequences", limits.longest, longest),
            ("batches", limits.tokens, self._plan.num_tokens),
        ):
            if most and found > most:
                raise RunError(
                    f"{limits.layer}: expected {what} of at most {most} tokens, got {found}: in "
                    "longer ones the model computes with the largest position, or the number of "
                    "tokens, that it is called with, and a rank calls it with its own tokens only; "
                    f"{_FIXED_LENGTH}"
                )

    def _check_masks(self, limits: LayerLimits) -> None:
        bound = self._bound
        if not bound and self._plan.num_tokens:
            raise RunError(
                f"{limits.layer}: the model has {limits}, and nothing says of which mask the plan "
                "is; take plans from a DCPDataloader, or give build_plan(..., provenance="
                "Provenance(text, mask, samples))"
            )
        for number, (mask, sample) in enumerate(bound):
            reach = _reach(mask, limits.window, limits.chunk)
            if not limits.is_causal and reach.is_causal:
                raise RunError(
                    f"{limits.layer}: the model's attention is bidirectional, and mask "
                    f"`{mask.name}` lets no token see a later one; take a mask that does, marked "
                    "`@ahead`, or make the model causal in its config"
                )
            if (pair := reach.find_outside(sample)) is not None:
                q, k = pair
                raise RunError(
                    f"{limits.layer}: the model has {limits}, and mask `{mask.name}` lets token "
                    f"{q} of sequence {number} see token {k}; attach a stack whose mask for this "
                    f"layer is `{reach.advice}`, or narrower"
                )


_FIXED_LENGTH = (
    "shorten the rows, or choose in the model's config what does not depend on the length: for "
    "LongRoPE equal short_factor and long_factor, for dynamic scaling another rope_type such as "
    "yarn, for Llama 4 attn_temperature_tuning=False"
)


# The same few masks come batch after batch.
@lru_cache(maxsize=64)
def _mask(spec: str, call: str, files: tuple[tuple[str, str], ...]) -> Mask:
    return Spec.from_text(spec, files=dict(files)).mask(call)


@lru_cache(maxsize=64)
def _reach(mask: Mask, window: int, chunk: int) -> Reach:
    return Reach.of(mask, window or None, chunk or None)
