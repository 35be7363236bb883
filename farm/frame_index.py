"""Which tasks of a step make which frames: what tasks of other steps wait for, frame by frame."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import sqlalchemy as sa

from farm.db.tables import tasks
from farm.frame_range import FrameRange
from farm.states import TaskState


class FrameIndex:
    """Tasks of one step by frame number. Tasks without frames are needed by everybody."""

    def __init__(self) -> None:
        self._ids: list[str] = []
        self._by_number: dict[int, int | list[int]] = {}
        self._without: list[int] = []

    def add(self, task_id: str, frames: Iterable[int] | None) -> None:
        """Note a task and the frames that it makes."""
        place = len(self._ids)
        self._ids.append(task_id)
        if frames is None:
            self._without.append(place)
            return
        for number in frames:
            known = self._by_number.get(number)
            if known is None:
                self._by_number[number] = place
            elif isinstance(known, int):
                self._by_number[number] = [known, place]
            else:
                known.append(place)

    def needed(self, frames: Iterable[int] | None) -> Iterator[str]:
        """Ids of the tasks that a task with these frames waits for; one without frames waits for all."""
        if frames is None:
            yield from self._ids
            return
        places: set[int] = set(self._without)
        for number in frames:
            known = self._by_number.get(number)
            if isinstance(known, int):
                places.add(known)
            elif known is not None:
                places.update(known)
        for place in sorted(places):
            yield self._ids[place]

    @classmethod
    def read(cls, conn: sa.Connection, step_id: str) -> FrameIndex:
        """The step's tasks that are not done: done is final, so nobody needs to wait for them."""
        index = cls()
        query = (
            sa.select(tasks.c.id, tasks.c.frames)
            .where(tasks.c.step_id == step_id, tasks.c.state != TaskState.DONE)
            .order_by(tasks.c.position)
        )
        for task_id, frames in conn.execute(query):
            index.add(task_id, FrameRange.parse(frames) if frames else None)
        return index
