"""Every number about memory: what the machine has, what this process uses, what may be used."""

from __future__ import annotations

import psutil

from streampca.errors import ParameterError
from streampca.system.process import MEBIBYTE, available_bytes

ALLOWANCE_BYTES = 24 * MEBIBYTE
"""What the interpreter, thread stacks and the allocator take beside the arrays that the plan counts."""
WORKER_PROCESS_BYTES = 230 * MEBIBYTE
"""What a fresh Dask worker process with our imports takes before its first leaf."""
REPORT_BYTES = 96 * MEBIBYTE
"""What drawing the report takes beside the model and the sampled rows."""
_SAFE_SHARE = 0.6


def allowed_bytes(memory: int | str | None) -> int:
    """Return the ceiling in bytes that the parameter `memory` stands for.

    None stands for what the process has plus 60 % of what is available. Raises `ParameterError` for anything that is
    not a size.
    """
    if memory is None:
        return int(psutil.Process().memory_info().rss + _SAFE_SHARE * available_bytes())
    if isinstance(memory, str):
        from dask.utils import parse_bytes

        try:
            memory = int(parse_bytes(memory)) if memory.strip() else 0
        except (ValueError, KeyError) as error:
            raise ParameterError(f'memory={memory!r} is not a size: expected bytes or a text such as "2GiB"') from error
    if isinstance(memory, bool) or not isinstance(memory, int) or memory <= 0:
        raise ParameterError(f'memory={memory!r} is not a size: expected bytes or a text such as "2GiB"')
    return memory
