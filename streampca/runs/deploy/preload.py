"""First import of workers on this machine: their errors are reported by the driver, not on the terminal."""

from __future__ import annotations

import logging

# A heartbeat that meets a worker in closing would print a traceback.
logging.getLogger("tornado.application").setLevel(logging.CRITICAL)
