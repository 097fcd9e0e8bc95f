"""Options that several commands share, and how they read and write files.

Masks and samples are named on the command line; `-` is standard input.
"""

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from dcp_dsl.core.mask import Mask
    from dcp_dsl.core.sample import NoLengthError, Sample
    from dcp_dsl.specs.spec import Spec

Command = TypeVar("Command", bound=Callable[..., Any])  # Any: options and arguments of any type


def read_source(name: str, unreadable: list[dict[str, str]]) -> tuple[str, bytes] | None:
    """Read a file or standard input as text and bytes; if that fails, print why and remember it."""
    from dcp_dsl.syntax.source import MAX_BYTES, SpecFileError, decode_text, read_bytes

    try:
        data = sys.stdin.buffer.read(MAX_BYTES + 1) if name == "-" else read_bytes(name)
        return decode_text(name, data), data
    except SpecFileError as error:
        click.echo(f"dcpm: {error}", err=True)
        unreadable.append({"file": name, "message": str(error)})
        return None


def replace_source(name: str, data: bytes, unreadable: list[dict[str, str]]) -> None:
    """Replace a .dcpm file; if that fails, print why and remember it."""
    from dcp_dsl.files import replacing
    from dcp_dsl.syntax.source import SpecFileError

    try:
        with replacing(name, SpecFileError) as draft:
            draft.write_bytes(data)
    except SpecFileError as error:
        click.echo(f"dcpm: {error}", err=True)
        unreadable.append({"file": name, "message": str(error)})


def show_changes(before: str, after: str, name: str, what: str) -> str:
    """Return the difference of two texts, as `diff -u` prints it."""
    from difflib import unified_diff

    old, new = (text.splitlines(keepends=True) for text in (before, after))
    lines = unified_diff(old, new, name, f"{name} ({what})")
    # The last line of a text may lack its end, and would run into the next one.
    return "".join(line if line.endswith("\n") else line + "\n" for line in lines)


def write_output(name: str, data: bytes) -> None:
    """Write a file, a pipe or a device and report it; `-` is standard output."""
    from dcp_dsl.errors import DCPError
    from dcp_dsl.files import replacing

    if name == "-":
        click.echo(data, nl=False)
        return
    # Writing into `/dev/stdout` or the pipe of `>(command)` is meant; a folder is refused below.
    # `replacing` would put a file in the place of a pipe or a device
    if os.path.exists(name) and not os.path.isfile(name) and not os.path.isdir(name):
        with open(name, "wb") as stream:
            stream.write(data)
    else:
        with replacing(name, DCPError) as draft:
            draft.write_bytes(data)
    click.echo(f"wrote {name}", err=True)


def knows_ascii_only() -> bool:
    """Return whether the terminal cannot print the blocks that masks are drawn with."""
    try:
        "▀░".encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return True
    return False


def sample_options(command: Command) -> Command:
    """Add the options that choose a sample."""
    command = click.option(
        "--len",
        "length",
        metavar="TOKENS",
        help="Length of the sample in tokens; 4k is 4096, 1M is 1048576.",
    )(command)
    return click.option(
        "--sample", metavar="SAMPLE",
        help="Name of a sample in the file, or columns: 'doc_lens = [3, 4]', JSON or a JSON file.",
    )(command)  # fmt: skip


def mask_options(command: Command) -> Command:
    """Add the options that choose a mask and a sample."""
    return click.option(
        "--mask", "call", metavar="MASK", help="Name or call of a mask, or any mask expression."
    )(sample_options(command))


def load_spec(path: str | None) -> "Spec":
    """Read a spec, `-` from standard input; without a path there is the standard library alone."""
    from dcp_dsl.specs.spec import Spec, load

    if path == "-":
        from dcp_dsl.syntax.source import MAX_BYTES, decode_text

        return Spec.from_text(decode_text("-", sys.stdin.buffer.read(MAX_BYTES + 1)), "-")
    return Spec.from_text("", "<library>") if path is None else load(path)


def choose_mask(spec: "Spec", call: str | None) -> "Mask":
    """Return the mask that was asked for, or the only one of the file."""
    if call is not None:
        return spec.mask(call)
    if len(spec.masks) == 1:
        return spec.mask(spec.masks[0])
    from dcp_dsl.checks.scope import library_names

    whose = spec.name if spec.masks else "the standard library"
    have = ", ".join(spec.masks or library_names())
    raise click.UsageError(f"name a mask with --mask (masks of {whose}: {have})")


