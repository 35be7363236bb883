"""What an LLM server says about itself on its metrics page: one table per server, one reader for all.

Histograms of single decode steps (or of the gaps between two tokens of a stream) and histograms of whole
requests' means are kept apart: a request's mean hides the steps that the guard looks for.

Names are taken from the documentation of vLLM, SGLang, TensorRT-LLM (``trtllm-serve``, alone and through
Dynamo), Text Generation Inference and llama.cpp's server.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum


class Server(StrEnum):
    """The servers whose pages can be read."""

    VLLM = "vllm"
    SGLANG = "sglang"
    TENSORRT_LLM = "tensorrt-llm"
    TGI = "tgi"
    LLAMA_CPP = "llama.cpp"


@dataclass(frozen=True, slots=True)
class Names:
    """Where one server keeps what. Each field lists names in order of preference; the first found counts.

    ``steps`` is a histogram of decode steps or token gaps, ``requests`` of per-request means per token, in
    seconds. ``labels`` must stand on a series of ``steps`` for it to count.
    """

    steps: tuple[str, ...] = ()
    requests: tuple[str, ...] = ()
    first_token: tuple[str, ...] = ()
    running: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    kv_usage: tuple[str, ...] = ()
    tokens: tuple[str, ...] = ()
    token_seconds: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()


def _both(prefix: str, *names: str) -> tuple[str, ...]:
    """Names with a colon, and with an underscore, after the prefix: servers have used either."""
    return tuple(f"{prefix}{mark}{name}" for name in names for mark in (":", "_"))


NAMES: dict[Server, Names] = {
    Server.VLLM: Names(
        # the older name was renamed; for a while a server has both, with the same content
        steps=("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
        requests=("vllm:request_time_per_output_token_seconds",),
        first_token=("vllm:time_to_first_token_seconds",),
        running=("vllm:num_requests_running",),
        waiting=("vllm:num_requests_waiting",),
        kv_usage=("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
        tokens=("vllm:generation_tokens_total",),
    ),
    Server.SGLANG: Names(
        steps=_both("sglang", "inter_token_latency_seconds"),
        requests=_both("sglang", "time_per_output_token_seconds"),
        first_token=_both("sglang", "time_to_first_token_seconds"),
        running=_both("sglang", "num_running_reqs"),
        waiting=_both("sglang", "num_queue_reqs"),
        kv_usage=_both("sglang", "token_usage"),
        tokens=_both("sglang", "generation_tokens_total"),
    ),
    Server.TENSORRT_LLM: Names(
        requests=(*_both("trtllm", "time_per_output_token_seconds"), "time_per_output_token_seconds"),
        first_token=(*_both("trtllm", "time_to_first_token_seconds"), "time_to_first_token_seconds"),
        running=_both("trtllm", "num_requests_running"),
        waiting=_both("trtllm", "num_requests_waiting"),
        kv_usage=_both("trtllm", "kv_cache_utilization"),
    ),
    Server.TGI: Names(
        # one observation per batch and method: decode steps are those with method="decode"
        steps=("tgi_batch_inference_duration",),
        requests=("tgi_request_mean_time_per_token_duration",),
        running=("tgi_batch_current_size",),
        waiting=("tgi_queue_size",),
        tokens=("tgi_request_generated_tokens_sum",),
        labels=('method="decode"',),
    ),
    Server.LLAMA_CPP: Names(
        # no histogram: tokens and the seconds they took, as counters
        running=("llamacpp:requests_processing",),
        waiting=("llamacpp:requests_deferred",),
        kv_usage=("llamacpp:kv_cache_usage_ratio",),
        tokens=("llamacpp:tokens_predicted_total",),
        token_seconds=("llamacpp:tokens_predicted_seconds_total",),
    ),
}

_SERIES = re.compile(r"^(?P<name>[A-Za-z_:][A-Za-z0-9_:]*)(?:\{(?P<labels>.*)\})?\s+(?P<value>\S+)")
_LE = re.compile(r'(?:^|,)\s*le="([^"]+)"')


@dataclass(frozen=True, slots=True)
class Histogram:
    """Cumulative counts by upper bound in seconds (ascending, ``inf`` last), and the sum of all values."""

    name: str
    bounds: tuple[float, ...]
    counts: tuple[float, ...]
    sum: float

    @property
    def count(self) -> float:
        """Number of observations."""
        return self.counts[-1] if self.counts else 0.0

    def since(self, earlier: Histogram | None) -> Histogram:
        """What came after ``earlier``; all of it when the server restarted or its buckets changed."""
        if (
            earlier is None
            or earlier.bounds != self.bounds
            or any(now < then for now, then in zip(self.counts, earlier.counts, strict=True))
        ):
            return self
        counts = tuple(now - then for now, then in zip(self.counts, earlier.counts, strict=True))
        return Histogram(self.name, self.bounds, counts, max(0.0, self.sum - earlier.sum))

    def over(self, budget_s: float) -> tuple[float, float]:
        """Bounds on how many observations are over ``budget_s``: buckets do not say more than that."""
        below = above = 0.0
        for bound, count in zip(self.bounds, self.counts, strict=True):
            if bound <= budget_s:
                below = count
            else:
                above = count
                break
        return self.count - above, self.count - below

    def quantile(self, share: float) -> float | None:
        """Value below which ``share`` of the observations lie, linear in its bucket; ``None`` if empty."""
        if self.count == 0:
            return None
        rank = share * self.count
        low_bound = low_count = 0.0
        for bound, count in zip(self.bounds, self.counts, strict=True):
            if count >= rank:
                if math.isinf(bound):
                    return low_bound
                width = count - low_count
                return low_bound + (bound - low_bound) * ((rank - low_count) / width if width else 1.0)
            low_bound, low_count = bound, count
        return low_bound


@dataclass(frozen=True, slots=True)
class Page:
    """What one reading of a metrics page says; ``None`` for what the server does not tell."""

    server: Server
    steps: Histogram | None = None
    requests: Histogram | None = None
    first_token: Histogram | None = None
    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None
    tokens: float | None = None
    token_seconds: float | None = None
    missing: tuple[str, ...] = ()
    """Fields that this server should have and this page lacks."""


@dataclass(slots=True)
class _Found:
    values: dict[str, float] = field(default_factory=dict)
    buckets: dict[str, dict[float, float]] = field(default_factory=dict)


def recognise(text: str) -> Server | None:
    """Which server wrote this page; ``None`` for another program's page."""
    text = _unquoted(text)
    for server, marks in (
        (Server.VLLM, ("vllm:",)),
        (Server.SGLANG, ("sglang:", "sglang_")),
        (Server.TGI, ("tgi_",)),
        (Server.LLAMA_CPP, ("llamacpp:",)),
        (Server.TENSORRT_LLM, ("trtllm:", "trtllm_")),
    ):
        if any(text.startswith(mark) or f"\n{mark}" in text for mark in marks):
            return server
    if "\ntime_per_output_token_seconds_bucket" in text:
        return Server.TENSORRT_LLM
    return None


