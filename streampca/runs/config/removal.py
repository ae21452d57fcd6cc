"""The section of a configuration file for what is removed from the rows."""

from __future__ import annotations

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from streampca.runs.config.values import Degree, Section, Text


class RemoveConfig(Section):
    """What is subtracted from each feature: what regression on these explains."""

    groups: Text | None = Field(
        default=None,
        description="a part of the times of a sample coordinate such as time.month, the name of a sample coordinate, a column of Parquet "
        "files or of obs, the path of an .npy file, the name of an array beside the data, or null",
    )
    """One label for each row, whose means are subtracted; of times month, season, year, dayofyear or hour."""
    trend: Degree | None = Field(default=None, description="a whole number from 1 to 20, or null")
    """Degree of a polynomial over the coordinate of the first sample dimension, or over the numbers of the rows."""
    covariates: Text | None = Field(default=None, description="the path of an .npy file, or null")
    """Covariates of each row, ``(n_samples, n_covariates)``."""

    @model_validator(mode="after")
    def _names_something(self) -> RemoveConfig:
        if self.groups is None and self.trend is None and self.covariates is None:
            raise PydanticCustomError("rule", "names nothing: give groups, trend or covariates, or null")
        return self
