"""Parquet shards against the same rows in zarr, and an update of a run by the last shards against a full run.

Contenders take turns; times are medians, and ratios are medians of pairs. The store of the same rows is written beside the
shards when it is not there, in chunks of as many rows as the shards have in a row group.

    .venv/bin/python scripts/make_data.py data/shards --kind shards --rows 150000 --features 768 --files 20
    .venv/bin/python scripts/bench/files.py data/shards
"""

from __future__ import annotations

import os
import shutil
import statistics
from pathlib import Path
from typing import Any

import numpy as np
from _bench import Contender, Outcome, Row, at_most, medians, report, timed
from _options import add_same_process, parser_of

COLUMN = "embedding"
"""Column of the shards that is read."""


def fit(path: str, k: str) -> Row:
    """Fit the rows at `path`, a zarr store or a directory of shards."""
    import streampca as sp

    columns = None if path.endswith(".zarr") else COLUMN
    sp.PCA(1).fit(sp.open(path, columns=columns).read(0, 10)[0])

    def work() -> Row:
        pca = sp.PCA(int(k)).fit(sp.open(path, columns=columns))
        return {"eigenvalues": pca.explained_variance_.tolist(), "bytes": pca.bytes_read_}

    return timed(work)


def full(path: str, k: str) -> Row:
    """Run a configuration on all shards, into a new directory."""
    import streampca as sp

    place = Path(f"{path}-runs")
    config, run = _config(place, path, int(k), place / f"full-{os.getpid()}"), sp.run
    _figures(run(_small(place)))
    return timed(lambda: _figures(run(config)))


def update(path: str, k: str) -> Row:
    """Update a copy of a run on the first shards, to which the last ones were added."""
    import streampca as sp

    place = Path(f"{path}-runs")
    copied, update = shutil.copytree(place / "base", place / f"updated-{os.getpid()}"), sp.update
    _figures(sp.run(_small(place)))
    return timed(lambda: _figures(update(copied, overrides=[f"source.path={path}"]).run))


def _small(place: Path) -> Path:
    """Write rows for a first run, which imports everything; return the path of its configuration."""
    rows = place / f"small-{os.getpid()}.npy"
    np.save(rows, np.random.default_rng(0).standard_normal((50, 4)))
    text = f"source: {{path: {str(rows)!r}}}\nmodel: {{n_components: 1}}\noutput: {{directory: {str(rows.with_suffix(''))!r}, report: false, overwrite: true}}\n"
    rows.with_suffix(".yaml").write_text(text)
    return rows.with_suffix(".yaml")


def _figures(run: Any) -> Row:
    reads = run.manifest["reads"]["fit"]
    return {"eigenvalues": run.manifest["result"]["explained_variance"], "bytes": reads["bytes"]}


def _config(place: Path, source: str | Path, k: int, output: Path) -> Path:
    """Write a configuration without scores and report; return its path."""
    text = (
        f"source: {{path: {str(source)!r}, columns: {COLUMN}}}\nmodel: {{n_components: {k}}}\n"
        f"output: {{directory: {str(output)!r}, state: true, scores: false, report: false, overwrite: true}}\n"
    )
    place.mkdir(exist_ok=True)
    (place / f"{output.name}.yaml").write_text(text)
    return place / f"{output.name}.yaml"


def prepare(directory: Path, k: int, n_new: int) -> Path:
    """Write the store beside the shards, and a run on all but the last `n_new`; return the path of the store."""
    import zarr

    import streampca as sp

    table, store = sp.open(directory, columns=COLUMN), directory.with_name(f"{directory.name}.zarr")
    if not store.exists():
        rows = min(table.chunk_rows, table.shape[0])
        array = zarr.create_array(store, shape=table.shape, chunks=(rows, table.shape[1]), dtype=table.dtype)
        for start in range(0, table.shape[0], rows):
            stop = min(start + rows, table.shape[0])
            array[start:stop] = table.read(start, stop)[0]
    place = directory.with_name(f"{directory.name}-runs")
    shutil.rmtree(place, ignore_errors=True)
    first = Path(f"{directory}-first")
    shutil.rmtree(first, ignore_errors=True)
    first.mkdir()
    for fragment in table.fragments[:-n_new]:
        os.link(fragment.name, first / Path(fragment.name).name)
    sp.run(_config(place, first, k, place / "base"))
    return store


def measure(directory: Path, k: int, n_new: int, *, repeats: int = 3, fresh: bool = True) -> Outcome:
    """Run the contenders in turns."""
    import streampca as sp

    store = prepare(directory, k, n_new)
    paths = {"zarr": store, "parquet": directory}
    entries = [Contender(name, "files", "fit", (str(path), str(k))) for name, path in paths.items()]
    entries += [Contender(name, "files", name, (str(directory), str(k))) for name in ("full", "update")]
    rows = medians(entries, repeats=repeats, fresh=fresh)
    ratios: dict[str, float] = {}
    if not any("failed" in row for row in rows.values()):
        for one, other in (("parquet", "zarr"), ("update", "full")):
            pairs = zip(rows[one]["all_seconds"], rows[other]["all_seconds"], strict=True)
            ratios[f"{one} over {other}"] = statistics.median(mine / theirs for mine, theirs in pairs)
            ratios[f"processor time of {one} over {other}"] = rows[one]["cpu_seconds"] / rows[other]["cpu_seconds"]
            errors = np.divide(rows[one]["eigenvalues"], rows[other]["eigenvalues"]) - 1
            ratios[f"largest difference of eigenvalues, {one} and {other}"] = float(np.abs(errors).max())
        table = sp.open(directory, columns=COLUMN)
        new = sum(fragment.n_rows for fragment in table.fragments[-n_new:]) * table.row_bytes
        ratios["bytes that the update reads over those of the new shards"] = rows["update"]["bytes"] / new
    for row in rows.values():
        row.pop("eigenvalues", None)
    title = f"Shards of {directory.name}, k = {k}, the last {n_new} new"
    return Outcome(title, rows, None, ratios, {"parquet over zarr": at_most(1.5)})


def main() -> None:
    """Compare and print."""
    parser = parser_of(__doc__, repeats=5)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--new", type=int, default=5, help="shards that are new (default: %(default)s)")
    add_same_process(parser)
    options = parser.parse_args()
    outcome = measure(
        options.directory, options.components, options.new, repeats=options.repeats, fresh=not options.same_process
    )
    report(outcome, options.out)


if __name__ == "__main__":
    main()
