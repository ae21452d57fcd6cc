"""Check of the symmetry and definiteness of a kernel matrix."""

from __future__ import annotations

from typing import TypedDict

import numpy as np

from streampca.errors import DataError
from streampca.kernels.base import Kernel
from streampca.kernels.rows import as_table, dense
from streampca.typing import Rows


class KernelCheck(TypedDict):
    """Symmetry and definiteness of a kernel matrix (`check_kernel`)."""

    n_rows: int
    symmetric: bool
    asymmetry: float
    positive_semidefinite: bool
    smallest_eigenvalue: float
    largest_eigenvalue: float


def check_kernel(kernel: Kernel, rows: Rows) -> KernelCheck:
    """Return symmetry and extreme eigenvalues of the kernel matrix of `rows` in float64; O(n³) time, 3 n² numbers for n rows.

    Parameters
    ----------
    kernel : Kernel
    rows : array or scipy sparse, shape (n_rows, n_features)

    Returns
    -------
    dict
        ``n_rows``; ``symmetric``, and ``asymmetry``, the largest ``|K − Kᵀ|`` relative to the largest ``|K|``;
        ``smallest_eigenvalue`` of (K + Kᵀ) / 2 relative to the largest in modulus, ``largest_eigenvalue`` itself; and
        ``positive_semidefinite``: no eigenvalue lies below 0 by more than n_rows roundings of the largest.

    Raises
    ------
    DataError
        If there are no rows, or kernel values are not finite.

    Examples
    --------
    >>> import numpy as np
    >>> import streampca as sp
    >>> rows = np.random.default_rng(0).normal(size=(50, 3))
    >>> sp.kernels.check_kernel(sp.kernels.RBF(gamma=0.1), rows)["positive_semidefinite"]
    True
    """
    table = np.asarray(dense(as_table(rows)), dtype=np.float64)
    n_rows = len(table)
    if n_rows == 0:
        raise DataError("a kernel was to be checked on 0 rows: expected at least one")
    matrix = kernel(table, table)
    if not np.isfinite(matrix).all():
        row = int(np.argwhere(~np.isfinite(matrix))[0, 0])
        raise DataError(
            f"kernel values of row {row} are not finite: rescale the features, or take a smaller gamma or degree"
        )
    size = float(np.abs(matrix).max())
    asymmetry = float(np.abs(matrix - matrix.T).max()) / size if size else 0.0
    values = np.linalg.eigvalsh((matrix + matrix.T) / 2)
    largest = float(np.abs(values).max())
    smallest = float(values[0]) / largest if largest else 0.0
    rounding = 4 * n_rows * float(np.finfo(np.float64).eps)
    return {
        "n_rows": n_rows,
        "symmetric": asymmetry <= rounding,
        "asymmetry": asymmetry,
        "positive_semidefinite": smallest >= -rounding,
        "smallest_eigenvalue": smallest,
        "largest_eigenvalue": float(values[-1]),
    }
