"""Writing what a command was asked for into a file."""

import os

import click


def write_output(name: str, data: bytes) -> None:
    """Write a file, or into a pipe or a device, and say so."""
    from dcp_dsl.errors import DCPError
    from dcp_dsl.files import replacing

    if os.path.exists(name) and not os.path.isfile(name) and not os.path.isdir(name):
        with open(name, "wb") as stream:
            stream.write(data)
    else:
        with replacing(name, DCPError) as draft:
            draft.write_bytes(data)
    click.echo(f"wrote {name}", err=True)
