"""The section of a configuration file for what is computed about the answer as an estimate from a sample."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streampca.parameters import PCA_PARAMETERS
from streampca.runs.config.values import Section, section_of

if TYPE_CHECKING:
    _Statistics = Section
else:
    _Statistics = section_of("Statistics", PCA_PARAMETERS, "statistics", {})


class StatisticsConfig(_Statistics):
    """What is computed about the answer as an estimate from a sample."""

    if TYPE_CHECKING:
        sampling_errors: int = 0
