"""What a plan holds for one solver alone: a dataclass for each solver."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from typing import Self

from streampca.typing import Json

ALL_ROWS = "all rows"
"""How landmarks are chosen where they are all rows."""


@dataclass(frozen=True)
class SolverDetail:
    """Settings of a solver that other solvers do not have; none for a pass that only computes scores."""

    def to_dict(self) -> Json:
        """Return the settings by the names that they have in the plain form of a plan."""
        return asdict(self)

    def lines(self) -> Iterator[tuple[str, str]]:
        """Yield names and texts of further lines of the printed plan."""
        yield from ()

    @classmethod
    def from_dict(cls, data: Json) -> Self:
        """Return the settings that are in the plain form `data` of a plan."""
        return cls(**{entry.name: data[entry.name] for entry in fields(cls) if entry.name in data})

    @classmethod
    def entries(cls) -> dict[str, str]:
        """Return the types of the entries of the plain form, as annotations."""
        return {each.name: str(each.type) for each in fields(cls)}

    @property
    def holds_all_rows(self) -> bool:
        """Tell whether all rows are read into memory, or copied to disk, at once."""
        return False


@dataclass(frozen=True)
class CovarianceDetail(SolverDetail):
    """Settings of the covariance solver."""

    tile_groups: int = 0
    """Groups of tiles of the covariance, each computed in a pass of its own and stored on disk; 0 = all in memory."""


@dataclass(frozen=True)
class GramDetail(SolverDetail):
    """Settings of the Gram solver."""

    components_on_disk: bool = False
    """Whether the components are stored on disk because they do not fit in memory."""
    copied_rows: int = 0
    """Rows of a block of the first reading, which copies rows to disk, so that chunks are decoded once; 0 = no copy."""


@dataclass(frozen=True)
class SketchDetail(SolverDetail):
    """Settings of the approximate solvers."""

    columns: int
    """Columns q of the test matrix, or rank of the incremental update."""
    held_out: int
    """Further Gaussian columns for the certificate."""
    passes: int
    """Passes over the rows, at most."""
    keep_all: bool
    """Whether the products of all passes stay in memory until the end, or only those of the last."""
    pilot_rows: int
    """Rows of the pilot, which is read before the first pass."""
    pilot_bands: int
    """Bands of chunks that these rows are taken from; 0 where single rows can be read."""
    pilot_bytes: int
    """Decoded bytes of the pilot."""
    rows_per_update: int = 0
    """Rows of one incremental update; 0 for a sketch."""
    moments_first: bool = False
    """Whether a pass for means and variances comes before `passes`: the published conversion is defined only for rows
    whose scales are known."""
    tolerance: float | None = None
    """Relative error of the eigenvalues at which passes end; None = one pass."""

    def to_dict(self) -> Json:
        """Return the settings under ``sketch``."""
        return {"sketch": asdict(self)}

    @classmethod
    def entries(cls) -> dict[str, str]:
        """Return the type of the one entry."""
        return {"sketch": "dict"}

    @classmethod
    def from_dict(cls, data: Json) -> Self:
        """Return the settings that are under ``sketch`` in `data`."""
        return cls(**data["sketch"])


@dataclass(frozen=True)
class KernelDetail(SolverDetail):
    """Settings of the methods of kernel PCA."""

    n_landmarks: int = 0
    """Landmarks that every row is compared with."""
    sampling: str = ""
    """How they are chosen."""
    columns: int = 0
    """Columns of the transform of the empirical kernel map."""
    rows_on_disk: bool = False
    """Whether the rows of the empirical kernel map are copied to disk because they do not fit in memory."""
    rows_in_memory: int = 0
    """Rows on disk that are in memory at a time."""
    disk_readings: int = 0
    """Readings of the rows on disk."""

    @property
    def holds_all_rows(self) -> bool:
        """Tell whether all rows are landmarks."""
        return self.sampling == ALL_ROWS

    def lines(self) -> Iterator[tuple[str, str]]:
        """Yield the columns of the transform, or the number of landmarks and how they are chosen."""
        if self.columns:
            yield "transform", f"{self.columns:,} columns"
        else:
            yield "landmarks", f"{self.n_landmarks:,}, {self.sampling}"


DETAILS: dict[str, type[SolverDetail]] = {}
"""The detail of each solver, by its name; `Solver` enters them."""
