"""From ticket to finished attempts on real databases: what is counted, given back, or fenced off."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa

from farm import ledger
from farm.attempt_logs import read_range
from farm.db import tables as t
from farm.lifecycle import leases, machines
from farm.lifecycle.commands import cancel_job, pause_job
from farm.records import Ticket, TicketEntry
from farm.why import why
from tests.integration.workers.shop import Shop, make_shop  # noqa: F401  a fixture
from tests.kinds.probe.engine import png
from workers import runner
from workers.control import Command
from workers.disks import FULL_PREFIX, Disks
from workers.spool import read_unanswered


def _meanwhile(shop: Shop, condition: Callable[[], object], action: Callable[[], None]) -> threading.Thread:
    """Do something in another thread as soon as a condition holds; join it to see its failure."""

    def run() -> None:
        shop.wait(condition, "the moment to act")
        action()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_frames_are_published_with_all_that_is_known_of_them(shop: Shop) -> None:
    job = shop.submit({"tasks": 2, "frames": 2, "do": {"frame_s": 0.05, "width": 3, "height": 2}})
    shop.run(job)
    tasks = shop.tasks(job)
    assert [task.state for task in tasks] == ["done", "done"]
    files = sorted(shop.rows(t.frame_files), key=lambda row: row.number)
    assert [(row.number, row.output, row.width, row.height, row.format) for row in files] == [
        (number, "probe.png", 3, 2, "png") for number in (1, 2, 3, 4)
    ]
    for row in files:
        with shop.store.open(row.sha256) as reader:
            assert reader.read() == png(3, 2, (row.number, 0, 1))
    attempt = shop.attempt(tasks[0].id)
    assert attempt.work_s >= 0.1
    total = sum(getattr(attempt, f"{name}_s") for name in ("fetch", "load", "work", "write", "held"))
    assert total == pytest.approx(attempt.slot_s, abs=0.1)
    assert attempt.cpu_s >= 0
    assert attempt.peak_rss > 10_000_000
    assert {"scheduler", "events"} <= set(shop.woken)
    assert not read_unanswered(Path(shop.bench.identity.spool))
    assert [path for path in shop.bench.scratch.iterdir() if path.name != "assets"] == []
    assert shop.rows(t.slots)[0].state == "idle"


def test_an_attempt_whose_task_went_on_without_it_neither_publishes_nor_finishes(shop: Shop) -> None:
    job = shop.submit({"frames": 6, "do": {"frame_s": 0.15}})
    ticket = shop.ticket(job)
    [entry] = ticket.entries

    def lose() -> None:
        with shop.db.write() as conn:
            leases.lose(
                conn, [(entry.task_id, entry.epoch)], error="lease over", settings=shop.bench.settings
            )

    thread = _meanwhile(shop, lambda: "frame 2" in shop.said(entry.task_id), lose)
    shop.runner.run_ticket(ticket.to_json())
    thread.join()
    assert shop.said(entry.task_id)[-1] == "interrupted fenced-off"
    [task] = shop.tasks(job)
    assert task.state == "ready"
    assert shop.attempt(task.id).state == "lost"
    published = [row.number for row in shop.rows(t.frames) if row.state == "published"]
    known = {row.sha256 for row in shop.rows(t.frame_files)}
    assert len(published) <= 2
    assert set(shop.store.iter_hashes()) > known, "what it made afterwards stays unreferenced"


def test_between_tasks_of_a_bundle_a_cancel_is_seen(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a look before every task, and a first task that ends only when the wish is committed
    monkeypatch.setattr(runner, "_LOOK_EVERY_S", 0.0)
    said = tmp_path / "wish-is-committed"
    job = shop.submit({"tasks": 3, "do": {"deaf_until": str(said)}})
    first, second, third = (task.id for task in shop.tasks(job))

    def cancel() -> None:
        with shop.db.write() as conn:
            cancel_job(conn, job)
        said.touch()

    thread = _meanwhile(shop, lambda: shop.said(first), cancel)
    shop.run(job)
    thread.join()
    # the one that had ended by itself counts
    assert [task.state for task in shop.tasks(job)] == ["done", "cancelled", "cancelled"]
    assert (shop.said(second), shop.said(third)) == ([], [])


def test_between_tasks_of_a_bundle_a_pause_gives_the_rest_back_free(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a look before every task, and a first task that ends only when the wish is committed
    monkeypatch.setattr(runner, "_LOOK_EVERY_S", 0.0)
    said = tmp_path / "wish-is-committed"
    job = shop.submit({"tasks": 3, "do": {"deaf_until": str(said)}})
    first, second, _ = (task.id for task in shop.tasks(job))

    def pause() -> None:
        with shop.db.write() as conn:
            pause_job(conn, job)
        said.touch()

    thread = _meanwhile(shop, lambda: shop.said(first), pause)
    shop.run(job)
    thread.join()
    assert [(task.state, task.charged) for task in shop.tasks(job)] == [
        ("done", 0),
        ("ready", 0),
        ("ready", 0),
    ]
    assert shop.said(second) == []
    assert shop.rows(t.slots)[0].state == "idle"


def test_one_failing_task_of_a_bundle_does_not_fail_the_others(shop: Shop) -> None:
    job = shop.submit({"tasks": 3, "frames": 1, "per_task": {1: {"fail_times": 1}}, "max_retries": 1})
    shop.run(job)
    assert [(task.state, task.charged) for task in shop.tasks(job)] == [
        ("done", 0),
        ("ready", 1),
        ("done", 0),
    ]
    log = read_range(shop.bench.settings.logs, shop.attempt(shop.tasks(job)[1].id).id).text()
    assert log == "failed: told to fail at attempt 1\n"


def test_a_stopping_slot_gives_its_ticket_back(shop: Shop) -> None:
    job = shop.submit({"tasks": 2})
    ticket = shop.ticket(job)
    shop.stop.append(True)
    shop.runner.run_ticket(ticket.to_json())
    assert [task.state for task in shop.tasks(job)] == ["ready", "ready"]


@pytest.mark.parametrize(
    "data", [{}, {"entries": 3, "slot_id": "x"}, {"slot_id": "other", "entries": [["task", 1]]}]
)
def test_a_ticket_that_is_not_ours_or_no_ticket_does_nothing(shop: Shop, data: dict[str, object]) -> None:
    shop.runner.run_ticket(data)
    assert shop.rows(t.attempts) == []


def test_a_stale_ticket_leaves_the_slot_idle(shop: Shop) -> None:
    job = shop.submit({})
    ticket = shop.ticket(job)
    [entry] = ticket.entries
    shop.runner.run_ticket(Ticket(ticket.slot_id, (TicketEntry(entry.task_id, entry.epoch + 1),)).to_json())
    assert shop.tasks(job)[0].state == "dispatched"
    shop.runner.run_ticket(ticket.to_json())
    shop.runner.run_ticket(ticket.to_json())
    assert len(shop.rows(t.attempts)) == 1
    assert shop.rows(t.slots)[0].state == "idle"


def test_assets_are_read_only_files_under_their_job_paths(shop: Shop) -> None:
    small, _ = shop.store.put_stream([b"small"])
    big, _ = shop.store.put_stream([bytes(5 * 2**20)])
    with shop.db.write() as conn:
        from farm.lifecycle.publish import record_contents

        record_contents(conn, [(small, 5), (big, 5 * 2**20)])
    job = shop.submit(
        {"do": {"read_assets": ["scene/a.bin", "scene/big.bin"]}},
        {"name": "bad", "do": {"read_assets": ["../secret"]}, "max_retries": 5},
        assets={"scene/a.bin": small, "scene/big.bin": big},
    )
    shop.run(job)
    [task] = shop.tasks(job)
    assert task.state == "done"
    assert f"asset scene/a.bin {b'small'.hex()}" in shop.said(task.id)
    folder = shop.bench.scratch / "assets" / job / "scene"
    assert {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()} == {
        "a.bin": 0o444, "big.bin": 0o444,
    }  # fmt: skip
    shop.run(job, "bad")
    [bad] = shop.tasks(job, "bad")
    assert (bad.state, bad.error) == (
        "failed", "the job has no asset '../secret'; its assets are: scene/a.bin, scene/big.bin",
    )  # fmt: skip


def test_deferred_steps_and_results_and_frames_of_earlier_steps(shop: Shop) -> None:
    job = shop.submit(
        {
            "name": "look",
            "tasks": 2,
            "frames": 1,
            "per_task": {0: {"result": {"tasks": 2}}, 1: {"result": {"tasks": 1}}},
        },
        {"name": "work", "deferred_on": "look", "after": ["look"], "do": {"read_frames_of": "look"}},
    )
    shop.run(job, "look")
    made = shop.tasks(job, "work")
    assert [task.state for task in made] == ["ready"] * 3
    shop.run(job, "work")
    assert [task.state for task in shop.tasks(job, "work")] == ["done"] * 3
    assert "frames 1,2" in shop.said(made[0].id)
    assert shop.rows(t.jobs)[0].state == "done"


def test_a_full_budget_is_waited_for_and_said(shop: Shop) -> None:
    node = shop.world.node_id
    with shop.db.write() as conn:
        other = ledger.reserve(conn, node, None, "spool", 900, "dataset")
    assert other is not None
    job = shop.submit(
        {"do": {"reserve": ["spool", 200]}}, {"name": "never", "do": {"reserve": ["spool", 2000]}}
    )
    [task] = shop.tasks(job)

    def release() -> None:
        with shop.db.write() as conn:
            ledger.release(conn, other)

    def waits() -> bool:
        return any(row.type == "buffer.waiting" for row in shop.rows(t.events))

    thread = _meanwhile(shop, waits, release)
    shop.run(job)
    thread.join()
    assert shop.tasks(job)[0].state == "done"
    attempt = shop.attempt(task.id)
    assert attempt.held_s > 0
    assert "budget is full" in read_range(shop.bench.settings.logs, attempt.id).text()
    shop.run(job, "never")
    [never] = shop.tasks(job, "never")
    assert "whole budget is 1,000" in never.error
    with shop.db.read() as conn:
        assert ledger.check_budgets(conn) == []
        assert set(conn.scalars(sa.select(t.byte_budgets.c.reserved_bytes))) == {0}


def test_checkpoints_are_buffers_of_the_store_until_the_task_is_done(shop: Shop) -> None:
    job = shop.submit({"do": {"count_to": 12, "count_s": 0.05}})
    [task] = shop.tasks(job)
    ticket = shop.ticket(job)
    thread = _meanwhile(
        shop, lambda: (row := shop.tasks(job)[0]).checkpoint and row, lambda: shop.runner.park()
    )
    shop.runner.run_ticket(ticket.to_json())
    thread.join()
    parked = shop.tasks(job)[0]
    assert (parked.state, parked.charged) == ("ready", 0)
    live = [row for row in shop.rows(t.buffers) if row.state != "released"]
    assert [(row.medium, row.purpose, row.state, row.sha256) for row in live] == [
        ("store", "checkpoint", "filled", parked.checkpoint)
    ]
    shop.run(job)
    assert shop.tasks(job)[0].state == "done"
    assert {row.state for row in shop.rows(t.buffers)} == {"released"}
    starts = [line for line in shop.said(task.id) if line.startswith("count from")]
    assert starts[0] == "count from 0"
    assert int(starts[1].split()[-1]) > 0


def test_a_checkpoint_that_no_budget_holds_fails_the_attempt(shop: Shop) -> None:
    with shop.db.write() as conn:
        ledger.set_budget(conn, shop.world.node_id, "store", 0)
    job = shop.submit({"do": {"count_to": 2, "count_s": 0.0}, "max_retries": 0})
    shop.run(job)
    assert "whole budget is 0" in shop.tasks(job)[0].error


def test_what_stays_loaded_is_told(shop: Shop) -> None:
    shop.run(shop.submit({"do": {"warm": "scene:abc"}}))
    assert shop.rows(t.slots)[0].warm == ["scene:abc"]


def test_an_artifact_is_kept_with_its_name(shop: Shop) -> None:
    job = shop.submit({"do": {"artifact": True}})
    shop.run(job)
    [row] = shop.rows(t.artifacts)
    assert (row.name, row.media_type, row.task_id) == ("artifact.txt", "text/plain", shop.tasks(job)[0].id)
    with shop.store.open(row.sha256) as reader:
        assert reader.read() == f"artifact of {row.task_id}".encode()


def test_frames_published_before_a_failure_are_not_made_again(shop: Shop) -> None:
    job = shop.submit({"frames": 3, "do": {"fail_times": 1}, "max_retries": 1})
    shop.run(job)
    shop.wait(lambda: shop.tasks(job)[0].not_before is None or shop.tasks(job)[0].state == "ready", "ready")
    with shop.db.write() as conn:
        conn.execute(t.tasks.update().values(not_before=None))
    shop.run(job)
    [task] = shop.tasks(job)
    assert task.state == "done"
    assert [line for line in shop.said(task.id) if line.startswith("frame")] == [
        "frame 1",
        "frame 2",
        "frame 3",
    ]


class _FullAfter(Disks):
    """Room for so many looks, then none until :attr:`full` is taken back."""

    def __init__(self, looks: int) -> None:
        super().__init__()
        self.looks = looks
        self.full = True

    def short(self) -> str | None:
        self.looks -= 1
        return "/data has 5 bytes free, the floor is 9" if self.full and self.looks < 0 else None

    def refuses(self) -> str | None:
        return self.short()


def test_a_slot_whose_disk_is_full_claims_nothing_and_is_held(shop: Shop) -> None:
    shop.bench.disks = _FullAfter(0)
    job = shop.submit({"tasks": 2, "max_retries": 0})
    shop.run(job)
    assert [(task.state, task.charged) for task in shop.tasks(job)] == [("ready", 0)] * 2
    assert shop.rows(t.attempts) == []
    [slot] = shop.rows(t.slots)
    assert (slot.state, slot.hold_reason) == (
        "held",
        "its disk is full: /data has 5 bytes free, the floor is 9",
    )
    with shop.db.read() as conn:
        [reason] = why(conn, job, shop.bench.settings)
    assert reason.kind == "held"
    assert "/data has 5 bytes free, the floor is 9" in reason.text


def test_a_disk_that_fills_up_costs_no_frame_and_no_retry(shop: Shop) -> None:
    disks = _FullAfter(2)
    shop.bench.disks = disks
    job = shop.submit({"frames": 4, "max_retries": 0})
    shop.run(job)
    [task] = shop.tasks(job)
    attempt = shop.attempt(task.id)
    assert (task.state, task.charged) == ("ready", 0)
    assert (attempt.state, attempt.error_type) == ("interrupted", "out-of-space")
    published = [row.number for row in shop.rows(t.frames) if row.state == "published"]
    assert published == [1, 2], "one look before the claim, one after each frame"
    assert shop.rows(t.slots)[0].state == "held"
    disks.full = False
    with shop.db.write() as conn:
        machines.let_go_slot(conn, shop.bench.identity.slot_id, FULL_PREFIX)
    shop.run(job)
    assert [task.state for task in shop.tasks(job)] == ["done"]
    assert [line for line in shop.said(task.id) if line.startswith("frame")] == [
        "frame 1",
        "frame 3",
        "frame 4",
    ]


def test_a_slot_that_cannot_make_an_attempts_folders_charges_nobody(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.bench.disks = _FullAfter(1)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "scratch")

    monkeypatch.setattr("workers.runner.SlotHost", full)
    job = shop.submit({"frames": 1, "max_retries": 0})
    shop.run(job)
    [task] = shop.tasks(job)
    assert (task.state, task.charged) == ("ready", 0)
    assert shop.rows(t.slots)[0].state == "held"


def test_an_attempt_that_is_over_its_budget_on_a_disk_with_room_is_charged(shop: Shop) -> None:
    job = shop.submit({"do": {"reserve": ("spool", 5000)}, "max_retries": 0})
    shop.run(job)
    [task] = shop.tasks(job)
    assert (task.state, task.charged) == ("failed", 1)
    assert shop.rows(t.slots)[0].state == "idle"


def test_slow_frames_late_in_a_chunk_are_split_off_and_made_by_tasks_of_their_own(shop: Shop) -> None:
    """Frames 1-3 take no time, frame 4 takes 0.6 s where a whole task should take 0.5 s; 5-7 are left."""
    do = {"slow": {4: 0.6}, "chunk_s": 0.5}
    job = shop.submit({"frames": 7, "do": do, "max_retries": 0}, {"name": "film", "after": ["probe"]})
    shop.run(job)
    tasks = shop.tasks(job)
    assert [(task.frames, task.state, task.charged) for task in tasks] == [
        ("1-4", "done", 0), ("5", "ready", 0), ("6", "ready", 0), ("7", "ready", 0),
    ]  # fmt: skip
    assert shop.said(tasks[0].id) == ["begin", *(f"frame {n}" for n in (1, 2, 3, 4)), "handed on", "end"]
    log = read_range(shop.bench.settings.logs, shop.attempt(tasks[0].id).id).text()
    assert "the 3 frames not begun would take" in log
    assert [task.state for task in shop.tasks(job, "film")] == ["blocked"]
    assert not read_unanswered(Path(shop.bench.identity.spool))
    shop.run(job)
    assert [task.state for task in shop.tasks(job)] == ["done"] * 4
    assert [shop.said(task.id)[1:-1] for task in tasks[1:]] == [["frame 5"], ["frame 6"], ["frame 7"]]
    published = [(row.number, row.task_id) for row in shop.rows(t.frames) if row.state == "published"]
    assert sorted(published) == [
        *((number, tasks[0].id) for number in (1, 2, 3, 4)),
        *((number, tasks[number - 4].id) for number in (5, 6, 7)),
    ]
    assert [task.state for task in shop.tasks(job, "film")] == ["ready"]


def test_a_frame_that_stood_still_while_the_farm_held_it_is_not_slow(shop: Shop) -> None:
    """Two frames like the second would take 2.8 s, twice the task's 0.7 s are 1.4 s; but 1.2 s it stood."""
    job = shop.submit({"frames": 4, "do": {"frame_s": 0.2, "chunk_s": 0.7}})
    ticket = shop.ticket(job)
    [entry] = ticket.entries

    def hold() -> None:
        serial = shop.attempt(entry.task_id).serial
        shop.agent.command(serial, Command.PAUSE)
        shop.wait(lambda: shop.agent.read().held_s > 1.2, "the hold")
        shop.agent.command(serial, Command.RUN)

    thread = _meanwhile(shop, lambda: "frame 1" in shop.said(entry.task_id), hold)
    shop.runner.run_ticket(ticket.to_json())
    thread.join()
    assert [(task.frames, task.state) for task in shop.tasks(job)] == [("1-4", "done")]
    assert shop.attempt(entry.task_id).held_s > 1.2
