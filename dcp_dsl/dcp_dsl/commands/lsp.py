"""`dcpm lsp`: start the language server for editors."""

import os
import sys

import click


@click.command()
def lsp() -> None:
    """Serve an editor: the language server on standard input and output.

    Editors start it themselves; see docs/editors.md.
    """
    from dcp_dsl.language_server.server import make_server

    # The server closes what it writes to, and the group flushes standard output at its end.
    with os.fdopen(os.dup(sys.stdout.fileno()), "wb") as output:
        make_server().start_io(stdout=output)
