"""Commands for stores: description of their content, and digests of stored chunks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from streampca.cli.commands import cli
from streampca.cli.completion import complete_source
from streampca.cli.framework import Command
from streampca.cli.output import on_one_line
from streampca.cli.session import Line, Result, session
from streampca.errors import ConfigError

if TYPE_CHECKING:
    from streampca.runs.fingerprint import Fingerprint
    from streampca.typing import Json


_Function = TypeVar("_Function", bound=Callable[..., Result])


def _names(context: click.Context, parameter: click.Parameter, value: str | None) -> list[str] | None:
    """Return the names in a text with commas."""
    return None if value is None else [name.strip() for name in value.split(",")]


_OF_SOURCE = (
    click.option("--array", help="Name of the array within a group."),
    click.option("--variables", metavar="NAME,…", callback=_names, help="Names of several arrays, read side by side."),
    click.option("--samples", metavar="NAME,…", callback=_names, help="Dimensions that form the rows."),
    click.option("--features", metavar="NAME,…", callback=_names, help="Dimensions that form the columns."),
    click.option("--columns", metavar="NAME,…", callback=_names, help="Columns of Parquet files to read."),
    click.option("--id-column", help="Column of Parquet files with the names of the rows."),
    click.option("--mask", help="Features to use: observed, survey, an .npy file or the name of an array."),
    click.option("--orientation", type=click.Choice(["samples_first", "features_first"]), help="Axes of a 2-D array."),
    click.option("--layer", help="Layer of AnnData to read in place of X; raw/X for the matrix of raw."),
    click.option("--mask-var", help="Boolean column in var of AnnData with the features to use."),
    click.option(
        "--missing-value",
        type=float,
        help="Stored number that counts as missing, in addition to what the data declare.",
    ),
    click.option(
        "--missing-chunks",
        type=click.Choice(["error", "fill", "fill_labels"]),
        help="Treat chunks that do not exist as an error (the default), or as the fill value: fill for all arrays, fill_labels only for those beside the data.",
    ),
    click.option("--branch", help="Branch of an icechunk repository (icechunk:PATH), to read its last snapshot."),
    click.option("--tag", help="Tag of the icechunk snapshot to read."),
    click.option("--snapshot", help="Identifier of the icechunk snapshot to read."),
    click.option("--where", help="Samples to use, such as \"time.season == 'DJF'\", or an .npy file of booleans."),
    click.option("--decode", type=click.Choice(["auto", "raw"]), help="Decode packed values (CF), or read them raw."),
)


def source_options(command: _Function) -> _Function:
    """Add the options that say how a store is read as a table, each None by default."""
    return reduce(lambda inner, option: option(inner), reversed(_OF_SOURCE), command)


@cli.command(
    cls=Command,
    section="Stores",
    examples=("streampca inspect measurements.zarr", "streampca inspect field.zarr --variables sst,ice --samples time"),
    statuses=(5,),
)
@click.argument("path", type=str, shell_complete=complete_source)
@source_options
def inspect(path: str, **options: Any) -> Result:
    """Describe what is at a path: array, group, model, scores or run.

    PATH is local or a URL. For a store, the description includes its dimensions and the source that reads it as a
    table. With options, it includes the resulting table.
    """
    from streampca.runs.inspection import inspect_path

    description = inspect_path(path, **options)
    return Result(description, _described(description))


def _described(description: Mapping[str, Any]) -> Iterator[Line]:
    """Yield the lines of a description."""
    width = max(len(key) for key in description)
    for key, value in description.items():
        if key in IN_WORDS and isinstance(value, list | tuple):
            for entry in value:
                yield f"{key:<{width}}  {on_one_line(IN_WORDS[key](entry))}", width + 2
            continue
        if key == "proposal" and isinstance(value, dict):
            value = f"source: {source_in_words(value)}"
        if key == "certificate" and isinstance(value, dict):
            value = value.get("statement", value)
        text, limit = (value, 1000) if isinstance(value, str) else (json.dumps(value), 300)
        yield f"{key:<{width}}  {on_one_line(text if len(text) <= limit else text[:limit] + '…')}", width + 2


@cli.command(
    cls=Command,
    section="Stores",
    examples=("streampca fingerprint measurements.zarr",),
    statuses=(4, 5, 6),
)
@click.argument("source", type=str, shell_complete=complete_source)
@click.option("--array", help="Name of the array within a group.")
@click.option("--variables", metavar="NAME,…", callback=_names, help="Names of several arrays; each gets a file.")
@click.option("--out", type=click.Path(path_type=Path), help="The file; by default SOURCE.fingerprint.npz.")
@click.option(
    "--missing-chunks",
    type=click.Choice(["error", "fill"]),
    default="error",
    show_default=True,
    help="Whether chunks may be missing; the fingerprint records which are.",
)
@click.option("--overwrite", is_flag=True, help="Replace an existing fingerprint.")
def fingerprint(
    source: str,
    array: str | None,
    variables: list[str] | None,
    out: Path | None,
    missing_chunks: str,
    overwrite: bool,
) -> Result:
    """Write a digest of every stored chunk of an array.

    source.verify and streampca verify compare the digests (xxh3-128).

    SOURCE is a path, a URL, or a configuration (.yaml) whose source and storage_options are used. Without --out the
    file is written beside a local store, or to the working directory for a URL. Each of several arrays gets its own
    file.
    """
    from streampca.runs.fingerprint import arrays_of, write_fingerprint

    if array is not None and variables is not None:
        raise ConfigError("--array and --variables both name what is read: give one of them")
    arrays = arrays_of(source, variables or ([array] if array else []), missing_chunks)
    if out is not None and len(arrays) > 1:
        raise ConfigError(f"--out is one file, and {source} is {len(arrays)} arrays: leave it out")
    with session().progress() as progress:
        made = [write_fingerprint(each, out, overwrite=overwrite, progress=progress) for each in arrays]
    document = made[0].to_dict() if len(made) == 1 else {"fingerprints": [each.to_dict() for each in made]}
    return Result(document, [_fingerprinted(each) for each in made])


def _fingerprinted(made: Fingerprint) -> str:
    """Return a line about a fingerprint that was written."""
    from streampca.formatting import as_text

    missing = f", {made.n_missing:,} missing" if made.n_missing else ""
    size = as_text(made.stored_bytes)
    return f"{made.place}: {made.n_chunks:,} chunks{missing}, {size} stored, xxh3-128 {made.whole}"


def _array(entry: Json) -> str:
    shape, chunks = (
        " x ".join(f"{n:,}" for n in entry[key]) or "a single value" if key in entry else ""
        for key in ("shape", "chunks")
    )
    named = f" ({', '.join(entry['dims'])})" if "dims" in entry else ""
    packed = ", ".join(f"{name}={value}" for name, value in entry.get("packing", {}).items())
    more = [*([entry["units"]] if "units" in entry else []), *([f"packed ({packed})"] if packed else [])]
    more += [f"chunks {chunks}"] if chunks else []
    return ", ".join([f"{entry['name']}: {shape}{named}", entry["dtype"], *more])


def _dimension(entry: Json) -> str:
    span = f", {entry['first']} to {entry['last']}" if "first" in entry else ""
    units = f" {entry['units']}" if "units" in entry else ""
    return f"{entry['name']}: {entry['size']:,}{span}{units}" + (f" ({entry['of']})" if "of" in entry else "")


def _variable(entry: Json) -> str:
    shape = " x ".join(f"{n:,}" for n in entry["shape"]) or "a single value"
    units = f", {entry['units']}" if "units" in entry else ""
    return f"{entry['name'] or 'the array'}: {shape} ({', '.join(entry['dims'])}){units}"


def _fragment(entry: Json) -> str:
    return f"{entry['name']}: {entry['n_rows']:,} rows, {entry['n_bytes']:,} bytes"


IN_WORDS: dict[str, Callable[[Json], str]] = {
    "arrays": _array,
    "dimensions": _dimension,
    "variables": _variable,
    "fragments": _fragment,
}
"""Functions that return an entry of a list in words, by the key of the list."""


def source_in_words(keys: Mapping[str, object]) -> str:
    """Return keys of a source as YAML on one line."""
    return "{" + ", ".join(f"{key}: {_plain(value)}" for key, value in keys.items()) + "}"


def _plain(value: object) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_plain, value))}]"
    text = str(value)
    return text if text.replace("_", "").replace("/", "").replace(".", "").isalnum() else json.dumps(text)
