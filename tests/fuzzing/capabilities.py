"""What each solver of `PCA` takes: the one table from which random fits are drawn and their refusals are expected.

A new solver, kind of rows or way of fitting is one entry here; `cases` draws its combinations with everything else, and
`judging` compares what comes out with the plain oracle. A combination that the table does not have is drawn now and then: it
has to be refused by a named error that says which two things do not go together.
"""

from __future__ import annotations

from dataclasses import dataclass

DENSE = ("numpy", "fortran", "strided", "dask", "zarr")
SPARSE = ("csr", "csc", "dask_csr")


@dataclass(frozen=True)
class Takes:
    """What a solver takes beside dense rows without holes."""

    sparse: tuple[str, ...] = SPARSE
    """Containers of sparse rows."""
    missing: tuple[str, ...] = ()
    """Values of ``missing`` beside ``"error"``."""
    approximate: bool = False
    """Whether ``sketch``, ``tolerance`` and the like mean something to it."""
    continues: bool = False
    """Whether its models can be merged, and continued by `partial_fit`."""


SOLVERS = {
    "covariance": Takes(missing=("drop_rows", "mean", "pairwise"), continues=True),
    "gram": Takes(sparse=("csr", "csc"), missing=("mean",)),
    "qr": Takes(sparse=(), continues=True),
    "sketch": Takes(missing=("drop_rows", "mean", "pairwise"), approximate=True),
    "adaptive": Takes(sparse=(), missing=("mean",), approximate=True),
    "auto": Takes(missing=("drop_rows", "mean", "pairwise"), approximate=True),
}
"""By name. ``"auto"`` chooses a solver that takes what is given."""
REMOVAL_WITH = {"container": DENSE, "missing": ("error",), "center": (True,)}
"""What ``remove`` goes together with."""
SHARES = {"covariance": 2, "gram": 1, "qr": 1, "sketch": 3, "adaptive": 1, "auto": 1}
"""How often each is drawn."""
OUTPUTS = ("transform", "transform_to", "diagnostics", "loaded")
"""Where scores go: returned, to a store, to a store with T² and Q, or by the saved model."""
DOORS = ("fit", "fit", "fit", "fit_many", "run", "resumed", "memory")
"""How the same fit is asked for a second time: with other models, by a configuration, after a stop, within a named memory."""
SECTIONS = {
    "preprocess": ("center", "scale", "missing", "missing_scores"),
    "model": (
        *(
            "n_components",
            "solver",
            "sketch",
            "sketch_size",
            "n_hashes",
            "recovery",
            "pilot",
            "max_passes",
            "tolerance",
        ),
        *("whiten", "ddof"),
    ),
}
"""Sections of a configuration file and the parameters in them."""
