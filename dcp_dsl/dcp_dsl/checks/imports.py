"""Read the files that a text imports, and bring in the names that its `import` statements list.

Such a statement is `import a, b from "file.dcpm"`. Reading is confined: a file is named relative to
the one that imports it, and nothing outside the folder of the first file is read. Each file keeps
its own names; only listed ones come in.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from dcp_dsl.checks.scope import Imported, Scope
from dcp_dsl.syntax import ast
from dcp_dsl.syntax.ast import Program
from dcp_dsl.syntax.diagnostics import Diagnostic, did_you_mean, make_diagnostic

MAX_FILES = 64
_NO_FOLDER = Path("/<text>")  # stands for the folder of a text that comes with its imports
_CHECK_IT = "check that file by itself"


class _Refused(Exception):
    """The reason why the file of an `import` is not read."""

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        self.code, self.message, self.hint = code, message, hint
        super().__init__(message)


@dataclass(slots=True)
class _Reader:
    """Files read so far on behalf of one text."""

    root: Path
    given: Mapping[str, str] | None = None  # instead of files: texts by path below the root
    texts: dict[str, str] = field(default_factory=dict)
    scopes: dict[Path, Scope] = field(default_factory=dict)
    broken: dict[Path, str] = field(default_factory=dict)  # why, for each import of it
    open_files: list[Path] = field(default_factory=list)  # each imports the next one


def build_scope(
    program: Program, files: Mapping[str, str] | None = None
) -> tuple[Scope, tuple[Diagnostic, ...]]:
    """Return the definitions of a text and of its imports, and the errors of the imports.

    Relative paths start at the folder of the text's name; a text without a file cannot import.
    Given `files`, texts by path, none is read.
    """
    imports = _imports(program)
    if not imports:
        return Scope.of(program), ()
    name = program.name
    home = Path(name) if files is None else _NO_FOLDER / "<text>"
    if files is None and not name.endswith(".dcpm"):
        why = "a text that is no file cannot import"
        hint = "save it as a .dcpm file beside the one it imports"
        return Scope.of(program), tuple(
            _report(program, "E130", why, each.path.span, hint) for each in imports
        )
    reader = _Reader(home.parent.resolve(), files)
    reader.open_files.append(home.resolve())
    scope, problems = _resolve(program, reader)
    scope.imported.files.update(sorted(reader.texts.items()))
    scope.imported.scopes.extend(reader.scopes.values())
    return scope, problems


def _imports(program: Program) -> list[ast.Import]:
    return [s for s in program.statements if isinstance(s, ast.Import)]


def _report(
    program: Program, code: str, message: str, span: ast.Span, hint: str = ""
) -> Diagnostic:
    return make_diagnostic(code, message, program.text, span, name=program.name, hint=hint)


def _resolve(program: Program, reader: _Reader) -> tuple[Scope, tuple[Diagnostic, ...]]:
    imported = Imported()
    found: list[Diagnostic] = []
    for statement in _imports(program):
        try:
            other = _open(statement.path.text, reader)
        except _Refused as why:
            span = statement.path.span
            found.append(_report(program, why.code, why.message, span, why.hint))
            continue
        for name in statement.names:
            problem = _bring(name.text, other, imported)
            if problem is not None:
                known = {
                    *other.masks,
                    *other.stacks,
                    *other.segments,
                    *other.tokens,
                    *other.constants,
                }
                hint = "" if name.text in known else did_you_mean(name.text, known)
                message = f'"{statement.path.text}" {problem}'
                found.append(_report(program, "E131", message, name.span, hint))
    return Scope.of(program, imported), tuple(found)


def _open(text: str, reader: _Reader) -> Scope:
    """Return the definitions of the file that a quoted path names, read once."""
    path, problem = _locate(text, reader)
    if path is None:
        hint = 'write a relative path such as "masks/common.dcpm"'
        raise _Refused("E130", f'"{text}" {problem}', hint)
    if path in reader.open_files:
        names = [p.name for p in (*reader.open_files[reader.open_files.index(path) :], path)]
        raise _Refused("E132", f'"{text}" imports this file in turn', " -> ".join(names))
    if path in reader.broken:
        raise _Refused("E133", reader.broken[path], _CHECK_IT)
    if path not in reader.scopes:
        reader.scopes[path] = _read(path, reader)
    return reader.scopes[path]


def _locate(text: str, reader: _Reader) -> tuple[Path | None, str]:
    """Return the file that a quoted path names, or None and the reason."""
    given = PurePosixPath(text)
    if not text.endswith(".dcpm"):
        return None, "is no .dcpm file"
    # Refused on every system, because Windows reads folders and drives in them.
    if given.is_absolute() or "\\" in text or ":" in text or "\0" in text:
        return None, "is no relative path"
    try:
        path = (reader.open_files[-1].parent / given).resolve()
    except (OSError, ValueError, RuntimeError):  # a loop of links, a name too long
        return None, "cannot be found"
    if not path.is_relative_to(reader.root):  # links are resolved by now
        return None, f"lies outside {reader.root}"
    return path, ""


def _read(path: Path, reader: _Reader) -> Scope:
    # Loaded on use: checking a file needs its imports resolved first.
    from dcp_dsl.checks.checker import check_scope
    from dcp_dsl.syntax.parser import parse_all
    from dcp_dsl.syntax.source import SpecFileError, read_text

    if len(reader.scopes) + len(reader.broken) >= MAX_FILES:
        raise _Refused("E130", f"more than {MAX_FILES} files are imported")
    try:
        below = path.relative_to(reader.root).as_posix()
        text = read_text(path) if reader.given is None else reader.given[below]
        parsed = parse_all(text, str(path))
    except (SpecFileError, KeyError) as error:
        is_missing = isinstance(error, KeyError)
        why = f"the text of {error} was not given" if is_missing else str(error)
        raise _Refused("E130", why) from None
    reader.texts[below] = text
    # Files being read: an import of one of them closes a cycle.
    reader.open_files.append(path)
    scope, problems = _resolve(parsed.program, reader)
    reader.open_files.pop()
    problems = (*parsed.diagnostics, *problems)
    if not problems:
        problems = check_scope(scope, parsed.lost_names)
    errors = [d for d in problems if d.severity == "error"]
    for found in errors:
        if found.code == "E132":  # reported where the cycle closes; once is enough
            raise _Refused("E132", found.message, found.hint)
    if errors:
        what = f"{path.name}:{errors[0].line}: {errors[0].code} {errors[0].message}"
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        reader.broken[path] = f"the imported file has errors: {what}{more}"
        raise _Refused("E133", reader.broken[path], _CHECK_IT)
    return scope


def _bring(name: str, other: Scope, imported: Imported) -> str | None:
    """Add the meaning of a name in another file, or return the reason why it cannot be imported."""
    # Masks and stacks come with the scope of their file. Other statements are read in the text that
    # imports them, so they must not use names of their file.
    if (mask := other.own_mask(name)) is not None:
        imported.masks[name] = mask
    elif (stack := other.find_stack(name)) is not None:
        imported.stacks[name] = stack
    elif name in other.tokens:
        if (segment := other.tokens[name].segment) is not None:
            return f"defines `{name}` as a column of `{segment.text}`; define this column here"
        imported.tokens[name] = other.tokens[name]
    elif isinstance(value := other.constants.get(name), int):
        imported.constants[name] = value
    elif name in other.segments:
        source = other.segments[name].source
        if isinstance(source, ast.Every) and not isinstance(source.size, ast.Number):
            return f"defines `{name}` by other names; define these tiles here"
        if isinstance(source, ast.Every) and source.parent is not None:
            return f"defines `{name}` inside another segment; define these tiles here"
        if isinstance(source, ast.Filter | ast.Union):
            return f"defines `{name}` by other segments; define it here"
        imported.segments[name] = other.segments[name]
    else:
        return f"does not define `{name}`"
    return None
