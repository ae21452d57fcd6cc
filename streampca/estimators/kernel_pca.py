"""Kernel principal component analysis: the name of the contract, not carried out yet."""

from __future__ import annotations

from typing import Any

from streampca.errors import NotAvailableError


class KernelPCA:
    """Kernel PCA out of core. This version does not have it: making one raises `NotAvailableError`."""

    def __init__(self, *args: Any, **kwargs: Any):
        raise NotAvailableError(
            "KernelPCA is not available in this version of streampca: use PCA, or scikit-learn's KernelPCA in memory"
        )
