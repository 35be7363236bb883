"""Does what it is told, misbehaviour included."""

from __future__ import annotations

import contextlib
import os
import signal
import struct
import subprocess
import sys
import time
import zlib
from pathlib import Path
from typing import Any

from farm.errors import Interrupted, PermanentFailure, TaskFailed
from jobs.engine import Engine, Host, TaskContext
from tests.kinds.probe.spec import Behaviour

_GRANDCHILD = """
import os, sys
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve(sys.argv[1], ["sleep", sys.argv[2]], {})
    os._exit(0)
"""


def create() -> Engine:
    return ProbeEngine()


class ProbeEngine:
    def __init__(self) -> None:
        self.opened = 0
        self.ran = 0

    def open(self, host: Host) -> None:
        self.opened += 1

    def close(self) -> None:
        return

    def run(self, task: TaskContext, host: Host) -> None:
        self.ran += 1
        told = Behaviour.model_validate(dict(task.payload))
        trace = _Trace(task)
        trace.say("begin")
        try:
            self._run(task, host, told, trace)
        except Interrupted as error:
            trace.say(f"interrupted {error.slug}")
            raise
        trace.say("end")

    def _run(self, task: TaskContext, host: Host, told: Behaviour, trace: _Trace) -> None:
        _write_log(host, told)
        if told.grandchild:
            _leave_grandchild(host, told.grandchild)
        if told.place:
            trace.say(f"place {_place(told)}")
        for path in told.read_assets:
            trace.say(f"asset {path} {host.asset(path).read_bytes().hex()[:40]}")
        if told.read_frames_of:
            found = host.frames(told.read_frames_of, "probe.png")
            trace.say(f"frames {','.join(str(frame.number) for frame in found)}")
        with contextlib.ExitStack() as stack:
            if told.reserve:
                medium, nbytes = told.reserve
                stack.enter_context(host.reserve(nbytes, medium))  # type: ignore[arg-type]
                trace.say("reserved")
            if told.child_holds:
                child = subprocess.Popen(["sleep", told.child_holds], start_new_session=True)
                stack.callback(child.wait)
                stack.callback(child.kill)
                stack.enter_context(host.frozen([child.pid]))
            held = bytearray(told.allocate)
            _count(host, told, trace)
            self._make_frames(task, host, told, trace)
            del held
        _deaf(told)
        host.check()
        self._end(task, host, told)

    def _make_frames(self, task: TaskContext, host: Host, told: Behaviour, trace: _Trace) -> None:
        frames = list(task.frames or ())
        for done, number in enumerate(frames):
            started, mono = time.time(), time.monotonic()
            _sleep(host, told.slow.get(number, told.frame_s))
            frame_s = time.monotonic() - mono
            path = host.scratch / f"{number}.png"
            _write_frame(path, number, task.take, told)
            if told.spoil == "foreign":
                path = path.rename(host.scratch.parent / f"foreign-{number}.png")
            host.publish(number, {"probe.png": path}, started_at=started, duration_s=time.monotonic() - mono)
            trace.say(f"frame {number}")
            host.progress((done + 1) / len(frames), f"frame {number}")
            if _within(task.attempt_number, told.kill_slot_times):
                os.kill(os.getpid(), signal.SIGKILL)
            if told.chunk_s is not None and host.hand_on(frame_s, len(frames) - done - 1, told.chunk_s):
                trace.say("handed on")
                return

    def _end(self, task: TaskContext, host: Host, told: Behaviour) -> None:
        if _within(task.attempt_number, told.kill_slot_times):
            os.kill(os.getpid(), signal.SIGKILL)
        if _within(task.attempt_number, told.exit_slot_times):
            os._exit(3)
        if told.permanent:
            raise PermanentFailure("told to fail for good")
        if _within(task.attempt_number, told.fail_times):
            raise TaskFailed(f"told to fail at attempt {task.attempt_number}")
        if told.result is not None:
            host.result(told.result)
        if told.artifact:
            path = host.scratch / "artifact.txt"
            path.write_text(f"artifact of {task.task_id}")
            host.publish_artifact("artifact.txt", path, "text/plain", {"of": task.task_id})
        if told.warm is not None:
            host.keep_warm(told.warm)


