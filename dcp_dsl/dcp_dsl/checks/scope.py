"""Look names up: the definitions of one text, and the standard library behind it."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

from dcp_dsl.checks.constants import ConstantError, constants_of, with_values
from dcp_dsl.elaboration import nodes
from dcp_dsl.elaboration.programs import ALIGNMENTS, KeySequence, has_branches
from dcp_dsl.syntax import ast
from dcp_dsl.syntax.ast import Program
from dcp_dsl.syntax.trees import LayoutParts, walk_parts
from dcp_grammar import MASKS


@dataclass(frozen=True, slots=True)
class Body:
    """The body of a mask: a core program in which the parameters are free; and their defaults."""

    core: nodes.Mask
    defaults: Mapping[str, nodes.Node]


@dataclass(frozen=True, slots=True, eq=False)
class Imported:
    """Names that `import` statements bring into a text, each with the scope it is read in.

    `files` are the texts that were read, by their path below the folder of the text; `scopes` those
    of these files, for a text that is not imported itself.
    """

    masks: "dict[str, tuple[ast.MaskDef, Scope]]" = field(default_factory=dict)
    stacks: "dict[str, tuple[ast.StackDef, Scope]]" = field(default_factory=dict)
    segments: dict[str, ast.Segment] = field(default_factory=dict)
    tokens: dict[str, ast.Token] = field(default_factory=dict)
    constants: dict[str, int] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    scopes: "list[Scope]" = field(default_factory=list)


@dataclass(frozen=True, slots=True, eq=False)
class Scope:
    """Definitions of a text by name; of doubled names the first one counts.

    `segments` go by their own name and by the names of the parts inside; imported ones too, as
    imported tokens are among `tokens`. `constants` holds values, or why there is none; `bodies` has
    None for masks that cannot be written out.
    """

    program: Program
    masks: Mapping[str, ast.MaskDef]
    stacks: Mapping[str, ast.StackDef]
    samples: Mapping[str, ast.SampleDef]
    tokens: Mapping[str, ast.Token]
    segments: Mapping[str, ast.Segment]
    imported: Imported = field(default_factory=Imported)
    constants: "Mapping[str, int | ConstantError]" = field(default_factory=dict)
    bodies: dict[str, Body | None] = field(default_factory=dict)

    @classmethod
    def of(cls, program: Program, imported: Imported | None = None) -> "Scope":
        """Collect the definitions of a program and what it imports."""
        # `own` keeps this order, in which its values are named below.
        imported = imported or Imported()
        constants = constants_of(program.statements, imported.constants)
        if values := {name: n for name, n in constants.items() if isinstance(n, int)}:
            put = tuple(with_values(s, values, program.text) for s in program.statements)
            program = ast.Program(put, program.text, program.name)
        kinds = (ast.MaskDef, ast.StackDef, ast.SampleDef, ast.Token, ast.Segment)
        own: dict[type, dict[str, Any]] = {kind: {} for kind in kinds}  # Any: of that kind
        for statement in program.statements:
            for name in defined_names(statement):
                own.get(type(statement), {}).setdefault(name.text, statement)
        masks, stacks, samples, tokens, segments = own.values()
        segments, tokens = {**imported.segments, **segments}, {**imported.tokens, **tokens}
        return cls(program, masks, stacks, samples, tokens, segments, imported, constants)

    def find_mask(self, name: str) -> "tuple[ast.MaskDef, Scope] | None":
        """Return the mask of this name and the scope its body is read in.

        Own masks come first, then imported ones, then the standard library.
        """
        if (own := self.own_mask(name)) is not None:
            return own
        library = find_library_scope(name)
        return None if library is None else (library.masks[name], library)

    def own_mask(self, name: str) -> "tuple[ast.MaskDef, Scope] | None":
        """Return a mask of the text or one it imports, and the scope its body is read in."""
        return (self.masks[name], self) if name in self.masks else self.imported.masks.get(name)

    def find_stack(self, name: str) -> "tuple[ast.StackDef, Scope] | None":
        """Return a stack of the text or one it imports, and the scope its masks are read in."""
        return (self.stacks[name], self) if name in self.stacks else self.imported.stacks.get(name)

    def sample_layouts(self) -> "list[tuple[ast.Segment, ast.Layout]]":
        """Return the layouts that lay samples out: all but those that `@keys` names."""
        named = {
            id(keys.statement)
            for mask in self.masks.values()
            if (keys := keys_of_mask(mask, self)) is not None
        }
        return [pair for pair in self.layouts() if id(pair[0]) not in named]

    def layouts(self) -> "list[tuple[ast.Segment, ast.Layout]]":
        """Return the segment statements, own and imported, that are layouts, with the layouts."""
        # From the statements, since a doubled name hides one in `segments`. There an imported
        # statement stands under each name that was brought in.
        own = [s for s in self.program.statements if isinstance(s, ast.Segment)]
        brought = {id(s): s for s in self.imported.segments.values()}
        segments = [*own, *brought.values()]
        return [(s, s.source) for s in segments if isinstance(s.source, ast.Layout)]

    def trees(self) -> list[ast.Segment]:
        """Return the layouts with branches; `paths` and `q.path` need one, and one only."""
        return [statement for statement, layout in self.layouts() if has_branches(layout)]


def find_definition(expression: ast.Expr, scope: Scope) -> tuple[ast.MaskDef, Scope] | None:
    """Return the definition that a mask is a name or a call of; None for other expressions."""
    match expression:
        case ast.Name(name) | ast.Call(ast.Ident(name)):
            return scope.find_mask(name)
    return None


def keys_of(expression: ast.Expr, scope: Scope) -> KeySequence | None:
    """Return the sequence that `@keys` gives the mask which an expression is a call of."""
    found = find_definition(expression, scope)
    return None if found is None else keys_of_mask(*found)


def keys_of_mask(mask: ast.MaskDef, scope: Scope) -> KeySequence | None:
    """Return the sequence that `@keys` gives a mask; None without one, or with errors in it."""
    for decorator in mask.decorators:
        if decorator.name.text == "keys" and decorator.arguments:
            name, *corner = (argument.text for argument in decorator.arguments)
            statement = scope.segments.get(name)
            # An unknown corner is reported elsewhere; here it counts as none.
            known = [each for each in ALIGNMENTS if corner == [each]]
            if statement is not None and isinstance(statement.source, ast.Layout):
                return KeySequence(statement, known[0] if known else "")
    return None


def given_arguments(
    definition: ast.MaskDef, arguments: tuple[ast.Argument, ...]
) -> dict[str, ast.Expr]:
    """Return the arguments that a call gives a mask, by the names of parameters, in their order."""
    # Arguments by position stand before those by name, so the n-th is that of the n-th parameter.
    given = {a.name.text: a.value for a in arguments if a.name is not None}
    given |= {
        param.name.text: argument.value
        for param, argument in zip(definition.params, arguments, strict=False)
        if argument.name is None
    }
    return {p.name.text: given[p.name.text] for p in definition.params if p.name.text in given}


def defined_names(statement: ast.Statement) -> Iterable[ast.Ident]:
    """Return every name that a statement defines or brings in."""
    match statement:
        case ast.Segment():
            return segment_names(statement)
        case ast.Import(names=names):
            return names
        case ast.Version() | ast.Attach() | ast.Check():
            return ()
    return (statement.name,)


def segment_names(segment: ast.Segment) -> Iterator[ast.Ident]:
    """Yield every name a segment statement defines: its own, its parts', those after `as`."""
    yield segment.name
    match segment.source:
        case ast.Layout(parts):
            yield from part_names(parts)
        case ast.Columns(names=names):
            yield from names


