"""A node's slots sit where the plan put them, stay there, and move when farm.toml changes. Real processes."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from farm.errors import InvalidInput
from farm.lifecycle import machines
from farm.lifecycle.commands import cancel_job
from farm.settings import Settings
from gpu_pinning import Fence, Wishes, audit_slot, read_topology
from tests.chaos.farm_under_test import until
from tests.integration.workers.placed_farm import PlacedFarm
from workers.agent import run_agent
from workers.keeper import descendants
from workers.node_config import NodeConfig, read_node_config
from workers.placement import device_of, seat
from workers.processes import SlotProcess


def one_each(first: int, second: int, pools: str = '"render"') -> str:
    """Slots a and b, each on a CPU of its own."""
    return "".join(
        f'[[slots]]\nname = "{name}"\npools = [{pools}]\ncpus = "{cpu}"\n'
        f'environment = {{ MARK = "{name}" }}\n'
        for name, cpu in (("a", first), ("b", second))
    )


@pytest.fixture
def placed(settings: Settings, sqlite_url: str, redis_url: str) -> Settings:
    """Settings of a farm on SQLite that audits often."""
    return settings.model_copy(
        update={"database_url": sqlite_url, "broker_url": redis_url, "audit_every_s": 0.3}
    )


@pytest.fixture
def two_cpus() -> list[int]:
    """Two CPUs, of different physical cores where there are such."""
    found = sorted(os.sched_getaffinity(0))
    if len(found) < 2:
        pytest.skip("needs two CPUs")
    return [found[0], found[-1]]


@pytest.fixture
def pair(placed: Settings, two_cpus: list[int]) -> PlacedFarm:
    farm = PlacedFarm(placed, slots=2)
    farm.node_toml = one_each(*two_cpus)
    return farm


def threads_may_run_on(pid: int) -> set[int]:
    return {
        cpu for task in Path(f"/proc/{pid}/task").iterdir() for cpu in os.sched_getaffinity(int(task.name))
    }


def environment_of(pid: int) -> dict[str, str]:
    rows = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return dict(row.split("=", 1) for row in rows if "=" in row)


def test_slots_sit_where_the_plan_puts_them_and_tell_how_they_are_held(
    pair: PlacedFarm, two_cpus: list[int]
) -> None:
    with pair:
        for name, cpu in zip("ab", two_cpus, strict=True):
            row = until(
                lambda name=name: (
                    r if (r := pair.slot(name)).device.get("fence", {}).get("read_back") else None
                ),
                "the launcher's answer is in the slot's row",
            )
            assert threads_may_run_on(row.pid) == {cpu}
            environment = environment_of(row.pid)
            assert environment["MARK"] == name
            assert environment["CUDA_VISIBLE_DEVICES"] == ""
            assert environment["OMP_NUM_THREADS"] == "1"
            assert (row.device["kind"], row.device["cpus"], row.device["class"]) == ("cpu", str(cpu), None)
            granted = read_topology().right("cpuset").granted
            assert ("weak" in row.device["labels"]) == (not granted)
        assert [slot["name"] for slot in pair.kept_plan()["slots"]] == ["a", "b"]
        # what the agent has applied is what `farm plan --diff` compares with
        environment = os.environ | {"FARM_DATA": str(pair.settings.data), "FARM_CONFIG": str(pair.config)}
        words = [sys.executable, "-m", "api.cli.main", "plan", "--diff"]
        shown = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
        assert (shown.returncode, shown.stdout) == (0, "Nothing changes.\n"), shown.stderr


def test_a_killed_slot_comes_back_into_its_seat(pair: PlacedFarm, two_cpus: list[int]) -> None:
    with pair:
        old = pair.wait_slot("a").pid
        os.kill(old, signal.SIGKILL)
        row = pair.wait_slot("a", other_than=old)
        assert threads_may_run_on(row.pid) == {two_cpus[0]}
        assert row.restarts == 1


def test_a_slot_that_drifts_is_told_drained_and_started_again(pair: PlacedFarm, two_cpus: list[int]) -> None:
    machine = read_topology()
    with pair:
        old = pair.wait_slot("a").pid
        job = pair.submit({"name": "long", "do": {"count_to": 400, "count_s": 0.05}})
        (task,) = pair.tasks(job)
        pair.wait_said(task.id, "count from")
        running = pair.slot_pid(task.id)
        name = "a" if running == old else "b"
        if machine.right("cpuset").granted:
            # somebody moves it out of its group
            out = Path(machine.right("kill").base or machine.right("cpuset").base or "") / "cgroup.procs"
            out.write_text(str(running))
            kind = "left-group"
        else:
            # a library widens its own affinity
            os.sched_setaffinity(running, set(two_cpus))
            kind = "cpus"
        until(lambda: pair.slot(name).pid not in (None, running), "the slot lives anew")
        told = [finding for event in pair.events("slot.audit") for finding in event["findings"]]
        assert {finding["kind"] for finding in told if finding["drains"]} == {kind}
        drains = [e for e in pair.events("slot.state") if e["state"] == "draining"]
        assert drains and f"audit: {kind}" in drains[0]["reason"]
        # parked, not lost: the work went on from its checkpoint, and no retry was spent
        pair.wait_said(task.id, "count from", 2)
        first = pair.attempts(task.id)[0]
        assert (first.state, first.charged) == ("parked", False)
        until(lambda: "audit" not in pair.slot(name).device, "the fresh process is as planned")
        assert pair.slot(name).hold_reason is None
        _cancel(pair, job)


def test_a_changed_farm_toml_is_applied_by_a_rolling_drain(pair: PlacedFarm, two_cpus: list[int]) -> None:
    with pair:
        before = {name: pair.wait_slot(name).pid for name in "ab"}
        job = pair.submit({"name": "long", "do": {"count_to": 120, "count_s": 0.05}})
        (task,) = pair.tasks(job)
        pair.wait_said(task.id, "count from")
        # they change places, so neither can start before the other has left
        pair.apply(one_each(*reversed(two_cpus)))
        for name, cpu in zip("ab", reversed(two_cpus), strict=True):
            until(lambda name=name: pair.slot(name).pid not in (None, before[name]), f"{name} has moved")
            assert threads_may_run_on(pair.slot(name).pid) == {cpu}
        wanted = [str(two_cpus[1]), str(two_cpus[0])]
        until(lambda: [slot["cpus"] for slot in pair.kept_plan()["slots"]] == wanted, "the new plan is kept")
        pair.wait_job(job)
        assert [a.state for a in pair.attempts(task.id)][-1] == "done"
        assert not any(attempt.charged for attempt in pair.attempts(task.id))
        assert [e["changes"][0]["how"] for e in pair.events("node.plan")] == ["moved"]


def test_slots_come_and_go_and_change_pools_without_a_drain(pair: PlacedFarm, two_cpus: list[int]) -> None:
    with pair:
        kept = pair.wait_slot("a").pid
        text = one_each(*two_cpus, pools='"encode", "render"').replace('name = "b"', 'name = "c"')
        pair.write_config(text)
        said = pair.reload()
        assert said.startswith(f"0 node 'one' (pid {pair.agents['one'].pid}) reads"), said
        pair.wait_slot("c")
        until(lambda: pair.slot("b").hold_reason == "not in the plan any more", "b is gone")
        assert pair.slot("b").state == "dead"
        until(lambda: pair.slot("a").pools == ["encode", "render"], "a serves other pools")
        assert pair.slot("a").pid == kept, "without a restart"


def test_farm_toml_may_change_again_while_it_is_applied(pair: PlacedFarm, two_cpus: list[int]) -> None:
    with pair:
        before = {name: pair.wait_slot(name).pid for name in "ab"}
        job = pair.submit({"name": "long", "do": {"count_to": 60, "count_s": 0.05}})
        (task,) = pair.tasks(job)
        pair.wait_said(task.id, "count from")
        pair.apply(one_each(*reversed(two_cpus)))
        until(lambda: pair.events("node.plan"), "the drain has begun")
        # its writer thinks better of it, and takes one slot away
        pair.apply(one_each(*two_cpus).replace('name = "b"', 'name = "c"'))
        pair.wait_slot("c", state="idle")
        until(lambda: [slot["name"] for slot in pair.kept_plan()["slots"]] == ["a", "c"], "it is applied")
        pair.wait_job(job)
        assert not any(attempt.charged for attempt in pair.attempts(task.id))
        for name, cpu in zip("ac", two_cpus, strict=True):
            row = until(lambda name=name: r if (r := pair.slot(name)).pid else None, f"{name} lives")
            assert row.pid != before["a"]
            assert threads_may_run_on(row.pid) == {cpu}
        assert pair.slot("b").state == "dead"


def test_a_bad_farm_toml_changes_nothing(pair: PlacedFarm, two_cpus: list[int]) -> None:
    with pair:
        before = {name: pair.wait_slot(name).pid for name in "ab"}
        for text, reason in (
            ("[[slots]]\nname = 'x'\npools = ['reender']\n", "reender"),
            ('[[neighbours]]\nname = "d"\ncpus = "4000"\n', "neighbours.d.cpus: CPUs 4000 are not"),
            (one_each(two_cpus[0], 4000), "slots.b.cpus: CPUs 4000 are not"),
            ('[paths]\nwork = "/elsewhere"\n' + one_each(*two_cpus), "restart it to change this"),
        ):
            pair.apply(text)
            until(lambda reason=reason: reason in pair.output.read_text(), f"the agent says: {reason}")
        assert pair.output.read_text().count("farm.toml is not applied") == 4
        job = pair.submit({"name": "one"})
        pair.wait_job(job)
        assert {name: pair.slot(name).pid for name in "ab"} == before
        assert pair.events("node.plan") == []


def test_an_agent_whose_farm_toml_cannot_be_says_why_and_does_not_start(
    placed: Settings, tmp_path: Path
) -> None:
    config = tmp_path / "farm.toml"
    config.write_text('name = "n"\n[[neighbours]]\nname = "d"\ngpus = ["GPU-dead"]\n')
    with pytest.raises(InvalidInput, match="'GPU-dead' fits no GPU"):
        run_agent(placed, read_node_config(config))


def test_a_drained_node_parks_its_work_and_resumes_it_later(pair: PlacedFarm) -> None:
    with pair:
        job = pair.submit({"name": "long", "do": {"count_to": 60, "count_s": 0.05}})
        (task,) = pair.tasks(job)
        until(lambda: pair.tasks(job)[0].checkpoint, "there is something to go on from")
        node_id = pair.slot("a").node_id
        with pair.db.write() as conn:
            machines.drain_node(conn, node_id)
        pair.wake_nodes()
        parked = pair.wait_task(task.id, "ready")
        assert parked.checkpoint is not None, "it goes on from there"
        until(lambda: pair.events("node.state")[-1]["state"] == "drained", "the node is drained")
        with pair.db.write() as conn:
            machines.resume_node(conn, node_id)
        pair.wake("scheduler")
        pair.wait_job(job)
        first, *_, last = pair.attempts(task.id)
        assert (first.state, first.charged, last.state) == ("parked", False, "done")


def test_a_slot_whose_fence_cannot_stand_says_why_and_the_others_work(
    placed: Settings, two_cpus: list[int]
) -> None:
    farm = PlacedFarm(placed, slots=1)
    # a memory file system is no disk, so its writes cannot be limited
    farm.node_toml = '[paths]\nwork = "/dev/shm/stillframe-test"\n' + one_each(*two_cpus).replace(
        'name = "b"', 'name = "b"\ndisk_write = "1 MiB"'
    )
    with farm:
        row = until(
            lambda: r if (r := farm.slot("b")).state == "dead" and r.hold_reason else None, "b is dead"
        )
        assert "could not be started" in row.hold_reason and "disk write" in row.hold_reason
        job = farm.submit({"name": "one"})
        farm.wait_job(job)
    shutil.rmtree("/dev/shm/stillframe-test")


def test_a_slot_whose_class_falls_is_told_drained_and_kept_until_the_neighbour_is_held_again(
    placed: Settings, two_cpus: list[int], tmp_path: Path
) -> None:
    script = tmp_path / "vllm"
    script.write_text("import time\ntime.sleep(600)\n")
    words = [sys.executable, str(script), "serve", "m", "--port", "18237"]
    server = subprocess.Popen(words)
    os.sched_setaffinity(server.pid, {two_cpus[0]})
    farm = PlacedFarm(placed, slots=0)
    farm.node_toml = (
        "[placement]\nmove_interrupts = false\n"
        f'[[neighbours]]\nname = "llm"\ncpus = "{two_cpus[0]}"\nurl = "http://127.0.0.1:18237"\n'
        f'[[slots]]\nname = "a"\npools = ["render"]\ncpus = "{two_cpus[1]}"\nlowest_class = "B"\n'
    )
    try:
        with farm:
            old = until(lambda: farm.slot_rows() and farm.slot("a").pid, "the slot lives")
            assert farm.slot("a").device["class"] in ("A", "B")
            os.sched_setaffinity(server.pid, set(two_cpus))
            row = until(
                lambda: r if (r := farm.slot("a")).state == "dead" and r.hold_reason else None, "drained", 30
            )
            assert row.hold_reason.startswith("class C beside llm, B is wished: shares cores")
            assert f"taskset -acp {two_cpus[0]} {server.pid}" in row.hold_reason
            (told,) = [f for e in farm.events("slot.audit") for f in e["findings"] if f["kind"] == "class"]
            assert (told["subject"], told["wanted"], told["drains"]) == ("llm", "class B or better", True)
            assert farm.slot("a").device["class"] == "C"
            # it is not started into the same trouble
            audits = farm.output.read_text().count("a slot ended")
            assert (audits, farm.slot("a").pid) == (1, None)
            os.sched_setaffinity(server.pid, {two_cpus[0]})
            until(lambda: farm.slot("a").pid not in (None, old), "it lives again")
            assert farm.slot("a").device["class"] in ("A", "B")
    finally:
        server.kill()
        server.wait()


def test_a_slot_that_its_own_memory_limit_kills_says_so(placed: Settings, two_cpus: list[int]) -> None:
    if not read_topology().right("memory").granted:
        pytest.skip("no right to limit memory")
    farm = PlacedFarm(placed, slots=1)
    farm.node_toml = one_each(*two_cpus).partition('[[slots]]\nname = "b"')[0] + 'memory = "400 MiB"\n'
    with farm:
        job = farm.submit({"name": "eats", "do": {"allocate": 900 << 20}})
        (task,) = farm.tasks(job)
        lost = until(lambda: [a for a in farm.attempts(task.id) if a.state == "lost"], "the slot is killed")
        assert "it reached its memory limit of 400 MiB; raise slots.a.memory in farm.toml" in lost[0].error
        _cancel(farm, job)


_FAULTY_AGENT = """
import sys
from farm.settings import settings
from workers.agent import run_agent
from workers.guarding import Guarding
from workers.managed_slot import ManagedSlot

