"""Puts this directory on the path, so that tests share `tolerances`, `strategies` and `spectra`; settings of hypothesis."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("streampca", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("streampca")
