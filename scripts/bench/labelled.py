"""Modes of a field on a map against eofs and xeofs: time, memory, and reads of stored chunks, all in one run.

All read the same packed store, weight by the cosine of the latitude, and give maps and series of the leading modes. eofs
and xeofs have the decoded field in memory; ``xeofs_dask`` reads it through Dask. Contenders take turns; times are medians,
and ratios are medians of pairs. Opening, decoding and reading are in the times; imports and a first small fit are not.

    .venv/bin/python scripts/make_data.py data/sst.zarr --kind field --shape 480,90,180
    .venv/bin/python scripts/bench/labelled.py data/sst.zarr
"""

from __future__ import annotations

import contextlib
import importlib.util
import statistics
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from _bench import Contender, Outcome, Row, at_least, medians, report, timed
from _options import add_contenders, contenders_of, parser_of

CONTENDERS = ("fit", "eofs", "xeofs", "xeofs_dask")
"""Functions of this module."""


def fit(path: str, k: str, memory: str = "") -> Row:
    """Run `streampca.open`, `PCA.fit` and `PCA.transform`."""
    import dask.array as da

    import streampca as sp

    def modes() -> Any:
        table = sp.open(path, samples="time", mask="observed")
        weight = np.cos(np.radians(table.labels.along("lat")))
        pca = sp.PCA(int(k), feature_weight=weight, memory=memory or None)
        return table, pca

    table, pca = modes()
    pca.plan(table)
    few = da.from_array(_few_maps().reshape(6, -1))
    np.asarray(sp.PCA(1).fit(few).transform(few))

    def work() -> Row:
        table, pca = modes()
        pca.fit(table)
        table.labels.spread(pca.components_)
        np.asarray(pca.transform(table))
        return {"eigenvalues": pca.explained_variance_.tolist(), "passes": pca.n_passes_ + 1, "solver": pca.solver_}

    return _counted(path, work)


def eofs(path: str, k: str) -> Row:
    """Load the field with xarray and run eofs."""
    import eofs.standard

    def modes(values: Any, lat: Any, wanted: int) -> Row:
        solver = eofs.standard.Eof(values, weights=np.sqrt(np.cos(np.radians(lat)))[:, None])
        solver.eofs(neofs=wanted), solver.pcs(npcs=wanted)
        return {"eigenvalues": np.asarray(solver.eigenvalues(neigs=wanted)).tolist()}

    modes(_few_maps(), np.arange(4), 1)
    _opened(path)

    def work() -> Row:
        field = _opened(path).load()
        return modes(field.values, field["lat"].values, int(k))

    return _counted(path, work)


def xeofs(path: str, k: str, *, lazy: bool = False) -> Row:
    """Load the field with xarray and run xeofs."""
    import xarray
    import xeofs

    def modes(field: Any, wanted: int) -> Row:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = xeofs.single.EOF(n_modes=wanted, use_coslat=True, random_state=0).fit(field, dim="time")
            model.components().load(), model.scores(normalized=False).load()
        return {"eigenvalues": np.asarray(model.explained_variance()).tolist()}

    few = xarray.DataArray(_few_maps(), dims=("time", "lat", "lon"))
    modes(few.assign_coords(time=np.arange(6), lat=np.arange(4.0), lon=np.arange(5.0)), 2)
    _opened(path)
    return _counted(path, lambda: modes(_opened(path, chunks={}) if lazy else _opened(path).load(), int(k)))


def xeofs_dask(path: str, k: str) -> Row:
    """Run xeofs on the lazy field."""
    return xeofs(path, k, lazy=True)


def _opened(path: str, **options: Any) -> Any:
    """Return the field, decoded as xarray does."""
    import xarray

    return xarray.open_zarr(path, consolidated=False, decode_times=False, **({"chunks": None} | options))["sst"]


def _few_maps() -> Any:
    return np.random.default_rng(0).standard_normal((6, 4, 5))


def _counted(path: str, work: Callable[[], Row]) -> Row:
    """Time `work`; how often a stored chunk of the field was opened, on average, is in the result."""
    n_stored = sum(1 for file in Path(path, "sst", "c").rglob("*") if file.is_file())
    with _openings(str(Path(path, "sst", "c"))) as names:
        row = timed(work)
    return row | {"reads": len(names) / n_stored}


@contextlib.contextmanager
def _openings(directory: str) -> Iterator[list[str]]:
    """Yield a list that gets the name of every file below a directory when it is opened."""
    names: list[str] = []
    active = True

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        # Both open(path) and os.open(path) are one event; open(descriptor), which follows os.open, names no path.
        if active and event == "open" and str(arguments[0]).startswith(directory):
            names.append(str(arguments[0]))

    sys.addaudithook(hook)  # stays until the process ends
    try:
        yield names
    finally:
        active = False


def measure(
    store: str,
    k: int,
    *,
    repeats: int = 5,
    fresh: bool = True,
    names: tuple[str, ...] = CONTENDERS,
    once: tuple[str, ...] = (),
    memory: str = "",
    timeout: float = 1800,
) -> Outcome:
    """Run the contenders in turns; those of `once` a single time."""
    missing = importlib.util.find_spec("eofs") is None or importlib.util.find_spec("xeofs") is None
    entries = [
        Contender(
            name,
            "labelled",
            name,
            (store, str(k), *([memory] if name == "fit" else [])),
            peer=missing and name != "fit",
            once=name in once,
        )
        for name in names
    ]
    rows = medians(entries, repeats=repeats, fresh=fresh, timeout=timeout)
    ours = rows["fit"]
    ratios: dict[str, float] = {}
    if "failed" not in ours:
        ratios |= {f"reads of each chunk, {name}": row["reads"] for name, row in rows.items() if "failed" not in row}
        ratios["passes of fit and scores"] = ours["passes"]
        for name, row in rows.items():
            if name != "fit" and "failed" not in row:
                pairs = zip(row["all_seconds"], ours["all_seconds"], strict=False)
                ratios[f"{name} over fit"] = statistics.median(theirs / mine for theirs, mine in pairs)
                ratios[f"processor time of {name} over fit"] = row["cpu_seconds"] / ours["cpu_seconds"]
                ratios[f"memory of {name} over fit"] = row["peak_mib"] / ours["peak_mib"]
                errors = np.divide(row["eigenvalues"], ours["eigenvalues"]) - 1
                ratios[f"largest difference of eigenvalues, {name}"] = float(np.abs(errors).max())
    for row in rows.values():
        row.pop("eigenvalues", None)
    wanted = {name: at_least(1) for name in ratios if name.endswith(" over fit")}
    return Outcome(f"Modes of {Path(store).name}, k = {k}", rows, None, ratios, wanted)


def main() -> None:
    """Compare and print."""
    parser = parser_of(__doc__, components=10, repeats=5)
    parser.add_argument("store")
    add_contenders(parser, CONTENDERS, once="xeofs_dask")
    options = parser.parse_args()
    names = contenders_of(parser, options.contenders, CONTENDERS)
    outcome = measure(
        options.store,
        options.components,
        repeats=options.repeats,
        fresh=not options.same_process,
        names=names,
        once=tuple(options.once.split(",")),
        memory=options.memory,
        timeout=options.timeout,
    )
    report(outcome, options.out)


if __name__ == "__main__":
    main()
