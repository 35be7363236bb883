"""A slot: one Celery worker (``-P solo``) on a queue of its own, started by the node agent.

``python -m workers.slot``; who it is stands in the environment (:class:`workers.bench.SlotIdentity`), and so
do the settings. The main thread runs tickets one by one; a second thread beats; a third publishes frames.
SIGTERM parks the running task first and then ends the worker. Engines, Pillow and numpy are imported when
first needed, so that a killed slot is back within a second.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from workers.bench import Bench, SlotIdentity
from workers.control import SlotControl


class Beat:
    """The thread that shows that this process runs, and that looks at memory now and then."""

    def __init__(self, control: SlotControl, every_s: float) -> None:
        self._control = control
        self._every_s = every_s
        self._end = threading.Event()
        self.on_beat: list[Any] = []
        self._thread = threading.Thread(target=self._run, name="beat", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._end.set()
        self._thread.join(2.0)

    def _run(self) -> None:
        while True:
            self._control.beat()
            for action in self.on_beat:
                action()
            if self._end.wait(self._every_s):
                return


def main() -> int:
    """Run the slot until SIGTERM; the exit code."""
    identity = SlotIdentity.from_environment()
    control = SlotControl(Path(identity.control))
    control.hello(os.getpid())
    beat = Beat(control, float(os.environ.get("FARM_BEAT_S") or 1.0))

    # heavy from here on; the agent sees us beat already
    from farm import process_log
    from farm.broker.tickets import TASK_NAME, celery_app, queue_name
    from farm.broker.wakes import Wakes
    from farm.db.connect import Database
    from farm.settings import settings as read_settings
    from farm.stores import open_store
    from workers.disks import Disks
    from workers.gpu_look import GpuLook
    from workers.spool import Spool
    from workers.write_gate import WriteGate

    settings = read_settings()
    process_log.configure(settings.log_level)
    stopping = threading.Event()
    wakes = Wakes(settings.broker_url)
    bench = Bench(
        identity=identity,
        settings=settings,
        db=Database(settings.resolved_database_url, pool_size=2, gate=WriteGate(control)),
        store=open_store(settings.resolved_store, free_space_floor=settings.free_space_floor),
        control=control,
        spool=Spool(Path(identity.spool)),
        wake=wakes.wake,
        stopping=lambda: stopping.is_set() or control.stopping(),
        why_gpu_busy=GpuLook(identity.device).why_busy,
        disks=Disks.of(settings, Path(identity.scratch), Path(identity.spool).parent),
    )
    from celery.exceptions import WorkerShutdown

    from workers.runner import Runner

    runner = Runner(bench)
    beat.on_beat.append(runner.memory.sample)
    app = celery_app(settings.broker_url)

    app.task(name=TASK_NAME)(runner.run_ticket)

    def end(*_: object, **__: object) -> None:
        stopping.set()
        runner.park()
        if not runner.busy:
            # wakes the worker out of its wait for tickets
            raise WorkerShutdown(0)

    code = _work(app, queue_name(identity.slot_id), identity, lambda: _ready(bench, stopping), end)
    runner.close()
    bench.spool.close()
    beat.stop()
    bench.db.dispose()
    return code


def _work(app: Any, queue: str, identity: SlotIdentity, ready: Any, end: Any) -> int:
    from celery import signals
    from celery.worker import state

    signals.worker_ready.connect(lambda **_: ready(), weak=False)
    signals.worker_shutting_down.connect(end, weak=False)
    worker = app.Worker(
        hostname=f"{identity.slot_id}@{identity.node_name}",
        pool="solo",
        concurrency=1,
        queues=[queue],
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=True,
        # with the event loop, a solo worker takes no tickets any more once the broker was away during a task
        use_eventloop=False,
        loglevel=os.environ.get("FARM_SLOT_LOG_LEVEL", "WARNING"),
        quiet=True,
    )

    def stop(number: int, frame: object) -> None:
        # a signal that comes before Celery's own handlers stand
        state.should_stop = 0
        end()

    signal.signal(signal.SIGTERM, stop)
    app.amqp.Connection = _eager_connection()
    worker.start()
    return int(worker.exitcode or 0)


def _eager_connection() -> Any:
    """Celery's connection, which looks for a lost broker every second instead of every half minute."""
    from kombu.connection import Connection

    base: Any = Connection

    class EagerConnection(base):  # type: ignore[misc]
        def ensure_connection(self, errback: Any = None, max_retries: Any = None, **options: Any) -> Any:
            options |= {"interval_start": 0.2, "interval_step": 0.2, "interval_max": 1.0}
            return super().ensure_connection(errback, max_retries, **options)

    return EagerConnection


def _ready(bench: Bench, stopping: threading.Event) -> None:
    """Tell the database that this process life of the slot takes tickets, as soon as it can be told."""
    from farm.lifecycle.machines import slot_ready
    from workers.patience import patiently

    def once() -> None:
        with bench.db.write() as conn:
            slot_ready(conn, bench.identity.slot_id, bench.identity.incarnation, os.getpid())

    patiently(once, give_up=stopping.is_set, what="ready")
    bench.control.ready()
    bench.wake("scheduler")


if __name__ == "__main__":
    sys.exit(main())
