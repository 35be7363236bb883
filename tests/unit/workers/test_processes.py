"""Slot processes: nothing that a slot started outlives it, whichever of the three is killed."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpu_pinning import Fence, Wishes, make_plan, read_topology
from workers import processes
from workers.keeper import children, descendants
from workers.processes import SlotProcess

# a slot that leaves a grandchild which left the session and cleared its environment, then waits
_SLOT = """
import os, sys, signal, time
signal.signal(signal.SIGTERM, lambda *a: os._exit(7))
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve("/bin/sleep", ["sleep", sys.argv[2]], {})
    os._exit(0)
os.wait()
open(sys.argv[1], "w").write(str(os.getpid()))
time.sleep(float(sys.argv[3]))
"""


def _until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


class Case:
    """A started slot whose grandchild sleeps for a length of its own."""

    def __init__(self, folder: Path, fence: Fence | None = None, lives_s: float = 100) -> None:
        self.mark = f"{300 + os.getpid() % 1000}.{time.monotonic_ns() % 10**9}"
        self.ready = folder / "ready"
        self.process = SlotProcess(
            [sys.executable, "-c", _SLOT, str(self.ready), self.mark, str(lives_s)],
            {"PATH": os.environ["PATH"]},
            folder / "output",
            fence=fence,
        )

    def wait_ready(self) -> None:
        _until(lambda: self.ready.exists() and self.ready.read_text() and self.sleeper())

    def sleeper(self) -> list[int]:
        found = []
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                try:
                    words = (folder / "cmdline").read_bytes().split(b"\0")
                except OSError:
                    continue
                if self.mark.encode() in words and words[0] == b"sleep":
                    found.append(int(folder.name))
        return found

    def wait_end(self) -> processes.ExitNote:
        readable, _, _ = select.select([self.process.pidfd], [], [], 20)
        assert readable, "the keeper has not ended"
        return self.process.collect()


@pytest.fixture
def case(tmp_path: Path) -> Iterator[Case]:
    made = Case(tmp_path)
    made.wait_ready()
    yield made
    made.process._keeper.kill()


def test_the_slot_is_its_own_session_under_its_keeper(case: Case) -> None:
    slot = case.process.slot_pid
    assert slot == int(case.ready.read_text())
    assert os.getsid(slot) == slot
    [sleeper] = case.sleeper()
    assert sleeper in children(case.process.keeper_pid), "the orphan belongs to the keeper"
    assert set(descendants(case.process.keeper_pid)) == {slot, sleeper}
    case.process.kill()
    case.wait_end()


def test_a_killed_slot_leaves_nothing(case: Case) -> None:
    assert case.process.slot_pid is not None
    os.kill(case.process.slot_pid, signal.SIGKILL)
    started = time.monotonic()
    note = case.wait_end()
    assert time.monotonic() - started < 2.0
    assert (note.signal, note.left) == (signal.SIGKILL, 0)
    assert str(note) == "killed by SIGKILL"
    assert case.sleeper() == []


def test_asking_to_end_reaches_the_slot_and_its_code_comes_back(case: Case) -> None:
    case.process.ask_to_end()
    note = case.wait_end()
    assert (note.code, note.signal) == (7, None)
    assert case.sleeper() == []


def test_kill_ends_the_slot_and_the_session_leaver(case: Case) -> None:
    case.process.kill()
    assert case.wait_end().left == 0
    assert case.sleeper() == []
    assert case.process.slot_pid is None or not Path(f"/proc/{case.process.slot_pid}").exists()


def test_frozen_processes_can_be_let_go_and_killed(case: Case) -> None:
    slot = case.process.slot_pid
    assert slot is not None
    case.process.freeze()
    _until(lambda: Path(f"/proc/{slot}/stat").read_bytes().split()[2] == b"T")
    case.process.thaw()
    _until(lambda: Path(f"/proc/{slot}/stat").read_bytes().split()[2] != b"T")
    case.process.freeze()
    case.process.kill()
    case.wait_end()
    assert case.sleeper() == []


def test_a_killed_keeper_takes_the_slot_with_it_and_strays_are_ended(case: Case) -> None:
    processes.become_subreaper()
    try:
        slot = case.process.slot_pid
        assert slot is not None
        os.kill(case.process.keeper_pid, signal.SIGKILL)
        note = case.wait_end()
        assert note.signal == signal.SIGKILL
        _until(lambda: case.sleeper() == [] or case.sleeper()[0] in children(os.getpid()))
        known = [pid for pid in children(os.getpid()) if pid not in (slot, *case.sleeper())]
        processes.end_strays(known)
        assert case.sleeper() == []
        assert not Path(f"/proc/{slot}").exists()
    finally:
        from workers.keeper import PR_SET_CHILD_SUBREAPER, prctl

        prctl(PR_SET_CHILD_SUBREAPER, 0)


def test_the_agents_death_ends_everything(tmp_path: Path) -> None:
    code = (
        "import sys, time, pathlib\n"
        "from tests.unit.workers.test_processes import Case\n"
        "case = Case(pathlib.Path(sys.argv[1]))\n"
        "case.wait_ready()\n"
        "print(case.mark, case.process.keeper_pid, case.process.slot_pid, flush=True)\n"
        "time.sleep(100)\n"
    )
    agent = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert agent.stdout is not None
    mark, keeper, slot = agent.stdout.readline().split()
    agent.kill()
    agent.wait()
    agent.stdout.close()
    # zombies of a machine without a reaping init still count as ended
    _until(lambda: not _running(int(keeper)) and not _running(int(slot)))
    case = Case.__new__(Case)
    case.mark = mark
    _until(lambda: case.sleeper() == [])


def _running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    except OSError:
        return False


def test_whatever_descends_from_a_slot_is_behind_its_fence_and_the_keeper_is_not(tmp_path: Path) -> None:
    machine = read_topology()
    wish = '[[slots]]\nname = "t"\npools = ["render"]\ncores = 1\nnice = 13'
    fence = Fence.create(machine, make_plan(machine, Wishes.parse(wish)).slot("t"), tmp_path / "fence")
    fence.apply()
    try:
        case = Case(tmp_path, fence)
        case.wait_ready()
        slot, [sleeper] = case.process.slot_pid, case.sleeper()
        assert slot is not None
        for pid in (slot, sleeper):
            assert os.sched_getaffinity(pid) == set(fence.slot.cpus)
            assert os.getpriority(os.PRIO_PROCESS, pid) == 13
        assert os.sched_getaffinity(case.process.keeper_pid) == os.sched_getaffinity(0)
        rows = case.process.launched()
        assert rows is not None and all(row.ok or row.what == "ionice" for row in rows), rows
        assert fence.pids(slot) == sorted([slot, sleeper]) or not fence.group.folders
        case.process.freeze()
        case.process.kill()
        assert case.wait_end().left == 0
        assert case.sleeper() == [] and fence.group.pids() == []
    finally:
        fence.remove()


def test_a_client_of_mps_is_asked_and_never_killed(tmp_path: Path) -> None:
    machine = read_topology()
    plan = make_plan(machine, Wishes.parse('[[slots]]\nname = "t"\npools = ["render"]\ncores = 1'))
    seat = plan.slot("t").model_copy(update={"kind": "mps"})
    fence = Fence.create(machine, seat, tmp_path / "fence")
    fence.apply()
    try:
        # it takes its time: SIGTERM is noted, and a while later it ends by itself
        code = (
            "import signal, sys, time, pathlib; asked = []\n"
            "signal.signal(signal.SIGTERM, lambda *a: asked.append(1))\n"
            "pathlib.Path(sys.argv[1]).write_text('x')\n"
            "while not asked: time.sleep(0.01)\n"
            "time.sleep(1.5); sys.exit(9)\n"
        )
        ready = tmp_path / "ready"
        words = [sys.executable, "-c", code, str(ready)]
        process = SlotProcess(words, {"PATH": os.environ["PATH"]}, tmp_path / "output", fence=fence)
        _until(ready.exists)
        process.kill()
        assert select.select([process.pidfd], [], [], 20)[0]
        assert process.collect().code == 9, "it ended by itself"
    finally:
        fence.remove()


def test_a_program_that_cannot_start_says_so(tmp_path: Path) -> None:
    process = SlotProcess(["/no/such/program"], {}, tmp_path / "output")
    select.select([process.pidfd], [], [], 20)
    assert process.collect().code == 127
    assert "could not be started" in (tmp_path / "output").read_text()


def test_a_slot_outside_a_keeper_ends_nobody() -> None:
    assert processes.end_orphans() == []


def test_programs_that_a_thread_runs_are_no_strays() -> None:
    # as the thread that reads farm.toml again asks programs about the machine
    answers: list[tuple[int, str]] = []

    def ask() -> None:
        done = subprocess.run(["/bin/sh", "-c", "sleep 0.3; echo kvm"], capture_output=True, text=True)
        answers.append((done.returncode, done.stdout))

    thread = threading.Thread(target=ask)
    before = children(os.getpid())
    thread.start()
    _until(lambda: set(children(os.getpid())) - set(before))
    ended = []
    while thread.is_alive():
        ended += processes.end_strays(before)
        time.sleep(0.01)
    assert (ended, answers) == ([], [(0, "kvm\n")])
