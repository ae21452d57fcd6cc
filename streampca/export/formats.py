"""Formats of exported models: their limits, and files that are written completely and never over a file of another kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from streampca.errors import NotAvailableError, OutputError
from streampca.formatting import as_text
from streampca.models.pca import Model, PCAModel
from streampca.planning.memory import ALLOWANCE_BYTES, MemoryBudget, MemoryNeed, allowed_bytes
from streampca.random import generator
from streampca.sources.arrays import ArraySource
from streampca.sources.normalization import LogarithmOfCounts, Normalization, ScaledCounts, UnitRows
from streampca.sources.steps import SteppedSource
from streampca.storage.directories import require_local
from streampca.storage.files import write_atomically
from streampca.system.process import process_bytes
from streampca.typing import Array, DType, FloatArray

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
        raise OutputError(f"{path} cannot be written: {path.parent} is not a directory")
    if not path.exists() and not path.is_symlink():
        return
    ours = path.is_file() and not path.is_symlink()
    if ours:
        with path.open("rb") as file:
            ours = file.read(4).startswith(_BEGINNINGS[kind])
    if not ours:
        raise OutputError(
            f"{path} exists but is not in {kind} format: it is left untouched; name another place, or move it away"
        )
    if not overwrite:
        raise OutputError(f"{path} exists already: ask for overwrite to replace it, or name another place")


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
    """Return how rows were normalised while they were read; None where they were not."""
    given = model.source.get("normalize")
    return None if given is None else Normalization.of(given)


def _steps(model: PCAModel) -> list[type]:
    """Return the steps of the normalisation of rows; none where there is none."""
    known = normalization_of(model)
    return [] if known is None else [type(step) for step in known.asked]


_ROWS_ARE_NOT_KNOWN = "what is removed depends on which row it is (its group, time or covariates)"
_CONDITIONAL = "it solves a linear system for every pattern of NaN"
_NOT_LINEAR = "the logarithm, the sum and the norm of a row are not a linear map"
_NOT_IN_FORMULA = "it is not in the formula of the file"
_UNNORMALIZED = (
    "normalise the data first (scanpy: normalize_total, log1p; scikit-learn: Normalizer) and fit them without normalize, and give the exported "
    "model normalised rows"
)
_OF_CELLS = "mask_var"
"""Key of the source of a model that tables of AnnData alone have: their sums of rows are those of all features, used or not."""

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
        "normalize of one of two tables",
        lambda model: any(each.get("normalize") for each in model.source.get("tables", ())),
        dict.fromkeys(("scikit-learn", "ONNX", "faiss", "npz"), "it takes the rows of both tables side by side"),
        _UNNORMALIZED,
    ),
    Limit(
        "normalize with a mask of features",
        lambda model: (
            ScaledCounts in _steps(model)
            and _OF_CELLS in model.source
            and model.labels is not None
            and model.labels.mask is not None
        ),
        {"ONNX": "the sum of a row includes features that the model does not take"},
        _UNNORMALIZED,
    ),
    Limit(
        "normalize",
        lambda model: normalization_of(model) is not None,
        {"faiss": _NOT_LINEAR, "npz": _NOT_IN_FORMULA},
        _UNNORMALIZED,
    ),
    Limit(
        "normalize",
        lambda model: not {*_steps(model)} <= {UnitRows},
        {"scikit-learn": "of these steps it supports only norms of rows"},
        _UNNORMALIZED,
    ),
    Limit(
        "normalize with missing_scores",
        lambda model: normalization_of(model) is not None and model.fill is not None,
        {"scikit-learn": "its norms take no missing values"},
        _UNNORMALIZED,
    ),
    Limit(
        "this normalize",
        lambda model: not {*_steps(model)} <= {ScaledCounts, LogarithmOfCounts, UnitRows},
        {"ONNX": "it supports only sums, norms and logarithms of rows"},
        _UNNORMALIZED,
    ),
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


_MEASURED_ROWS = 256
_MEASURED_VALUES = 2**21
"""Most rows, and values of them, with which the rounding error is measured."""
_LARGEST_MEAN = 1e30
_BYTES_PER_LETTER = 8
"""Memory of the copies of names of features while they are written, for the letters of the longest: numpy takes 4 for each."""


def projection_of(model: PCAModel, dtype: DType, *, centred: bool) -> tuple[Array, Array, Array]:
    """Return axes, ``(k, n_features)``, centre and offset with which scores are (rows − centre) axesᵀ + offset, in `dtype`.

    Rows are centred before the product, or their scores after it. The axes include the factors of features. The offset is that of the axes as they are rounded to `dtype`, so that only centred values meet their rounding errors.
    """
    k, d = model.components.shape
    axes, offset = np.empty((k, d), dtype), np.zeros(k)
    centre = model.mean.astype(dtype) if centred else np.zeros(d, dtype)
    for features, slab in model.encoder():
        weights = model.weights_of(features)
        axes[:, features] = slab if weights is None else slab * weights
        offset -= axes[:, features].astype(np.float64) @ (model.mean[features] - centre[features])
    return axes, centre, offset.astype(dtype)


def inverse_factors(model: PCAModel) -> FloatArray:
    """Return the factors of features of reconstructed rows before the mean is added, 0 for constant ones, ``(n_features,)``."""
    factors = model.inverse_weights_of(slice(0, len(model.mean)))
    return np.ones(len(model.mean)) if factors is None else factors


def require_range(model: PCAModel, target: Target, cure: str) -> None:
    """Raise `NotAvailableError` if float32 cannot hold the means, or the factors of features and components."""
    narrow = np.dtype(np.float32)
    if model.product_dtype(narrow) != narrow or np.abs(model.mean).max() > _LARGEST_MEAN:
        raise NotAvailableError(
            f"{target} in float32 cannot express this model: its means, scales or variances leave the range of float32; {cure}"
        )


def require_memory(
    model: PCAModel, memory: int | str | None, bytes_per_value: int, names: Sequence[str] | None = None
) -> None:
    """Raise `PlanError` if copies of the components and of the `names` of features do not fit in `memory`, the ceiling of the process."""
    k, d = model.components.shape
    longest = max(map(len, names or ()), default=0)
    needs = [
        MemoryNeed("process", process_bytes() + ALLOWANCE_BYTES),
        MemoryNeed("components", (bytes_per_value * k + _BYTES_PER_LETTER * longest) * d),
        MemoryNeed("scores", 4 * 8 * _n_measured(d) * (d + k)),
    ]
    budget = MemoryBudget.of(needs, allowed_bytes(memory))
    if not budget.fits:
        raise budget.refusal("export fewer components, or ", subject="the exported model: ")


def measured_error(model: PCAModel, scores_of: Callable[[Array], Array], dtype: DType) -> float:
    """Return max |ŝ − s| / max |s| of the scores ŝ that `scores_of` gives and those s of the model in float64.

    For up to 256 rows in `dtype` drawn from the probabilistic model (Tipping & Bishop 1999), the same at every call. Where
    rows are normalised while they are read, the rows are such that become normalised ones.
    """
    k, d = model.components.shape
    random, n = generator(0, "export"), _n_measured(d)
    scores = random.standard_normal((n, k)) * (1.0 if model.whiten else np.sqrt(model.explained_variance))
    noise = random.standard_normal((n, d)) * (np.sqrt(model.noise_of_features) * inverse_factors(model))
    rows, normalization = model.decode(scores) + noise, normalization_of(model)
    if normalization is not None:
        steps = _steps(model)
        if steps != [UnitRows]:
            np.maximum(rows, 0, out=rows)
        rows = (np.expm1(rows) if LogarithmOfCounts in steps else rows).astype(dtype)
        counts = ArraySource(rows.astype(np.float64))
        expected = model.encode(SteppedSource(counts, normalization.steps(counts.dtype)).read(0, len(rows))[0])
    else:
        rows = rows.astype(dtype)
        expected = model.encode(rows.astype(np.float64))
    largest = np.abs(expected).max(initial=0.0)
    difference = np.abs(scores_of(rows) - expected).max(initial=0.0)
    return float(difference / largest) if largest > 0 else float(difference)


def _n_measured(n_features: int) -> int:
    return max(1, min(_MEASURED_ROWS, _MEASURED_VALUES // n_features))
