"""Describe the word under the pointer: its meaning, its definition, a picture."""

from base64 import b64encode
from itertools import takewhile

from dcp_dsl.checks.scope import Scope
from dcp_dsl.claims.steps import Meanings
from dcp_dsl.core.mask import build_mask
from dcp_dsl.elaboration.programs import layout_columns
from dcp_dsl.errors import DatasetError, DCPError
from dcp_dsl.language_server.document import Definition, Document, definition_at, find_name
from dcp_dsl.pictures.picture import Picture, preview
from dcp_dsl.specs.spec import Spec
from dcp_dsl.syntax import ast
from dcp_dsl.syntax.trees import unparse
from dcp_grammar import WORDS

MAX_TEXT_TOKENS = 40  # a wider picture does not fit a hover


def describe_at(text: str, offset: int, name: str = "<text>") -> str | None:
    r"""Return Markdown about the word at a character of a text, as the language server's hover.

    Args:
        text: of a .dcpm file, right or wrong.
        offset: characters in front of the place.
        name: its path, from which imports are found, or what stands for it.

    Returns:
        Its definition, its meaning and, for a mask, a picture of letters; ``None`` if there is
        nothing to say.

    >>> describe_at("mask a = causal and q - k < 4", 20)
    '`q`\n\nposition of the query, from 0'
    """
    return describe(Document(text, name, "utf-32"), offset, has_images=False)


def describe(
    document: Document, offset: int, *, has_images: bool, good: Document | None = None
) -> str | None:
    """Return Markdown about the word at a place, or None if there is nothing to say."""
    token = document.token_at(offset)
    if token is None or token.kind != "name" or document.in_comment(offset):
        return None
    found = definition_at(document, offset)
    if found is None and good is not None:
        found = find_name(good, token.text)
    if found is not None:
        parts = [_describe_definition(found)]
        if isinstance(found.node, ast.MaskDef):
            parts += [_comment_above(found), _picture(found, document, good, has_images)]
        return "\n\n".join(filter(None, parts))
    for word in WORDS:
        if word.text == token.text:
            return f"`{word.form}`\n\n{word.meaning}"
    return None


def _describe_definition(found: Definition) -> str:
    shown = f"```dcpm\n{found.node.span.text(found.text).strip()}\n```"
    match found.node:
        case ast.Segment(source=ast.Layout() as layout):
            columns = ", ".join(f"`{column}`" for column in layout_columns(layout))
            return f"{shown}\n\nlaid out by {columns or 'no columns'}"
        case ast.Param() as param:
            types = {w.text: w.meaning for w in WORDS if w.role == "type"} | {"mask": "a mask"}
            return f"{shown}\n\na parameter: {types.get(param.type.text, param.type.text)}"
        case ast.Token() as token:
            own = "" if token.segment is None else f"{token.segment.text}."
            name = own + token.name.text
            each = "one integer" if token.size is None else f"a list of {token.size} integers"
            return f"{shown}\n\n`q.{name}` and `k.{name}`: {each} each"
    return shown


def _comment_above(found: Definition) -> str:
    """Return the comment lines right above a statement, or at the top of a file of the library."""
    above = found.text[: found.node.span.start].rstrip(" \t").split("\n")[:-1]
    block = [*takewhile(_is_comment, reversed(above))][::-1]
    # A file of the library begins with what its mask is, in front of a segment.
    if not block and found.scope.program.name.startswith("<library>"):
        block = [*takewhile(_is_comment, filter(str.strip, found.text.split("\n")))]
    return "\n".join(line.lstrip("# ").rstrip() for line in block)


def _is_comment(line: str) -> bool:
    return line.lstrip().startswith("#")


def _picture(found: Definition, document: Document, good: Document | None, has_images: bool) -> str:
    """Draw a mask on a small sample, as it was in the last good version if it has errors now."""
    mask, scope = found.node, found.scope
    assert isinstance(mask, ast.MaskDef), "only masks are drawn"
    # Masks of other files are drawn as they are: a file with errors is not imported.
    if scope is document.scope and not _is_drawable(mask, document):
        if good is None or mask.name.text not in good.scope.masks:
            return ""
        scope = good.scope
        mask = scope.masks[mask.name.text]
    picture = draw_preview(mask, scope)
    if picture is None:
        return ""
    if has_images:
        data = b64encode(picture.svg().encode()).decode()
        return f"![{picture.summary}](data:image/svg+xml;base64,{data})"
    if picture.bound.num_tokens > MAX_TEXT_TOKENS:
        return picture.summary
    return f"```\n{picture.text(MAX_TEXT_TOKENS)}\n```"


def _is_drawable(mask: ast.MaskDef, document: Document) -> bool:
    """Return whether a mask and all it depends on are free of errors."""
    if document.is_sound:
        return True
    meanings = Meanings(document.scope)
    needed = [statement.span for statement in meanings.closure(mask)]
    errors = [found.start for found in document.problems if found.severity == "error"]
    if any(span.start <= error <= span.end for span in needed for error in errors):
        return False
    # A statement that does not parse has no place among `needed`, but perhaps a name of these.
    return not meanings.words(mask) & document.parsed.lost_names


def draw_preview(mask: ast.MaskDef, scope: Scope) -> Picture | None:
    """Draw a mask on a small sample; return None if that is not possible.

    The arguments are those of the first `check` of the mask in its own text, where it has one: they
    were chosen for small samples.
    """
    call = _checked_call(mask, scope) or _small_call(mask)
    try:
        return preview(build_mask(call, scope, ast.Program((), "", "<hover>")))
    except DCPError:  # a mask with errors, or one that no sample fits
        return None


def example_call(spec: Spec, name: str) -> str:
    """Return a call of a mask of a text with arguments that can be seen on a small sample.

    They are those of the first `check` that calls the mask, else small ones for its parameters.

    >>> example_call(Spec.from_text("mask near(w: tokens) = causal and q - k < w"), "near")
    'near(w = 4)'

    Raises:
        DatasetError: if the text defines no such mask.
    """
    mask = spec.scope.masks.get(name)
    if mask is None:
        raise DatasetError(f"{spec.name}: expected a mask of the text, got `{name}`")
    return unparse(_checked_call(mask, spec.scope) or _small_call(mask))


def _checked_call(mask: ast.MaskDef, scope: Scope) -> ast.Expr | None:
    for statement in scope.program.statements:
        if isinstance(statement, ast.Check):
            match statement.left:
                case ast.Call(ast.Ident(name)) as call if name == mask.name.text:
                    return call
    return None


def _small_call(mask: ast.MaskDef) -> ast.Expr:
    """Return a call with windows small enough to draw."""
    chosen = ((param.name.text, _small_argument(param)) for param in mask.params)
    arguments = tuple(ast.Argument(ast.Ident(name), v) for name, v in chosen if v is not None)
    name = mask.name.text
    return ast.Call(ast.Ident(name), arguments) if arguments else ast.Name(name)


def _small_argument(param: ast.Param) -> ast.Expr | None:
    """Return an argument that can be seen on a small sample; None leaves the default."""
    # Windows of thousands of tokens would hide nothing on a sample of a dozen; 4k becomes 4.
    size = param.default.value if isinstance(param.default, ast.Number) else 0
    match param.type.text:
        case "tokens" | "int" if param.default is None or size > 8:
            return ast.Number(4 if size <= 8 else max(2, min(8, size // 1024)))
        case "mask" | "bool" if param.default is None:
            return ast.Name("causal")
        case "pos" if param.default is None:
            return ast.Number(4)
    return None
