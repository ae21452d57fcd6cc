"""What goes into a fit of kernel PCA beside the data, and what comes out of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from streampca.errors import ParameterError
from streampca.linalg.scaling import UNSCALED, Scaling
from streampca.linalg.selection import Count, NComponents, Selection, as_selection, is_count
from streampca.sources.coordinates import is_indexed, is_xarray
from streampca.typing import Array, Json

if TYPE_CHECKING:
    from streampca.kernels import Kernel

SAMPLINGS = ("auto", "uniform", "diagonal", "column_norm", "rpcholesky")
"""What `sampling` may be, beside row indices and landmarks."""


@dataclass(frozen=True)
class KernelParameters:
    """What of a fit is decided by the user, beside the data."""

    kernel: Kernel
    """The kernel, which may still leave gamma to the number of features."""
    n_components: NComponents = None
    """Count, share, `Threshold` or None."""
    method: str = "auto"
    """``"auto"`` or the name of a method."""
    n_landmarks: int = 1000
    """Landmarks that are drawn."""
    sampling: str = "auto"
    """One of `SAMPLINGS`, where landmarks are not given."""
    given: Array | None = None
    """Row indices ``(m,)`` or landmarks ``(m, n_features)`` in place of a drawing."""
    sketch: str = "gaussian"
    """The transform of the empirical kernel map: ``"auto"``, ``"gaussian"``, ``"count_sketch"``, ``"sparse_sign"`` or ``"grouping"``."""
    sketch_size: int | str = "auto"
    """Its columns, or ``"auto"``."""
    n_hashes: int = 4
    """Hash functions of a count sketch."""
    recovery: str = "nystrom"
    """``"nystrom"`` or ``"conversion"``."""
    center: bool = True
    """Centre in kernel space."""
    inverse: bool = False
    """Learn the map from scores back to features."""
    alpha: float = 1.0
    """Ridge penalty of the map from scores back to features."""
    sampling_errors: int = 0
    """Groups of rows of the jackknife; 0 = none."""
    seed: int = 0
    """Seed of everything that is drawn."""
    memory: int | str | None = None
    """Ceiling for the process."""
    threads: int | None = None
    """Threads to share; None = all cores this process may use."""
    read_ahead: int | None = None
    """Most bytes for reading ahead from a remote store; None = 128 MiB, where the ceiling leaves them."""

    # What parameters of PCA say, and kernel PCA does not do.
    ddof: ClassVar[int] = 1
    missing: ClassVar[str] = "error"
    remove: ClassVar[None] = None
    sample_weight: ClassVar[None] = None
    scaling: ClassVar[Scaling] = UNSCALED

    @property
    def solver(self) -> str:
        """Return the name of the method, or ``"auto"``."""
        return self.method

    def n_wanted(self, n_samples: int) -> int:
        """Return how many landmarks there will be of `n_samples` rows."""
        return len(self.given) if self.given is not None else min(self.n_landmarks, n_samples)

    def require_at_most(self, limit: int, of: str) -> None:
        """Raise `ParameterError` if more components are asked for than `limit`, the number `of` something that the plan knows."""
        k = self.n_components
        if is_count(k) and not 1 <= k <= limit:
            raise ParameterError(f"n_components={k!r}: expected between 1 and {limit}, the number of {of}")

    def selection(self, limit: int) -> Selection:
        """Return the rule for how many of the `limit` components that exist are taken; a larger count takes all of them."""
        k = self.n_components
        if is_count(k):
            return Count(min(int(k), limit))
        return as_selection(k, limit)

    def components_missing(self, n_found: int) -> Json:
        """Return what a certificate says if `n_found` positive eigenvalues are fewer than were asked for; else nothing."""
        k = self.n_components
        asked = int(k) if is_count(k) else n_found
        return {"components_missing": asked - n_found, "components_found": n_found} if n_found < asked else {}

    def count(self, limit: int) -> int | None:
        """Return the number of components where it is known beforehand, at most `limit`; None where the data decides."""
        k = self.n_components
        if k is None:
            return limit
        if is_count(k) and k < 1:
            raise ParameterError(f"n_components={k!r}: expected at least 1")
        selection = as_selection(k, max(limit, 2**62))
        return min(limit, selection.n_components or limit) if isinstance(selection, Count) else None


def given_landmarks(sampling: ArrayLike) -> Array:
    """Return row indices, ``(m,)``, or landmarks, ``(m, n_features)``; raise `ParameterError` if it is neither."""
    given = np.asarray(sampling)
    if given.ndim == 2 and (is_indexed(sampling) or is_xarray(sampling)):
        raise ParameterError(
            "sampling has landmarks with labels, by which their features are not found: give .to_numpy() of landmarks whose features are "
            "in the order of the data"
        )
    indices = given.ndim == 1 and given.dtype.kind in "iu" and len(given) and given.min() >= 0
    points = given.ndim == 2 and given.dtype.kind in "iuf" and given.size and bool(np.isfinite(given).all())
    if not (indices or points):
        raise ParameterError(
            f"sampling of shape {given.shape} and type {given.dtype}: expected one of {', '.join(SAMPLINGS)}, row indices of "
            "at least 0, or finite landmarks of shape (m, n_features)"
        )
    if indices and len(np.unique(given)) < len(given):
        raise ParameterError("sampling names a row twice: expected each row index once")
    return given
