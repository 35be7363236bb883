"""Prometheus figures, read from the database when asked.

Every query is bounded by the number of jobs, steps, slots and nodes, never by tasks or frames, and an answer
is used again for :data:`KEPT_S`, so that several scrapers cost one.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from farm.db.connect import Database
from farm.repositories.reading import figures, work
from farm.states import TaskState

KEPT_S = 2.0
RECENT_ATTEMPTS = 500
QUANTILES = (0.5, 0.95, 0.99)


class FarmCollector(Collector):
    """Jobs, tasks, slots, buffers, budgets and the time splits of recent attempts."""

    def __init__(self, db: Database, registry: CollectorRegistry) -> None:
        self._db = db
        self._lock = threading.Lock()
        self._last: tuple[float, list[Metric]] | None = None
        registry.register(self)

    def describe(self) -> Iterable[Metric]:
        """Nothing: registering must not touch the database."""
        return []

    def collect(self) -> Iterable[Metric]:
        """All families; raises what the database raises."""
        with self._lock:
            now = time.monotonic()
            if self._last is None or now - self._last[0] >= KEPT_S:
                self._last = (now, self._read())
            return self._last[1]

    def _read(self) -> list[Metric]:
        with self._db.read() as conn:
            jobs = figures.jobs_by_state(conn)
            tasks = figures.tasks_by_state(conn)
            slots = figures.slots_by_state(conn)
            nodes = figures.nodes_by_state(conn)
            budgets = figures.budgets(conn)
            buffers = figures.live_buffers(conn)
            waiting = figures.oldest_ready_s(conn)
            projects = figures.projects_spent(conn)
            recent = work.recent_times(conn, RECENT_ATTEMPTS)
            newest = figures.newest_event(conn)
        found: list[Metric] = [
            _gauge("jobs", "Jobs", ["kind", "state"], [((r["kind"], r["state"]), r["number"]) for r in jobs]),
            _gauge(
                "tasks",
                "Tasks",
                ["pool", "state"],
                [((r["pool"], s.value), r[f"n_{s.value}"]) for r in tasks for s in TaskState],
            ),
            _gauge(
                "frames", "Frames asked for", ["pool"], [((r["pool"],), r["frames_total"]) for r in tasks]
            ),
            _gauge(
                "frames_published",
                "Frames published",
                ["pool"],
                [((r["pool"],), r["frames_done"]) for r in tasks],
            ),
            _gauge(
                "queue_tasks",
                "Tasks that wait for a slot",
                ["pool"],
                [((r["pool"],), r["n_ready"]) for r in tasks],
            ),
            _gauge(
                "queue_oldest_seconds",
                "Age of the oldest job with waiting tasks",
                ["pool"],
                [((r["pool"],), max(0.0, r["seconds"])) for r in waiting],
            ),
            _gauge(
                "slots", "Slots", ["node", "state"], [((r["node"], r["state"]), r["number"]) for r in slots]
            ),
            _gauge("nodes", "Nodes", ["state"], [((r["state"],), r["number"]) for r in nodes]),
            _gauge(
                "buffers",
                "Live buffers",
                ["medium", "state"],
                [((r["medium"], r["state"]), r["number"]) for r in buffers],
            ),
            _gauge(
                "buffer_bytes",
                "Bytes in live buffers",
                ["medium", "state"],
                [((r["medium"], r["state"]), r["bytes"]) for r in buffers],
            ),
            _gauge(
                "budget_bytes",
                "Bytes that a node may hold",
                ["node", "medium"],
                [((r["node"], r["medium"]), r["budget_bytes"]) for r in budgets],
            ),
            _gauge(
                "reserved_bytes",
                "Bytes that a node holds",
                ["node", "medium"],
                [((r["node"], r["medium"]), r["reserved_bytes"]) for r in budgets],
            ),
        ]
        found += _latencies(recent)
        spent = CounterMetricFamily(
            "stillframe_project_slot_seconds", "Slot-seconds spent by a project", labels=["project"]
        )
        for row in projects:
            spent.add_metric([row["name"]], float(row["used_slot_s"]))
        event = CounterMetricFamily("stillframe_events", "Events recorded so far")
        event.add_metric([], float(newest))
        return [*found, spent, event]


def _gauge(
    name: str, text: str, labels: Sequence[str], values: Iterable[tuple[tuple[str, ...], float]]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"stillframe_{name}", text, labels=labels)
    for label_values, value in values:
        family.add_metric(list(label_values), float(value))
    return family


def _latencies(recent: Sequence[dict[str, object]]) -> list[Metric]:
    """Quantiles of the last attempts' time splits: gauges, since they are read from rows, not observed."""
    families: list[Metric] = []
    for name in ("queue_s", "load_s", "work_s", "write_s", "held_s"):
        family = GaugeMetricFamily(
            f"stillframe_attempt_{name.removesuffix('_s')}_seconds",
            f"{name.removesuffix('_s')} time of the last {RECENT_ATTEMPTS} attempts",
            labels=["pool", "quantile"],
        )
        by_pool: dict[str, list[float]] = {}
        for row in recent:
            value = row[name]
            if isinstance(value, int | float):
                by_pool.setdefault(str(row["pool"]), []).append(float(value))
        for pool, values in sorted(by_pool.items()):
            for quantile in QUANTILES:
                family.add_metric([pool, str(quantile)], nearest_rank(values, quantile))
        families.append(family)
    return families


def nearest_rank(values: Sequence[float], quantile: float) -> float:
    """The smallest value that at least this share of ``values`` does not exceed; ``values`` not empty."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(quantile * len(ordered)) - 1)]
