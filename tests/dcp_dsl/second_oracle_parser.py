"""Parse the statements of a .dcpm text that decide which pairs a mask has, into tuples."""

import re
from dataclasses import dataclass, field
from typing import Any

from plain_layout import Node, part_names

TOKEN = re.compile(r'\d[\d_]*[kM]?|[A-Za-z_]\w*|"[^"]*"|#[^\n]*|\.\.|//|[<>=!]=|[^\s]')
STATEMENTS = {
    "segment",
    "token",
    "column",
    "mask",
    "sample",
    "check",
    "stack",
    "for",
    "import",
    "let",
    "dcpm",
    "@",
}
SCALES = {"k": 1024, "M": 1024 * 1024}
COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")


@dataclass
class Definition:
    """A mask: its parameters with their defaults, its body, what its `where` names, its `@keys`."""

    params: list[tuple[str, str, Node | None]]
    body: Node
    where: dict[str, Node]
    keys: list[str] = field(default_factory=list)


@dataclass
class Module:
    """The definitions of one file; `names` maps a part of a layout to its statement."""

    segments: dict[str, Node] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    tokens: dict[str, str] = field(default_factory=dict)
    owners: dict[str, str] = field(default_factory=dict)  # the segment of a column of instances
    masks: dict[str, Definition] = field(default_factory=dict)
    imports: dict[str, str] = field(default_factory=dict)  # name to file


def with_constants(tree: Any, lets: dict[str, Node]) -> Any:
    """Return a tree with constants, which may name others, in place of their names."""
    if isinstance(tree, tuple) and len(tree) == 2 and tree[0] == "name" and tree[1] in lets:
        return with_constants(lets[tree[1]], lets)
    if isinstance(tree, dict):
        return {name: with_constants(item, lets) for name, item in tree.items()}
    if isinstance(tree, tuple | list):
        return type(tree)(with_constants(item, lets) for item in tree)
    return tree


def put_constants(module: Module, lets: dict[str, Node]) -> None:
    module.segments = {n: with_constants(s, lets) for n, s in module.segments.items()}
    for mask in module.masks.values():
        mask.body, mask.where = with_constants((mask.body, mask.where), lets)
        mask.params = with_constants(mask.params, lets)


