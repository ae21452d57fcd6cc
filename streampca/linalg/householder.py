"""QR update: annihilation of rows against a triangular factor, without holding the global interpreter lock."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache

import numpy as np

from streampca.errors import StreamPCAError
from streampca.system.workspace import borrow
from streampca.typing import FloatArray

_N_ARGUMENTS = 12
_ARRAYS = (4, 6, 8, 10)


def annihilate(factor: FloatArray, below: FloatArray, *, width: int, n_triangular: int = 0) -> None:
    """Replace `factor` by R of the QR decomposition of `factor` on top of `below`; both are overwritten.

    Calls LAPACK's ``tpqrt`` through the address that scipy exports for Cython, because scipy's Python wrapper holds the
    global interpreter lock and would serialise the threads.

    Parameters
    ----------
    factor : float64 array, shape (n, n)
        Upper triangular, columns contiguous; entries below the diagonal are not used.
    below : float64 array, shape (m, n)
        Columns contiguous.
    width : int
        Block size of the reflections, which affects the bits of the result.
    n_triangular : int
        Number of last rows of `below` that form an upper triangular matrix.
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
def _tpqrt() -> Callable[..., None]:
    """Return ``dtpqrt`` as a ctypes function, after checking its signature."""
    from scipy.linalg import cython_lapack

    capsule = cython_lapack.__pyx_capi__["dtpqrt"]
    name_of, pointer_of = ctypes.pythonapi.PyCapsule_GetName, ctypes.pythonapi.PyCapsule_GetPointer
    name_of.restype, name_of.argtypes = ctypes.c_char_p, [ctypes.py_object]
    pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    signature: bytes = name_of(capsule)
    kinds = [argument.strip() for argument in signature.decode().partition("(")[2].rstrip(")").split(",")]
    if len(kinds) != _N_ARGUMENTS or any((kind == "int *") == (i in _ARRAYS) for i, kind in enumerate(kinds)):
        raise StreamPCAError(
            f"scipy's tpqrt takes {signature.decode()}: this version of scipy is not supported by solver='qr'"
        )
    number = ctypes.POINTER(ctypes.c_int)
    types = [ctypes.c_void_p if i in _ARRAYS else number for i in range(_N_ARGUMENTS)]
    return ctypes.CFUNCTYPE(None, *types)(pointer_of(capsule, signature))
