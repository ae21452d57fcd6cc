"""Names of the rules for the number of components."""

from __future__ import annotations

from typing import Final, Literal, get_args

RuleName = Literal["parallel", "marchenko_pastur", "tracy_widom", "gavish_donoho", "cross_validation", "mle"]
"""Names that the parameter `n_components` takes."""
RULES: Final[tuple[RuleName, ...]] = get_args(RuleName)
"""The names in the order of the table."""