class Parser:
    """Recursive descent over the statements that decide which pairs a mask has."""

    def __init__(self, text: str) -> None:
        self.words = [*(word for word in TOKEN.findall(text) if word[0] != "#"), ""]
        self.at = 0
        self.is_length = False

    @property
    def word(self) -> str:
        return self.words[self.at]

    def take(self, expected: str | None = None) -> str:
        word = self.word
        assert expected in (None, word), f"expected {expected}, got {word}"
        self.at += 1
        return word

    def column(self) -> str:
        """Take the name of a column, which may stand in quotes."""
        return self.take().strip('"')

    def accept(self, *options: str) -> str | None:
        return self.take() if self.word in options and self.word else None

    def listed(self, item: Any) -> list[Any]:
        items = [item()]
        while self.accept(","):
            items.append(item())
        return items

    def module(self) -> Module:
        module, keys = Module(), []
        lets: dict[str, Node] = {}
        while self.word:
            match self.take():
                case "let":
                    name, _ = self.take(), self.take("=")
                    lets[name] = self.sum()
                case "segment":
                    self.segment(module)
                case "token" | "column":
                    self.token(module)
                case "import":
                    names, _, file = self.listed(self.take), self.take("from"), self.take()
                    module.imports |= dict.fromkeys(names, file.strip('"'))
                case "mask":
                    name = self.take()
                    module.masks[name] = self.definition()
                    module.masks[name].keys, keys = keys, []
                case "@" if self.word == "keys":
                    _, _, keys, _ = self.take(), self.take("("), self.listed(self.take), self.take()
                case (
                    _
                ):  # samples, claims, other decorators decide nothing about the pairs of a mask
                    while self.word and self.word not in STATEMENTS:
                        self.take()
        put_constants(module, lets)
        return module

    def token(self, module: Module) -> None:
        name = self.column()
        if self.accept("["):
            _, _ = self.take(), self.take("]")
        if self.accept("in"):
            module.owners[name] = self.take()
        module.tokens[name] = self.column() if self.accept("=") else name

    def segment(self, module: Module) -> None:
        name = self.take()
        self.take("=")
        parts: list[str] = []
        source: Node
        if self.word == "every":
            source = self.every()
        elif self.word in ("ids", "spans", "flags", "positions"):
            kind, _, column, _ = (self.take(), self.take(), self.column(), self.take())
            parts = self.listed(self.take) if self.accept("as") else []
            source = (kind, column, parts)
        elif self.words[self.at + 1] == "where":
            base, _ = self.take(), self.take()
            source = ("filter", base, self.either())
        elif self.words[self.at + 1] == "or":
            bases = [self.take()]
            while self.accept("or"):
                bases.append(self.take())
            source = ("union", *bases)
        else:
            source = ("layout", self.layout())
            parts = part_names(source[1])
        module.segments[name] = source
        module.names |= dict.fromkeys([*parts, name], name)

    def layout(self) -> list[Node]:
        parts: list[Node] = []
        while (
            self.word in ("branch", "join")
            or "[" in (found := self.words[self.at :][:2])
            or "(" in found
        ):
            if self.word in (")", *STATEMENTS):
                break
            is_branch, is_join = bool(self.accept("branch")), bool(self.accept("join"))
            name = self.take() if self.word not in ("[", "(") else None
            if self.accept("("):
                inside: Any = self.layout()
                self.take(")")
            else:
                self.take("[")
                self.is_length = True
                inside = None if self.accept("..") else self.either()
                self.is_length = False
                self.take("]")
            kind = "group" if isinstance(inside, list) else "leaf"
            is_repeated = bool(self.accept("*"))
            is_from = bool(self.accept("from"))
            is_forked = is_from and bool(self.accept("token"))
            parents = self.column() if is_from else None
            parts.append((kind, name, inside, is_repeated, is_branch, parents, is_forked, is_join))
        return parts

    def every(self) -> Node:
        self.take("every")
        return ("every", self.sum(), self.take() if self.accept("in") else None)

    def definition(self) -> Definition:
        params = []
        if self.accept("("):
            params = self.listed(self.param)
            self.take(")")
        self.take("=")
        body = self.either()
        bindings = self.listed(self.binding) if self.accept("where") else []
        return Definition(params, body, dict(bindings))

    def param(self) -> tuple[str, str, Node | None]:
        name = self.take()
        self.take(":")
        return name, self.take(), self.either() if self.accept("=") else None

    def binding(self) -> tuple[str, Node]:
        name, names = self.take(), None
        if self.accept("("):
            names = self.listed(self.take)
            self.take(")")
        self.take("=")
        if self.word == "every":
            return name, self.every()
        return name, ("function", names, self.either()) if names else self.either()

    def either(self) -> Node:
        node = self.both()
        while self.accept("or"):
            node = ("or", node, self.both())
        return node

    def both(self) -> Node:
        node = self.inverse()
        while word := self.accept("and", "minus"):
            right = self.inverse()
            node = ("and", node, ("not", right) if word == "minus" else right)
        return node

    def inverse(self) -> Node:
        if self.accept("not"):
            return ("not", self.inverse())
        node = self.comparison()
        while self.accept("per"):
            node = ("per", node, self.take())
        return node

    def comparison(self) -> Node:
        left = self.sum()
        if self.accept("in"):
            return ("in", left, self.postfix())
        if self.word == "not" and self.words[self.at + 1] == "in":
            self.at += 2
            return ("not", ("in", left, self.postfix()))
        links = []
        while word := self.accept(*COMPARISONS):
            right = self.sum()
            links.append((word, left, right))
            left = right
        return ("chain", links) if links else left

    def sum(self) -> Node:
        node = self.product()
        while word := self.accept("+", "-"):
            node = ("arithmetic", word, node, self.product())
        return node

    def product(self) -> Node:
        node = self.unary()
        while word := self.accept("*", "//", "%"):
            node = ("arithmetic", word, node, self.unary())
        return node

    def unary(self) -> Node:
        if word := self.accept("+", "-"):
            return ("arithmetic", word, ("number", 0), self.unary())
        return self.postfix()

    def postfix(self) -> Node:
        node = self.atom()
        while self.accept("."):
            node = ("attribute", node, self.column())
        return node

    def atom(self) -> Node:
        word = self.take()
        if word[0].isdigit():
            scale = SCALES.get(word[-1], 1)
            return ("number", int(word.rstrip("kM").replace("_", "")) * scale)
        if word == "(":
            node = self.either()
            self.take(")")
            return node
        if word == "{":
            return self.rules()
        if word[0] == '"':  # in the lengths of a layout its column, elsewhere that of the row
            column = word.strip('"')
            return ("name", column) if self.is_length else ("attribute", ("name", "row"), column)
        if word in ("true", "false"):
            return ("number", word == "true")
        if not self.accept("("):
            return ("name", word)
        arguments = [] if self.word == ")" else self.listed(self.argument)
        self.take(")")
        return ("call", word, arguments)

    def argument(self) -> tuple[str | None, Node]:
        name = self.take() if self.words[self.at + 1] == "=" else None
        if name:
            self.take("=")
        return name, self.either()

    def rules(self) -> Node:
        rules = []
        while not self.accept("}"):
            subjects = self.listed(self.take)
            assert self.take() in ("sees", "see")
            targets = self.listed(self.target)
            rules += [(subject, targets) for subject in subjects]
        return ("rules", rules)

    def target(self) -> tuple[str, bool, Node | None]:
        name, causally, within = self.take(), False, None
        while word := self.accept("causally", "within"):
            if word == "causally":
                causally = True
            else:
                within = self.sum()
        return name, causally, within