def read_page(text: str, server: Server) -> Page:
    """Read a metrics page; series of several models, engines or ranks are added up.

    Only lines that the server's table names are parsed. Values that are not finite are left out.
    """
    names = NAMES[server]
    histograms = {
        name: names.labels if name in names.steps else ()
        for name in (*names.steps, *names.requests, *names.first_token)
    }
    plain = {
        *names.running, *names.waiting, *names.kv_usage, *names.tokens, *names.token_seconds,
    }  # fmt: skip
    found = _Found()
    # most lines of a page are none of ours: telling so by their first letters costs a tenth of reading them
    wanted = (*plain, *histograms)
    lines = [line for line in _unquoted(text).splitlines() if line.startswith(wanted)]
    for name, labels, value in _series(lines):
        if name in plain:
            if name in names.kv_usage:
                # a share: the fullest rank counts, not the sum
                found.values[name] = max(found.values.get(name, 0.0), value)
            else:
                found.values[name] = found.values.get(name, 0.0) + value
            continue
        base, _, part = name.rpartition("_")
        if base not in histograms or any(label not in labels for label in histograms[base]):
            continue
        if part == "bucket":
            edge = _edge(labels)
            if edge is not None:
                by_bound = found.buckets.setdefault(base, {})
                by_bound[edge] = by_bound.get(edge, 0.0) + value
        elif part == "sum":
            found.values[name] = found.values.get(name, 0.0) + value
    return _page(server, names, found)


def _page(server: Server, names: Names, found: _Found) -> Page:
    def histogram(choices: tuple[str, ...]) -> Histogram | None:
        for name in choices:
            by_bound = found.buckets.get(name)
            if by_bound:
                bounds = tuple(sorted(by_bound))
                counts = tuple(by_bound[bound] for bound in bounds)
                return Histogram(name, bounds, counts, found.values.get(f"{name}_sum", 0.0))
        return None

    def plain(choices: tuple[str, ...]) -> float | None:
        return next((found.values[name] for name in choices if name in found.values), None)

    readings = {
        "steps": histogram(names.steps),
        "requests": histogram(names.requests),
        "first_token": histogram(names.first_token),
        "running": plain(names.running),
        "waiting": plain(names.waiting),
        "kv_usage": plain(names.kv_usage),
        "tokens": plain(names.tokens),
        "token_seconds": plain(names.token_seconds),
    }
    missing = tuple(name for name, value in readings.items() if value is None and getattr(names, name))
    return Page(server, **readings, missing=missing)  # type: ignore[arg-type]


def _series(lines: Iterable[str]) -> Iterator[tuple[str, str, float]]:
    for line in lines:
        if not line or line[0] == "#":
            continue
        match = _SERIES.match(line)
        if match is None:
            continue
        try:
            value = float(match["value"])
        except ValueError:
            continue
        if math.isfinite(value):
            yield match["name"], match["labels"] or "", value


def _edge(labels: str) -> float | None:
    """A bucket's upper bound in seconds; ``None`` where the series tells none that is a number."""
    bound = _LE.search(labels)
    try:
        edge = float(bound[1]) if bound else math.nan
    except ValueError:
        return None
    return None if math.isnan(edge) else edge


def _unquoted(text: str) -> str:
    """The page itself, also where a server sends it as one JSON string (llama.cpp 7010 did)."""
    if text.startswith('"'):
        try:
            inner = json.loads(text)
        except ValueError:
            return text
        return inner if isinstance(inner, str) else text
    return text
