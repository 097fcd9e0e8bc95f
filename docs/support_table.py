"""Print what is supported of model families and training stacks, as the tests know it.

``python docs/support_table.py --table tests/runtime`` prints the Markdown tables of a folder of
tests, whose modules state what they test.
"""

import sys
from collections.abc import Iterable
from pathlib import Path

OUTCOMES = {"supported": "yes", "unaffected": "untouched", "refused": "refused"}

Row = tuple[str, str, str]
"""A feature, its outcome, and how it is tested."""


def families() -> list[Row]:
    """Return the model families."""
    from model_families import REFUSED, SUPPORTED

    two_ranks = "every gradient on two ranks, one without tokens, equals that of separate rows"
    found = [(_noted(each.name, each.note), "supported", two_ranks) for each in SUPPORTED]
    return found + [(_noted(each.name, each.note), "refused", "its words") for each in REFUSED]


def trainer() -> list[Row]:
    """Return what Hugging Face's trainer may add to a run."""
    from trainer_features import FEATURES

    return [(_noted(each.name, each.note), each.status, each.tested) for each in FEATURES]


def stack(name: str) -> list[Row]:
    """Return what the loop of a stack may add to a run."""
    from stack_features import FEATURES

    return [(each.name, each.verdict, each.how) for each in FEATURES if each.stack == name]


def _noted(name: str, note: str) -> str:
    return f"{name} ({note})" if note else name


def table(rows: Iterable[Row]) -> str:
    """Return rows as Markdown; features with the same outcome and test share a line."""
    shared: dict[tuple[str, str], list[str]] = {}
    for name, outcome, tested in rows:
        shared.setdefault((outcome, tested), []).append(name)
    lines = ["| what | runs | compared with, or why |", "| --- | --- | --- |"]
    for wanted, words in OUTCOMES.items():
        lines += [
            f"| {'; '.join(names)} | {words} | {tested} |"
            for (outcome, tested), names in shared.items()
            if outcome == wanted
        ]
    return "\n".join(lines)


def main() -> None:
    """Print all tables."""
    sys.path.insert(0, str(Path(sys.argv[sys.argv.index("--table") + 1]).resolve()))
    for title, rows in (
        ("Model families of Hugging Face", families()),
        ("Hugging Face's trainer", trainer()),
        ("Megatron-Core", stack("Megatron-Core")),
        ("torchtitan", stack("torchtitan")),
    ):
        print(f"## {title}\n\n{table(rows)}\n")


if __name__ == "__main__":
    main()
