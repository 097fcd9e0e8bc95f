"""Names that people bring along from other mask languages, and what to write instead."""

from collections.abc import Mapping, Sequence

from dcp_dsl.syntax.diagnostics import did_you_mean

POSITIONS: Mapping[str, str] = {
    **dict.fromkeys(("q_idx", "query_idx", "q_index", "q_pos", "query_pos"), "q"),
    **dict.fromkeys(("kv_idx", "key_idx", "k_idx", "kv_index", "kv_pos", "key_pos"), "k"),
    **dict.fromkeys(("seq_len", "seqlen", "seq_length", "num_tokens"), "len"),
}
"""What other languages call the positions of query and key and the length of the sample."""

_POSITION_WORDS = {
    "q": "the position of the query", "k": "the position of the key",
    "len": "the tokens of the sample",
}  # fmt: skip

_SCORES = (
    "a mask is known before the model runs; let the data say which keys are chosen: "
    "`segment chosen = flags(is_chosen)` and `(k in chosen or q == k)`"
)
_CHANCE = (
    "a mask is the same in every run; draw once and put it into the data: "
    "`segment kept = flags(is_kept)` and `(k in kept or q == k)`"
)
FUNCTIONS: Mapping[str, str] = {
    **dict.fromkeys(("top_k", "topk", "argmax", "softmax", "score"), _SCORES),
    **dict.fromkeys(("random", "rand", "randint", "bernoulli", "dropout"), _CHANCE),
}
"""Functions that no mask can have, and the way out."""

JOINS: Mapping[str, str] = {"and_masks": "and", "or_masks": "or"}
"""Functions that join masks, and the operator that does it here."""


def position_hint(name: str) -> str:
    """Say how a position is called here, or give an empty text.

    >>> position_hint("kv_idx")
    'write `k`, the position of the key'
    """
    meant = POSITIONS.get(name)
    return "" if meant is None else f"write `{meant}`, {_POSITION_WORDS[meant]}"


def segment_hint(name: str, segments: Sequence[str]) -> str:
    """Give the segment that a word means which is none: a close word, or a longer or shorter one.

    >>> segment_hint("document", ["part", "doc"])
    'did you mean `doc`?'
    """
    near = did_you_mean(name, list(segments))
    if near:
        return near
    alike = [s for s in segments if min(len(s), len(name)) > 1]
    alike = [s for s in alike if name.startswith(s) or s.startswith(name)]
    if alike:
        return f"did you mean `{max(alike, key=len)}`?"
    if segments:
        return f"segments: {', '.join(f'`{s}`' for s in sorted(segments))}"
    return f"define it: `segment {name} = [{name}_lens]*`, or tiles: `where {name} = every 256`"
