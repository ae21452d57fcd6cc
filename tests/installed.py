"""Modules that are put in place of installed ones, or taken away, for a while."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def modules(**given: Any) -> Iterator[None]:
    """Put modules in place of others, None for one that is not installed; ``a__b`` is the module a.b. Only these are put back."""
    names = {name.replace("__", "."): module for name, module in given.items()}
    before = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    sys.modules.update({name: module for name, module in names.items() if module != "as on the path"})
    try:
        yield
    finally:
        for name in names:
            sys.modules.pop(name, None)
        sys.modules.update(before)