def choose_masks(spec: "Spec", call: str | None) -> "list[tuple[str, Mask]]":
    """Return the mask asked for, or those of a stack, each with where the stack uses it."""
    # Like the only mask of a file, its only stack needs no name.
    if call is None and not spec.masks and len(spec.stacks) == 1:
        call = spec.stacks[0]
    if call not in spec.stacks:
        return [("", choose_mask(spec, call))]
    stack = spec.stack(call)
    found = []
    for mask in stack.masks:
        count = 0
        heads: list[str] = []
        # A layer counts once for the mask, however many groups of its heads use it. Where it has
        # groups at all, they are named.
        for layer in stack.layers:
            used = [h for h in layer.heads if h.mask.call == mask.call]
            count += layer.count * bool(used)
            if len(layer.heads) > 1:
                heads += ["the rest" if h.first is None else f"{h.first}..{h.last}" for h in used]
        layers = f"{count} of {stack.period} layer{'s' if stack.period != 1 else ''}"
        told = f", KV heads {', '.join(dict.fromkeys(heads))}" if heads else ""
        found.append((f"{stack.name}: {layers}{told}", mask))
    return found


def choose_sample(spec: "Spec", mask: "Mask", given: str | None, length: str | None) -> "Sample":
    """Return the sample that was asked for, or the first declared one that fits the mask."""
    from dcp_dsl.core.sample import NoLengthError, Sample
    from dcp_dsl.pictures.picture import declared_samples, preview_sample
    from dcp_dsl.specs.spec import sample_from_argument

    fixed = None if length is None else read_tokens(length, "--len")
    if given is None:
        if fixed is not None and not mask.columns:
            return Sample(length=fixed)
        found = None if fixed is not None else preview_sample(mask)
        if fixed is None:
            _refuse_mistakes(mask)
        if found is None:
            wanted = ", ".join(f"{column} = ..." for column in sorted(mask.columns))
            raise click.UsageError(
                f"mask {mask.name} needs a sample: --sample '{wanted}' or the name of one"
            )
        if found not in [*declared_samples(mask)]:
            shown = ", ".join(f"{c} = {v}" for c, v in found.columns.items())
            click.echo(
                f"{mask.name}: for a made-up sample ({shown or f'len = {found.length}'}); "
                "--sample chooses another",
                err=True,
            )
        return found
    try:
        sample = sample_from_argument(spec, given, fixed)
    except NoLengthError as error:
        raise NoLengthError(_no_length(spec, mask, error), error.columns) from None
    if mask.columns - sample.columns.keys():
        return sample  # `bind` refuses it and names what is missing
    # Only what the mask reads: `explain` prints the sample.
    kept = {c: v for c, v in sample.columns.items() if c in mask.columns}
    return Sample(kept, sample.length)


def _refuse_mistakes(mask: "Mask") -> None:
    """Refuse a declared sample with a mistake that the mask would be drawn on otherwise."""
    from dcp_dsl.claims.declared import misspelt, read_columns, unfit
    from dcp_dsl.errors import DatasetError

    scope = mask.scope
    known = read_columns(scope) if scope.samples else frozenset()
    for definition in scope.samples.values():
        found = [*misspelt(definition, scope, known), unfit(definition, scope)]
        for mistake in found:
            if mistake is not None and mask.columns <= mistake.meant:
                raise DatasetError(f"{mistake}; --sample chooses another")
        if mask.columns <= {field.name.text for field in definition.fields}:
            return  # this one is drawn


def _no_length(spec: "Spec", mask: "Mask", error: "NoLengthError") -> str:
    """Name the columns of a mask that a sample lacks, and show a sample that has them."""
    from dcp_dsl.errors import DatasetError
    from dcp_dsl.pictures.picture import preview_sample
    from dcp_dsl.specs.spec import sample_from_argument

    missing = sorted(mask.columns - error.columns.keys())
    if not missing:
        wanted = ", ".join(f"`{column}`" for column in sorted(mask.columns)) or "no columns"
        return f"{error}; mask `{mask.name}` reads {wanted}"
    example = preview_sample(mask)
    shown = {} if example is None else {c: example.columns[c] for c in missing}
    read = {column: v for column, v in error.columns.items() if column in mask.columns}
    given = {**read, **(shown or dict.fromkeys(missing, "..."))}
    # Given columns come first, then those of a small sample that fits, if there is one.
    written = ", ".join(f"{column} = {value}" for column, value in given.items())
    try:
        sample_from_argument(spec, written)
    except DatasetError:  # no layout says the length
        written += ", len = ..."
    columns = " and ".join(f"`{column}`" for column in missing)
    return (
        f"--sample: mask `{mask.name}` reads {columns}, which the sample does not give; write "
        f"--sample '{written}'"
    )


def read_tokens(text: str, option: str) -> int:
    """Read a number of tokens as the language writes it: 4096, 4_096 or 4k."""
    from dcp_dsl.syntax.ast import Number
    from dcp_dsl.syntax.diagnostics import SpecError
    from dcp_dsl.syntax.parser import parse_expression

    try:
        value = parse_expression(text)
    except SpecError:
        value = None
    if not isinstance(value, Number):
        raise click.UsageError(
            f"{option}: expected a number of tokens such as 4096 or 4k, got {text}"
        )
    return value.value


def read_block(text: str) -> int:
    """Read the size of a block, at least 1 token."""
    size = read_tokens(text, "--block")
    if size < 1:
        raise click.UsageError(f"--block: expected at least 1 token, got {text}")
    return size
