"""What a run comes to, for machines and people: JSON, a table, and one HTML page that needs no other file."""

# ruff: noqa: E501 - the page's own lines
from __future__ import annotations

import html
import json
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gpu_pinning.stillness.arms import Block
from gpu_pinning.stillness.statistics import TOLERANCE

_QUANTILES = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 0.999)
_COLOURS = {
    "idle": "#6b7280",
    "placebo": "#2563eb",
    "farm": "#059669",
    "control": "#dc2626",
    "fenced": "#0d9488",
    "spare": "#7c3aed",
    "loose": "#b45309",
}
_NAMES = {
    "placebo": "placebo (idle against idle)",
    "farm": "farm, isolated",
    "control": "positive control (isolation off)",
    "fenced": "fenced, no guard",
    "spare": "fenced, no guard, half at rest",
    "loose": "not fenced, no guard",
}
_VERDICTS = {
    "still": "Still: the farm does not disturb decode on this machine.",
    "disturbed": "Disturbed: the farm makes decode steps longer on this machine.",
    "void": "Void: the run contradicts itself, and says nothing about the farm.",
    "inconclusive": "Inconclusive: the machine was not quiet enough, or the run too short, to tell.",
}


def plot_data(blocks: Mapping[str, Sequence[tuple[str, Block]]]) -> dict[str, Any]:
    """Quantiles by arm (milliseconds), and the p50 and p99 of each block over time."""
    quantiles: dict[str, list[float]] = {}
    trace = []
    first = min((block.begin for row in blocks.values() for _, block in row), default=0.0)
    for name, row in blocks.items():
        for kind in ("idle", "arm"):
            parts = [block.durations for what, block in row if what == kind]
            steps = np.concatenate(parts) if parts else np.array([])
            if len(steps):
                label = f"{name} idle" if kind == "idle" else name
                quantiles[label] = [round(float(v) * 1000, 4) for v in np.quantile(steps, _QUANTILES)]
        for kind, block in row:
            if len(block.durations):
                p50, p99 = np.quantile(block.durations, (0.5, 0.99)) * 1000
                trace.append(
                    {
                        "arm": name if kind == "arm" else "idle",
                        "begin": round(block.begin - first, 2),
                        "end": round(block.end - first, 2),
                        "p50_ms": round(float(p50), 4),
                        "p99_ms": round(float(p99), 4),
                    }
                )
    trace.sort(key=lambda point: float(str(point["begin"])))
    return {"quantiles": list(_QUANTILES), "by_arm": quantiles, "trace": trace}


def write(found: Mapping[str, Any], folder: Path) -> tuple[Path, Path]:
    """Write ``stillness.json`` and ``stillness.html``; their paths."""
    page = folder / "stillness.html"
    data = write_data(found, folder)
    page.write_text(as_html(found), encoding="utf-8")
    return data, page


def write_data(found: Mapping[str, Any], folder: Path) -> Path:
    """Write ``stillness.json`` alone, all of it or none; its path."""
    folder.mkdir(parents=True, exist_ok=True)
    data = folder / "stillness.json"
    part = data.with_suffix(".part")
    part.write_text(json.dumps(found, indent=1), encoding="utf-8")
    part.replace(data)
    return data


def table(found: Mapping[str, Any]) -> str:
    """The figures as plain text."""
    lines = [f"{'arm':<34} {'p50':<28} {'p99':<28} {'p99.9':>7} {'steps':>8}"]
    for name, arm in found["arms"].items():
        lines.append(
            f"{_NAMES.get(name, name):<34} {_ratio(arm['p50']):<28} {_ratio(arm['p99']):<28} "
            f"{arm['p999']:>7.4f} {arm['steps']:>8}"
        )
    for pool in found["throughput"]["beside"]:
        lines.append(f"{pool}: {_kept(found['throughput'], pool)}")
    lines += [f"guard: {line}" for line in guard_lines(found["guard"])]
    for what, words in _SHARES.items():
        seen = {name: share for name, share in found[what].items() if share is not None}
        if seen:
            lines.append(f"{words}: " + ", ".join(f"{name} {share:.2%}" for name, share in seen.items()))
    lines += [f"{found['verdict'].upper()}: {reason}" for reason in found["reasons"]]
    lines.append(f"{found['verdict'].upper()} holds for {subject(found)}")
    return "\n".join(lines)


def subject(found: Mapping[str, Any]) -> str:
    """What a verdict is about, in words: host, GPU, engine, model, load and class; it holds for nothing else."""
    host, decode, farm = found["host"], found["decode"], found["farm"]
    metal = f"a virtual machine ({host['hypervisor']})" if host["hypervisor"] else "bare metal"
    engine = {
        "graph": "torch, a CUDA graph per step",
        "eager": "torch, eager (launch-bound)",
        "cpu": "numpy (CPU form)",
        "server": "a server by URL",
    }[decode["form"]]
    gpu = f" on {decode['gpu']}" if decode["gpu"] else ""
    return (
        f"{host['processor']}, {host['cpus']} CPUs, {metal}; engine: {engine}{gpu}; model: {decode['model']}; "
        f"load: {'; '.join(farm['loads'])}; class {farm['class']}"
    )


