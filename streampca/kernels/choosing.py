"""Kernels from names, functions, or the plain data of a file, and the check of a kernel on rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import TypedDict

import numpy as np
from numpy.typing import ArrayLike

from streampca.errors import DataError, ParameterError
from streampca.kernels.base import Kernel, Scaled, Standardised, Sum, as_table, dense
from streampca.kernels.functions import RBF, Cosine, Custom, Laplacian, Linear, Polynomial, Sigmoid
from streampca.suggestions import did_you_mean
from streampca.typing import Rows

_KERNELS: dict[str, type[Kernel]] = {
    "linear": Linear,
    "rbf": RBF,
    "poly": Polynomial,
    "sigmoid": Sigmoid,
    "tanh": Sigmoid,
    "laplacian": Laplacian,
    "cosine": Cosine,
}
_SYNONYMS = {"polynomial": "poly"}


def kernel_of(
    kernel: str | Kernel | Callable[..., ArrayLike],
    gamma: float | None = None,
    degree: float = 3,
    coef0: float = 1.0,
    kernel_params: Mapping[str, object] | None = None,
) -> Kernel:
    """Return the kernel for the parameters of an estimator.

    Parameters
    ----------
    kernel : str, Kernel or callable
        "linear", "rbf", "poly", "sigmoid" ("tanh" is a synonym), "laplacian", "cosine"; a Kernel, which is returned
        unchanged; or a function of two blocks of rows.
    gamma, degree, coef0 : numbers
        Parameters of kernels given by name, if the kernel has them.
    kernel_params : mapping, optional
        Keyword arguments of a function.

    Returns
    -------
    Kernel

    Raises
    ------
    ParameterError
        If no kernel has this name (the message suggests the nearest), or a number is outside its domain.

    Examples
    --------
    >>> import streampca as sp
    >>> type(sp.kernels.kernel_of("poly", degree=2)).__name__
    'Polynomial'
    """
    if isinstance(kernel, Kernel):
        return kernel
    if isinstance(kernel, str):
        given = {"gamma": gamma, "degree": degree, "coef0": coef0}
        cls = _KERNELS[_checked_name(kernel)]
        return cls(**{field.name: given[field.name] for field in fields(cls) if field.name in given})  # type: ignore[arg-type]
    if callable(kernel):
        try:
            return Custom(kernel, tuple(sorted(dict(kernel_params or {}).items())))
        except (TypeError, ValueError) as error:
            raise ParameterError(f"kernel_params={kernel_params!r}: expected a mapping of names to values") from error
    raise ParameterError(
        f"kernel={kernel!r}: expected one of {', '.join(_KERNELS)}, a kernel of streampca.kernels, or a callable on two blocks"
    )


def kernel_from_dict(document: object) -> Kernel:
    """Return the kernel described by `document`, the result of `Kernel.to_dict`.

    Parameters
    ----------
    document : mapping
        ``name`` and the parameters of the kernel; ``terms`` for a sum; ``factor`` and ``kernel`` for a multiple.

    Returns
    -------
    Kernel

    Raises
    ------
    ParameterError
        If `document` is not such a mapping, or if a parameter is outside its domain.

    Examples
    --------
    >>> import streampca as sp
    >>> sp.kernels.kernel_from_dict({"name": "poly", "degree": 2})
    Polynomial(degree=2, gamma=None, coef0=1.0)
    """
    try:
        if isinstance(document, Mapping):
            parameters = dict(document)
            name = parameters.pop("name", None)
            if name == "sum":
                return Sum(tuple(kernel_from_dict(term) for term in parameters["terms"]))
            if name == "scaled":
                return Scaled(kernel_from_dict(parameters["kernel"]), parameters["factor"])
            if name == Standardised.name:
                return Standardised(kernel_from_dict(parameters["kernel"]))
            if isinstance(name, str):
                return _KERNELS[_checked_name(name)](**parameters)
    except (KeyError, TypeError, AttributeError) as error:
        raise ParameterError(f"kernel {document!r}: expected a name and its parameters ({error})") from error
    raise ParameterError(f"kernel {document!r}: expected a mapping with the name of a kernel")


def _checked_name(name: str) -> str:
    name = _SYNONYMS.get(name, name)
    if name in _KERNELS:
        return name
    if name == "precomputed":
        raise ParameterError(
            "kernel='precomputed' is not supported: give the rows instead of a matrix of kernel values, with a kernel that is a function of two "
            f"blocks of rows, or one of {', '.join(_KERNELS)}"
        )
    raise ParameterError(f"kernel={name!r}: expected one of {', '.join(_KERNELS)}{did_you_mean(name, _KERNELS)}")


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
        ``positive_semidefinite``, True if no eigenvalue is below 0 by more than n_rows roundings of the largest.

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
