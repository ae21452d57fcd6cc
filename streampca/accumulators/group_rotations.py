"""Orthogonal factors of indicators of groups, which have one entry in a row: sparse, so their cost is that of few regressors."""

from __future__ import annotations

import numpy as np
from scipy.sparse import coo_array, csr_array

from streampca.linalg.scaling import reciprocals
from streampca.typing import FloatArray, IntArray


def factor_of_indicators(codes: IntArray, roots: FloatArray | None, n_groups: int) -> tuple[csr_array, FloatArray]:
    """Return Q, sparse ``(n_rows, n_groups)``, and R, ``(n_groups, n_groups)``, of the indicators of the groups `codes`.

    Rows are multiplied by `roots`, the roots of their weights; None for 1. Groups without rows have columns of zeros.
    """
    roots = np.ones(len(codes)) if roots is None else roots
    lengths = np.sqrt(np.bincount(codes, roots**2, n_groups))
    entries = roots * reciprocals(lengths)[codes]
    return csr_array((entries, codes, np.arange(len(codes) + 1)), shape=(len(codes), n_groups)), np.diag(lengths)


def merge_of_indicators(first: FloatArray, second: FloatArray) -> tuple[csr_array, FloatArray]:
    """Return Qᵀ, sparse ``(2 q, 2 q)``, and R, ``(q, q)``, of the diagonal factors `first` over `second`, ``(q, q)`` each.

    A Givens rotation for each group; groups without rows on one side leave rows of zeros.
    """
    a, b = first.diagonal(), second.diagonal()
    lengths, q = np.hypot(a, b), len(a)
    cosine, sine = a * reciprocals(lengths), b * reciprocals(lengths)
    upper, lower = np.arange(q), np.arange(q, 2 * q)
    rows, columns = np.concatenate([upper, upper, lower, lower]), np.concatenate([upper, lower, upper, lower])
    entries = np.concatenate([cosine, sine, -sine, cosine])
    return coo_array((entries, (rows, columns)), shape=(2 * q, 2 * q)).tocsr(), np.diag(lengths)