_SHARES = {
    "steal": "time that the hypervisor took from decode's CPUs",
    "decode_cpus_busy": "decode's CPUs were busy",
    "decode_waited": "decode was ready and had no core",
}


def _kept(measured: Mapping[str, Any], pool: str) -> str:
    """One pool's throughput in words, and where the rest went."""
    text = f"{measured['beside'][pool]:.2f} units/s beside decode"
    ratio = (measured["ratio"] or {}).get(pool)
    if ratio is None:
        return f"{text}; alone: not known"
    text += f", {measured['alone'][pool]:.2f} alone in the same fence: {ratio:.1%}"
    if (bounds := measured["bounds"][pool]) is not None:
        text += f" ({bounds[0]:.1%} to {bounds[1]:.1%})"
    if (apart := measured["told_apart"][pool]) is not None:
        text += f"; core time {apart['core_time']:.1%}, work per core second {apart['core_speed']:.1%}"
    return text


def guard_lines(guard: Mapping[str, Any] | None) -> list[str]:
    """What the guard did to the farm arm, in words."""
    if guard is None:
        return ["did not run"]
    held = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in guard["held_s"].items()) or "nothing held"
    budget = "no budget was learnt" if guard["budget_ms"] is None else f"budget {guard['budget_ms']:.3f} ms"
    lines = [
        f"{budget} from {guard['learnt_from_steps']} quiet steps; of {guard['worked_s']:.1f} s: {held}",
        f"{guard['cpu_share']:.2%} of a core",
    ]
    return lines + [
        f"{event['kind']} to {event['rung']}: {event['reason']}" for event in guard["events"][-6:]
    ]


