"""What random fits are drawn from: what solvers say that they take, kinds of rows, and ways of fitting.

What a solver takes, and what goes together, is the package's own table, from which its refusals are made, too. `cases` draws its combinations with everything else, and
`judging` compares what comes out with the plain oracle. A combination that the table does not have is drawn now and then: it
has to be refused by a named error that says which two things do not go together.
"""

from __future__ import annotations

from dataclasses import dataclass

from facade import CONFLICTS, CONTINUABLE
from facade import SOLVERS as PACKAGE_SOLVERS

DENSE = ("numpy", "fortran", "strided", "dask", "zarr")
CODES = "codes"
"""Dense rows of few values as codes with a table of these, in the place of some of the others."""
SPARSE = ("csr", "csc", "dask_csr")
IN_MEMORY = ("csr", "csc")
"""Sparse rows that can be read by features."""
MISSING = ("drop_rows", "mean", "pairwise")


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


SHARES = {"covariance": 2, "gram": 1, "qr": 1, "sketch": 3, "adaptive": 1, "auto": 1}
"""How often each is drawn."""


def _taken(name: str) -> Takes:
    """Return what a solver takes, by its own statement of what it refuses."""
    if name == "auto":  # chooses a solver that takes what is given
        return Takes(missing=MISSING, approximate=True)
    solver = PACKAGE_SOLVERS[name]
    return Takes(
        sparse=() if "sparse rows" in solver.refuses else IN_MEMORY if name == "gram" else SPARSE,
        missing=tuple(value for value in MISSING if f"missing={value!r}" not in solver.refuses),
        approximate=solver.approximate,
        continues=name in CONTINUABLE and not solver.approximate,  # sketches of parts have tests of their own
    )


SOLVERS = {name: _taken(name) for name in SHARES}
"""By name."""
REMOVAL_WITH = {
    "container": (*DENSE, CODES) if "sparse rows" in CONFLICTS["remove"] else (*DENSE, CODES, *SPARSE),
    "missing": ("error", *(value for value in MISSING if f"missing={value!r}" not in CONFLICTS["remove"])),
    "center": (True,) if "center=False" in CONFLICTS["remove"] else (True, False),
}
"""What ``remove`` goes together with."""
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
