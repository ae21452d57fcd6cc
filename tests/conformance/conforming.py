"""Judges how a file of another program is read: each table beside the library of its format, each fit beside LAPACK."""

from __future__ import annotations

import shutil
import tempfile
import traceback
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tolerances
from oracles import READ_AS, Expected, format_of, tables_of

import streampca as sp

RIGHT, NAMED, WRONG, CRASH, ALONE = "right", "named", "wrong", "crash", "alone"
"""Values and fit agree; an error of streampca; they differ; another exception; read, but by no other library."""
_MOST_FITTED = 2_000_000
"""Values of a table that is fitted, too."""


@dataclass(frozen=True)
class Verdict:
    """What became of a file."""

    outcome: str
    """The gravest that a table had; right where at least one was and others were refused by name."""
    detail: str
    """The message of the error, or where numbers differ."""
    format: str
    tables: int
    """Tables that were compared and agree."""


def judge(path: Path) -> Verdict:
    """Open, plan, fit and transform the tables of a file, and compare them."""
    with tempfile.TemporaryDirectory() as directory, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kind = str(format_of(path))
        if (ending := READ_AS.get(path.suffix.lower())) is not None:
            path = Path(shutil.copyfile(path, Path(directory, path.stem + ending)))
        try:
            tables = tables_of(path)
            refused = ""
        except Exception as error:  # noqa: BLE001
            tables, refused = [Expected()], f"; its library: {type(error).__name__}: {str(error)[:80]}"
        found = [_table(path, each) for each in tables]
    for outcome in (CRASH, WRONG, RIGHT, ALONE, NAMED):
        details = [detail for each, detail in found if each == outcome]
        if details:
            return Verdict(outcome, details[0] + refused, kind, sum(each == RIGHT for each, _ in found))
    raise AssertionError("a file has at least one table")


def _table(path: Path, expected: Expected) -> tuple[str, str]:
    """Return what became of one table, and the detail."""
    try:
        source = _opened(path, dict(expected.options))
        if expected.values is None:
            sp.PCA(1, memory="1GiB").plan(source)  # refuses what is larger than it can be
            source.read(0, min(source.shape[0], 10))
            return ALONE, f"{source.shape} {source.dtype}"
        different = _differs(source, expected.values)
        return (WRONG, f"{dict(expected.options)}: {different}") if different else (RIGHT, "")
    except sp.StreamPCAError as error:
        return NAMED, f"{type(error).__name__}: {error}"
    except Exception as error:  # noqa: BLE001
        last = traceback.extract_tb(error.__traceback__)[-1]
        return CRASH, f"{type(error).__name__}: {error} ({Path(last.filename).name}:{last.lineno})"


def _opened(path: Path, options: dict[str, Any]) -> Any:
    """Return the open table, its samples by the first of several names that the package knows."""
    names = options.pop("samples", [])
    for name in names[:-1]:
        try:
            return sp.open(path, samples=name, **options)
        except sp.errors.ParameterError:
            continue
    return sp.open(path, **options, **({"samples": names[-1]} if names else {}))


def _differs(source: Any, values: np.ndarray[Any, Any]) -> str:
    """Return in what the table or its fit differ from these values, empty if in nothing."""
    if tuple(source.shape) != values.shape:
        return f"shape {tuple(source.shape)} for {values.shape}"
    if 0 in values.shape:
        return ""
    rows = source.read(0, len(values))[0]
    rows = np.asarray(rows.toarray() if hasattr(rows, "toarray") else rows)
    read = rows.astype(np.float64)
    single = rows.dtype == np.float32 and bool(np.any(values != values.astype(np.float32), where=np.isfinite(values)))
    close = 2 * np.finfo(np.float32 if single else np.float64).eps
    same = (read == values) | (np.isnan(read) & np.isnan(values)) | (np.abs(read - values) <= close * np.abs(values))
    if not same.all():
        at = tuple(int(place) for place in np.argwhere(~same)[0])
        return f"value {at} is {read[at]!r} for {values[at]!r}; {np.count_nonzero(~same):,} differ"
    return _fit_differs(source, values, rows.dtype) if values.size <= _MOST_FITTED else ""


def _fit_differs(source: Any, values: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> str:
    """Return in what eigenvalues, axes or scores differ from those of LAPACK; fits that are refused by name differ in nothing."""
    complete = values[~np.isnan(values).any(axis=1)]
    n_components = min(3, len(complete) - 1, values.shape[1])
    if n_components < 1 or not np.isfinite(complete).all():
        return ""
    try:
        pca = sp.PCA(n_components, missing="drop_rows" if len(complete) < len(values) else "error", memory="1GiB")
        pca.plan(source)
        pca.fit(source)
        scores = np.asarray(pca.transform(source), dtype=np.float64)
    except sp.StreamPCAError:
        return ""
    centred = complete - complete.mean(axis=0)
    exact = (np.linalg.svd(centred, compute_uv=False) ** 2 / (len(complete) - 1))[:n_components]
    size = np.abs(complete).max() ** 2 * complete.shape[1]
    allowed = tolerances.eigenvalues(dtype) * exact[0] + 16 * tolerances.EPS * size
    variances = np.asarray(pca.explained_variance_, dtype=np.float64)
    if np.abs(variances - exact).max() > allowed:
        return f"eigenvalues {variances} for {exact}"
    axes = np.asarray(pca.components_, dtype=np.float64)
    residual = np.linalg.norm(centred.T @ (centred @ axes.T) / (len(complete) - 1) - axes.T * variances, axis=0)
    if residual.max() > 4 * allowed + 8 * tolerances.work_eps(dtype) * exact[0]:
        return f"residuals {residual} of eigenvectors for {allowed:.2g}"
    wanted = (values - complete.mean(axis=0)) @ axes.T
    within = 64 * tolerances.work_eps(dtype) * np.abs(complete).max(initial=0.0) * complete.shape[1]
    if not np.allclose(scores, wanted, rtol=1e-6, atol=within, equal_nan=True):
        return f"scores differ by {np.nanmax(np.abs(scores - wanted)):.2g}"
    return ""