def as_html(found: Mapping[str, Any]) -> str:
    """One page with inline drawings; it loads nothing from anywhere."""
    e = html.escape
    decode, farm, host = found["decode"], found["farm"], found["host"]
    facts = [
        (
            "Host",
            f"{host['processor']}, {host['cpus']} CPUs, Linux {host['kernel']}, hypervisor: {host['hypervisor'] or 'none'}",
        ),
        ("GPU", ", ".join(host["gpus"]) or "none: CPU form, which says nothing about a GPU server"),
        ("Decode", f"{decode['model']}; CPUs {_list(decode['cpus'])}"),
        ("Farm", "; ".join(farm["loads"])),
        ("Positive control", "; ".join(farm["control"]) or "did not run"),
        (
            "Sessions are weighed by the scheduler (autogroup)",
            {True: "yes", False: "no", None: "not known"}[host["autogroup"]],
        ),
        ("Fence", f"{', '.join(farm['fence'])}; class {farm['class']}: {farm['class_reason']}"),
        (
            "When",
            time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(found["began_at"]))
            + f", {found['seconds']:.0f} s",
        ),
    ]
    rows = "".join(f"<tr><th>{e(name)}</th><td>{e(text)}</td></tr>" for name, text in facts)
    arms = "".join(
        f"<tr><th>{e(_NAMES.get(name, name))}</th><td>{_ratio(arm['p50'])}</td><td>{_ratio(arm['p99'])}</td>"
        f"<td>{arm['p999']:.4f}</td><td>{arm['steps']:,}</td></tr>"
        for name, arm in found["arms"].items()
    )
    work = "".join(
        f"<tr><th>{e(pool)}</th><td>{e(_kept(found['throughput'], pool))}</td></tr>"
        for pool in found["throughput"]["beside"]
    )
    guard = "".join(f"<li>{e(line)}</li>" for line in guard_lines(found["guard"]))
    shares = "".join(
        f"<tr><th>{e(words)}</th><td>"
        + e(
            ", ".join(f"{name} {share:.2%}" for name, share in found[what].items() if share is not None)
            or "not known"
        )
        + "</td></tr>"
        for what, words in _SHARES.items()
    )
    held = "".join(
        f"<tr><th>{e(name)}</th><td>nice {e(str(one['nice']))}, CPUs {_list(one['cpus'])}, {one['sessions']} sessions</td></tr>"
        for name, one in found["held_by"].items()
    )
    reasons = "".join(f"<li>{e(reason)}</li>" for reason in found["reasons"])
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Stillness: {e(found["verdict"])}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #111827; }}
h1 {{ font-size: 1.5rem; }} h2 {{ font-size: 1.1rem; margin-top: 2rem; }}
table {{ border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }}
th, td {{ text-align: left; padding: .35rem .6rem; border-bottom: 1px solid #e5e7eb; vertical-align: top; }}
.verdict {{ padding: .8rem 1rem; border-left: 4px solid {_verdict_colour(found["verdict"])}; background: #f9fafb; }}
svg {{ width: 100%; height: auto; background: #fff; border: 1px solid #e5e7eb; }} svg text {{ font: 11px sans-serif; fill: #6b7280; }}
</style></head><body>
<h1>Does the farm disturb decode?</h1>
<div class="verdict"><strong>{e(_VERDICTS[found["verdict"]])}</strong><ul>{reasons}</ul>
<p>It holds for {e(subject(found))}.</p></div>
<h2>Step time, ratio to idle (one-sided 95 % bounds)</h2>
<table><tr><th>Arm</th><th>p50</th><th>p99</th><th>p99.9, pooled</th><th>Steps</th></tr>{arms}</table>
<h2>Farm throughput</h2>
<table>{work}</table>
<h2>What the guard held</h2><ul>{guard}</ul>
<h2>Where decode's time went, by arm</h2><table>{shares}</table>
<h2>What held the processes</h2><table>{held}</table>
<h2>Step time by quantile</h2>{_quantile_plot(found["plots"])}
<h2>Over the run: p50 and p99 of each block</h2>{_trace_plot(found["plots"])}
<h2>What ran where</h2><table>{rows}</table>
<p>A ratio within 1 ± {TOLERANCE:g} counts as still. The unit is one engine step; arms are interleaved as A B B A; the
bounds come from a block bootstrap over quartets. A step is never left out.</p>
</body></html>
"""


def _quantile_plot(plots: Mapping[str, Any]) -> str:
    series = {name: row for name, row in plots["by_arm"].items() if row}
    if not series:
        return "<p>No steps.</p>"
    low, high = min(map(min, series.values())), max(map(max, series.values()))
    x_of = [math.log(q / (1 - q)) for q in plots["quantiles"]]

    def x(value: float) -> float:
        return 60 + 820 * (value - x_of[0]) / (x_of[-1] - x_of[0])

    lines = []
    for place, (name, row) in enumerate(series.items()):
        colour = _COLOURS["idle"] if name.endswith(" idle") else _COLOURS.get(name, "#111827")
        dash = ' stroke-dasharray="4 3"' if name.endswith(" idle") else ""
        points = " ".join(f"{x(a):.1f},{_y(v, low, high):.1f}" for a, v in zip(x_of, row, strict=True))
        lines.append(f'<polyline fill="none" stroke="{colour}" stroke-width="2"{dash} points="{points}"/>')
        lines.append(f'<text x="75" y="{30 + 15 * place}" style="fill:{colour}">{html.escape(name)}</text>')
    marks = [
        f'<text x="{x(math.log(q / (1 - q))):.0f}" y="292" text-anchor="middle">p{q * 100:g}</text>'
        for q in (0.01, 0.1, 0.5, 0.9, 0.99, 0.999)
    ]
    return f'<svg viewBox="0 0 900 300" role="img" aria-label="Step time by quantile">{_axis(low, high)}{"".join(marks + lines)}</svg>'


def _trace_plot(plots: Mapping[str, Any]) -> str:
    trace = plots["trace"]
    if not trace:
        return "<p>No steps.</p>"
    low = min(point["p50_ms"] for point in trace)
    high = max(point["p99_ms"] for point in trace)
    length = max(point["end"] for point in trace) or 1.0
    shapes = []
    for point in trace:
        left, right = 60 + 820 * point["begin"] / length, 60 + 820 * point["end"] / length
        colour = _COLOURS.get(point["arm"], "#111827")
        for key, width in (("p50_ms", 3), ("p99_ms", 1.5)):
            y = _y(point[key], low, high)
            title = f"{point['arm']}: {key[:3]} {point[key]:.3f} ms"
            shapes.append(
                f'<line x1="{left:.1f}" x2="{right:.1f}" y1="{y:.1f}" y2="{y:.1f}" stroke="{colour}" '
                f'stroke-width="{width}"><title>{html.escape(title)}</title></line>'
            )
    names = dict.fromkeys(point["arm"] for point in trace)
    key_ = "".join(
        f'<text x="{75 + 110 * n}" y="18" style="fill:{_COLOURS.get(name, "#111827")}">{html.escape(name)}</text>'
        for n, name in enumerate(names)
    )
    return f'<svg viewBox="0 0 900 300" role="img" aria-label="Step time over the run">{_axis(low, high)}{key_}{"".join(shapes)}</svg>'


def _axis(low: float, high: float) -> str:
    ticks = [low + (high - low) * share for share in (0, 0.25, 0.5, 0.75, 1)]
    return "".join(
        f'<line x1="60" x2="880" y1="{_y(v, low, high):.1f}" y2="{_y(v, low, high):.1f}" stroke="#f3f4f6"/>'
        f'<text x="54" y="{_y(v, low, high) + 4:.1f}" text-anchor="end">{v:.3g} ms</text>'
        for v in ticks
    )


def _y(value: float, low: float, high: float) -> float:
    spread = math.log(high / low) if high > low > 0 else 1.0
    return 275 - 245 * (math.log(value / low) / spread if value > 0 and low > 0 else 0.0)


def _ratio(ratio: Mapping[str, float]) -> str:
    return f"{ratio['value']:.4f} ({ratio['lower']:.4f} to {ratio['upper']:.4f})"


def _list(cpus: Sequence[int]) -> str:
    from gpu_pinning import cpulist

    return cpulist.show(cpus)


def _verdict_colour(verdict: str) -> str:
    return {"still": "#059669", "disturbed": "#dc2626"}.get(verdict, "#d97706")
