"""Make the TextMate grammar, with which VS Code and others colour texts."""

import json
from typing import Any

from dcp_grammar.vocabulary import Pattern, patterns


def textmate_grammar() -> dict[str, Any]:  # Any: a JSON document
    """Return the grammar as the JSON document that editors read.

    >>> textmate_grammar()["scopeName"]
    'source.dcpm'
    """
    return {
        "$schema": "https://raw.githubusercontent.com/martinring/tmlanguage/master/tmlanguage.json",
        "comment": "Made by `python -m dcp_grammar.textmate` from dcp_grammar/vocabulary.py",
        "name": "dcpm",
        "scopeName": "source.dcpm",
        "fileTypes": ["dcpm"],
        "patterns": [_rule(pattern) for pattern in patterns()],
    }


def _rule(pattern: Pattern) -> dict[str, Any]:  # Any: as above
    if len(pattern.textmate) == 1:
        return {"match": pattern.regex, "name": pattern.textmate[0]}
    # Groups are numbered from 1; spaces between two words have no scope.
    captures = {
        str(group): {"name": scope} for group, scope in enumerate(pattern.textmate, 1) if scope
    }
    return {"match": pattern.regex, "captures": captures}


if __name__ == "__main__":
    print(json.dumps(textmate_grammar(), indent=2))
