"""Log lines of the farm's processes: to stderr, and never in the way of the work."""

from __future__ import annotations

import logging
import sys
from contextlib import suppress
from typing import TextIO, cast

import structlog


class _Lossy:
    """Stderr as it is now. A line that cannot be written (full disk, closed pipe) is lost, not raised:
    a thread that waits for space would else die of the line that says so."""

    def write(self, text: str) -> None:
        with suppress(OSError, ValueError):
            sys.stderr.write(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            sys.stderr.flush()


_STDERR = cast("TextIO", _Lossy())


def configure(level_name: str) -> None:
    """Send this process's log lines of at least that level (``info``) to stderr."""
    level = logging.getLevelNamesMapping().get(level_name.upper(), logging.INFO)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty()),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=lambda *_: structlog.PrintLogger(_STDERR),
    )
    logging.basicConfig(stream=sys.stderr, level=max(level, logging.WARNING))
