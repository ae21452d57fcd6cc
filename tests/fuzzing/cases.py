"""Random fits of `PCA`: rows, how they are stored, parameters and weights, each decided by one seed."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import Any

import dask.array as da
import numpy as np
import scipy.sparse as sp
import zarr
from capabilities import CODES, DENSE, DOORS, OUTPUTS, REMOVAL_WITH, SHARES, SOLVERS, SPARSE
from facade import open_source
from numpy.typing import NDArray

import streampca

DEVICE = os.environ.get("STREAMPCA_FUZZ_DEVICE", "")
"""Where fits multiply; empty = as by default."""
SKETCHES = ("auto", "gaussian", "count_sketch", "sparse_sign", "grouping")
FLOATS = ("<f8", "<f8", "<f8", "<f4", "<f4", "<f4", "<f2", ">f8", ">f4")
INTEGERS = ("|u1", "|i1", "<i2", "<u2", "<i4", "<i8", "|b1")
SPECTRA = ("slow", "fast", "flat", "low_rank", "ties", "outlier", "few_values", "duplicates", "sparse", "rare")


@dataclass(frozen=True)
class Case:
    """One fit."""

    seed: int
    """What decides everything else."""
    rows: NDArray[Any]
    """The rows, dense, in their data type; ``(n_samples, n_features)``."""
    container: str
    """How they are handed over."""
    chunks: tuple[int, int]
    """Rows and features of a chunk, where the container has chunks."""
    parameters: dict[str, Any]
    """Parameters of `PCA`."""
    sample_weight: NDArray[np.float64] | None
    """Weights of the rows."""
    output: str = "transform"
    """Where scores go: ``"transform"``, ``"transform_to"``, ``"diagnostics"`` (with T² and Q), ``"loaded"`` (by the saved model)."""
    door: str = "fit"
    """How the fit is asked for a second time, a name of `capabilities.DOORS`."""
    words: dict[str, Any] = field(default_factory=dict)
    """How the rows were made, for the line that is printed of a failure."""
    before: NDArray[Any] | None = None
    """What is stored where `rows` are these normalised while they are read; None where they are stored themselves."""

    among: NDArray[Any] | None = None
    """What is stored where `rows` are those of it that `where` chooses; None where they are all that is stored."""
    where: NDArray[np.bool_] | None = None
    """Which of the rows of `among` are `rows`, ``(n_stored,)``."""

    @property
    def sparse(self) -> bool:
        """Return whether the container is sparse."""
        return self.container in SPARSE

    def stored(self) -> Any:
        """Return the rows in their container, or as a table that makes them of what is in there."""
        if self.among is not None:
            return streampca.open(replace(self, rows=self.among, among=None, where=None).stored(), where=self.where)
        if self.before is not None:
            stored = replace(self, rows=self.before, before=None).stored()
            return streampca.open(stored, normalize={"norm": self.words["norm"]})
        rows, (across, along) = self.rows, self.chunks
        if self.container == "fortran":
            return np.asfortranarray(rows)
        if self.container == "strided":
            wide = np.zeros((2 * rows.shape[0], 2 * rows.shape[1]), dtype=rows.dtype)
            wide[::2, ::2] = rows
            return wide[::2, ::2]
        if self.container == "dask":
            return da.from_array(rows, chunks=(across, along))
        if self.container == "zarr":
            config = {"write_empty_chunks": True}
            array = zarr.create_array(
                zarr.storage.MemoryStore(), shape=rows.shape, dtype=rows.dtype, chunks=(across, along), config=config
            )
            array[...] = rows
            return array
        if self.container == CODES:
            values, codes = np.unique(rows, return_inverse=True, equal_nan=True)
            table = np.append(values, np.full(256 - len(values), np.nan, dtype=rows.dtype))
            return open_source(codes.astype(np.uint8), quantization={"table": table})
        if self.container == "csr":
            return sp.csr_array(rows)
        if self.container == "csc":
            return sp.csc_matrix(rows)
        if self.container == "dask_csr":
            blocks = da.from_array(rows, chunks=(across, rows.shape[1]))
            return blocks.map_blocks(sp.csr_matrix, dtype=rows.dtype)
        return rows

    def line(self) -> str:
        """Return the case in words."""
        given = {name: value for name, value in self.parameters.items() if not isinstance(value, np.ndarray)}
        given = {name: value if name != "remove" else sorted(value) for name, value in given.items()}
        parameters = ", ".join(f"{name}={value!r}" for name, value in given.items())
        extra = [name for name, value in self.parameters.items() if isinstance(value, np.ndarray)]
        extra += [] if self.sample_weight is None else ["sample_weight"]
        shape = "x".join(map(str, self.rows.shape))
        words = " ".join(f"{name}={value}" for name, value in self.words.items())
        return f"{self.container} {shape} {self.rows.dtype.str} [{words}] PCA({parameters}){' with ' if extra else ''}{', '.join(extra)} -> {self.output}, {self.door}"


def draw(seed: int) -> Case:
    """Return the case that `seed` stands for."""
    rng = np.random.default_rng([seed, 20261122])
    container = str(rng.choice((*DENSE, "csr", *SPARSE)))
    sparse = container in SPARSE
    n, d = _shape(rng)
    dtype = np.dtype(str(rng.choice(FLOATS if rng.random() < 0.75 else INTEGERS)))
    if sparse and ((dtype.itemsize == 2 and dtype.kind == "f") or dtype.str[0] == ">"):
        dtype = np.dtype("<f4")  # scipy's sparse matrices hold neither
    rows, words = _rows(rng, n, d, dtype, sparse)
    parameters = _parameters(rng, n, d, container)
    if DEVICE:
        parameters["device"] = DEVICE
    if dtype.kind == "f" and rng.random() < (0.5 if parameters.get("missing", "error") != "error" else 0.02):
        words["holes"] = share = float(rng.choice([0.02, 0.15, 0.5]))
        if not sparse or parameters.get("missing", "error") == "error":
            rows[rng.random((n, d)) < share] = np.nan
    sample_weight = _sample_weight(rng, n) if rng.random() < 0.2 else None
    if rng.random() < 0.15:
        weight = rng.random(d) * (rng.random(d) < 0.8)
        weight[int(rng.integers(d))] = 1.0
        parameters["feature_weight"] = weight
    chunks = (int(rng.integers(1, n + 1)), int(rng.integers(1, d + 1)))
    chunks = (max(chunks[0], -(-n // 12)), max(chunks[1], -(-d // 4)))
    drawn = np.random.default_rng([seed, 20261123])
    fitting = container in REMOVAL_WITH["container"] and parameters.get("missing", "error") in REMOVAL_WITH["missing"]
    if drawn.random() < (0.3 if fitting else 0.02):
        parameters["remove"] = _remove(drawn, n)
        if drawn.random() < 0.95:
            parameters.pop("center", None)
    output = str(drawn.choice(OUTPUTS))
    door = str(drawn.choice(DOORS))
    if container in ("numpy", "zarr") and np.random.default_rng([seed, 20261128]).random() < 0.1:
        container, rows = CODES, _of_few_values(rows)
    case = Case(seed, rows, container, chunks, parameters, sample_weight, output, door, words)
    if container != CODES and drawn.random() < 0.1:
        return _normalized(case, drawn)
    drawn = np.random.default_rng([seed, 20261129])
    return (
        _chosen(case, drawn) if sample_weight is None and "remove" not in parameters and drawn.random() < 0.1 else case
    )


def _chosen(case: Case, rng: np.random.Generator) -> Case:
    """Return the case with its rows chosen by `where` among others, which hold what it cannot take where their type has NaN."""
    rows = case.rows
    n_others = int(rng.integers(1, 2 * len(rows) + 2))
    where = rng.permutation(np.arange(len(rows) + n_others) < len(rows))
    among = np.empty((len(where), rows.shape[1]), dtype=rows.dtype)
    among[where] = rows
    among[~where] = rows[rng.integers(0, len(rows), n_others)][:, ::-1]
    if rows.dtype.kind == "f" and not case.sparse:
        among[~where & (rng.random(len(where)) < 0.3), 0] = np.nan
    return replace(case, among=among, where=where, words={**case.words, "where": f"{len(rows)} of {len(where)}"})


def _normalized(case: Case, rng: np.random.Generator) -> Case:
    """Return the case with rows of norm 1 made of its rows, where these are stored so that the former are float32, the same by any way."""
    rows, dtype = case.rows, case.rows.dtype
    narrow = dtype.itemsize <= 4 if dtype.kind == "f" else dtype.itemsize <= 2
    if not narrow or np.isinf(rows).any():
        return case
    norm = str(rng.choice(["l2", "l1", "max"]))
    moduli = np.abs(np.nan_to_num(rows.astype(np.longdouble)))
    sizes = {"l2": np.sqrt((moduli**2).sum(axis=1)), "l1": moduli.sum(axis=1), "max": moduli.max(axis=1)}[norm]
    of_norm = rows.astype(np.longdouble) / np.where(sizes == 0, 1, sizes)[:, None]
    return replace(case, rows=of_norm.astype(np.float32), before=rows, words={**case.words, "norm": norm})


def _of_few_values(rows: NDArray[Any]) -> NDArray[Any]:
    """Return rows of at most 255 different numbers among those there are, and NaN, as codes of 8 bits have."""
    rows = rows.astype("f4" if rows.dtype.kind == "f" and rows.dtype.itemsize <= 4 else "f8")
    values = np.unique(rows[~np.isnan(rows)])
    values = values[np.linspace(0, len(values) - 1, min(255, len(values))).astype(int)] if len(values) else values
    few = values[np.minimum(np.searchsorted(values, rows), len(values) - 1)] if len(values) else rows
    return np.where(np.isnan(rows), rows, few)


def _remove(rng: np.random.Generator, n: int) -> dict[str, Any]:
    """Return what regression subtracts: some of groups, a trend, covariates."""
    keys = [key for key in ("groups", "trend", "covariates") if rng.random() < 0.5] or ["groups"]
    drawn: dict[str, Any] = {}
    if "groups" in keys:
        drawn["groups"] = rng.integers(0, int(rng.choice([1, 3, 12])), n)
    if "trend" in keys:
        drawn["trend"] = int(rng.integers(1, 4))
    if "covariates" in keys:
        drawn["covariates"] = rng.standard_normal((n, int(rng.integers(1, 4)))) * 10.0 ** rng.integers(-3, 4)
    return drawn


def _shape(rng: np.random.Generator) -> tuple[int, int]:
    kind = rng.random()
    if kind < 0.03:
        return int(rng.integers(1, 4)), int(rng.integers(1, 4))
    if kind < 0.06:
        return int(rng.integers(1, 40)), 1
    if kind < 0.25:
        return int(rng.integers(2, 40)), int(rng.integers(20, 160))
    if kind < 0.9:
        return int(rng.integers(20, 300)), int(rng.integers(2, 60))
    return int(rng.integers(500, 3000)), int(rng.integers(2, 40))


def _rows(
    rng: np.random.Generator, n: int, d: int, dtype: np.dtype[Any], sparse: bool
) -> tuple[NDArray[Any], dict[str, Any]]:
    """Return rows of `dtype` and how they were made."""
    spectrum = str(rng.choice(SPECTRA))
    rows = _directions(rng, n, d, spectrum)
    words: dict[str, Any] = {"spectrum": spectrum}
    if sparse:
        words["density"] = density = float(rng.choice([0.01, 0.04, 0.3, 1.0]))
        rows = rows * (rng.random((n, d)) < density)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        size = min(float(rng.choice([1.0, 30.0, 1e4])), float(info.max) / 8)
        shift = 0.0 if rng.random() < 0.5 else float(info.max) / 2
        far = np.full(d, shift) * _full_columns(rng, d, sparse)
        words |= {"size": size, "far": shift}
        rows = np.clip(np.rint(rows * size + far), float(info.min), float(info.max) * (1 - 2.0**-20))
        return rows.astype(dtype), words
    if dtype.kind == "b":
        return np.asarray(rows > 0.3), words
    far, scale = _far(rng, dtype), _scale(rng, dtype)
    ratio = far * _full_columns(rng, d, sparse) * (1.0 if rng.random() < 0.5 else rng.standard_normal(d))
    if rng.random() < 0.15:
        rows *= 10.0 ** rng.uniform(-4, 0, d)  # features of unequal size
        words["unequal"] = True
    rows = rows + ratio
    if rng.random() < 0.2 and not sparse:
        constant = rng.random(d) < 0.3
        rows[:, constant] = rng.choice([0.0, 0.1, -7.3, far])
        words["constant"] = int(constant.sum())
    if dtype.itemsize == 2:
        rows = np.clip(rows, -6e4, 6e4)
    words |= {"far": far, "scale": scale}
    with np.errstate(over="ignore", under="ignore"):
        return (rows * scale).astype(dtype), words


def _directions(rng: np.random.Generator, n: int, d: int, spectrum: str) -> NDArray[np.float64]:
    """Return rows about zero with standard deviations of about one."""
    normal = rng.standard_normal((n, d))
    if spectrum in ("slow", "fast"):
        decay = (np.arange(d) + 1.0) ** (-0.5 if spectrum == "slow" else -3.0)
        turn = np.linalg.qr(rng.standard_normal((d, d)))[0]
        return np.asarray((normal * decay) @ turn)
    if spectrum == "low_rank":
        rank = int(rng.integers(1, max(2, min(n, d) // 2 + 1)))
        return np.asarray(normal[:, :rank] @ rng.standard_normal((rank, d)))
    if spectrum == "ties":  # the same rows with every coordinate in turn, both signs
        rows = np.zeros((n, d))
        rows[np.arange(n), np.arange(n) // 2 % d] = np.where(np.arange(n) % 2, 1.0, -1.0)
        return rows
    if spectrum == "outlier":
        normal[int(rng.integers(n))] *= 1e3
    if spectrum == "few_values":
        return np.asarray(rng.integers(0, 3, (n, d)) * 0.1)
    if spectrum == "rare":  # one large value in a column of small ones of two values
        rows = np.where(rng.random((n, d)) < 0.5, 1.0, -1.0) * 10.0 ** rng.uniform(-4, -1, d)
        rows[rng.integers(0, n, d), np.arange(d)] = 1.0
        return np.asarray(rows)
    if spectrum == "duplicates":
        return np.asarray(normal[rng.integers(0, max(1, n // 4), n)])
    if spectrum == "sparse":
        normal *= rng.random((n, d)) < 0.1
    return normal


def _full_columns(rng: np.random.Generator, d: int, sparse: bool) -> NDArray[Any]:
    """Return which columns get a mean: all of dense rows; few or none of sparse ones, which are stored in every row."""
    if not sparse:
        return np.ones(d)
    return np.asarray(rng.random(d) < float(rng.choice([0.0, 0.0, 0.1, 0.5])), dtype=np.float64)


def _far(rng: np.random.Generator, dtype: np.dtype[Any]) -> float:
    choices = {2: [0.0, 3.0, 100.0], 4: [0.0, 3.0, 1e3, 1e4, 1e5], 8: [0.0, 3.0, 1e3, 1e6, 1e8]}[dtype.itemsize]
    return float(rng.choice(choices))


def _scale(rng: np.random.Generator, dtype: np.dtype[Any]) -> float:
    if rng.random() < 0.7 or dtype.itemsize == 2:
        return 1.0
    low, high = {4: (-39, 30), 8: (-160, 150)}[dtype.itemsize]
    return float(10.0 ** int(rng.choice([low, high, -3, 3, int(rng.integers(low, high))])))


def _parameters(rng: np.random.Generator, n: int, d: int, container: str) -> dict[str, Any]:
    limit, odd = min(n, d), rng.random() < 0.1  # one in ten may combine what does not go together
    takes = {name: each for name, each in SOLVERS.items() if odd or container in (*DENSE, *each.sparse)}
    shares = np.array([SHARES[name] for name in takes], dtype=np.float64)
    solver = str(rng.choice(list(takes), p=shares / shares.sum()))
    parameters: dict[str, Any] = {"solver": solver}
    kind = rng.random()
    if kind < 0.8:
        parameters["n_components"] = int(rng.integers(1, limit + 1)) if kind > 0.5 else min(limit, 5)
    elif kind < 0.83:
        parameters["n_components"] = limit + int(rng.integers(1, 4))
    elif kind < 0.9:
        parameters["n_components"] = float(rng.choice([0.3, 0.9, 0.999]))
    if SOLVERS[solver].approximate:
        parameters |= _sketch(rng, parameters.get("n_components"), d)
        if solver == "auto" and "tolerance" not in parameters and rng.random() < 0.5:
            parameters["tolerance"] = 0.1
    missing = ("drop_rows", "mean", "pairwise") if odd else () if container in SPARSE else SOLVERS[solver].missing
    if missing and rng.random() < 0.4:
        parameters["missing"] = str(rng.choice(missing))
    for name, value, chance in (("scale", True, 0.3), ("whiten", True, 0.3), ("center", False, 0.1), ("ddof", 0, 0.2)):
        if rng.random() < chance:
            parameters[name] = value
    if rng.random() < 0.5:
        parameters["random_state"] = int(rng.integers(1000))
    return parameters


def _sketch(rng: np.random.Generator, k: Any, d: int) -> dict[str, Any]:
    """Return parameters of the approximate solvers."""
    drawn: dict[str, Any] = {}
    if rng.random() < 0.8:
        drawn["sketch"] = str(rng.choice(SKETCHES))
    if rng.random() < 0.7:
        least = k if isinstance(k, int) else 1
        drawn["sketch_size"] = int(rng.choice([least, least + 3, least + 10, 2 * least + 8, max(least - 1, 1), d]))
    if rng.random() < 0.5:
        drawn["n_hashes"] = int(rng.integers(1, 6))
    if rng.random() < 0.15:
        drawn["recovery"] = "conversion"
    if rng.random() < 0.7:
        drawn["pilot"] = int(rng.choice([0, 1, 16, 100]))
    if rng.random() < 0.6:
        drawn["tolerance"] = float(rng.choice([0.0, 1e-12, 1e-3, 0.3]))
        drawn["max_passes"] = int(rng.integers(1, 6))
    return drawn


def _sample_weight(rng: np.random.Generator, n: int) -> NDArray[np.float64]:
    kind = rng.integers(4)
    if kind == 0:
        weight = rng.integers(0, 4, n).astype(np.float64)
    elif kind == 1:
        weight = rng.random(n)
    elif kind == 2:
        weight = 10.0 ** rng.uniform(-6, 6, n)
    else:
        weight = np.ones(n)
    weight[int(rng.integers(n))] = 3.0
    return weight
