"""Find all references to a name in a text; rename it; classify names for highlighting."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from dcp_dsl.checks.scope import Scope, part_names
from dcp_dsl.errors import DCPError
from dcp_dsl.language_server.document import Document
from dcp_dsl.syntax import ast
from dcp_dsl.syntax.tokens import RESERVED
from dcp_dsl.syntax.trees import column_name, named_segments, walk

Space: TypeAlias = Literal["statement", "sample", "column", "local"]
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class RenameError(DCPError):
    """A new name that the symbol at a place cannot take."""


@dataclass(frozen=True, slots=True)
class Symbol:
    """Something that has a name.

    Masks, stacks, segments and tokens share one `space`. `owner` is where the statement or function
    begins that a local name belongs to, else 0.
    """

    space: Space
    name: str
    owner: int = 0


@dataclass(frozen=True, slots=True)
class Occurrence:
    """A place where a symbol is named."""

    span: ast.Span
    symbol: Symbol
    is_definition: bool


_Names: TypeAlias = Mapping[str, Symbol]


def occurrences(document: Document) -> list[Occurrence]:
    """Return the places of all names in the statements that parse, in the order of the text."""
    reader = _NameCollector(document.scope)
    for statement in document.parsed.program.statements:
        reader.statement(statement)
    # A rule with two subjects reads its targets twice.
    return sorted(dict.fromkeys(reader.found), key=lambda found: found.span.start)


def symbol_at(document: Document, offset: int) -> Occurrence | None:
    """Return the name that a place touches, None where there is none."""
    near = (o for o in occurrences(document) if o.span.start <= offset <= o.span.end)
    return next(near, None)


def references(document: Document, offset: int) -> list[Occurrence]:
    """Return all places that refer to the symbol at a place, its definition among them."""
    asked = symbol_at(document, offset)
    if asked is None:
        return []
    return [found for found in occurrences(document) if found.symbol == asked.symbol]


def rename(document: Document, offset: int, name: str) -> list[ast.Span]:
    """Return the places where another name is to be written."""
    if document.parsed.diagnostics:
        raise RenameError("mend the syntax errors first: names in them cannot be followed")
    found = references(document, offset)
    if not found:
        raise RenameError("no name stands here")
    _check_own(found)
    if not _NAME.fullmatch(name) or name in RESERVED:
        why = "is a word of the language" if name in RESERVED else "is no name"
        raise RenameError(f"`{name}` {why}; a name has letters, digits and `_`")
    spans = [occurrence.span for occurrence in found]
    text, at = "", 0
    for span in spans:
        text, at = text + document.text[at : span.start] + name, span.end
    after = Document(text + document.text[at:], document.name, document.encoding)
    # Where the new name is taken, two names would now mean the same, or one would mean another
    # thing: the names fall into other groups. A local name may hide no definition (E119).
    codes = [[found.code for found in each.problems] for each in (after, document)]
    if _groups(after) != _groups(document) or codes[0] != codes[1]:
        raise RenameError(f"`{name}` already means something where it would stand")
    return spans


def _check_own(found: list[Occurrence]) -> None:
    symbol = found[0].symbol
    if symbol.space == "column":
        raise RenameError(
            f"`{symbol.name}` is a column of the data set; `with {column_name(symbol.name)} = ...` "
            "behind `use` reads another one in its place"
        )
    if not any(occurrence.is_definition for occurrence in found):
        raise RenameError(
            f"`{symbol.name}` is not defined in this text: rename it where it is defined"
        )


def _groups(document: Document) -> list[int]:
    """Return for each name of a text the number of the first name that means the same.

    Two texts whose names mean the same in the same places have equal lists.
    """
    first: dict[Symbol, int] = {}
    return [first.setdefault(o.symbol, i) for i, o in enumerate(occurrences(document))]


class _NameCollector:
    """Collects the names of statements."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.found: list[Occurrence] = []
        # Names of `where` for segments and instances: behind their dot stands no segment.
        self.no_places: set[Symbol] = set()

    def add(
        self, name: ast.Ident | ast.Name, symbol: Symbol, *, is_definition: bool = False
    ) -> None:
        self.found.append(Occurrence(name.span, symbol, is_definition))

    def define(self, name: ast.Ident, space: Space = "statement", owner: int = 0) -> None:
        self.add(name, Symbol(space, name.text, owner), is_definition=True)

    def column(self, name: ast.Ident | ast.Name) -> None:
        self.add(name, Symbol("column", name.text))

    def use(self, name: ast.Ident | ast.Name, names: _Names) -> None:
        """Add a name that is a local one, one of the text, or a mask of the library."""
        if name.text in names:
            self.add(name, names[name.text])
        elif _by_word(name.text, self.scope):  # else an error, or a word such as `q`
            self.add(name, Symbol("statement", name.text))

    # ---- statements ----

    def statement(self, statement: ast.Statement) -> None:
        """Add the names of a statement."""
        self.definition(statement)
        match statement:
            case ast.Check(left=left, right=right, sample=sample):
                self.expression((left, right), {})
                if sample is not None:
                    self.add(sample, Symbol("sample", sample.text))
            case ast.Attach(having=having, value=value, renames=renames):
                for r in renames:
                    if r.new.span != r.column.span:  # `reach or 128` names one column once
                        self.column(r.column)
                for column in (named := (*having, *(r.new for r in renames))):
                    self.column(column)
                self.expression(value, {c.text: Symbol("column", c.text) for c in named})
            case ast.Import(names=names):
                for name in names:
                    self.use(name, {})

    def definition(self, statement: ast.Statement) -> None:
        """Add the names of a statement that defines something."""
        match statement:
            case ast.MaskDef():
                self.mask(statement)
            case ast.Segment(name=name, source=source):
                self.define(name)
                self.source(source)
            case ast.Token(name=name, column=column, segment=segment):
                self.define(name)
                if column.span != name.span:  # `token a` alone names the column, too
                    self.column(column)
                if segment is not None:
                    self.use(segment, {})
            case ast.Let(name=name, value=value):
                self.define(name)
                self.expression(value, {})
            case ast.StackDef(name=name, layers=layers):
                self.define(name)
                self.expression(layers, {})
            case ast.SampleDef(name=name, fields=fields):
                self.define(name, "sample")
                for field in fields:
                    self.column(field.name)

    def source(self, source: ast.SegmentSource) -> None:
        match source:
            case ast.Layout(parts=parts):
                for name in part_names(parts):
                    self.define(name)
                for node in walk(parts):  # lengths, and the columns behind `from`
                    if isinstance(node, ast.Name) and node.text in self.scope.constants:
                        self.use(node, {})
                    elif isinstance(node, ast.Name) and node.text != "len":
                        self.column(node)
            case ast.Columns(column=column, names=names):
                self.column(column)
                for name in names:
                    self.define(name)
            case ast.Every() | ast.Filter() | ast.Union():
                self.expression(source, {})

    def mask(self, mask: ast.MaskDef) -> None:
        self.define(mask.name)
        owner = mask.span.start
        own = [local.name for local in mask.locals]
        names = {name.text: Symbol("local", name.text, owner) for name in own}
        for name in own:
            self.define(name, "local", owner)
        for decorator in mask.decorators:
            for segment in decorator.segments:
                self.use(segment, {})
        self.expression(tuple(param.default for param in mask.params), names)
        # Before the bindings are read: each may use the others, wherever they stand.
        for binding in mask.bindings:
            if not binding.params and not self.is_place(binding.value, names):
                self.no_places.add(names[binding.name.text])
        for binding in mask.bindings:
            self.binding(binding, names)
        self.expression(mask.value, names)

    def binding(self, binding: ast.Binding, names: _Names) -> None:
        # Parameters of a function belong to its binding, not to the mask: two may share names.
        owner = binding.span.start
        for param in binding.params:
            self.define(param, "local", owner)
        inner = {p.text: Symbol("local", p.text, owner) for p in binding.params}
        self.expression(binding.value, {**names, **inner})

    # ---- expressions ----

    def expression(self, root: object, names: _Names) -> None:
        """Add the names of expressions."""
        for node in walk(root):
            match node:
                case ast.Name():
                    self.use(node, names)
                case ast.Call(name=name, arguments=arguments):
                    self.use(name, names)
                    for argument in arguments:
                        self.argument(argument, name.text, names)
                case ast.Attribute(value=ast.Name("row"), name=name):
                    self.column(name)
                case ast.Attribute(value=value, name=name):
                    if self.is_place(value, names) or self.is_column(name.text):
                        self.use(name, names)
                case _:
                    for name in named_segments(node):
                        self.use(name, names)

    def is_place(self, value: ast.Expr | ast.Every, names: _Names) -> bool:
        """Return whether a value with an attribute is a position, not an instance or a segment."""
        # `.name` of a position reads a segment or a column; of others it is a word like `start`.
        match value:
            case ast.Name(text) if text in names:
                return names[text] not in self.no_places
            case ast.Name(text):
                return text not in self.scope.segments
            case ast.Attribute(inner):  # q.doc is an instance, q.doc.start a position
                return not self.is_place(inner, names)
            case ast.Every() | ast.Call(ast.Ident("first" | "last")):
                return False
        return True

    def is_column(self, name: str) -> bool:
        """Return whether a name is that of a column of instances, as in ``q.image.width``."""
        column = self.scope.tokens.get(name)
        return column is not None and column.segment is not None

    def argument(self, argument: ast.Argument, called: str, names: _Names) -> None:
        """Add the name of an argument, a parameter of the mask that is called."""
        found = None if called in names else self.scope.masks.get(called)
        if argument.name is not None and found is not None:
            owner = found.span.start
            self.add(argument.name, Symbol("local", argument.name.text, owner))


