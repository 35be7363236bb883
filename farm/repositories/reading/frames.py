"""Frames with their files, and artifacts, as they are shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from farm.db import tables as t
from farm.repositories.reading.keyset import Row, page, row, rows


@dataclass(frozen=True, slots=True)
class FrameFilter:
    """Which frames to list; ``None``: all. ``first`` and ``last`` are numbers, both included."""

    job_id: str | None = None
    step_id: str | None = None
    state: str | None = None
    take: int | None = None
    current: bool | None = None
    first: int | None = None
    last: int | None = None


def _frames() -> sa.Select[Any]:
    return sa.select(t.frames, t.steps.c.name.label("step"), t.steps.c.position.label("step_position")).join(
        t.steps, t.steps.c.id == t.frames.c.step_id
    )


def list_frames(
    conn: sa.Connection, wanted: FrameFilter, position: Sequence[Any] | None, limit: int
) -> list[Row]:
    """Frames by step, number and take, each with its files; keyset ``(step position, number, take)``."""
    frames = t.frames.c
    query = _frames()
    if wanted.job_id is not None:
        query = query.where(t.steps.c.job_id == wanted.job_id)
    if wanted.step_id is not None:
        query = query.where(frames.step_id == wanted.step_id)
    if wanted.state is not None:
        query = query.where(frames.state == wanted.state)
    if wanted.take is not None:
        query = query.where(frames.take == wanted.take)
    if wanted.current is not None:
        query = query.where(frames.is_current == wanted.current)
    if wanted.first is not None:
        query = query.where(frames.number >= wanted.first)
    if wanted.last is not None:
        query = query.where(frames.number <= wanted.last)
    key = (t.steps.c.position, frames.number, frames.take)
    return _with_files(conn, page(conn, query, key, position, limit))


def get_frame(conn: sa.Connection, step_id: str, take: int, number: int) -> Row | None:
    """One frame with its files."""
    frames = t.frames.c
    query = _frames().where(frames.step_id == step_id, frames.take == take, frames.number == number)
    found = row(conn, query)
    return _with_files(conn, [found])[0] if found else None


def _with_files(conn: sa.Connection, frames: list[Row]) -> list[Row]:
    if not frames:
        return frames
    files = t.frame_files.c
    query = (
        sa.select(t.frame_files)
        .where(
            files.step_id.in_({frame["step_id"] for frame in frames}),
            files.number.in_({frame["number"] for frame in frames}),
            files.take.in_({frame["take"] for frame in frames}),
        )
        .order_by(files.output)
    )
    found: dict[tuple[str, int, int], list[Row]] = {}
    for file in rows(conn, query):
        found.setdefault((file["step_id"], file["take"], file["number"]), []).append(file)
    for frame in frames:
        frame["files"] = found.get((frame["step_id"], frame["take"], frame["number"]), [])
    return frames


def _artifacts() -> sa.Select[Any]:
    return sa.select(t.artifacts, t.steps.c.name.label("step")).join(
        t.steps, t.steps.c.id == t.artifacts.c.step_id
    )


def list_artifacts(conn: sa.Connection, job_id: str, position: Sequence[Any] | None, limit: int) -> list[Row]:
    """Artifacts of a job, oldest first; keyset ``(created_at, id)``."""
    query = _artifacts().where(t.artifacts.c.job_id == job_id)
    return page(conn, query, (t.artifacts.c.created_at, t.artifacts.c.id), position, limit)


def get_artifact(conn: sa.Connection, artifact_id: str) -> Row | None:
    """One artifact."""
    return row(conn, _artifacts().where(t.artifacts.c.id == artifact_id))


def known_contents(conn: sa.Connection, hashes: Sequence[str]) -> dict[str, int]:
    """Hash to bytes, for those of the hashes that the database knows."""
    known: dict[str, int] = {}
    for start in range(0, len(hashes), 500):
        part = list(hashes[start : start + 500])
        query = sa.select(t.contents.c.sha256, t.contents.c.bytes).where(t.contents.c.sha256.in_(part))
        known |= {row.sha256: row.bytes for row in conn.execute(query)}
    return known


def project_refers_to(conn: sa.Connection, project_id: str, sha256: str) -> bool:
    """Whether a job of this project has these bytes as an asset, a frame or an artifact."""
    assets = sa.select(t.job_assets.c.job_id).where(t.job_assets.c.sha256 == sha256)
    artifacts = sa.select(t.artifacts.c.job_id).where(t.artifacts.c.sha256 == sha256)
    frames = (
        sa.select(t.steps.c.job_id)
        .join(t.frame_files, t.frame_files.c.step_id == t.steps.c.id)
        .where(t.frame_files.c.sha256 == sha256)
    )
    query = sa.select(
        sa.exists().where(
            t.jobs.c.project_id == project_id, t.jobs.c.id.in_(sa.union_all(assets, artifacts, frames))
        )
    )
    return bool(conn.scalar(query))
