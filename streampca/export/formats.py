"""Formats of exported models: what they cannot express, and files that are written whole, never over one of another kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from streampca.errors import NotAvailableError, OutputError
from streampca.formatting import as_text
from streampca.models.pca import Model, PCAModel
from streampca.sources.cells.normalization import LogarithmOfCounts, Normalization, ScaledCounts
from streampca.storage.directories import require_local
from streampca.storage.files import write_atomically

Kind = Literal["ONNX", "faiss", "npz", "NetCDF", "CSV"]

SUFFIXES: dict[str, Kind] = {".onnx": "ONNX", ".faiss": "faiss", ".npz": "npz", ".nc": "NetCDF", ".csv": "CSV"}
"""Formats of files by the ends of their names."""
_BEGINNINGS: dict[Kind, bytes] = {"ONNX": b"\x08", "faiss": b"LTra", "npz": b"PK", "NetCDF": b"CDF", "CSV": b"feat"}
"""First bytes of a file of each format."""


@dataclass(frozen=True)
class Exported:
    """What was written; its text is one line."""

    path: Path
    """The file."""
    format: str
    """Format of the file, and its version where it has one."""
    shape: tuple[int, int]
    """Numbers of features and of components."""
    dtype: str
    """Type of the numbers in the file."""
    n_bytes: int
    """Size of the file in bytes."""
    error: float | None
    """Largest difference of scores that the file gives from those of the model in float64, over the largest score, for rows
    drawn from the model; None for files that compute nothing."""

    def __str__(self) -> str:
        d, k = self.shape
        measured = "no loss" if self.error is None else f"scores differ by {self.error:.1e} of the largest"
        return f"{self.path}: {self.format}, {d:,} features to {k:,} components, {self.dtype}, {as_text(self.n_bytes)}; {measured}"


def require_free(path: Path, kind: Kind, *, overwrite: bool) -> None:
    """Raise `OutputError` unless `path` is free, or a file of that kind that may be replaced."""
    require_local(path)
    if not path.parent.is_dir():
        raise OutputError(f"{path} cannot be written: {path.parent} is no directory")
    if not path.exists() and not path.is_symlink():
        return
    if path.is_symlink() or not path.is_file() or not _begins_as(path, kind):
        raise OutputError(
            f"{path} exists and is no {kind} file: it is left untouched; name another place, or move it away"
        )
    if not overwrite:
        raise OutputError(f"{path} exists already: ask for overwrite to replace it, or name another place")


def _begins_as(path: Path, kind: Kind) -> bool:
    with path.open("rb") as file:
        return file.read(4).startswith(_BEGINNINGS[kind])


def write(path: Path, kind: Kind, data: bytes | memoryview, *, overwrite: bool) -> None:
    """Write a file whole or not at all; `OutputError` as `require_free`."""
    require_free(path, kind, overwrite=overwrite)
    write_atomically(path, [data])


Target = Literal["scikit-learn", "ONNX", "faiss", "npz", "CSV"]
"""Formats of principal components; all but the last compute scores, or hold all that is needed for that."""


@dataclass(frozen=True)
class Limit:
    """A setting of models that some formats cannot express."""

    setting: str
    """The parameter and its value, as a user writes them."""
    of: Callable[[PCAModel], bool]
    """Whether a model has it."""
    reasons: Mapping[Target, str]
    """Why each of the formats cannot express it."""
    cure: str
    """What to do."""


def normalization_of(model: PCAModel) -> Normalization | None:
    """Return how rows of counts were normalised while they were read; None where they were not."""
    return Normalization.of(model.source.get("normalize"))


def _sums_of_others(model: PCAModel) -> bool:
    """Return whether rows are scaled by sums that include features which are not used."""
    known = normalization_of(model)
    return (
        known is not None
        and any(isinstance(step, ScaledCounts) for step in known.asked)
        and model.labels is not None
        and bool(model.labels.mask is not None)
    )


def _of_no_graph(model: PCAModel) -> bool:
    """Return whether counts are normalised by a step that has no nodes in ONNX."""
    known = normalization_of(model)
    return known is not None and not all(isinstance(step, ScaledCounts | LogarithmOfCounts) for step in known.asked)


_ROWS_ARE_NOT_KNOWN = "what is removed depends on which row it is (its group, time or covariates)"
_CONDITIONAL = "it solves a system for every pattern of NaN"
_NOT_LINEAR = "the logarithm and the sum of a row are not a linear map"
_NOT_IN_FORMULA = "it is not in the formula of the file"
_UNNORMALIZED = "normalise the data first (scanpy: normalize_total, log1p) and fit them without normalize, and give the exported model normalised rows"

LIMITS = (
    Limit(
        "rotate",
        lambda model: model.rotated_by is not None and model.uniquenesses is None,
        {"scikit-learn": "components of its PCA are orthogonal"},
        "export to .onnx, .faiss, .npz or .nc, or the fit before the rotation (pca_)",
    ),
    Limit(
        "two tables (MCA, CCA)",
        lambda model: model.n_first is not None,
        {"scikit-learn": "its PCA takes one table, with orthonormal components"},
        "export to .onnx, .faiss, .npz or .nc, which have the scores of both tables side by side",
    ),
    Limit(
        "rotation='promax'",
        lambda model: model.rotated_by == "promax",
        {"scikit-learn": "factors of its FactorAnalysis are uncorrelated"},
        "fit with rotation='varimax', or export to .onnx, .faiss, .npz or .nc",
    ),
    Limit(
        "factors of features that never vary or have weight 0",
        lambda model: model.uniquenesses is not None and bool((model.uniquenesses == 0).any()),
        {"scikit-learn": "it divides by their uniqueness, 0"},
        "fit without these features, or export to .onnx, .faiss, .npz or .nc",
    ),
    Limit(
        "remove",
        lambda model: model.removal is not None,
        {
            "scikit-learn": _ROWS_ARE_NOT_KNOWN,
            "ONNX": _ROWS_ARE_NOT_KNOWN,
            "faiss": _ROWS_ARE_NOT_KNOWN,
            "npz": _NOT_IN_FORMULA,
        },
        "save the model (pca.save), export it to .nc, or fit anomalies without remove",
    ),
    Limit(
        "missing_scores='conditional'",
        lambda model: model.conditional,
        {"scikit-learn": _CONDITIONAL, "ONNX": _CONDITIONAL, "faiss": _CONDITIONAL},
        "fit with missing_scores='mean', with missing='drop_rows', or export to .npz or .nc",
    ),
    Limit(
        "missing_scores='mean'",
        lambda model: model.fill is not None and not model.conditional,
        {"faiss": "replacing NaN is not a linear map"},
        "fit with missing='drop_rows', or export to .onnx",
    ),
    Limit(
        "missing_value",
        lambda model: model.source.get("missing_value") is not None,
        dict.fromkeys(("scikit-learn", "ONNX", "faiss", "npz"), "it would take that number as a value"),
        "give rows that have NaN in its place to fit, without missing_value, and to the exported model, or export to .nc",
    ),
    Limit(
        "normalize with a mask of features",
        _sums_of_others,
        {"ONNX": "the sum of a row includes features that the model does not take"},
        _UNNORMALIZED,
    ),
    Limit(
        "normalize",
        lambda model: normalization_of(model) is not None,
        {"scikit-learn": "it has no such step", "faiss": _NOT_LINEAR, "npz": _NOT_IN_FORMULA},
        _UNNORMALIZED,
    ),
    Limit("this normalize", _of_no_graph, {"ONNX": "it writes sums of rows and logarithms alone"}, _UNNORMALIZED),
)
"""Every setting that some format cannot express; all others are expressed by all."""


def require_expressible(model: Model, target: Target) -> PCAModel:
    """Return `model` if `target` can express it.

    Raises
    ------
    NotAvailableError
        Names the setting that it cannot express, and says what to do.
    """
    pca = model.linear
    if pca is None:
        raise NotAvailableError(
            f"{target} cannot express KernelPCA: its scores are kernel values of landmarks, not a linear map; save the model "
            "(pca.save), or export its eigenvalues to .nc"
        )
    for limit in LIMITS:
        if target in limit.reasons and limit.of(pca):
            raise NotAvailableError(f"{target} cannot express {limit.setting}: {limit.reasons[target]}; {limit.cure}")
    return pca