TYPES = ("function", "struct", "class", "property", "parameter", "enumMember")
MODIFIERS = ("declaration", "defaultLibrary")
_KINDS = {"local": "parameter", "column": "property", "sample": "enumMember"}


def coloured(document: Document) -> Iterator[tuple[int, int, int, int]]:
    """Yield (start, end, index in `TYPES`, bits of `MODIFIERS`) of the names, in order.

    Names of statements that do not parse just now are read word by word.
    """
    scope = document.scope
    known = {found.span.start: found for found in occurrences(document)}
    parsed = [s.span for s in document.parsed.program.statements]
    at = 0  # the first statement that may cover this token; both are in the order of the text
    for token in document.tokens:
        if token.kind not in ("name", "string"):  # a column may be named in quotes
            continue
        start, end = token.span.start, token.span.end
        while at < len(parsed) and parsed[at].end <= start:
            at += 1
        is_parsed = at < len(parsed) and parsed[at].start <= start
        found = known.get(start)
        kind = _kind(found, scope) if found else "" if is_parsed else _by_word(token.text, scope)
        if kind:
            bits = int(found is not None and found.is_definition)
            is_own = token.text in scope.masks or token.text in scope.imported.masks
            bits |= 2 * (kind == "function" and not is_own)
            yield start, end, TYPES.index(kind), bits


def _kind(found: Occurrence, scope: Scope) -> str:
    return _KINDS.get(found.symbol.space) or _by_word(found.symbol.name, scope)


def _by_word(name: str, scope: Scope) -> str:
    """Return the kind of a name outside of masks; empty for words and for unknown names."""
    if name in scope.segments:
        return "class"
    if name in scope.tokens or name in scope.constants:
        return "property"
    if scope.find_stack(name) is not None:
        return "struct"
    return "function" if scope.find_mask(name) is not None else ""
