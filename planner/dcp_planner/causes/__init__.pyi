from .constants import compare_with_run
from .dependencies import Dependencies, Reason, find_dependencies
from .diagnosis import KINDS, Cause, Diagnosis, Why, diagnose, find_causes, find_causes_of_run
from .explanation import CAUSE_RULE, CLOSE, Explanation, explain, explain_difference, unlike_batches
from .path import (
    ACCOUNTS,
    STEPS,
    Account,
    CriticalPath,
    Step,
    account_for,
    critical_path,
)
from .sentences import (
    cause_sentence,
    headline,
    three_sentences,
    worth_saying,
)
from .suggestions import front_plans, suggest

__all__ = [
    "ACCOUNTS",
    "CAUSE_RULE",
    "CLOSE",
    "KINDS",
    "STEPS",
    "Account",
    "Cause",
    "CriticalPath",
    "Dependencies",
    "Diagnosis",
    "Explanation",
    "Reason",
    "Step",
    "Why",
    "account_for",
    "cause_sentence",
    "compare_with_run",
    "critical_path",
    "diagnose",
    "explain",
    "explain_difference",
    "find_causes",
    "find_causes_of_run",
    "find_dependencies",
    "front_plans",
    "headline",
    "suggest",
    "three_sentences",
    "unlike_batches",
    "worth_saying",
]
