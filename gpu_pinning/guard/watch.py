"""One neighbour, watched: what its stream and its metrics page say becomes a window every 250 ms.

The probe gives the steps; the page gives how many requests run, and steps where there is no stream (from its
histogram: those that are over the budget for certain). What is normal is learnt only while the farm does
nothing on the node, and kept in the node's folder.
"""

from __future__ import annotations

import json
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from gpu_pinning.guard.baseline import LEAST_STEPS, Budget, FixedBudget, LearntBaseline
from gpu_pinning.guard.fetch import PageReader, PageTrouble, Reading, fetch
from gpu_pinning.guard.probe import Gap, ProbeOptions, StreamProbe
from gpu_pinning.guard.servers import Histogram, Page
from gpu_pinning.guard.windows import Condition, Window

DEFAULT_RATIO = 1.10
CURVE_S = 600.0
STALL_STEPS = 4
"""What a window counts in which a stream that ran stood still: enough to be looked at, no more."""
_POINT_S = 0.2
_STALL_S = 0.25
_SILENT_S = 5.0
_CONNECT_S = 10.0
_STALE_S = 5.0
_ENOUGH = 2000
_REFRESH_EVERY_S = 900.0
_REFRESH_S = 20.0
_LEARN_AT_START_S = 30.0
_SAVE_EVERY_S = 60.0


@dataclass(frozen=True, slots=True)
class Subject:
    """A neighbour as the guard needs it. ``gpus`` are UUIDs, their beginnings or PCI addresses."""

    name: str
    role: str = "decode"
    url: str | None = None
    model: str | None = None
    gpus: tuple[str, ...] = ()
    budget_ms: float | None = None
    budget_ratio: float | None = None

    @property
    def judged(self) -> bool:
        """Whether its inter-token latency is to be kept: prefill services have none."""
        return self.role == "decode" and self.url is not None


@dataclass(frozen=True, slots=True)
class Point:
    """One window of the ITL curve; latencies in seconds, ``None`` where no step was seen."""

    at: float
    p50: float | None
    p99: float | None
    steps: int
    over: int
    budget: float | None


class Probe(Protocol):
    """What a watch needs of a probe; :class:`gpu_pinning.guard.probe.StreamProbe` is one."""

    @property
    def error(self) -> str | None:
        """What went wrong last; None: nothing."""

    @property
    def refused(self) -> bool:
        """Whether nobody listens there."""

    @property
    def token_at(self) -> float | None:
        """When the last token came, in monotonic seconds."""

    @property
    def started_at(self) -> float:
        """When it was started."""

    def start(self) -> None:
        """Begin to stream."""

    def stop(self) -> None:
        """End the stream."""

    def take(self) -> list[Gap]:
        """Gaps since the last call."""


class Pages(Protocol):
    """What a watch needs of a reader of pages; :class:`gpu_pinning.guard.fetch.PageReader` is one."""

    reading: Reading | None

    def start(self) -> None:
        """Begin to read."""

    def stop(self) -> None:
        """End."""


