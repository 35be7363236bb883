"""``farm api`` and ``farm scheduler``: each of the farm's processes alone (``farm node`` is a group)."""

from __future__ import annotations

import signal
import threading
from types import FrameType

import typer

from api.cli import terminal
from api.cli.running import listen
from api.cli.running.parent import end_with_parent
from farm import process_log
from farm.errors import InvalidInput
from farm.settings import Settings, settings

app = typer.Typer()


def prepare(chosen: Settings) -> None:
    """What every process does first: end with its parent, and log lines to stderr."""
    end_with_parent()
    process_log.configure(chosen.log_level)


def broker_url(chosen: Settings) -> str:
    """The broker that a process on its own needs; raises when none is named."""
    if not chosen.broker_url:
        raise InvalidInput(
            "FARM_BROKER_URL is not set: name a Redis server (redis://host:6379/0), "
            "or run everything on one machine with `farm up`, which brings a broker along"
        )
    return chosen.broker_url


def stop_on_signals() -> threading.Event:
    """An event that SIGINT, SIGTERM and SIGHUP set."""
    stop = threading.Event()

    def ask(number: int, frame: FrameType | None) -> None:
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, ask)
    return stop


@app.command()
def api() -> None:
    """Run the REST API and the dashboard on FARM_LISTEN."""
    chosen = settings()
    prepare(chosen)
    bound = listen.inherited() or listen.bind(chosen.listen)
    url = broker_url(chosen)

    from api.app import create_app
    from api.server import make_server
    from farm.broker.wakes import Wakes
    from farm.db.connect import Database
    from farm.db.migrate import upgrade
    from farm.stores import open_store

    upgrade(chosen.resolved_database_url)
    application = create_app(
        chosen, Database(chosen.resolved_database_url), open_store(chosen.resolved_store), Wakes(url)
    )
    terminal.say(f"api on {listen.url_of(bound)}")
    make_server(application, listen.listen_text(bound), log_level="warning").run(sockets=[bound])


@app.command()
def scheduler() -> None:
    """Run a scheduler; of several, one leads."""
    chosen = settings()
    prepare(chosen)
    url = broker_url(chosen)
    stop = stop_on_signals()

    from farm.db.connect import Database
    from farm.db.migrate import require_current
    from farm.scheduler.service import run

    require_current(chosen.resolved_database_url)
    run(Database(chosen.resolved_database_url), url, chosen, stop)
