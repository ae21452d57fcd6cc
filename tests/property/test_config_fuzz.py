"""No text, document, mutation, override or argument gives anything but a configuration or one helpful line: 3,000 of them."""

from __future__ import annotations

import pytest
from documents import CASES
from hypothesis import given, settings


@pytest.mark.slow
@pytest.mark.deep(keep=3)
@pytest.mark.parametrize("name", CASES)
def test_a_configuration_or_one_line(name):
    check, drawn = CASES[name]
    settings(max_examples=310, deadline=None)(given(**drawn)(check))()
