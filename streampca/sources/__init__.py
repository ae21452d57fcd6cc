"""Sources of rows: one reader per file, all behind `open_source`."""

from streampca.sources.base import ReadCount, Source
from streampca.sources.open import open_source

__all__ = ["ReadCount", "Source", "open_source"]