class Faults:
    starts = reseats = 0

start, reseat = ManagedSlot.start, Guarding.reseat

def faulty_start(self, settings):
    Faults.starts += self.name == "b"
    if self.name == "b" and Faults.starts < 2:
        raise ValueError("nobody thought of this start")
    start(self, settings)

def faulty_reseat(self, seating):
    Faults.reseats += 1
    if Faults.reseats == 1:
        raise KeyError("nobody thought of this reload")
    reseat(self, seating)

ManagedSlot.start, Guarding.reseat = faulty_start, faulty_reseat
sys.exit(run_agent(settings()))
"""


def test_the_agent_outlives_a_fault_that_nobody_thought_of(placed: Settings, two_cpus: list[int]) -> None:
    farm = PlacedFarm(placed, slots=2, agent_code=_FAULTY_AGENT)
    farm.node_toml = one_each(*two_cpus)
    with farm:
        # b's first start failed with its reason, a was not held up, and b was tried again
        reasons = [e.get("reason") or "" for e in farm.events("slot.state") if e["state"] == "dead"]
        assert any("could not be started: ValueError: nobody thought of this start" in r for r in reasons)
        before = {name: farm.wait_slot(name).pid for name in "ab"}
        farm.apply(one_each(*reversed(two_cpus)))
        until(lambda: "farm.toml is not applied" in farm.output.read_text(), "the reload is told")
        job = farm.submit({"name": "one"})
        farm.wait_job(job)
        assert {name: farm.slot(name).pid for name in "ab"} == before
        assert [threads_may_run_on(before[name]) for name in "ab"] == [{cpu} for cpu in two_cpus]
        # the same file once more: now it is applied
        farm.apply(one_each(*reversed(two_cpus)))
        for name, cpu in zip("ab", reversed(two_cpus), strict=True):
            until(lambda name=name: farm.slot(name).pid not in (None, before[name]), f"{name} has moved")
            assert threads_may_run_on(farm.slot(name).pid) == {cpu}


def test_the_keeper_is_outside_the_fence_and_all_below_it_inside(
    pair: PlacedFarm, two_cpus: list[int]
) -> None:
    with pair:
        job = pair.submit({"name": "s", "frames": 1, "do": {"child_holds": "60.5", "frame_s": 30.0}})
        (task,) = pair.tasks(job)
        pid = pair.slot_pid(task.id)
        keeper = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        assert os.sched_getaffinity(keeper) == os.sched_getaffinity(0)
        child = until(lambda: [p for p in descendants(keeper) if b"60.5" in _words(p)], "the task's child")
        assert os.sched_getaffinity(child[0]) == os.sched_getaffinity(pid)
        assert len(os.sched_getaffinity(pid)) == 1
        _cancel(pair, job)


def _cancel(farm: PlacedFarm, job: str) -> None:
    with farm.db.write() as conn:
        cancel_job(conn, job)
    farm.wake_nodes()
    farm.wait_job(job, "cancelled")


def _words(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def _as_ordinary_user(folder: Path, two_cpus: list[int]) -> list[Any]:
    """A slot's life in a process that has given up every right; what it saw."""
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
    if not os.access(sys.executable, os.X_OK):
        # keeper, launcher and this slot need the standard library alone
        sys.executable = "/usr/bin/python3"
    seating = seat(NodeConfig(Wishes.parse(one_each(*two_cpus))))
    slot = seating.plan.slot("b")
    fence = Fence.create(seating.machine, slot, folder / "fence")
    fence.clear()
    fence.apply()
    body = "import sys, time, pathlib; pathlib.Path(sys.argv[1]).write_text('x'); time.sleep(60)"
    words = [sys.executable, "-I", "-S", "-c", body, str(folder / "ready")]
    environment = {"PATH": os.environ["PATH"]} | fence.environment()
    process = SlotProcess(words, environment, folder / "output", fence=fence)
    until(lambda: (folder / "ready").exists(), "the slot runs")
    pid = process.slot_pid
    assert pid is not None
    labels = device_of(seating, slot, process.launched())["labels"]
    before = [row.kind for row in audit_slot(fence, pid)]
    os.sched_setaffinity(pid, set(two_cpus))
    after = [[row.kind, row.drains] for row in audit_slot(fence, pid)]
    process.kill()
    assert select.select([process.pidfd], [], [], 20)[0]
    left = process.collect().left
    return [os.getuid(), slot.fence.cpus, "weak" in labels, before, after, left]


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_as_an_ordinary_user_slots_are_held_by_affinity_labelled_and_seen_when_they_stray(
    two_cpus: list[int],
) -> None:
    folder = Path(tempfile.mkdtemp(prefix="stillframe-ordinary-", dir="/tmp"))
    folder.chmod(0o777)
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            answer: Any = _as_ordinary_user(folder, two_cpus)
        except BaseException as error:
            answer = f"{type(error).__name__}: {error}"
        os.write(write_end, json.dumps(answer).encode())
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as told:
        answer = json.loads(told.read())
    os.waitpid(child, 0)
    shutil.rmtree(folder)
    assert answer == [65534, "affinity", True, [], [["cpus", True]], 0]
