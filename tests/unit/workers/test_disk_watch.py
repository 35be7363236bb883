"""The agent's watch over its disks: whom it holds, when it lets go."""

from __future__ import annotations

from typing import Any

from workers.disk_watch import DiskWatch
from workers.disks import FULL_PREFIX, Disks
from workers.link import View


class _Link:
    def __init__(self) -> None:
        self.view = View()
        self.told: list[tuple[str, ...]] = []

    def see(self, **states: tuple[str, str]) -> None:
        self.view = View(
            slot_states={slot: state for slot, (state, _) in states.items()},
            hold_reasons={slot: reason for slot, (state, reason) in states.items() if state == "held"},
        )

    def __getattr__(self, name: str) -> Any:
        return lambda *words: self.told.append((name, *words))


class _Disks(Disks):
    def __init__(self) -> None:
        super().__init__()
        self.full: str | None = None
        self.hovering: str | None = None

    def short(self) -> str | None:
        return self.full

    def refuses(self) -> str | None:
        return self.full or self.hovering


def _watch() -> tuple[DiskWatch, _Link, _Disks]:
    link, disks = _Link(), _Disks()
    return DiskWatch(disks, link, 1.0), link, disks  # type: ignore[arg-type]


def test_idle_slots_are_held_and_what_runs_is_left_alone() -> None:
    watch, link, disks = _watch()
    disks.full = "/data has 1 byte free"
    watch.look()
    link.see(a=("idle", ""), b=("busy", ""), c=("held", "its GPU is in use: by others"), d=("dead", ""))
    watch.turn()
    assert link.told == [("hold_idle", "a", FULL_PREFIX + "/data has 1 byte free")]
    watch.turn()
    assert len(link.told) == 1, "once for each answer of the database"


def test_slots_are_let_go_when_there_is_room_to_spare() -> None:
    watch, link, disks = _watch()
    disks.full = "full"
    watch.look()
    held = {"a": ("held", FULL_PREFIX + "full"), "b": ("held", "the guard")}
    link.see(**held)
    watch.turn()
    disks.full, disks.hovering = None, "just above the floor"
    watch.look()
    link.see(**held)
    watch.turn()
    assert [words[0] for words in link.told if words[0] == "let_go"] == []
    disks.hovering = None
    watch.look()
    link.see(**held)
    watch.turn()
    assert link.told[-1] == ("let_go", "a", FULL_PREFIX)


def test_a_slot_that_held_itself_between_two_looks_is_let_go_only_after_a_look_for_room_to_spare() -> None:
    watch, link, disks = _watch()
    watch.look()
    disks.hovering = "just above the floor"
    for _ in range(2):
        link.see(a=("held", FULL_PREFIX + "full"))
        watch.turn()
        watch.look()
    assert [words[0] for words in link.told if words[0] == "let_go"] == []
    disks.hovering = None
    watch.look()
    link.see(a=("held", FULL_PREFIX + "full"))
    watch.turn()
    assert link.told[-1] == ("let_go", "a", FULL_PREFIX)
