from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from api.cli.running.children import Child, farm_environment
from api.cli.running.lock import DataLock, read_note
from farm.errors import Conflict

DEADLINE_S = 30.0


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come about"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def child(tmp_path: Path, code: str) -> Child:
    return Child("test", [sys.executable, "-c", code], os.environ, tmp_path / "test.log")


def test_a_child_that_dies_is_started_again_with_a_growing_delay(tmp_path: Path) -> None:
    one = child(tmp_path, "print('hello', flush=True)")
    one.start()
    codes: list[int] = []

    def died(times: int) -> bool:
        code = one.tend()
        if code is not None:
            codes.append(code)
        return len(codes) == times

    until(lambda: died(1))
    first = time.monotonic()
    until(lambda: died(2))
    second = time.monotonic()
    until(lambda: died(3))
    assert codes == [0, 0, 0]
    assert one.restarts == 2
    # half a second, then a second
    assert second - first >= 0.5
    assert time.monotonic() - second >= 1.0
    one.ask_to_stop()
    assert one.tend() is None
    assert one.log.read_text().count("hello") == 3


def test_a_child_is_not_started_again_once_it_was_asked_to_stop(tmp_path: Path) -> None:
    one = child(tmp_path, "import time; time.sleep(60)")
    one.start()
    one.ask_to_stop()
    assert one.wait(DEADLINE_S)
    assert one.pid is None


def test_what_a_child_leaves_in_its_group_ends_with_it(tmp_path: Path) -> None:
    code = "import subprocess; print(subprocess.Popen(['sleep', '300']).pid, flush=True)"
    one = child(tmp_path, code)
    one.start()
    until(lambda: one.log.read_text().strip() != "")
    left = int(one.log.read_text())
    until(lambda: one.tend() is not None)
    until(lambda: not alive(left))
    one.ask_to_stop()


def test_a_child_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    code = (
        "import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); time.sleep(300)"
    )
    one = child(tmp_path, code)
    one.start()
    until(lambda: "deaf" in one.log.read_text())
    pid = one.pid
    assert pid is not None
    one.ask_to_stop()
    assert not one.wait(0.3)
    one.kill()
    assert not alive(pid)


def test_a_child_ends_with_its_parent_however_that_ends(tmp_path: Path) -> None:
    code = """
import os, sys, time
from api.cli.running.children import Child, farm_environment
from pathlib import Path
inner = [sys.executable, "-c", "from api.cli.running.parent import end_with_parent; end_with_parent(); "
         "import os, time; print('bound', os.getpid(), flush=True); time.sleep(300)"]
one = Child("inner", inner, farm_environment({}), Path(sys.argv[1]))
one.start()
time.sleep(300)
"""
    log = tmp_path / "inner.log"
    outer = Child(
        "outer", [sys.executable, "-c", code, str(log)], farm_environment({}), tmp_path / "outer.log"
    )
    outer.start()
    until(lambda: log.exists() and "bound" in log.read_text())
    inner = int(log.read_text().split()[1])
    assert outer.pid is not None
    os.kill(outer.pid, signal.SIGKILL)
    until(lambda: not alive(inner))
    outer.ask_to_stop()
    assert outer.wait(DEADLINE_S)


def test_the_users_key_does_not_reach_the_farms_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FARM_KEY", "sfk_secret")
    monkeypatch.setenv("FARM_LEASE_S", "7")
    environment = farm_environment({"FARM_DATA": "/data"})
    assert "FARM_KEY" not in environment
    assert environment["FARM_LEASE_S"] == "7"
    assert environment["FARM_DATA"] == "/data"


def test_a_data_folder_has_one_farm(tmp_path: Path) -> None:
    lock = DataLock(tmp_path / "farm")
    lock.note({"pid": os.getpid(), "url": "http://127.0.0.1:8630"})
    with pytest.raises(Conflict, match=rf"process {os.getpid()}.*8630.*FARM_DATA"):
        DataLock(tmp_path / "farm")
    lock.release()
    assert read_note(tmp_path / "farm") == {}
    DataLock(tmp_path / "farm").release()


def test_the_rest_of_a_killed_farm_is_waited_for(tmp_path: Path) -> None:
    folder = tmp_path / "farm"
    code = (
        "import os, sys, time; from pathlib import Path; from api.cli.running.lock import DataLock; "
        "lock = DataLock(Path(sys.argv[1])); os.set_inheritable(lock.fd, True); "
        "lock.note({'pid': 2**22 + 1}); print('held', flush=True); time.sleep(1.0)"
    )
    holder = Child("h", [sys.executable, "-c", code, str(folder)], farm_environment({}), tmp_path / "h.log")
    holder.start()
    until(lambda: "held" in holder.log_tail())
    # its note names a process that is gone, so the lock is waited for
    DataLock(folder, rest_s=DEADLINE_S).release()
    assert holder.wait(DEADLINE_S)
