"""The command ``streampca report``."""

from __future__ import annotations

from pathlib import Path

import click

from streampca.cli.commands import cli


@cli.command()
@click.argument("run_directory", metavar="RUN", type=click.Path(path_type=Path))
@click.option(
    "--row",
    "rows",
    type=int,
    multiple=True,
    metavar="N",
    help="Add this row of the source, counted from 0, to the figure of rebuilt rows; may be given again.",
)
def report(run_directory: Path, rows: tuple[int, ...]) -> None:
    """Write the HTML page of RUN again."""
    from streampca.runs.many import write_reports

    for page in write_reports(run_directory, rows):
        click.echo(str(page))