class Watch:
    """Watches one neighbour. All methods are called from the guard's one thread."""

    def __init__(
        self,
        subject: Subject,
        folder: Path | None,
        *,
        probe: Callable[[], Probe] | None = None,
        pages: Pages | None = None,
        alive: Callable[[], bool] | None = None,
    ) -> None:
        """``folder`` keeps the baseline; ``alive`` says whether a command that we supervise runs.

        ``probe`` makes a fresh probe each time one is wanted.
        """
        self.subject = subject
        self._pages = pages
        self._make_probe = probe
        self._probe: Probe | None = None
        self._alive = alive
        self._file = folder / f"baseline-{subject.name}.json" if folder else None
        self.budgets: FixedBudget | LearntBaseline = self._open_budgets()
        self.curve: deque[Point] = deque(maxlen=int(CURVE_S / 0.25))
        self.condition = Condition.STARTING
        self.running: float | None = None
        self._running_at = 0.0
        self._page_seen: Reading | None = None
        self._page_before: Page | None = None
        self._served = False
        self._token_at: float | None = None
        """When the last token of any stream came: between two streams the probe itself knows of none."""
        self._serving_since: float | None = None
        self._refresh_until = 0.0
        self._refreshed_at: float | None = None
        self._saved_at = time.monotonic()
        self._unsaved = False
        self._undrawn: tuple[float | None, list[float], int, int] = (None, [], 0, 0)
        """What short windows have seen since the curve's last point, and when that began."""

    @classmethod
    def of(cls, subject: Subject, folder: Path | None, *, alive: Callable[[], bool] | None = None) -> Watch:
        """A watch on the real server at ``subject.url``."""
        url = subject.url
        if url is None:
            return cls(subject, folder, alive=alive)
        made = _ProbeMaker(url, subject.model)
        return cls(
            subject, folder, probe=made if subject.judged else None, pages=PageReader(url), alive=alive
        )

    def start(self) -> None:
        """Begin to read the page; the probe starts when it is wanted."""
        if self._pages is not None:
            self._pages.start()

    def stop(self) -> None:
        """End probe and reader, and keep what was learnt."""
        self._stop_probe()
        if self._pages is not None:
            self._pages.stop()
        self._save()

    # --- one window ----------------------------------------------------------------------------------

    def window(self, start: float, end: float, *, quiet: bool, needed: bool) -> Window:
        """What the neighbour felt from ``start`` to ``end`` (monotonic seconds).

        ``quiet``: the farm does nothing on the node and holds nothing, so this is what is normal.
        ``needed``: farm work runs or is held, so the stream must be there.
        """
        self._tend_probe(end, quiet, needed)
        gaps = self._probe.take() if self._probe else []
        page, fresh = self._page(end)
        self._note_running(page, end)
        self.condition = condition = self._condition(gaps, page, end)
        self._served = self._served or condition in (Condition.SERVING, Condition.IDLE)
        if condition is not Condition.SERVING:
            self._serving_since = None
        elif self._serving_since is None:
            self._serving_since = end
        budget = self.budgets.at(self.running)
        durations = [gap.seconds for gap in gaps]
        if quiet and durations and isinstance(self.budgets, LearntBaseline):
            self.budgets.learn(durations, self.running)
            self._unsaved = True
        steps, over = self._count(durations, budget, end)
        if not durations and fresh is not None and self._probe_is_away():
            steps, over = _page_steps(fresh, self._page_before, budget)
        if fresh is not None:
            self._page_before = fresh
        self._draw(start, end, durations, steps, over, budget)
        if self._unsaved and end - self._saved_at > _SAVE_EVERY_S:
            self._save()
        serving = condition is Condition.SERVING
        return Window(start, end, condition, steps if serving else 0, over if serving else 0, self.running)

    def _draw(
        self, start: float, end: float, durations: list[float], steps: int, over: int, budget: Budget | None
    ) -> None:
        """Add to the curve; short windows become one point, so that it always reaches back as far."""
        since, seen, counted, slow = self._undrawn
        durations, steps, over = seen + durations, counted + steps, slow + over
        begin = start if since is None else since
        if end - begin < _POINT_S - 1e-6:
            self._undrawn = (begin, durations, steps, over)
            return
        self._undrawn = (None, [], 0, 0)
        self.curve.append(_point(end, durations, steps, over, budget))

    def learning(self, now: float) -> bool:
        """Whether new work should wait, for a short while, so that what is normal can be learnt first."""
        return (
            isinstance(self.budgets, LearntBaseline)
            and self.subject.judged
            and self._serving_since is not None
            and now - self._serving_since < _LEARN_AT_START_S
            and self.budgets.at(self.running) is None
        )

    def _count(self, durations: Sequence[float], budget: Budget | None, now: float) -> tuple[int, int]:
        if durations:
            return len(durations), sum(d > budget.seconds for d in durations) if budget else 0
        token_at = self._probe.token_at if self._probe else None
        if budget is None or token_at is None or now - token_at < max(_STALL_S, 2 * budget.seconds):
            return 0, 0
        return STALL_STEPS, STALL_STEPS

    def _tend_probe(self, now: float, quiet: bool, needed: bool) -> None:
        if self._make_probe is None:
            return
        if needed or self._wants_to_learn(now, quiet):
            if self._probe is None:
                self._probe = self._make_probe()
                self._probe.start()
        else:
            self._stop_probe()

    def _wants_to_learn(self, now: float, quiet: bool) -> bool:
        if not quiet or not isinstance(self.budgets, LearntBaseline):
            return False
        if self.budgets.learnt(self.running) < _ENOUGH:
            return True
        if self._refreshed_at is None:
            self._refreshed_at = now
        elif now - self._refreshed_at > _REFRESH_EVERY_S:
            self._refreshed_at, self._refresh_until = now, now + _REFRESH_S
        return now < self._refresh_until

    def _stop_probe(self) -> None:
        if self._probe is not None:
            self._probe.stop()
            self._probe = None

    # --- condition -----------------------------------------------------------------------------------

    def _page(self, now: float) -> tuple[Page | None, Page | None]:
        """The page where it is not stale, and the same once, when it is new."""
        reading = self._pages.reading if self._pages else None
        if reading is None or reading.page is None or now - reading.at > _STALE_S:
            return None, None
        fresh = reading.page if reading is not self._page_seen else None
        self._page_seen = reading
        return reading.page, fresh

    def _note_running(self, page: Page | None, now: float) -> None:
        if page is not None and page.running is not None:
            self.running, self._running_at = page.running, now
        elif now - self._running_at > 2 * _STALE_S:
            self.running = None

    def _condition(self, gaps: Sequence[Gap], page: Page | None, now: float) -> Condition:
        probe = self._probe
        token_at = probe.token_at if probe else None
        if token_at is not None or gaps:
            self._token_at = token_at if token_at is not None else gaps[-1].at
        elif probe is not None and probe.error is None:
            # the last stream has ended, and the next one waits for its first token
            token_at = self._token_at
        streams = bool(gaps) or (token_at is not None and now - token_at < _SILENT_S)
        if streams or page is not None:
            if page is not None and page.running is not None:
                own = 1.0 if streams else 0.0
                if page.running - own <= 0 and not (page.waiting or 0) > 0:
                    return Condition.IDLE
            if streams or probe is None or now - probe.started_at < _CONNECT_S:
                return Condition.SERVING
            # requests run and our stream has failed: the page's steps serve if it has any
            has_steps = page is not None and (page.steps is not None or page.token_seconds is not None)
            return Condition.SERVING if has_steps else Condition.LOST
        reading = self._pages.reading if self._pages else None
        refused = (probe is not None and probe.refused) or (
            reading is not None and reading.trouble == "refused"
        )
        if self._alive is not None and not self._alive():
            return Condition.STOPPED
        if refused:
            return Condition.STARTING if self._alive is not None else Condition.STOPPED
        untried = probe is None and (reading is None or reading.trouble == "absent")
        connecting = probe is not None and probe.error is None and now - probe.started_at < _CONNECT_S
        if untried or connecting:
            return Condition.IDLE if self._served else Condition.STARTING
        return Condition.LOST if self._served else Condition.STARTING

    def _probe_is_away(self) -> bool:
        return self._probe is None or self._probe.token_at is None

    # --- keeping -------------------------------------------------------------------------------------

    def _identity(self) -> dict[str, Any]:
        return {"url": self.subject.url, "model": self.subject.model}

    def _open_budgets(self) -> FixedBudget | LearntBaseline:
        if self.subject.budget_ms is not None:
            return FixedBudget(self.subject.budget_ms)
        margin = (self.subject.budget_ratio or DEFAULT_RATIO) - 1
        try:
            kept = json.loads(self._file.read_text()) if self._file and self._file.exists() else None
            if kept is not None and kept["of"] == self._identity():
                return LearntBaseline.from_json({**kept["baseline"], "margin": margin})
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            # a torn or foreign file: learnt again within seconds
            return LearntBaseline(margin=margin)
        return LearntBaseline(margin=margin)

    def _save(self) -> None:
        self._saved_at = time.monotonic()
        if self._file is None or not self._unsaved or not isinstance(self.budgets, LearntBaseline):
            return
        self._file.parent.mkdir(parents=True, exist_ok=True)
        part = self._file.with_suffix(".part")
        part.write_text(json.dumps({"of": self._identity(), "baseline": self.budgets.to_json()}))
        part.replace(self._file)
        self._unsaved = False

    # --- for people ----------------------------------------------------------------------------------

    def describe(self, now: float) -> dict[str, Any]:
        """What ``farm neighbours`` and the dashboard show. Latencies in milliseconds."""
        page, _ = self._page(now)
        budget = self.budgets.at(self.running)
        recent = [point for point in self.curve if now - point.at <= 10.0]
        steps = [point for point in recent if point.p50 is not None]
        reading = self._pages.reading if self._pages else None
        trouble = (self._probe.error if self._probe else None) or (
            reading.message if reading and reading.trouble else None
        )
        first = page.first_token.quantile(0.5) if page and page.first_token else None
        return {
            "name": self.subject.name,
            "role": self.subject.role,
            "url": self.subject.url,
            "server": page.server.value if page else None,
            "condition": self.condition.value,
            "running": self.running,
            "waiting": page.waiting if page else None,
            "kv_usage": page.kv_usage if page else None,
            "first_token_ms": _ms(first),
            "itl_p50_ms": _ms(_middle([p.p50 for p in steps if p.p50 is not None])),
            "itl_p99_ms": _ms(max((p.p99 for p in steps if p.p99 is not None), default=None)),
            "budget_ms": _ms(budget.seconds if budget else None),
            "budget_doubt_ms": _ms(budget.uncertainty_s if budget else None),
            "learnt_steps": self.budgets.learnt(self.running)
            if isinstance(self.budgets, LearntBaseline)
            else None,
            "trouble": trouble,
        }


