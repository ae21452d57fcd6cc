"""Out-of-core streaming principal component analysis: few passes, bounded memory, the same bits for any number of workers."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from streampca.version import __version__

# Names are resolved when they are first used, so that the command line answers before numpy is loaded.
_EXPORTS = {
    "PCA": "streampca.estimators.pca",
    "KernelPCA": "streampca.estimators.kernel_pca",
    "RotatedPCA": "streampca.estimators.pca",
    "MCA": "streampca.estimators.coupled",
    "CCA": "streampca.estimators.coupled",
    "FactorAnalysis": "streampca.estimators.analyses",
    "Threshold": "streampca.linalg.selection",
    "Frobenius": "streampca.linalg.selection",
    "fit_many": "streampca.estimators.many",
    "load": "streampca.estimators.loading",
    "merge": "streampca.estimators.continuing",
    "open": "streampca.sources.open",
    "run": "streampca.runs.run",
    "update": "streampca.runs.update",
    "StreamPCAError": "streampca.errors",
}
_MODULES = {
    "accumulators": "streampca.accumulators",
    "anndata": "streampca.anndata",
    "conversion": "streampca.conversion",
    "errors": "streampca.errors",
    "kernels": "streampca.kernels",
    "metrics": "streampca.metrics",
    "sources": "streampca.sources",
    "states": "streampca.states",
    "transforms": "streampca.transforms",
}

__all__ = [*_EXPORTS, *_MODULES, "__version__"]

if TYPE_CHECKING:
    from streampca import accumulators as accumulators
    from streampca import anndata as anndata
    from streampca import conversion as conversion
    from streampca import errors as errors
    from streampca import kernels as kernels
    from streampca import metrics as metrics
    from streampca import sources as sources
    from streampca import states as states
    from streampca import transforms as transforms
    from streampca.errors import StreamPCAError as StreamPCAError
    from streampca.estimators.analyses import FactorAnalysis as FactorAnalysis
    from streampca.estimators.continuing import merge as merge
    from streampca.estimators.coupled import CCA as CCA
    from streampca.estimators.coupled import MCA as MCA
    from streampca.estimators.kernel_pca import KernelPCA as KernelPCA
    from streampca.estimators.loading import load as load
    from streampca.estimators.many import fit_many as fit_many
    from streampca.estimators.pca import PCA as PCA
    from streampca.estimators.pca import RotatedPCA as RotatedPCA
    from streampca.linalg.selection import Frobenius as Frobenius
    from streampca.linalg.selection import Threshold as Threshold
    from streampca.runs.run import run as run
    from streampca.runs.update import update as update
    from streampca.sources.open import open as open


def __getattr__(name: str) -> object:
    if name in _EXPORTS:
        value = globals()[name] = getattr(import_module(_EXPORTS[name]), name)
        return value
    if name in _MODULES:
        return import_module(_MODULES[name])
    ended = ": it was removed; copy the directory like any other, with obstore or the command line of the store"
    raise AttributeError(f"module 'streampca' has no attribute {name!r}{ended if name in ('publish', 'fetch') else ''}")


def __dir__() -> list[str]:
    return sorted(__all__)
