from .constants import compare_with_run
from .dependencies import Dependencies, Reason, find_dependencies
from .diagnosis import KINDS, Cause, Diagnosis, Why, diagnose, find_causes, find_causes_of_run
from .explanation import CAUSE_RULE, CLOSE, Explanation, explain, explain_difference, unlike_batches
from .path import (
    ACCOUNTS,
    STEPS,
    Account,
    Accounting,
    CriticalPath,
    Step,
    account_for,
    critical_path,
)
from .sentences import (
    CONDITIONS,
    NOUNS,
    cause_sentence,
    headline,
    path_lines,
    three_sentences,
    worth_saying,
)
from .suggestions import Suggestion, front_plans, suggest

__all__ = [
    "ACCOUNTS",
    "CAUSE_RULE",
    "CLOSE",
    "CONDITIONS",
    "KINDS",
    "NOUNS",
    "STEPS",
    "Account",
    "Accounting",
    "Cause",
    "CriticalPath",
    "Dependencies",
    "Diagnosis",
    "Explanation",
    "Reason",
    "Step",
    "Suggestion",
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
    "path_lines",
    "suggest",
    "three_sentences",
    "unlike_batches",
    "worth_saying",
]