class _Trace:
    def __init__(self, task: TaskContext) -> None:
        folder = task.spec.get("trace")
        self._path = Path(folder) / f"{task.task_id}.txt" if folder else None
        self._attempt = task.attempt_number

    def say(self, what: str) -> None:
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(f"{self._attempt} {os.getpid()} {time.monotonic():.4f} {what}\n")


def _within(attempt: int, times: int) -> bool:
    return times < 0 or attempt <= times


def _sleep(host: Host, seconds: float) -> None:
    until = time.monotonic() + seconds
    host.check()
    while (left := until - time.monotonic()) > 0:
        time.sleep(min(left, 0.02))
        host.check()


def _place(told: Behaviour) -> str:
    import json

    from tests.benchmarks.fence_slot import answer

    request = {"do": "task", "bytes": told.hold_vram}
    return json.dumps(answer(request, gpu=bool(os.environ.get("CUDA_VISIBLE_DEVICES"))))


def _deaf(told: Behaviour) -> None:
    until = time.monotonic() + told.deaf_s
    while time.monotonic() < until:
        time.sleep(0.02)
    until = time.monotonic() + 60.0
    while told.deaf_until and not Path(told.deaf_until).exists() and time.monotonic() < until:
        time.sleep(0.02)


def _count(host: Host, told: Behaviour, trace: _Trace) -> None:
    if not told.count_to:
        return
    resumed = host.restore()
    at = int(resumed.read_text()) if resumed else 0
    trace.say(f"count from {at}")
    while at < told.count_to:
        _sleep(host, told.count_s)
        at += 1
        path = host.scratch / "count"
        path.write_text(str(at))
        host.save(path)
        host.progress(at / told.count_to, f"count {at}")
    trace.say(f"counted {at}")


def _write_log(host: Host, told: Behaviour) -> None:
    if told.log == "broken":
        host.log.write("before")
        fd = host.log.fileno()
        os.write(fd, b"\x82\xff broken\n\x00 nul\n")
        line = b"x" * 1_000_000 + b"\n"
        while line:
            line = line[os.write(fd, line) :]
    elif told.log == "flood":
        code = "import os\nfor _ in range(40 * 16): os.write(1, b'f' * 65536)\nos.write(1, b'the last words')"
        subprocess.run([sys.executable, "-c", code], stdout=host.log.fileno(), check=True)


def _leave_grandchild(host: Host, seconds: str) -> None:
    sleep = next(path for path in ("/usr/bin/sleep", "/bin/sleep") if Path(path).exists())
    words = [sys.executable, "-I", "-S", "-c", _GRANDCHILD, sleep, seconds]
    log = host.log.fileno()
    subprocess.run(words, stdout=log, stderr=log, check=True)


def _write_frame(path: Path, number: int, take: int, told: Behaviour) -> None:
    width, height = told.width, told.height
    if told.spoil == "wrong_size":
        width += 1
    if told.spoil == "missing":
        return
    data = png(width, height, (number % 256, number // 256 % 256, take % 256))
    if told.spoil == "truncated":
        data = data[: len(data) - 20]
    path.write_bytes(b"" if told.spoil == "empty" else data)


def png(width: int, height: int, color: tuple[int, int, int]) -> bytes:
    """An RGB PNG of one colour."""
    rows = (b"\x00" + bytes(color) * width) * height
    parts: list[tuple[bytes, Any]] = [
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(rows, 1)),
        (b"IEND", b""),
    ]
    body = b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in parts
    )
    return b"\x89PNG\r\n\x1a\n" + body