def part_names(parts: LayoutParts) -> Iterator[ast.Ident]:
    """Yield the names inside a layout, from left to right."""
    return (placed.part.name for placed in walk_parts(parts) if placed.part.name is not None)


@cache
def library_names() -> tuple[str, ...]:
    """Return the sorted names of the library's masks; each lives in a file of its name."""
    names = (entry.name for entry in MASKS.iterdir())
    return tuple(sorted(n.removesuffix(".dcpm") for n in names if n.endswith(".dcpm")))


def known_masks(scope: Scope) -> set[str]:
    """Return the names of all masks that a text can call."""
    return {*scope.masks, *scope.imported.masks, *library_names()}


@cache
def find_library_scope(name: str) -> Scope | None:
    """Read the standard library's file that defines a mask, or give None."""
    from dcp_dsl.syntax.parser import parse  # here: only this function needs the parser

    if name not in library_names():
        return None
    file = f"{name}.dcpm"
    text = (MASKS / file).read_text(encoding="utf-8")
    return Scope.of(parse(text, f"<library>/{file}"))


def library_scopes() -> Iterator[Scope]:
    """Yield the definitions of every file of the standard library."""
    for name in library_names():
        scope = find_library_scope(name)
        assert scope is not None, f"{name} is a file of the library"
        yield scope


def matches(pattern: str, path: str) -> bool:
    """Return whether a pattern matches a path, or a part of it that begins behind a ``/``.

    >>> matches("*/rows.parquet", "rows.parquet"), matches("web/*", "/data/web/a/rows.parquet")
    (True, True)
    """
    # `*/rows.parquet` also means a path without a folder, which the `*/` alone would refuse.
    parts = path.split("/")
    tails = ["/".join(parts[i:]) for i in range(len(parts))]
    patterns = {pattern, pattern.removeprefix("*/"), pattern.removeprefix("**/")}
    return any(fnmatchcase(tail, each) for tail in tails for each in patterns)
