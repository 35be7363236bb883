"""``farm up``: one machine, no set-up."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType

import typer

from api.cli import terminal
from api.cli.running.first_key import FirstKey, first_key
from api.cli.running.house import House
from api.cli.running.listen import bind, parse_listen, url_of
from api.cli.running.lock import DataLock
from api.cli.running.services import prepare
from farm.client.credentials import key_file
from farm.db.migrate import upgrade
from farm.settings import settings

app = typer.Typer()


@app.command()
def up() -> None:
    """Run a whole farm on this machine: broker, database, API, scheduler and one node. Ctrl-C stops it."""
    chosen = settings()
    prepare(chosen)
    parse_listen(chosen.listen)
    stop, hurry = _signals()
    lock = DataLock(chosen.data)
    try:
        bound = bind(chosen.listen)
        upgrade(chosen.resolved_database_url)
        house = House(chosen, bound, lock, lambda text: terminal.say(text, style="yellow"))
        try:
            key = first_key(chosen, url_of(bound))
            house.start(stop)
            if not stop.is_set():
                _welcome(house, key)
                lock.note({"pid": os.getpid(), "url": house.url, "ready": True})
                house.run(stop)
        finally:
            terminal.say("stopping: running work is parked first")
            house.stop(hurry)
            bound.close()
    finally:
        lock.release()


def _signals() -> tuple[threading.Event, threading.Event]:
    """The first signal asks for an orderly stop, the second one for a hasty one."""
    stop, hurry = threading.Event(), threading.Event()

    def ask(number: int, frame: FrameType | None) -> None:
        (hurry if stop.is_set() else stop).set()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, ask)
    return stop, hurry


def _welcome(house: House, key: FirstKey) -> None:
    console = terminal.out()
    console.print(f"Stillframe is up at {house.url}")
    count = house.slot_count()
    console.print(f"  data   {house.settings.data}")
    console.print(f"  slots  {count} ready")
    if key.fresh:
        console.print(f"  key    {key.key}")
        console.print(f"         shown this once; kept in {key_file()}, where the command line finds it")
    elif key.key is None:
        console.print("  key    this farm has keys already, made elsewhere: set FARM_KEY to one of them")
    console.print("Ctrl-C stops it.")
    host, _ = parse_listen(house.settings.listen)
    if host not in ("127.0.0.1", "localhost", "::1"):
        terminal.say(
            f"{house.settings.listen} can be reached from other machines, without encryption: "
            "put a TLS proxy before it, and name its host in FARM_ALLOWED_HOSTS",
            style="yellow",
        )
