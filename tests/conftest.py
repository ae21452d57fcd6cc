"""Puts this directory on the path, so that tests share `tolerances`, `strategies` and `spectra`; settings of hypothesis."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# The same examples every time, so that a change is judged by its own merits; HYPOTHESIS_PROFILE=search looks for new ones.
_COMMON = {"deadline": None, "print_blob": True, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("streampca", derandomize=True, **_COMMON)
settings.register_profile("search", **_COMMON)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "streampca"))
