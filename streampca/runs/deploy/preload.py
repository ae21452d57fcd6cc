"""Imported first by workers that run on this machine: what goes wrong in them comes back to the driver, not to the terminal."""

from __future__ import annotations

import logging

# A heartbeat that meets a worker in closing would print a traceback.
logging.getLogger("tornado.application").setLevel(logging.CRITICAL)
