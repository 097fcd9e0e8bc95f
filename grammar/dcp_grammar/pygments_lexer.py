"""A Pygments lexer made from the table of words, for Sphinx, MkDocs, Jupyter and `pygmentize`.

Pygments finds it by the alias ``dcpm`` once the package is installed.
"""

from typing import Any, ClassVar

from pygments.lexer import RegexLexer, bygroups
from pygments.token import Text, Whitespace, string_to_tokentype

from dcp_grammar.vocabulary import patterns


def _rules() -> list[tuple[str, Any]]:  # Any: what Pygments calls a token type or a callback
    rules: list[tuple[str, Any]] = [(r"\s+", Whitespace)]
    for pattern in patterns():
        types = [string_to_tokentype(name) for name in pattern.pygments]
        rules.append((pattern.regex, types[0] if len(types) == 1 else bygroups(*types)))
    return [*rules, (r".", Text)]  # any other character, such as `&`, is no error of the lexer


class DcpmLexer(RegexLexer):  # type: ignore[misc]  # Pygments ships no types
    """Colours .dcpm texts.

    >>> [str(kind) for kind, _ in DcpmLexer().get_tokens("mask a = causal")][:3]
    ['Token.Keyword.Declaration', 'Token.Text.Whitespace', 'Token.Name.Function']
    """

    name = "dcpm"
    aliases: ClassVar = ["dcpm"]
    filenames: ClassVar = ["*.dcpm"]
    tokens: ClassVar = {"root": _rules()}
