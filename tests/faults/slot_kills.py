"""Writers of results into AnnData that are killed at random instants: after the next call the old results are there, or the new ones."""

from __future__ import annotations

import random
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import cells
import numpy as np
from forks import server
from score import Score, again

import streampca as sp
from streampca.errors import OutputError

COUNTS = cells.make_counts(400, 30)
_SECONDS = 60.0


def write(path: str, n_comps: int) -> None:
    """Fit AnnData and replace its results, in a process of its own."""
    import streampca as sp

    sp.anndata.pca(path, n_comps, overwrite=True)


def make(place: Path, kind: str) -> Path:
    """Write the counts as a store, or as a file by h5py in the documented encoding."""
    store = cells.write_cells(place / "a.zarr", COUNTS, consolidated=True)
    return store if kind == "zarr" else cells.write_file(place / "a.h5ad", COUNTS)


def run(count: int, seed: int, kind: str = "zarr") -> Score:
    """Kill `count` writers, one after the other, from the moment on at which they have begun to write."""
    score, began, draw = (
        Score(f"writers of results into {kind} AnnData that are killed"),
        time.monotonic(),
        random.Random(seed),
    )
    with tempfile.TemporaryDirectory(prefix="slots-") as name:
        path = make(Path(name), kind)
        data, k, seconds = _counts_in(path), 2, _write_once(path, 2)
        for number in range(count):
            wanted = 5 - k
            killed = _killed(path, wanted, draw.random() * seconds)
            found = _components_in(path)
            allowed = {k, wanted} if killed else {wanted}
            score.injected += killed
            if found not in allowed or not np.array_equal(_counts_in(path), data):
                score.wrong += 1
                score.notes.append(
                    f"{number}: {found} components, expected one of {allowed}: {again('slots' if kind == 'zarr' else 'slots-h5ad', seed)}"
                )
            elif killed:
                score.survived, score.detected = score.survived + (found == wanted), score.detected + (found == k)
            k = found or k
    score.seconds = time.monotonic() - began
    return score


def _write_once(path: Path, n_comps: int) -> float:
    """Write results and return how long that takes from the moment on at which the directory for them appears."""
    process, staging = _started(path, n_comps), _staging(path)
    while process.wait(0.0) is None and not staging.exists():
        process.wait(0.001)
    begun = time.monotonic()
    assert process.wait(_SECONDS) == 0, process.said
    return time.monotonic() - begun


def _killed(path: Path, n_comps: int, seconds: float) -> bool:
    """Start a writer and kill it so long after it began to write; return whether it was still there then."""
    process, staging = _started(path, n_comps), _staging(path)
    while process.wait(0.0) is None and not staging.exists():
        process.wait(0.001)
    status = process.wait(seconds)
    status = process.end() if status is None else status
    assert status in (0, -signal.SIGKILL), process.said
    return status != 0


def _started(path: Path, n_comps: int) -> Any:
    return server().start("slot_kills:write", path.parent, path=str(path), n_comps=n_comps)


def _staging(path: Path) -> Path:
    return path.with_name(f".{path.name}.streampca-results")


def _components_in(path: Path) -> int:
    """Return the number of components whose results are all there after recovery, 0 if they do not agree."""
    try:
        sp.anndata.pca(str(path), 2)
    except OutputError as error:  # results are there; what a writer left has been set right before they were looked for
        taken = str(error)
    else:
        return 0
    sides = cells.sides_of(path, ("obsm/X_pca", "varm/PCs", "uns/pca/variance"))
    return (
        sides[0][1]
        if all(name in taken for name in ("X_pca", "PCs", "uns")) and len({sides[0][1], sides[1][1], sides[2][0]}) == 1
        else 0
    )


def _counts_in(path: Path) -> Any:
    return cells.values_of(path, "X/data")
