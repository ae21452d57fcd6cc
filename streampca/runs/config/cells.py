"""Keys of a configuration that are about AnnData alone."""

from __future__ import annotations

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from streampca.runs.config.values import Flag, Positive, Section


class NormalizeConfig(Section):
    """How rows of counts are normalised while they are read."""

    target_sum: Positive | None = Field(default=None, description="a number above 0, or null")
    """Number that the values of all features of a row are scaled to add up to."""
    log1p: Flag = False
    """Take the logarithm of one plus each value."""

    @model_validator(mode="after")
    def _does_something(self) -> NormalizeConfig:
        if self.target_sum is None and not self.log1p:
            raise PydanticCustomError("rule", "does nothing: give target_sum, log1p: true, or null")
        return self
