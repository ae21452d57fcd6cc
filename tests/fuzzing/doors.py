"""The same fit by another door: together with other models, by a configuration, after it was stopped, in a named memory."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import capabilities
import numpy as np
import zarr
from cases import Case
from facade import StopSignalError, all_checkpoints, blocks_of

import streampca as sp


def refit(case: Case, given: Any, pca: Any, directory: Path) -> Any:
    """Return the model that the door of `case` gives; `pca` is the plain one. None where the door is not open to the case."""
    return _BY[case.door](case, given, pca, directory)


def _with_others(case: Case, given: Any, _: Any, directory: Path) -> Any:
    others = {name: case.parameters[name] for name in ("missing", "center", "ddof") if name in case.parameters}
    models = {"first": sp.PCA(1, **others), "this": sp.PCA(**case.parameters)}
    return sp.fit_many(models, given, sample_weight=case.sample_weight)["this"]


def _by_configuration(case: Case, given: Any, _: Any, directory: Path) -> Any:
    named = {name for names in capabilities.SECTIONS.values() for name in names} | {"random_state"}
    arrays = case.sample_weight is not None or not set(case.parameters) <= named
    if arrays or case.container in capabilities.SPARSE or case.rows.dtype.kind == "b":
        return None
    if case.container == "zarr":
        store = zarr.create_array(
            directory / "rows", data=case.rows, chunks=case.chunks, config={"write_empty_chunks": True}
        )
        assert store.shape == case.rows.shape
    else:
        np.save(directory / "rows.npy", case.rows)
    configuration: dict[str, Any] = {
        "name": f"seed-{case.seed}",
        "source": {"path": str(directory / ("rows" if case.container == "zarr" else "rows.npy"))},
        "output": {"directory": str(directory / "run"), "report": False},
        "seed": case.parameters.get("random_state", 0),
    }
    for section, names in capabilities.SECTIONS.items():
        chosen = {name: case.parameters[name] for name in names if name in case.parameters}
        if chosen:
            configuration[section] = chosen
    return sp.run(configuration).model


def _after_a_stop(case: Case, given: Any, _: Any, directory: Path) -> Any:
    """Stop a fit in blocks of a few rows, go on, and check that the bits are those of one that was not stopped."""
    if case.sparse and case.parameters["solver"] == "gram":
        return None  # features are read in blocks that the plan makes as uneven as they are full
    rng, seen = np.random.default_rng([case.seed, 11]), [0]
    n_rows, last = max(1, len(case.rows) // int(rng.integers(2, 9))), int(rng.integers(1, 6))

    def stop(_: Any) -> None:
        seen[0] += 1
        if seen[0] == last:
            raise StopSignalError(15)

    def fitted(**beside: Any) -> Any:
        return sp.PCA(**case.parameters, **beside).fit(given, sample_weight=case.sample_weight)

    with blocks_of(n_rows), all_checkpoints():
        with suppress(StopSignalError):
            fitted(checkpoint=directory / "kept", progress=stop)
        resumed, whole = fitted(checkpoint=directory / "kept"), fitted()
    for name in ("components_", "explained_variance_", "mean_"):
        if getattr(resumed, name).tobytes() != getattr(whole, name).tobytes():
            raise AssertionError(f"resumed: {name} has other bits than without a stop")
    return resumed


def _within_memory(case: Case, given: Any, pca: Any, directory: Path) -> Any:
    memory = pca.plan(given).to_dict()["projected_bytes"] + 2**26
    return sp.PCA(**case.parameters, memory=memory).fit(given, sample_weight=case.sample_weight)


_BY: dict[str, Callable[[Case, Any, Any, Path], Any]] = {
    "fit": lambda *_: None,
    "fit_many": _with_others,
    "run": _by_configuration,
    "resumed": _after_a_stop,
    "memory": _within_memory,
}
