"""The grammar's parser: its tables, which Lark builds once, and the loop that reads tokens by them.

Tables are kept beside the compiled modules of the grammar's package, as JSON: Lark's own cache is a
pickle, which runs what it is told to. A text without errors is read by them alone, since importing
Lark takes as long as all else; what does not parse is left to Lark and `syntax_errors`.
"""

import hashlib
import json
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from dcp_dsl.errors import DCPError
from dcp_dsl.syntax.ast import Span
from dcp_dsl.syntax.ast_builder import MAX_DEPTH, RULES, Builder, BuildError, Built, ParsedWord
from dcp_dsl.syntax.tokens import RawToken
from dcp_grammar import GRAMMAR

if TYPE_CHECKING:
    import lark

ODD_SPACE = re.compile(r"[^\S \t\f\r\n]")  # what `tokens` passes over, and the grammar does not
MAX_KINDS = 2**12  # words whose terminal is remembered
_TABLES = Path(str(GRAMMAR)).parent / "__pycache__" / "dcpm.tables.json"

# What a rule built, first and last character, and how deep it nests. A list is none of these: it
# holds the items of a rule whose name begins with `_`, which belong to the rule around it.
_Item: TypeAlias = tuple[Built, int, int, int]
_NOTHING: _Item = (None, 0, 0, 0)


class NoParse(Exception):
    """The tokens are no sentence of the grammar."""


@dataclass(frozen=True, slots=True)
class _Rule:
    """A rule of the grammar, ready to be applied.

    Attributes:
        origin: its name.
        size: symbols in it.
        kept: which of them are handed on, each with how many parts that are left out before it.
        nones: parts that are left out behind the last one.
        make: builds a node; None if the rule around takes the items.
    """

    origin: str
    size: int
    kept: tuple[tuple[int, int], ...]
    nones: int
    make: Builder | None

    @classmethod
    def of(cls, kept: dict[str, Any]) -> "_Rule":  # Any: JSON
        """Read a rule as Lark keeps it."""
        origin, symbols = kept["origin"]["name"], kept["expansion"]
        missing = "".join(str(int(is_left_out)) for is_left_out in kept["options"]["empty_indices"])
        gaps = list(map(len, missing.split("0"))) if missing else [0] * (len(symbols) + 1)
        chosen, nones = [], 0
        for at, symbol in enumerate(symbols):
            nones += gaps[at]
            if not symbol.get("filter_out"):
                chosen.append((at, nones))
                nones = 0
        return cls(origin, len(symbols), tuple(chosen), nones + gaps[-1], RULES.get(origin))

    @property
    def is_chain(self) -> bool:
        """True if the rule only hands on what it holds, as `_sum: _product` does."""
        return self.make is None and self.kept == ((0, 0),) and self.size == 1 and not self.nones

    def apply(self, items: Sequence[_Item]) -> _Item:
        """Build a node of the items of its symbols."""
        children: list[_Item] = []
        for at, nones in self.kept:
            children += [_NOTHING] * nones
            item = items[at]
            if type(item[0]) is list:
                children += item[0]
            else:
                children.append(item)
        children += [_NOTHING] * self.nones
        start, end = items[0][1], items[-1][2]
        if self.make is None:
            return children, start, end, 0
        depth = 1 + max([child[3] for child in children], default=0)
        if depth > MAX_DEPTH:
            raise BuildError(
                "E015", f"this nests more than {MAX_DEPTH} levels deep", Span(start, end),
                "name a part of it: `mask part = ...`",
            )  # fmt: skip
        return self.make([child[0] for child in children], Span(start, end)), start, end, depth


