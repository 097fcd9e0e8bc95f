"""Real documents that every machine has: the source files of the Python standard library.

One byte is one token. A file is a question (its text before the first top-level function or class)
and answers (each of these, up to the next one), so lengths are as uneven as those of training data.
"""

import ast
import sysconfig
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np

MAX_TOKENS = 131_072
MIN_TOKENS = 64

_SKIPPED = frozenset({"site-packages", "dist-packages", "test", "tests", "__pycache__"})


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One source file, its path relative to the library and at most `MAX_TOKENS` bytes of text.

    ``header_len + sum(answer_lens) == len(text)``.
    """

    path: str
    text: bytes
    header_len: int
    answer_lens: tuple[int, ...]


def split_layout(source: bytes) -> tuple[int, tuple[int, ...]]:
    r"""Return the lengths of a source file's header and of each top-level definition, in bytes.

    Raises:
        SyntaxError: if it is no Python source.

    >>> split_layout(b"import os\ndef f(): pass\n@cache\ndef g(): pass\n")
    (10, (14, 21))
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes in old files are none of our business
        body = ast.parse(source).body
    definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    lines = [
        min([node.lineno, *(d.lineno for d in node.decorator_list)])
        for node in body
        if isinstance(node, definitions)
    ]
    line_start = [0, *accumulate(len(line) for line in source.splitlines(keepends=True))]
    cuts = [*(line_start[line - 1] for line in lines), len(source)]
    return cuts[0], tuple(end - start for start, end in pairwise(cuts))


def read_documents(root: Path | None = None) -> Iterator[SourceFile]:
    """Read the source files below `root` (default: the standard library), sorted by name.

    Longer files are cut at `MAX_TOKENS`; files shorter than `MIN_TOKENS` or not valid Python are
    left out.
    """
    library = root or Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(library.rglob("*.py")):
        inside = path.relative_to(library)
        if _SKIPPED.intersection(inside.parts):
            continue
        source = path.read_bytes()
        try:
            header, answers = split_layout(source)
        except (SyntaxError, ValueError):  # ValueError: a NUL byte
            continue
        if len(source) >= MIN_TOKENS:
            ends = np.minimum(np.cumsum([header, *answers]), MAX_TOKENS)
            first, *rest = (int(n) for n in np.diff(ends, prepend=0))
            kept = tuple(n for n in rest if n)
            yield SourceFile(inside.as_posix(), source[:MAX_TOKENS], first, kept)


def write_datasets(documents: Sequence[SourceFile], paths: Sequence[Path], seed: int) -> None:
    """Deal documents out at random to one Parquet file per path.

    Columns: ``path`` text, ``tokens`` bytes, lengths in tokens ``length``, ``header_len`` and
    ``answer_lens``. Each file is written under another name first, then renamed.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    order = np.random.default_rng(seed).permutation(len(documents))
    for number, path in enumerate(paths):
        rows = [documents[i] for i in order[number :: len(paths)]]
        table = pa.table(
            {
                "path": pa.array([d.path for d in rows], pa.string()),
                "tokens": pa.array([d.text for d in rows], pa.binary()),
                "length": pa.array([len(d.text) for d in rows], pa.int64()),
                "header_len": pa.array([d.header_len for d in rows], pa.int64()),
                "answer_lens": pa.array([d.answer_lens for d in rows], pa.list_(pa.int64())),
            }
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".unfinished")
        pq.write_table(table, unfinished)
        unfinished.replace(path)


def choose_batch(lengths: Sequence[int], num_tokens: int) -> tuple[int, ...]:
    """Choose samples that add up to `num_tokens` tokens, or to as many as possible.

    Take samples in order, as a packing data loader would, until half is filled; solve a subset sum
    over the samples that follow: bit n of a large integer means that n tokens can be reached.
    O(samples * num_tokens / 64). Return indices in ascending order; empty if no sample fits.

    >>> choose_batch([700, 200, 90, 60, 40], 900)
    (0, 1)
    >>> choose_batch([700, 250, 90, 60, 40], 900)
    (0, 2, 3, 4)
    """
    taken: list[int] = []
    left = num_tokens
    candidates = list(range(len(lengths)))
    while candidates and left > num_tokens // 2:
        index = candidates.pop(0)
        if lengths[index] <= left:
            taken.append(index)
            left -= lengths[index]
    return tuple(sorted(taken + _subset_sum(lengths, candidates, left)))


def _subset_sum(lengths: Sequence[int], candidates: Sequence[int], target: int) -> list[int]:
    keep = (1 << (target + 1)) - 1
    reachable = [1]
    for index in candidates:
        reachable.append((reachable[-1] | (reachable[-1] << lengths[index])) & keep)
        if reachable[-1] >> target:
            break
    rest = reachable[-1].bit_length() - 1
    chosen: list[int] = []
    for step in range(len(reachable) - 1, 0, -1):
        if not (reachable[step - 1] >> rest) & 1:
            index = candidates[step - 1]
            chosen.append(index)
            rest -= lengths[index]
    return chosen
