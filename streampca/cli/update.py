"""The command that adds new rows to a finished run."""

from __future__ import annotations

from pathlib import Path

import click

from streampca.cli.commands import _JSON, _QUIET, _SET, cli
from streampca.cli.output import notice, print_json, print_wrapped, progress_bar


@cli.command()
@click.argument("run_directory", metavar="RUN", type=click.Path(path_type=Path))
@_SET
@_QUIET
@_JSON
def update(run_directory: Path, overrides: tuple[str, ...], quiet: bool, as_json: bool) -> None:
    """Add the rows that are new since RUN, reading only these.

    RUN was made of files of rows or of zarr arrays, with output.state: true. It becomes the run that all rows make; scores, if it has
    them, are written again from all rows. The status is 5 if a file or a chunk that was read before is missing or was changed. An
    update that was stopped goes on from where it was stopped, with as much memory and as many threads as before; with others the
    reading that was stopped may begin again. Without new rows the run stays as it is, and --set output.scores and output.report have
    no effect.
    """
    from streampca.runs.update import update as carry_out

    with progress_bar(quiet) as progress:
        result = carry_out(run_directory, overrides=overrides, progress=progress, notice=notice)
    rows, read = result.run.manifest["source"]["shape"][0], result.run.manifest["reads"]
    if as_json:
        print_json(
            {"path": str(run_directory), "n_samples": rows, "n_samples_added": result.n_rows, "files": result.files}
        )
        return
    if not result.n_rows:
        click.echo(f"{run_directory}: nothing is new: it has all {rows:,} rows of the source")
        return
    from streampca.formatting import as_text

    scores = "; all rows were read once more for the scores" if read["scores"] else ""
    of_files = f" of {len(result.files):,} files" if result.files else ""
    text = f"{result.n_rows:,} new rows{of_files} added, {rows:,} in all"
    print_wrapped(f"{run_directory}: {text}; read {as_text(read['fit']['bytes'])} for the fit{scores}", 2)