@dataclass(frozen=True, slots=True)
class Tables:
    """What to do in each state on each symbol: go on in another state, or apply a rule.

    Attributes:
        states: of each state, the next one or a rule by symbol; what only hands on is marked.
        starts, ends: first and last state by the rule that is asked for.
        words: terminals that are texts.
        patterns: the others.
        kinds: the terminal of each word seen, None for what the grammar does not have.
    """

    states: dict[int, dict[str | None, "int | tuple[_Rule, bool]"]]
    starts: dict[str, int]
    ends: dict[str, int]
    words: dict[str, str]
    patterns: tuple[tuple[str, re.Pattern[str]], ...]
    kinds: dict[str, str | None] = field(default_factory=dict)

    @classmethod
    def of(cls, text: str) -> "Tables":
        """Read tables as they are kept."""
        kept = json.loads(text)
        parser, memo = kept["data"]["parser"]["parser"], kept["memo"]
        rules = {int(k): _Rule.of(v) for k, v in memo.items() if v["__type__"] == "Rule"}
        actions = {key: (rule, rule.is_chain) for key, rule in rules.items()}
        symbols = parser["tokens"]
        states = {
            int(state): {
                symbols[symbol]: actions[to["@"]] if is_rule else to
                for symbol, (is_rule, to) in row.items()
            }
            for state, row in parser["states"].items()
        }
        terminals = [
            (v["name"], v["pattern"]["__type__"], v["pattern"]["value"])
            for v in memo.values()
            if v["__type__"] == "TerminalDef"
        ]
        words = {value: name for name, kind, value in terminals if kind == "PatternStr"}
        patterns = ((n, re.compile(value)) for n, kind, value in terminals if kind == "PatternRE")
        return cls(states, parser["start_states"], parser["end_states"], words, tuple(patterns))

    def build(self, tokens: Sequence[RawToken], start: str) -> Built:
        """Read tokens by a rule, and build what it stands for.

        Raises:
            NoParse: if they are no such thing.
            BuildError: for numbers out of range, too deep nesting, unknown kinds of columns.
        """
        states, stack, values = self.states, [self.starts[start]], list[_Item]()
        for token in (*tokens, None):
            kind = "$END" if token is None else self._kind(token.text)
            while True:
                action = states[stack[-1]].get(kind)
                if action is None:
                    raise NoParse
                if isinstance(action, int):
                    assert token is not None, "the end is no symbol of a rule"
                    stack.append(action)
                    word = ParsedWord(str(kind), token.text, token.span)
                    values.append((word, token.span.start, token.span.end, 0))
                    break
                rule, is_chain = action
                del stack[-rule.size :]
                if not is_chain:
                    values[-rule.size :] = [rule.apply(values[-rule.size :])]
                state = states[stack[-1]][rule.origin]
                assert isinstance(state, int), "behind a rule stands a state"
                stack.append(state)
                if token is None and state == self.ends[start]:
                    return values[0][0]
        raise AssertionError("the last token ends it")

    def _kind(self, text: str) -> str | None:
        if text not in self.kinds:
            if len(self.kinds) >= MAX_KINDS:
                self.kinds.clear()
            found = (name for name, pattern in self.patterns if pattern.fullmatch(text))
            self.kinds[text] = self.words.get(text) or next(found, None)
        return self.kinds[text]


@cache
def tables() -> Tables:
    """Return the tables, kept or built."""
    return Tables.of(_kept() or _build()[1])


@cache
def lark_parser() -> "lark.Lark":
    """Return Lark's parser of the grammar, which tells where and why a text does not parse."""
    import lark

    known = _kept()
    if known is not None:
        kept = json.loads(known, object_hook=_with_numbers)
        if kept.pop("lark") == lark.__version__:
            loaded: lark.Lark = lark.Lark._load_from_dict(**kept)  # type: ignore[no-untyped-call]
            return loaded
    return _build()[0]


def _kept() -> str | None:
    """Return tables of an earlier process: what stands behind the stamp of this grammar."""
    with suppress(OSError, UnicodeDecodeError):
        stamp, _, text = _TABLES.read_text(encoding="utf-8").partition("\n")
        if stamp == _stamp(text):
            return text
    return None


@cache
def _build() -> tuple["lark.Lark", str]:
    """Let Lark build the parser, which takes 0.2 s, and keep its tables where that is possible."""
    import lark
    from lark.grammar import Rule
    from lark.lexer import TerminalDef

    from dcp_dsl.files import replacing

    built = lark.Lark(
        GRAMMAR.read_text(encoding="utf-8"),
        parser="lalr",
        lexer="basic",  # keywords are reserved everywhere, so `a and or b` fails at `or`
        start=["start", "statement", "version", "expression"],
        maybe_placeholders=True,
    )
    data, memo = built.memo_serialize([TerminalDef, Rule])
    kept = {"lark": lark.__version__, "data": data, "memo": memo}
    text = json.dumps(kept, separators=(",", ":"))
    if not sys.dont_write_bytecode:
        with suppress(DCPError), replacing(_TABLES, DCPError) as draft:
            draft.write_text(f"{_stamp(text)}\n{text}", encoding="utf-8")
    return built, text


def _stamp(text: str) -> str:
    grammar = GRAMMAR.read_text(encoding="utf-8")
    return hashlib.sha256(f"{grammar}\0{text}".encode()).hexdigest()


def _with_numbers(table: dict[str, Any]) -> dict[str | int, Any]:  # Any: what JSON holds
    """Restore the numbers of states and terminals, which JSON keeps as texts."""
    return {int(key) if key.isdigit() else key: value for key, value in table.items()}
