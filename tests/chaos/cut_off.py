"""An agent that loses the database while its slots keep it: for as long as the file ``cut`` is there."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy.exc import OperationalError

from farm.db.connect import Database
from farm.settings import Settings, settings

CODE = "from tests.chaos.cut_off import main; main()"


def main() -> None:
    """Run an agent whose own way to the database can be cut."""
    from workers import link
    from workers.agent import run_agent

    config = settings()
    link.open_impatient = lambda _: _CutOff(config)  # type: ignore[assignment]
    sys.exit(run_agent(config))


class _CutOff(Database):
    def __init__(self, config: Settings) -> None:
        super().__init__(config.resolved_database_url)
        self._cut = config.data / "cut"

    @contextmanager
    def read(self) -> Iterator[Any]:
        self._fail()
        with super().read() as conn:
            yield conn

    @contextmanager
    def write(self) -> Iterator[Any]:
        self._fail()
        with super().write() as conn:
            yield conn

    def _fail(self) -> None:
        if self._cut.exists():
            raise OperationalError("any", None, Exception("the way to the database is cut"))
