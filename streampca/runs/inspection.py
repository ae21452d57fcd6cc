"""Description of a path: a store, a model, scores, a run, or a configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from streampca.errors import DataError
from streampca.execution.checkpoint.directory import CheckpointDirectory
from streampca.models.persistence.groups import format_of
from streampca.models.persistence.models import is_kernel_model, load_kernel_model, load_model
from streampca.models.persistence.state import describe_state
from streampca.runs.config import load_config
from streampca.runs.manifest import read_manifest
from streampca.runs.summary import accuracy
from streampca.sources import open_source
from streampca.sources.zarr.opening import arrays_in
from streampca.storage.directories import read_record
from streampca.typing import Json

Description: TypeAlias = dict[str, object]
"""What is known of a path: its ``kind``, and entries that depend on it, as plain data."""


def inspect_path(path: str, array: str | None = None) -> Description:
    """Describe `path`, or the array called `array` in the group there, from its metadata.

    Raises
    ------
    DataError
        If nothing is there, or it is nothing that streampca reads or writes.
    ConfigError
        If it is a configuration that is not valid.
    """
    place = Path(path)
    if array is not None:
        return _of_array(path, array)
    if place.suffix in (".yaml", ".yml") and place.is_file():
        return _of_configuration(place)
    record = read_record(place) if place.is_dir() else None
    if record is not None and record["format"] == "streampca-run":
        return _of_run(place)
    if place.is_dir() and format_of(place) == "streampca-model":
        return _of_model(place)
    if place.is_dir() and format_of(place) == "streampca-scores":
        return {
            "kind": "scores",
            "complete": record is not None or read_record(place.parent) is not None,
            **_of_store(f"{path}/scores"),
        }
    if record is not None and record["format"] == "streampca-checkpoint":
        return _of_checkpoint(place)
    if place.is_dir() and ".part-" in place.name and (place / "config.yaml").exists():
        return {
            "kind": "unfinished run",
            "path": path,
            "meaning": "a run was stopped here before its commit record was written; it is not a result",
        }
    arrays = _arrays_in(path)
    if arrays is not None:
        return {
            "kind": "group",
            "path": path,
            "meaning": "name one of its arrays with --array, or source.array, to read it",
            "arrays": arrays,
        }
    return {"kind": "source", **_of_store(path)}


def _of_array(path: str, array: str) -> Description:
    """Describe an array in a group, also one that is no table."""
    try:
        return {"kind": "source", **_of_store(path, array)}
    except DataError as error:
        entry = next((entry for entry in _arrays_in(path) or () if entry["name"] == array), None)
        if entry is None:
            raise
        return {"kind": "array", "path": path, **entry, "meaning": f"it is not read as a table: {error}"}


def _of_configuration(place: Path) -> Description:
    config = load_config(place)
    return {
        "kind": "configuration",
        "path": str(place),
        "name": config.name,
        "model": config.model.kind,
        "source": config.source.path_as_written,
        "output": str(config.output.directory),
        "meaning": "streampca plan says what it would do, and streampca run does it",
    }


def _arrays_in(path: str) -> Sequence[Mapping[str, object]] | None:
    """Return names, shapes, data types and chunks of the arrays in the group at `path`; None if it is none."""
    if path.startswith("builtin:") or path.endswith(".npy"):
        return None
    return arrays_in(path)


def _of_checkpoint(place: Path) -> Description:
    checkpoint, damaged = CheckpointDirectory(place).newest()
    readings = checkpoint["readings"] if checkpoint else []
    return {
        "kind": "checkpoint",
        "path": str(place),
        "meaning": "a run that was stopped goes on from here" if checkpoint else "nothing whole is left of it",
        "readings": {entry["key"]: f"{entry['next_leaf']} of {entry['n_leaves']} leaves" for entry in readings},
        "chunks_read": sum(entry["count"]["chunks"] for entry in readings),
        "attempts": checkpoint["attempts"] if checkpoint else 0,
        "damaged": damaged,
    }


def _of_run(place: Path) -> Description:
    manifest = read_manifest(place)
    keys = ("name", "run_id", "finished", "source", "passes", "memory", "seconds", "certificate")
    files = sorted(child.name for child in place.iterdir())
    # Kernel models keep no state.
    state = {} if is_kernel_model(place / "model.zarr") else {"state": describe_state(place / "model.zarr")}
    sure = _sure(manifest.get("certificate"), manifest.get("approximation"))
    return {
        "kind": "run",
        "path": str(place),
        **{key: manifest.get(key) for key in keys},
        **sure,
        **state,
        "files": files,
    }


def _of_model(place: Path) -> Description:
    if is_kernel_model(place):
        return _of_kernel_model(place)
    model = load_model(place)
    return {
        "kind": "model",
        "path": str(place),
        "components": list(model.components.shape),
        "n_samples": model.n_samples,
        "center": model.center,
        "scale": model.scale is not None,
        "whiten": model.whiten,
        "ddof": model.ddof,
        "total_variance": model.total_variance,
        "explained_variance": model.explained_variance[:10].tolist(),
        "numerical_rank": model.numerical_rank,
        "certificate": model.certificate.get("statement"),
        **_sure(model.certificate, None),
        "state": describe_state(place),
    }


def _sure(certificate: object, approximation: Json | None) -> Description:
    """Return the error bounds of an approximate result; empty for an exact one."""
    if not isinstance(certificate, dict):
        return {}
    accuracies = accuracy(certificate, approximation)
    if accuracies is None:
        return {}
    intervals = certificate["eigenvalue_intervals"]
    return {"accuracy": accuracies, "eigenvalue_intervals": intervals and intervals[:10]}


def _of_kernel_model(place: Path) -> Description:
    model = load_kernel_model(place)
    return {
        "kind": "kernel model",
        "path": str(place),
        "kernel": model.kernel.to_dict(),
        "method": model.method,
        "sampling": model.sampling,
        "landmarks": list(model.landmarks.shape),
        "components": model.n_components,
        "n_samples": model.n_samples,
        "center": model.center,
        "eigenvalues": model.eigenvalues[:10].tolist(),
        "certificate": model.certificate.get("statement"),
        "inverse_transform": model.preimage is not None,
    }


def _of_store(path: str, array: str | None = None) -> Description:
    if not path.startswith("builtin:") and "://" not in path and not Path(path).exists():
        raise DataError(f"{path}: no such file or directory")
    source = open_source(path, array=array, decode="raw")
    return source.describe() | {"bytes": source.shape[0] * source.row_bytes}
