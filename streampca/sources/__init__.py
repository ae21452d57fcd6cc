"""Where rows come from: one reader per file, all behind `open_source`."""

from streampca.sources.base import ReadCount, Source
from streampca.sources.opening import open_source

__all__ = ["ReadCount", "Source", "open_source"]
