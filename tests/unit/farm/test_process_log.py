"""Log lines of processes: a full disk under the log loses lines and ends no thread."""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator

import pytest
import structlog

from farm import process_log


class _Full:
    """A log file on a full disk."""

    def isatty(self) -> bool:
        return False

    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    def flush(self) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    structlog.reset_defaults()


def test_a_line_that_cannot_be_written_is_lost(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    process_log.configure("info")
    log = structlog.get_logger()
    with monkeypatch.context() as during:
        during.setattr(sys, "stderr", _Full())
        log.warning("no room for this")
    log.warning("room again")
    log.debug("too small to say")
    said = capsys.readouterr().err
    assert "room again" in said
    assert "no room" not in said
    assert "too small" not in said
