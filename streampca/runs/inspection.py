"""Description of a path: a store, a model, scores, a run, or a configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeAlias, cast

from streampca.errors import DataError
from streampca.execution.checkpoint.progress_log import CheckpointDirectory
from streampca.models.certificate_sentences import accuracy
from streampca.models.certificates import ApproximateCertificate, Certificate, any_certificate_of
from streampca.models.kernel import KernelModel
from streampca.models.pca import PCAModel
from streampca.models.persistence.groups import kind_of
from streampca.models.persistence.models import load_saved
from streampca.models.persistence.state import describe_state
from streampca.parameters import KINDS
from streampca.runs.config.models import ModelsConfig, load_any_config
from streampca.runs.manifest import read_json, read_manifest
from streampca.runs.several import groups_of_run, runs_of
from streampca.sources import open_source
from streampca.sources.files.paths import files_of
from streampca.sources.formats import ICECHUNK
from streampca.sources.listing import Listing, list_store
from streampca.sources.open import is_store_path
from streampca.storage.directories import read_record, read_unreplaced
from streampca.typing import Json, JsonValue

Description: TypeAlias = dict[str, object]
"""Description of a path as plain data: its ``kind``, and entries that depend on the kind."""


def inspect_path(path: str, **options: Any) -> Description:
    """Describe `path`, or the table that `options` select from the store there, from metadata and coordinates.

    Raises
    ------
    DataError
        If `path` does not exist, or is nothing that streampca reads or writes.
    ConfigError
        If it is an invalid configuration.
    """
    place = Path(path)
    given = {name: value for name, value in options.items() if value is not None}
    if given:
        return _of_array(path, given["array"]) if set(given) == {"array"} else _of_table(path, given)
    if place.suffix in (".yaml", ".yml") and place.is_file():
        return _of_configuration(place)
    record = read_record(place) if place.is_dir() else None
    if record is not None and record["format"] == "streampca-run":
        return read_unreplaced(place, lambda: _of_run(place))
    if record is not None and record["format"] == "streampca-models":
        runs = [str(each) for each in runs_of(place).values()]
        return {
            "kind": "run of several models",
            "path": path,
            "runs": runs,
            "meaning": "each of them is a finished run",
        }
    if record is not None and record["format"] == "streampca-groups":
        return {
            "kind": "run of groups",
            "path": path,
            "group_by": read_json(place, "manifest.json").get("group_by"),
            "models": {str(entry["label"]): str(model) for entry, model in groups_of_run(place)},
            "meaning": "each of them is a model; of groups, within groups (pooled) and between them",
        }
    if place.is_dir() and kind_of(place)[0] == "streampca-model":
        return read_unreplaced(place, lambda: _of_model(place))
    if place.is_dir() and kind_of(place)[0] == "streampca-scores":
        return {
            **_of_table(f"{path}/scores", {"decode": "raw"}),
            "kind": "scores",
            "complete": record is not None or read_record(place.parent) is not None,
        }
    if place.is_dir() and kind_of(place)[0] == "streampca-reconstruction":
        return {
            "kind": "reconstruction",
            "path": path,
            "arrays": list_store(path).arrays,
            "complete": record is not None or read_record(place.parent) is not None,
            "meaning": "rows that scores give back, in the units of the data",
        }
    if record is not None and record["format"] == "streampca-checkpoint":
        return _of_checkpoint(place)
    if place.is_dir() and ".part-" in place.name and (place / "config.yaml").exists():
        return {
            "kind": "unfinished run",
            "path": path,
            "meaning": "a run was stopped here before its commit record was written; it is not a result",
        }
    if not is_store_path(path):
        return _of_files(path)
    try:
        listing = list_store(path)
    except DataError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise
        return _of_table(path, {})  # a directory of files behind a URL
    if listing.is_anndata:
        return {**_of_table(path, {}), "kind": "AnnData", "arrays": listing.arrays}
    if listing.is_group:
        meaning = "name one of its arrays with --array, or source.array, to read it"
        return {"kind": "group", "path": path, "meaning": meaning, "arrays": listing.arrays, **_proposed(path, listing)}
    return _of_array(path, None)


def _of_files(path: str) -> Description:
    """Describe the only table in files, or the arrays in them."""
    try:
        return _of_table(path, {})
    except DataError:
        files = files_of(path)
        if files is None or not files.format.holds == "arrays" or len((listing := list_store(path)).arrays) < 2:
            raise
        meaning = "name one of its arrays with --array, or source.array, to read it"
        return {"kind": "file", "path": path, "meaning": meaning, "arrays": listing.arrays, **_proposed(path, listing)}


def _of_array(path: str, array: str | None) -> Description:
    """Describe an array at `path` or in the group there, even if it is not a table by itself."""
    try:
        described = _of_table(path, {"array": array, "decode": "raw"})
        packed = cast(Json, described.get("packing") or {})
        declared = [packed[name] for name in ("_FillValue", "missing_value", "fill_value") if name in packed]
        return described | {"missing": [*cast(list[object], described["missing"]), *declared]}
    except DataError as error:
        if not is_store_path(path):
            raise
        listing = list_store(path, array=array)
        entry = next((entry for entry in listing.arrays if entry.get("name") == array), None)
        if entry is None:
            raise
        meaning = f"it cannot be read as a table: {error}"
        return {"kind": "array", "path": path, **entry, "meaning": meaning, **_proposed(path, listing)}


def _proposed(path: str, listing: Listing) -> Description:
    """Return the dimensions of a store, and the source that reads it as a table."""
    dimensions: Description = {"dimensions": listing.dimensions} if listing.dimensions else {}
    return dimensions | ({} if listing.proposal is None else {"proposal": {"path": path, **listing.proposal}})


def _of_configuration(place: Path) -> Description:
    loaded = load_any_config(place)
    config = loaded.common if isinstance(loaded, ModelsConfig) else loaded
    return {
        "kind": "configuration",
        "path": str(place),
        "name": config.name,
        "model": ", ".join(loaded.models) if isinstance(loaded, ModelsConfig) else config.model.kind,
        "source": config.source.path_as_written,
        "output": str(config.output.directory),
        "meaning": "streampca plan says what it would do, and streampca run does it",
    }


def _of_checkpoint(place: Path) -> Description:
    checkpoint, damaged = CheckpointDirectory(place).newest()
    readings = checkpoint["readings"] if checkpoint else []
    return {
        "kind": "checkpoint",
        "path": str(place),
        "meaning": "a stopped run continues from here" if checkpoint else "nothing intact is left of it",
        "readings": {entry["key"]: f"{entry['next_leaf']} of {entry['n_leaves']} leaves" for entry in readings},
        "chunks_read": sum(entry["count"]["chunks"] for entry in readings),
        "attempts": checkpoint["attempts"] if checkpoint else 0,
        "damaged": damaged,
    }


def _of_run(place: Path) -> Description:
    manifest = read_manifest(place)
    keys = ("name", "run_id", "finished", "source", "passes", "memory", "seconds", "certificate")
    files = sorted(child.name for child in place.iterdir())
    kind = KINDS.get(str(kind_of(place / "model.zarr")[1]), KINDS["pca"])
    state = {"state": describe_state(place / "model.zarr")} if kind.keeps_state else {}
    sure = _sure(any_certificate_of(manifest["certificate"]), manifest.get("approximation"))
    return {
        "kind": "run",
        "path": str(place),
        **{key: manifest.get(key) for key in keys},
        "source": {key: value for key, value in manifest["source"].items() if key != "labels"},
        **_of_labels(manifest["source"].get("labels")),
        **sure,
        **state,
        "files": files,
    }


def _of_model(place: Path) -> Description:
    model = load_saved(place)[0]
    if model.linear is None:
        return _of_kernel_model(place, cast(KernelModel, model))
    return _of_pca_model(place, model.linear)


def _of_pca_model(place: Path, model: PCAModel) -> Description:
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
        "certificate": model.certificate.statement,
        **_sure(model.certificate, None),
        "state": describe_state(place),
        **_of_labels(None if model.labels is None else model.labels.describe()),
    }


def _sure(certificate: Certificate, approximation: Json | None) -> Description:
    """Return the error bounds of an approximate result; empty for an exact one."""
    if not isinstance(certificate, ApproximateCertificate):
        return {}
    ends = certificate.eigenvalue_intervals
    first = None if ends is None else [list(pair) for pair in ends[:10]]
    return {"accuracy": accuracy(certificate, approximation), "eigenvalue_intervals": first}


def _of_kernel_model(place: Path, model: KernelModel) -> Description:
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
        "certificate": model.certificate.statement,
        "inverse_transform": model.preimage is not None,
        **_of_labels(None if model.labels is None else model.labels.describe()),
    }


def _of_table(path: str, options: Mapping[str, Any]) -> Description:
    if "://" not in path and not path.startswith(ICECHUNK) and not Path(path).exists() and is_store_path(path):
        raise DataError(f"{path}: no such file or directory")
    source = open_source(path, **options)
    described: Description = {"kind": "source"} | source.describe() | {"bytes": source.shape[0] * source.row_bytes}
    values = cast(list[object], described.pop("missing_values", []))
    described["missing"] = ["NaN", *values] if source.dtype.kind == "f" else values
    if len(source.fragments) > 1:
        described["fragments"] = [asdict(fragment) for fragment in source.fragments]
    return described | _of_labels(None if source.labels is None else source.labels.describe())


def _of_labels(labels: Mapping[str, JsonValue] | None) -> Description:
    """Return dimensions and variables of a table as entries of a description; empty if dimensions have no names."""
    if labels is None:
        return {}
    dimensions = [
        {**dimension, "of": name} for name in ("samples", "features") for dimension in cast(list[Json], labels[name])
    ]
    named = any("first" in dimension or not str(dimension["name"]).startswith("dim_") for dimension in dimensions)
    return {"dimensions": dimensions, "variables": labels["variables"]} if named or len(dimensions) > 2 else {}
