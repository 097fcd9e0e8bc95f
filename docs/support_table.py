"""Print what is supported of model families and training stacks, as the tests know it.

``python docs/support_table.py --table tests/runtime`` prints the Markdown lists of a folder of
tests, whose modules state what they test.
"""

import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path

OUTCOMES = {"supported": "Yes", "unaffected": "Untouched", "refused": "Refused"}

Row = tuple[str, str]
"""A feature and its outcome."""


def families() -> list[Row]:
    """Return the model families."""
    from model_families import REFUSED, SUPPORTED

    found = [(_noted(each.name, each.note), "supported") for each in SUPPORTED]
    return found + [(_noted(each.name, each.note), "refused") for each in REFUSED]


def trainer() -> list[Row]:
    """Return what Hugging Face's trainer may add to a run."""
    from trainer_features import FEATURES

    return [(_noted(each.name, each.note), each.status) for each in FEATURES]


def stack(name: str) -> list[Row]:
    """Return what the loop of a stack may add to a run."""
    from stack_features import FEATURES

    return [(each.name, each.verdict) for each in FEATURES if each.stack == name]


def _noted(name: str, note: str) -> str:
    return f"{name} ({note})" if note else name


def listed(rows: Iterable[Row]) -> str:
    """Return rows as Markdown, a paragraph for each outcome."""
    rows = list(rows)
    return "\n\n".join(
        textwrap.fill(
            f"**{word}**: {'; '.join(name for name, outcome in rows if outcome == wanted)}.",
            width=100,
            break_long_words=False,
            break_on_hyphens=False,
        )
        for wanted, word in OUTCOMES.items()
        if any(outcome == wanted for _, outcome in rows)
    )


def main() -> None:
    """Print all lists."""
    sys.path.insert(0, str(Path(sys.argv[sys.argv.index("--table") + 1]).resolve()))
    for title, rows in (
        ("Model families of Hugging Face", families()),
        ("Hugging Face's trainer", trainer()),
        ("Megatron-Core", stack("Megatron-Core")),
        ("torchtitan", stack("torchtitan")),
    ):
        print(f"## {title}\n\n{listed(rows)}\n")


if __name__ == "__main__":
    main()
