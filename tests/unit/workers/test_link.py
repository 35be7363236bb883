"""The agent's link to the database: an agent whose link has died must not go on as if it lived."""

from __future__ import annotations

import threading

import pytest

from workers.link import DatabaseLink


def _link(thread: threading.Thread) -> DatabaseLink:
    link = DatabaseLink.__new__(DatabaseLink)
    link._thread, link._end = thread, threading.Event()
    return link


def test_a_thread_that_ended_by_itself_is_noticed() -> None:
    thread = threading.Thread(target=lambda: None)
    link = _link(thread)
    link.check()
    thread.start()
    thread.join()
    with pytest.raises(RuntimeError, match="has ended"):
        link.check()
    link._end.set()
    link.check()
