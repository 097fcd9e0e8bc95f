from .constants import compare_with_run
from .dependencies import Dependencies, Reason, find_dependencies
from .diagnosis import KINDS, Cause, Diagnosis, Why, diagnose, find_causes, find_causes_of_run
from .explanation import (
    CAUSE_RULE,
    CLOSE,
    Explanation,
    cause_sentence,
    explain,
    explain_difference,
    headline,
    three_sentences,
    unlike_batches,
    worth_saying,
)
from .path import (
    ACCOUNTS,
    STEPS,
    Account,
    CriticalPath,
    Step,
    account_for,
    critical_path,
)
from .suggestions import front_plans, static_plans, suggest

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
    "static_plans",
    "suggest",
    "three_sentences",
    "unlike_batches",
    "worth_saying",
]
