"""Read text that every machine has: docstrings of Python's standard library, a byte per token."""

import ast
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SKIPPED = frozenset({"site-packages", "dist-packages", "test", "tests", "idlelib", "__pycache__"})
MIN_TOKENS = 200


def read_documents(max_tokens: int) -> Iterator[dict[str, Any]]:
    """Yield one row per module with a docstring, in the order of their names.

    Columns: ``tokens``, bytes; ``question_len``, the length of the module's docstring;
    ``answer_lens``, the lengths of the docstrings of functions and classes. Rows are cut at
    `max_tokens`.
    """
    library = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(library.rglob("*.py")):
        if not SKIPPED.intersection(path.relative_to(library).parts):
            texts = docstrings(path.read_bytes())
            if texts and sum(map(len, texts)) >= MIN_TOKENS:
                yield make_row(texts, max_tokens)


def docstrings(source: bytes) -> list[bytes]:
    r"""Return the docstrings of a module and of its functions and classes, the module's first.

    >>> docstrings(b'"Doc."\ndef f():\n  "Does f."\n')
    [b'Doc.\n\n', b'Does f.\n\n']
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about invalid escapes in old files
            module = ast.parse(source)
    except (SyntaxError, ValueError):  # some files of the library are broken on purpose
        return []
    if ast.get_docstring(module) is None:
        return []
    documented = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    found = [ast.get_docstring(module)]
    found += [ast.get_docstring(n) for n in ast.walk(module) if isinstance(n, documented)]
    return [f"{text}\n\n".encode() for text in found if text]


def make_row(texts: list[bytes], max_tokens: int) -> dict[str, Any]:
    """Join docstrings and note their lengths; all beyond `max_tokens` is cut off."""
    lengths, left = [], max_tokens
    for text in texts:
        lengths.append(min(len(text), left))
        left -= lengths[-1]
    return {
        "tokens": b"".join(texts)[:max_tokens],
        "question_len": lengths[0],
        "answer_lens": [length for length in lengths[1:] if length],
    }
