"""`dcpm view`: a plan as a picture, a drawing, a page or tables, without opening a browser."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from dcp_dashboard.library.plans import LoadedPlan


@click.command()
@click.argument("plan", metavar="PLAN", type=click.Path(path_type=Path))
@click.option("--png", type=click.Path(path_type=Path), help="Picture of the overview.")
@click.option("--html", type=click.Path(path_type=Path), help="Overview as one file, no server.")
@click.option("--svg", type=click.Path(path_type=Path), help="Drawing of the mask.")
@click.option("--devices", type=click.Path(path_type=Path), help="CSV, one line per device.")
@click.option("--tiles", type=click.Path(path_type=Path), help="CSV, one line per tile.")
@click.option("--theme", type=click.Choice(["light", "dark"]), default="light", show_default=True)
@click.option(
    "--scale",
    type=click.IntRange(1, 4),
    default=2,
    show_default=True,
    help="Pixels per unit of PNG.",
)
def view(  # noqa: PLR0913 - one parameter per option of the command
    *,
    plan: Path,
    png: Path | None,
    html: Path | None,
    svg: Path | None,
    devices: Path | None,
    tiles: Path | None,
    theme: str,
    scale: int,
) -> None:
    """Write PLAN (a .dcpplan file) as files that need no dashboard; prints their names.

    `dcpm view batch.dcpplan --png batch.png --html batch.html`. To look at it in a browser:
    `dcpm dashboard FOLDER`.
    """
    from dcp_dashboard import DashboardError
    from dcp_dashboard.exports.mask_svg import mask_svg
    from dcp_dashboard.exports.plan_tables import devices_csv, tiles_csv
    from dcp_dashboard.exports.standalone import standalone_page
    from dcp_dashboard.exports.still import still
    from dcp_dashboard.library.plans import load_file
    from dcp_dsl import check_writable, replacing

    wanted: list[tuple[Path | None, Callable[[LoadedPlan], bytes]]] = [
        (png, lambda loaded: still(loaded, "dark" if theme == "dark" else "light", scale)),
        (html, lambda loaded: standalone_page(loaded).encode()),
        (svg, lambda loaded: mask_svg(loaded).encode()),
        (devices, devices_csv),
        (tiles, tiles_csv),
    ]
    if not any(path for path, _make in wanted):
        raise click.UsageError(
            "expected at least one of --png, --html, --svg, --devices, --tiles; in a browser: "
            f"dcpm dashboard {plan.parent}"
        )
    loaded = load_file(plan)
    for path, _make in wanted:
        if path is not None:
            check_writable(path, DashboardError)
    for path, make in wanted:
        if path is not None:
            with replacing(path, DashboardError) as draft:
                draft.write_bytes(make(loaded))
            click.echo(path)
