"""``farm bench stillness`` in CPU form, for real and short: a well-formed report whatever its verdict."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path

import pytest

from gpu_pinning.stillness.run import EXIT_CODES

ROOT = Path(__file__).resolve().parents[3]


class _WellFormed(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        if tag not in {"meta", "line", "polyline", "link", "img"}:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in {"line", "polyline"}:
            assert self.open.pop() == tag


@pytest.mark.timeout(600)
def test_a_sixty_second_run_in_cpu_form_ends_with_a_report(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "gpu_pinning.stillness", "--seconds", "60", "--form", "cpu", "--hurt",
         "--quartets", "3", "--out", str(tmp_path), "--live", str(tmp_path / "live")],
        env=environment, capture_output=True, text=True, timeout=580,
    )  # fmt: skip
    assert done.returncode in EXIT_CODES.values(), done.stdout + done.stderr
    found = json.loads((tmp_path / "stillness.json").read_text())
    assert done.returncode == {verdict.value: code for verdict, code in EXIT_CODES.items()}[found["verdict"]]
    for named in (
        found["host"]["processor"],
        "numpy (CPU form)",
        found["decode"]["model"],
        "encode:",
        "class ",
    ):
        assert named in found["holds_for"]
    assert found["reasons"] and found["seconds"] <= time.monotonic() - began
    assert found["decode"]["form"] == "cpu" and "CPU form" in found["decode"]["model"]
    assert found["decode"]["gpu"] is None
    assert {"encode", "render"} & set(found["throughput"]["beside"])
    for pool, kept in found["throughput"]["ratio"].items():
        beside, alone = found["throughput"]["beside"][pool], found["throughput"]["alone"][pool]
        assert beside > 0 and alone > 0 and kept > 0
    held, everyone = found["held_by"], sorted(os.sched_getaffinity(0))
    # isolation off: nothing protects decode, neither cores nor niceness, nor a session of many threads
    assert held["control"]["cpus"] == everyone and set(found["decode"]["cpus"]) <= set(everyone)
    assert held["control"]["nice"] == held["decode"]["nice"] == [os.getpriority(os.PRIO_PROCESS, 0)]
    assert held["control"]["sessions"] >= 4 * len(everyone)
    assert not set(held["farm"]["cpus"]) & set(held["decode"]["cpus"]) or len(everyone) == 1
    assert found["guard"]["worked_s"] > 0 and found["guard"]["cpu_share"] < 0.5
    if None not in (waited := found["decode_waited"]).values() and "control" in waited:
        assert waited["control"] > waited["idle"]
    for arm in found["arms"].values():
        for name in ("p50", "p99"):
            ratio = arm[name]
            assert 0 < ratio["lower"] <= ratio["value"] * 1.5 and ratio["upper"] >= ratio["value"] / 1.5
    if found["verdict"] != "inconclusive":
        assert set(found["arms"]) == {"placebo", "farm", "control"}
    assert len(found["plots"]["trace"]) > 0
    page = (tmp_path / "stillness.html").read_text()
    check = _WellFormed()
    check.feed(page)
    assert check.open == [] and "svg" in check.seen
    assert not re.search(r"(src|href|url|@import)\s*[=(]", page), "the page loads nothing"
    assert found["verdict"].upper() in done.stdout
    assert "partial" not in found
    live = json.loads((tmp_path / "live" / "live.json").read_text())
    assert live["over"]["verdict"] == found["verdict"]
    shown = {point[3] for point in live["points"] if point[4]}
    assert {"farm", "control"} <= shown, "isolation was seen on and off"
    assert live["units"][live["pictures"][0]] > 0
    assert (tmp_path / "live" / f"picture-{live['pictures'][0]}.png").read_bytes().startswith(b"\x89PNG")


def test_what_cannot_be_is_said_at_once(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for arguments, words in (
        (["--seconds", "5"], "20 s or more"),
        (["--seconds", "nan"], "20 s or more"),
        (["--form", "gpu"], "choose one of"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "gpu_pinning.stillness", *arguments, "--out", str(tmp_path)],
            env=environment, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == 2 and words in done.stderr
