"""Write the text of `dcpm why`."""

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from dcp_planner.causes.diagnosis import Why
from dcp_planner.causes.explanation import Explanation, explain_difference
from dcp_planner.causes.sentences import PathLine, path_lines, percent, three_sentences
from dcp_planner.causes.suggestions import Suggestion, worth_saying
from dcp_planner.commands.tables import PARTIALS, console_of_tables, print_table, time_text
from dcp_planner.tables.plan import Plan

MOST_LINES = 8
"""Steps of the critical path that are printed; the others are counted."""


def show_why(
    found: Why, plan: Plan, tried: Sequence[Suggestion], compared: Explanation | None
) -> None:
    """Print sentences, the critical path and what to try to standard output."""
    console = console_of_tables()
    for sentence in three_sentences(found, time_text):
        console.print(Text(sentence))
    console.print(Text(f"Partial results travel {PARTIALS[plan.shape.partials]}."))
    if compared is not None:
        names = ("this plan", "the other")
        console.print(Text(explain_difference(compared, names, time_text)))
    _show_path(console, path_lines(found))
    _show_tried(console, tried, found.diagnosis.seconds)


def _show_path(console: Console, lines: Sequence[PathLine]) -> None:
    if not lines:
        return
    longest = sorted(lines, key=lambda line: -line.share)[:MOST_LINES]
    shown = sorted(longest, key=lambda line: line.start_s)
    rows = [
        (time_text(line.start_s), time_text(line.seconds), percent(line.share), line.text)
        for line in shown
    ]
    print_table(console, ("from", "takes", "share", "critical path"), rows, (3,))
    rest = len(lines) - len(shown)
    if rest:
        share = 1 - sum(line.share for line in shown)
        console.print(f"and {rest} shorter steps, together {percent(share)}")


def _show_tried(console: Console, tried: Sequence[Suggestion], seconds: float) -> None:
    if not tried:
        return
    better = worth_saying(tried, seconds)
    if not better:
        told = ", ".join(suggestion.change for suggestion in tried)
        console.print(Text(f"Tried without a gain of 1%: {told}."))
        return
    rows = [
        (
            one.change,
            time_text(one.seconds),
            f"{time_text(one.saves_s)} ({percent(one.saves_s / seconds)})",
            one.option,
        )
        for one in better
    ]
    print_table(console, ("what to try", "takes", "saves", "option"), rows, (0, 3))
