from .constants import compare_with_run
from .dependencies import Dependencies
from .diagnosis import Cause, Why, diagnose, find_causes, find_causes_of_run
from .explanation import (
    CAUSE_RULE,
    CLOSE,
    Explanation,
    cause_sentence,
    explain,
    explain_difference,
    three_sentences,
    unlike_batches,
    worth_saying,
)
from .path import ACCOUNTS, STEPS, Account, Step
from .suggestions import front_plans, static_plans, suggest

__all__ = [
    "ACCOUNTS",
    "CAUSE_RULE",
    "CLOSE",
    "STEPS",
    "Account",
    "Cause",
    "Dependencies",
    "Explanation",
    "Step",
    "Why",
    "cause_sentence",
    "compare_with_run",
    "diagnose",
    "explain",
    "explain_difference",
    "find_causes",
    "find_causes_of_run",
    "front_plans",
    "static_plans",
    "suggest",
    "three_sentences",
    "unlike_batches",
    "worth_saying",
]
