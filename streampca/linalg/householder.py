"""One step of a QR decomposition: rows annihilated against a triangular factor, without holding the interpreter's lock."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampca.errors import StreamPCAError
from streampca.system.workspace import borrow

FloatArray = NDArray[np.float64]

_N_ARGUMENTS = 12
_ARRAYS = (4, 6, 8, 10)


def annihilate(factor: FloatArray, below: FloatArray, *, width: int, n_triangular: int = 0) -> None:
    """Replace `factor` by R of the QR decomposition of `factor` on top of `below`; both are overwritten.

    LAPACK's ``tpqrt``, called through the address that scipy publishes for Cython: its wrapper for Python holds the
    interpreter's lock, so that leaves would wait for each other.

    Parameters
    ----------
    factor : float64 array, shape (n, n)
        Upper triangular, columns contiguous; what is below the diagonal is not touched.
    below : float64 array, shape (m, n)
        Columns contiguous.
    width : int
        Columns that are reflected at once; enters the bits of the result.
    n_triangular : int
        The last rows of `below` that are upper triangular.
    """
    m, n = below.shape
    for array in (factor, below):
        if array.dtype != np.float64 or not array.flags.f_contiguous or not array.flags.writeable:
            raise StreamPCAError("tpqrt needs writeable float64 arrays with contiguous columns")
    reflectors, work = (borrow(f"tpqrt {name}", (n, width), np.float64) for name in ("reflectors", "work"))
    info = ctypes.c_int(0)
    numbers = [ctypes.c_int(number) for number in (m, n, n_triangular, width, n, m, width)]
    rows, columns, triangular, block, factor_stride, below_stride, reflectors_stride = numbers
    _tpqrt()(
        *(rows, columns, triangular, block),
        *(factor.ctypes.data, factor_stride),
        *(below.ctypes.data, below_stride),
        *(reflectors.ctypes.data, reflectors_stride),
        *(work.ctypes.data, info),
    )
    if info.value != 0:
        raise StreamPCAError(f"LAPACK's tpqrt refused argument {-info.value}")


@cache
def _tpqrt() -> Callable[..., Any]:
    """Return the routine as a function of addresses, after a check that its arguments are those we pass."""
    from scipy.linalg import cython_lapack

    capsule = cython_lapack.__pyx_capi__["dtpqrt"]
    name_of, pointer_of = ctypes.pythonapi.PyCapsule_GetName, ctypes.pythonapi.PyCapsule_GetPointer
    name_of.restype, name_of.argtypes = ctypes.c_char_p, [ctypes.py_object]
    pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    signature: bytes = name_of(capsule)
    kinds = [part.strip() for part in signature.decode().partition("(")[2].rstrip(")").split(",")]
    if len(kinds) != _N_ARGUMENTS or any((kind == "int *") == (i in _ARRAYS) for i, kind in enumerate(kinds)):
        raise StreamPCAError(
            f"scipy's tpqrt takes {signature.decode()}: this version of scipy is not known to solver='qr'"
        )
    number = ctypes.POINTER(ctypes.c_int)
    types = [ctypes.c_void_p if i in _ARRAYS else number for i in range(_N_ARGUMENTS)]
    return ctypes.CFUNCTYPE(None, *types)(pointer_of(capsule, signature))
