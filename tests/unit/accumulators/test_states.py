"""States for other programs: what importing them takes, and the components that they give; the oracle is numpy."""

from __future__ import annotations

import ast
import os
import pickle
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from streampca import states
from streampca.errors import DataError, ParameterError

_ALONE = """
import sys
from importlib.abc import MetaPathFinder

class Refusing(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in {"dask", "zarr", "distributed", "xxhash", "pandas", "sklearn", "psutil", "numcodecs", "pydantic", "yaml"}:
            raise ModuleNotFoundError(f"{name} is refused")

sys.meta_path.insert(0, Refusing())
import numpy as np, scipy.linalg, scipy.sparse

theirs = set(sys.modules)
from streampca.states import *
from streampca import states

rows = np.random.default_rng(0).standard_normal((300, 8))
rows[:, 0] *= 5
made = {"ExactIntegerCovariance": rows.astype("i1")}
for name in ("Covariance", "ExactIntegerCovariance", "CompleteRows", "PairwiseCovariance", "QRFactor"):
    accumulator = getattr(states, name)()
    parts = [accumulator.update(accumulator.init(8), part) for part in np.split(made.get(name, rows), 3)]
    found = principal_components(accumulator, accumulator.merge(parts), 2)
    print(name, found.components.shape, found.n_samples)
loaded = {name.partition(".")[0] for name in set(sys.modules) - theirs} - set(sys.stdlib_module_names)
print(sorted(name for name in loaded if not name.startswith("_")))
"""


def test_states_need_numpy_and_scipy_alone() -> None:
    done = subprocess.run([sys.executable, "-S", "-c", _ALONE], env=_with_packages(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    *accumulators, loaded = done.stdout.splitlines()
    assert accumulators == [
        f"{name} (2, 8) 300"
        for name in ("Covariance", "ExactIntegerCovariance", "CompleteRows", "PairwiseCovariance", "QRFactor")
    ]
    assert set(ast.literal_eval(loaded)) <= {"cython_runtime", "numpy", "scipy", "streampca"}


def _with_packages() -> dict[str, str]:
    """Return an environment that finds packages without `site`, whose hooks of editable installations import others."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def made_rows() -> NDArray[np.float64]:
    """Return rows far from zero with distinct variances, some of them short of digits."""
    random = np.random.default_rng(1)
    mixing = np.linalg.qr(random.standard_normal((30, 30)))[0]
    return (random.standard_normal((900, 30)) * np.geomspace(10, 0.1, 30)) @ mixing + 100


@pytest.mark.parametrize("options", [{}, {"scale": True}, {"center": False}, {"ddof": 0}])
@pytest.mark.parametrize("name", ["Covariance", "PairwiseCovariance", "QRFactor"])
def test_components_are_those_of_numpy(name: str, options: dict[str, Any]) -> None:
    rows = made_rows()
    accumulator = getattr(states, name)(**options)
    parts = [accumulator.update(accumulator.init(30), part) for part in np.array_split(rows, 4)]
    found = states.principal_components(accumulator, accumulator.merge(parts), 5)
    centred = rows - rows.mean(axis=0) if options.get("center", True) else rows
    ddof = options.get("ddof", 1)
    centred = centred / rows.std(axis=0, ddof=ddof) if options.get("scale") else centred
    _, lengths, vectors = np.linalg.svd(centred, full_matrices=False)
    values = lengths**2 / (len(rows) - ddof)
    np.testing.assert_allclose(found.explained_variance, values[:5], rtol=1e-10)
    np.testing.assert_allclose(found.total_variance, values.sum(), rtol=1e-10)
    assert np.abs(np.abs((found.components * vectors[:5]).sum(axis=1)) - 1).max() < 1e-10
    scores = ((rows - found.mean) * found.factors) @ found.components.T
    np.testing.assert_allclose((scores**2).sum(axis=0) / (len(rows) - ddof), values[:5], rtol=1e-9)


def state_of(part: int) -> states.CovarianceState:
    """Return the state of a quarter of the rows, in a process of its own."""
    covariance = states.Covariance()
    state = covariance.init(30)
    for block in np.array_split(np.array_split(made_rows(), 4)[part], 7):
        state = covariance.update(state, block)
    return state


def test_states_of_four_processes_are_merged() -> None:
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        parts = list(pool.map(state_of, range(4)))
    covariance = states.Covariance()
    merged = covariance.merge(parts)
    again = covariance.merge([pickle.loads(pickle.dumps(state_of(part))) for part in range(4)])
    assert merged.scatter.tobytes() == again.scatter.tobytes()
    found = states.principal_components(covariance, merged)
    np.testing.assert_allclose(
        found.explained_variance, np.linalg.eigvalsh(np.cov(made_rows(), rowvar=False))[::-1], rtol=1e-9, atol=1e-12
    )
    assert merged.n_samples == found.n_samples == 900


def test_what_has_no_components_is_refused() -> None:
    moments, covariance = states.Moments(), states.Covariance()
    with pytest.raises(ParameterError, match="states of Moments have no principal components"):
        states.principal_components(moments, moments.init(3), 1)  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="n_components=0: expected at least 1"):
        states.principal_components(covariance, covariance.init(3), 0)
    with pytest.raises(DataError, match="at least 2 samples are needed"):
        states.principal_components(covariance, covariance.update(covariance.init(3), np.ones((1, 3))), 1)


def test_fewer_rows_than_features_have_as_many_components() -> None:
    covariance = states.Covariance()
    state = covariance.update(covariance.init(30), made_rows()[:4])
    assert states.principal_components(covariance, state).components.shape == (4, 30)
