"""Print what is supported of model families and training stacks, as the tests know it.

``python docs/support_table.py --table tests/runtime`` prints the Markdown table of a folder of
tests, whose modules state what they test.
"""

import sys
from pathlib import Path


def rows() -> list[tuple[str, str, str]]:
    """Return subjects, their outcome, and how it is tested."""
    from model_families import REFUSED, SUPPORTED

    two_ranks = "every gradient on two ranks, one without tokens, equals that of separate rows"
    plain = "; ".join(each.name for each in SUPPORTED if not each.note)
    found = [(plain, "yes", two_ranks)]
    found += [(each.name, f"yes; {each.note}", two_ranks) for each in SUPPORTED if each.note]
    refused = "; ".join(f"{each.name} ({each.note})" for each in REFUSED)
    return [*found, (refused, "refused by the name of what mixes tokens", "the message")]


def main() -> None:
    """Print the table."""
    sys.path.insert(0, str(Path(sys.argv[sys.argv.index("--table") + 1]).resolve()))
    print("| model family | runs | tested |\n| --- | --- | --- |")
    for row in rows():
        print("| " + " | ".join(row) + " |")


if __name__ == "__main__":
    main()