class _ProbeMaker:
    """Makes probes; asks the server for the name of its model where the operator gave none."""

    def __init__(self, url: str, model: str | None) -> None:
        self._url, self._model = url, model

    def __call__(self) -> Probe:
        if self._model is None:
            self._model = served_model(self._url)
        return StreamProbe(
            ProbeOptions(self._url, self._model or "default", api_key=os.environ.get("FARM_NEIGHBOUR_KEY"))
        )


def served_model(url: str) -> str | None:
    """Name of the first model that an OpenAI-style server lists; ``None`` where it does not say."""
    try:
        return str(json.loads(fetch(url, "/v1/models", timeout_s=1.0))["data"][0]["id"])
    except (PageTrouble, ValueError, LookupError, TypeError):
        return None


def _page_steps(page: Page, before: Page | None, budget: Budget | None) -> tuple[int, int]:
    """Steps between two pages, and those of them that were over the budget for certain."""
    if before is None or budget is None:
        return 0, 0
    if page.steps is not None:
        since: Histogram = page.steps.since(before.steps)
        return int(since.count), min(int(since.count), int(since.over(budget.seconds)[0]))
    if None in (page.tokens, page.token_seconds, before.tokens, before.token_seconds):
        return 0, 0
    tokens = (page.tokens or 0) - (before.tokens or 0)
    seconds = (page.token_seconds or 0) - (before.token_seconds or 0)
    if tokens <= 0 or seconds < 0:
        return 0, 0
    # a mean alone: all over or none
    return int(tokens), int(tokens) if seconds / tokens > budget.seconds else 0


def _point(at: float, durations: Sequence[float], steps: int, over: int, budget: Budget | None) -> Point:
    ordered = sorted(durations)
    middle = ordered[len(ordered) // 2] if ordered else None
    high = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))] if ordered else None
    return Point(at, middle, high, steps, over, budget.seconds if budget else None)


def _middle(values: list[float]) -> float | None:
    return sorted(values)[len(values) // 2] if values else None


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)


__all__ = ["CURVE_S", "DEFAULT_RATIO", "LEAST_STEPS", "STALL_STEPS", "Point", "Probe", "Subject", "Watch"]
