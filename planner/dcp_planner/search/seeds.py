"""Where the native search may start: a part for every row of tiles, owners along with them."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from dcp_planner.search.problem import Problem, Split

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
_SLACK = 0.03  # of a part's share, that whole documents may exceed it by


def seeds(problem: Problem, parts: int) -> Iterator[Split]:
    """Give the starts, the most promising first: documents, token ranges, zigzag, equal work."""
    for row in (
        by_documents(problem, parts),
        by_tokens(problem, parts),
        by_work(problem, parts),
        zigzag(problem, parts),
    ):
        yield _split_of_rows(problem, row)


def _split_of_rows(problem: Problem, row: NDArray[np.int32]) -> Split:
    return Split(row[problem.tile_q], np.where(problem.is_owned, row, -1).astype(np.int32))


def _shares(problem: Problem, parts: int) -> tuple[Floats, Floats]:
    """Give the work of each row and the tokens of each block, in shares of a part."""
    work = np.zeros(problem.num_blocks)
    np.add.at(work, problem.tile_q, problem.work)
    tokens = problem.tokens.astype(np.float64)
    return (
        work * (parts / max(1.0, float(work.sum()))),
        tokens * (parts / max(1.0, float(tokens.sum()))),
    )


def by_tokens(problem: Problem, parts: int) -> NDArray[np.int32]:
    """Cut the batch into runs of equal tokens."""
    tokens = _shares(problem, parts)[1]
    middle = np.cumsum(tokens) - tokens / 2
    return np.minimum(middle.astype(np.int32), np.int32(parts - 1))


def by_work(problem: Problem, parts: int) -> NDArray[np.int32]:
    """Cut the batch into runs of rows of equal work."""
    work = _shares(problem, parts)[0]
    middle = np.cumsum(work) - work / 2
    return np.minimum(middle.astype(np.int32), np.int32(parts - 1))


def zigzag(problem: Problem, parts: int) -> NDArray[np.int32]:
    """Cut the batch into twice as many runs; part p has runs p and 2K-1-p."""
    run = by_tokens(problem, 2 * parts)
    return np.minimum(run, 2 * parts - 1 - run).astype(np.int32)


def by_documents(problem: Problem, parts: int) -> NDArray[np.int32]:
    """Give whole documents, largest first, to the emptiest part; cut those that fit nowhere.

    A document is as large as its work or its tokens, whichever is the larger share. One that fits
    nowhere fills the emptiest parts one after the other with runs of its rows.
    """
    work, tokens = _shares(problem, parts)
    first = np.flatnonzero(np.diff(problem.sequence, prepend=-1))
    end = np.append(first[1:], problem.num_blocks)
    sizes = np.stack([np.add.reduceat(s, first) for s in (work, tokens)])
    full = np.zeros((2, parts))
    row = np.zeros(problem.num_blocks, np.int32)
    for document in np.argsort(-sizes.max(axis=0), kind="stable").tolist():
        filled = (full + sizes[:, document : document + 1]).max(axis=0)
        best = int(np.argmin(filled))
        run = slice(int(first[document]), int(end[document]))
        if filled[best] <= 1 + _SLACK or run.stop - run.start == 1:
            row[run] = best
            full[:, best] += sizes[:, document]
        else:
            row[run] = _fill_in_turn(np.stack([work[run], tokens[run]], axis=1), full)
    return row


def _fill_in_turn(rows: Floats, full: Floats) -> NDArray[np.int32]:
    """Fill the emptiest part, then the next; what is left goes to the emptiest, row by row."""
    order = iter(np.argsort(full.max(axis=0), kind="stable").tolist())
    part: int | None = next(order)
    chosen = np.zeros(len(rows), np.int32)
    for index, size in enumerate(rows):
        while part is not None and (full[:, part] + size).max() > 1 + _SLACK:
            part = next(order, None)
        target = int(np.argmin(full.max(axis=0))) if part is None else part
        chosen[index] = target
        full[:, target] += size
    return chosen
