"""How far a run has come, on stderr: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING, Never, TextIO

if TYPE_CHECKING:
    from tqdm import tqdm

    from streampca.execution.progress import Progress

_LINE_SECONDS = 10.0
_LABELS = {
    "pilot": "reading a sample",
    "fit": "reading",
    "scores": "writing scores",
    "reconstruction": "writing rows",
    "components": "reading for components",
    "fingerprint": "reading as stored",
    "verify": "reading again",
}


def label_of(phase: str) -> str:
    """Return a phase in words; further readings of a fit, ``"pass 2"`` and on, are told by their number."""
    return f"reading, {phase}" if phase.startswith("pass ") else _LABELS.get(phase, phase)


class ProgressBar:
    """A `progress` callback; close it when all is done."""

    def __init__(self, stream: TextIO | None = None):
        from tqdm import tqdm

        self._make = tqdm
        self._stream = stream or sys.stderr
        self._terminal = self._stream.isatty()
        self._bar: tqdm[Never] | None = None
        self._phase = ""
        self._lock, self._last_line = threading.Lock(), time.monotonic()

    def __call__(self, progress: Progress) -> None:
        """Show `progress`."""
        with self._lock:
            if self._terminal:
                self._show_bar(progress)
            elif progress.rows >= progress.n_samples or time.monotonic() - self._last_line >= _LINE_SECONDS:
                self._show_line(progress)

    def _show_bar(self, progress: Progress) -> None:
        bar = self._bar
        if bar is None or self._phase != progress.phase:
            self._end_bar()
            self._phase = progress.phase
            label = label_of(progress.phase)
            bar = self._bar = self._make(
                desc=label,
                unit="iB",
                unit_scale=True,
                unit_divisor=1024,
                file=self._stream,
                dynamic_ncols=True,
                initial=progress.bytes_before,
            )
        bar.total = progress.bytes * progress.n_samples / max(1, progress.rows)
        bar.set_postfix_str(progress.waiting_for or f"on {progress.runs_on}", refresh=False)
        bar.update(progress.bytes - bar.n)
        if progress.waiting_for:
            bar.refresh()

    def _show_line(self, progress: Progress) -> None:
        self._last_line = time.monotonic()
        share = progress.rows / progress.n_samples
        rate = f"{progress.bytes_per_second / 2**20:,.0f} MiB/s, about {progress.seconds_left:,.0f} s left"
        print(
            f"{label_of(progress.phase)}: {progress.rows:,} of {progress.n_samples:,} {progress.unit} ({share:.0%}), "
            f"on {progress.runs_on}, {progress.waiting_for or rate}",
            file=self._stream,
            flush=True,
        )

    def _end_bar(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def close(self) -> None:
        """Leave the last bar as it stands."""
        with self._lock:
            self._end_bar()
