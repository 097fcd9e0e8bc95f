"""Reading what a command was given: files, or `-` for standard input."""

import sys

import click


def read_source(name: str, unreadable: list[dict[str, str]]) -> tuple[str, bytes] | None:
    """Read a file or standard input as text and bytes; say why not, and remember it."""
    from dcp_dsl.syntax.text_file import MAX_BYTES, SpecFileError, decode_text, read_bytes

    try:
        data = sys.stdin.buffer.read(MAX_BYTES + 1) if name == "-" else read_bytes(name)
        return decode_text(name, data), data
    except SpecFileError as error:
        click.echo(f"dcpm: {error}", err=True)
        unreadable.append({"file": name, "message": str(error)})
        return None
