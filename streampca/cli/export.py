"""The command that writes a model in the format of another program."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from streampca.cli.commands import cli
from streampca.cli.output import print_json


@cli.command()
@click.argument("model", metavar="RUN", type=click.Path(path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--overwrite", is_flag=True, help="Replace a file of that format that is there already.")
@click.option("--memory", help='Ceiling for the process, such as "2GiB".')
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def export(model: Path, out: Path, overwrite: bool, memory: str | None, as_json: bool) -> None:
    """Write RUN, or a model, to OUT for another program.

    OUT ends with .onnx, .faiss, .npz, .nc, or .csv for a table of the loadings, and so names its format; what the format cannot express is refused. The line that is
    printed says by how much scores in float32 differ.
    """
    from streampca.estimators.exporting import export as carry_out
    from streampca.estimators.loading import load

    estimator = load(model).set_params(memory=memory)
    exported = carry_out(estimator, out, overwrite=overwrite)
    if as_json:
        print_json(asdict(exported))
    else:
        click.echo(str(exported))
