"""Every table of the farm, as SQLAlchemy Core. Migrations in ``migrations/`` make exactly these.

Ids are text (UUIDv7 with a prefix), times are seconds since the epoch on the database's clock, sizes are
bytes, durations are seconds. JSON is JSONB on PostgreSQL.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)

Id = sa.String(48)
Sha = sa.String(64)
Name = sa.String(200)
Time: sa.Double[float] = sa.Double()
Big = sa.BigInteger()
Serial = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
Json = sa.JSON().with_variant(JSONB(), "postgresql")


def _time(name: str, *, nullable: bool = True) -> sa.Column[float]:
    return sa.Column(name, Time, nullable=nullable)


def _count(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.Integer, nullable=False, server_default="0")


# --- who ---------------------------------------------------------------------------------------------

projects = sa.Table(
    "projects",
    metadata,
    sa.Column("id", Id, primary_key=True),
    sa.Column("name", Name, nullable=False, unique=True),
    sa.Column("share", sa.Double, nullable=False, server_default="1"),
    # most slots at once; NULL: no cap
    sa.Column("max_slots", sa.Integer),
    # slot-seconds that may be spent; NULL: no quota
    sa.Column("quota_slot_s", sa.Double),
    # whether a part of the slots on nodes that stay is kept for it and its like (settings: reserve_floor)
    sa.Column("reserved", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("used_slot_s", sa.Double, nullable=False, server_default="0"),
    sa.Column("used_gpu_s", sa.Double, nullable=False, server_default="0"),
    sa.Column("version", sa.Integer, nullable=False, server_default="1"),
    _time("created_at", nullable=False),
)

users = sa.Table(
    "users",
    metadata,
    sa.Column("id", Id, primary_key=True),
    sa.Column("name", Name, nullable=False, unique=True),
    _time("created_at", nullable=False),
)

keys = sa.Table(
    "keys",
    metadata,
    sa.Column("id", Id, primary_key=True),
    sa.Column("name", Name, nullable=False),
    # HMAC-SHA-256 of the secret under the farm's own pepper; the secret itself is shown once
    sa.Column("hmac", Sha, nullable=False, unique=True),
    sa.Column("hint", sa.String(12), nullable=False),
    sa.Column("scopes", Json, nullable=False),
    sa.Column("user_id", Id, sa.ForeignKey("users.id"), nullable=False),
    # the key may only submit to and read this project; NULL: every project
    sa.Column("project_id", Id, sa.ForeignKey("projects.id")),
    _time("created_at", nullable=False),
    _time("used_at"),
    _time("revoked_at"),
)

web_sessions = sa.Table(
    "web_sessions",
    metadata,
    sa.Column("id", Id, primary_key=True),
    sa.Column("hmac", Sha, nullable=False, unique=True),
    sa.Column("csrf", sa.String(64), nullable=False),
    sa.Column("key_id", Id, sa.ForeignKey("keys.id"), nullable=False),
    _time("created_at", nullable=False),
    _time("expires_at", nullable=False),
)

idempotency = sa.Table(
    "idempotency",
    metadata,
    sa.Column("key_id", Id, primary_key=True),
    sa.Column("idempotency_key", sa.String(255), primary_key=True),
    sa.Column("method", sa.String(8), nullable=False),
    sa.Column("path", sa.String(500), nullable=False),
    sa.Column("body_sha256", Sha, nullable=False),
    # NULL while the first request is still being answered
    sa.Column("status", sa.Integer),
    sa.Column("response", Json),
    _time("created_at", nullable=False),
    # the request that holds the claim, and when its process last said that it is alive
    sa.Column("claim", sa.String(48)),
    _time("seen_at"),
)

# --- what goes in and comes out ----------------------------------------------------------------------

contents = sa.Table(
    "contents",
    metadata,
    sa.Column("sha256", Sha, primary_key=True),
    sa.Column("bytes", Big, nullable=False),
    _time("created_at", nullable=False),
    # last time that somebody uploaded or published it; gc spares the young
    _time("touched_at", nullable=False),
)

jobs = sa.Table(
    "jobs",
    metadata,
    sa.Column("id", Id, primary_key=True),
    sa.Column("name", Name, nullable=False),
    sa.Column("kind", sa.String(40), nullable=False),
    sa.Column("project_id", Id, sa.ForeignKey("projects.id"), nullable=False),
    sa.Column("user_id", Id, sa.ForeignKey("users.id"), nullable=False),
    sa.Column("priority", sa.Integer, nullable=False, server_default="50"),
    sa.Column("labels", Json, nullable=False),
    sa.Column("spec", Json, nullable=False),
    sa.Column("state", sa.String(12), nullable=False),
    sa.Column("paused", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("cancel_requested", sa.Boolean, nullable=False, server_default=sa.false()),
    # jobs in "after" that are not done yet
    _count("waiting_on"),
    sa.Column("error", sa.Text),
    sa.Column("version", sa.Integer, nullable=False, server_default="1"),
    _time("created_at", nullable=False),
    _time("started_at"),
    _time("finished_at"),
    sa.Index("ix_jobs_project_created", "project_id", "created_at"),
    sa.Index("ix_jobs_state_created", "state", "created_at"),
)

job_dependencies = sa.Table(
    "job_dependencies",
    metadata,
    sa.Column("job_id", Id, sa.ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("after_job_id", Id, sa.ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True, index=True),
    # it was done once: a later retake of it neither blocks nor releases again
    sa.Column("satisfied", sa.Boolean, nullable=False, server_default=sa.false()),
)

job_assets = sa.Table(
    "job_assets",
    metadata,
    sa.Column("job_id", Id, sa.ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("path", sa.String(1000), primary_key=True),
    sa.Column("sha256", Sha, sa.ForeignKey("contents.sha256"), nullable=False, index=True),
)

# --- work --------------------------------------------------------------------------------------------

STEP_COUNTERS = (
    "n_blocked", "n_ready", "n_dispatched", "n_running", "n_done", "n_failed", "n_cancelled", "n_unreachable",
)  # fmt: skip

steps = sa.Table(
    "steps",
    metadata,
    sa.Column("id", Id, primary_key=True),
    sa.Column("job_id", Id, sa.ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False),
    sa.Column("position", sa.Integer, nullable=False),
    sa.Column("name", Name, nullable=False),
    sa.Column("engine", sa.String(40), nullable=False),
    sa.Column("pool", sa.String(40), nullable=False),
    sa.Column("state", sa.String(12), nullable=False),
    # a step whose tasks are made when `deferred_on` is done; false again once they are
    sa.Column("deferred", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("deferred_on", Id),
    # whole-step dependencies (and the job's "after") that are not done yet
    _count("waiting_on"),
    sa.Column("payload", Json, nullable=False),
    sa.Column("outputs", Json, nullable=False),
    sa.Column("requires", Json, nullable=False),
    sa.Column("warm_key", sa.String(200)),
    sa.Column("max_retries", sa.Integer, nullable=False),
    sa.Column("timeout_s", sa.Double),
    sa.Column("no_progress_s", sa.Double, nullable=False),
    # newest take; retakes add one
    sa.Column("take", sa.Integer, nullable=False, server_default="1"),
    *(_count(name) for name in STEP_COUNTERS),
    _count("frames_total"),
    _count("frames_done"),
    # running mean of measured seconds per task, for bundles and ETA
    sa.Column("mean_task_s", sa.Double),
    _time("started_at"),
    _time("finished_at"),
    sa.UniqueConstraint("job_id", "name"),
    sa.UniqueConstraint("job_id", "position"),
    sa.Index(
        "ix_steps_ready", "pool", postgresql_where=sa.text("n_ready > 0"), sqlite_where=sa.text("n_ready > 0")
    ),
)

step_dependencies = sa.Table(
    "step_dependencies",
    metadata,
    sa.Column("step_id", Id, sa.ForeignKey("steps.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("on_step_id", Id, sa.ForeignKey("steps.id", ondelete="CASCADE"), primary_key=True, index=True),
    # whole: counted in steps.waiting_on; frames: rows in task_dependencies (and counted in steps.waiting_on
    # while the other step is still deferred, so has no tasks to depend on)
    sa.Column("mode", sa.String(8), nullable=False),
    # no longer counted in steps.waiting_on; a retake of the other step does not count again
    sa.Column("satisfied", sa.Boolean, nullable=False, server_default=sa.false()),
)

tasks = sa.Table(
    "tasks",
    metadata,
    sa.Column("id", Id, primary_key=True),
    sa.Column("step_id", Id, sa.ForeignKey("steps.id", ondelete="CASCADE"), nullable=False),
    sa.Column("position", sa.Integer, nullable=False),
    sa.Column("take", sa.Integer, nullable=False, server_default="1"),
    sa.Column("state", sa.String(12), nullable=False),
    sa.Column("epoch", sa.Integer, nullable=False, server_default="0"),
    sa.Column("rank", sa.Integer, nullable=False, server_default="0"),
    sa.Column("frames", sa.Text),
    sa.Column("payload", Json),
    sa.Column("seconds", sa.Double),
    # task_dependencies that are not done yet
    _count("waiting_on"),
    # attempts that spent the retry budget; node losses so far (three are free)
    _count("charged"),
    _count("node_losses"),
    # it has killed a slot before, so it travels alone
    sa.Column("solo", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("slot_id", Id),
    _time("ready_at"),
    # back-off after a failed attempt
    _time("not_before"),
    _time("dispatched_at"),
    _time("started_at"),
    _time("lease_expires_at"),
    _time("finished_at"),
    # what a person or the scheduler wants of a running task: cancel, park
    sa.Column("wish", sa.String(8)),
    sa.Column("checkpoint", Sha),
    sa.Column("result", Json),
    sa.Column("progress", sa.Double),
    sa.Column("error", sa.Text),
    sa.UniqueConstraint("step_id", "take", "position"),
    sa.Index("ix_tasks_pick", "step_id", "state", "rank", "position"),
    sa.Index(
        "ix_tasks_busy",
        "slot_id",
        postgresql_where=sa.text("state IN ('dispatched', 'running')"),
        sqlite_where=sa.text("state IN ('dispatched', 'running')"),
    ),
)

task_dependencies = sa.Table(
    "task_dependencies",
    metadata,
    sa.Column("task_id", Id, sa.ForeignKey("tasks.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("on_task_id", Id, sa.ForeignKey("tasks.id", ondelete="CASCADE"), primary_key=True, index=True),
)

attempts = sa.Table(
    "attempts",
    metadata,
    # the control file's 48-bit name of the attempt; never given twice (sqlite_autoincrement)
    sa.Column("serial", Serial, primary_key=True, autoincrement=True),
    sa.Column("id", Id, nullable=False, unique=True),
    sa.Column("task_id", Id, sa.ForeignKey("tasks.id", ondelete="CASCADE"), nullable=False, index=True),
    sa.Column("job_id", Id, nullable=False, index=True),
    sa.Column("epoch", sa.Integer, nullable=False),
    sa.Column("number", sa.Integer, nullable=False),
    sa.Column("slot_id", Id, nullable=False),
    sa.Column("node_id", Id, nullable=False),
    sa.Column("state", sa.String(12), nullable=False),
    sa.Column("charged", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("error_type", sa.String(80)),
    sa.Column("error", sa.Text),
    _time("started_at", nullable=False),
    _time("ended_at"),
    *(sa.Column(name, sa.Double) for name in ("queue_s", "fetch_s", "load_s", "work_s", "write_s", "held_s")),
    *(sa.Column(name, sa.Double) for name in ("slot_s", "cpu_s", "gpu_s", "energy_j")),
    sa.Column("peak_rss", Big),
    sa.Column("peak_vram", Big),
    sa.Column("device", Json),
    sa.UniqueConstraint("task_id", "epoch"),
    # a deleted job's serials stay used: a slot's last word would else hit the attempt that gets one again
    sqlite_autoincrement=True,
)

frames = sa.Table(
    "frames",
    metadata,
    sa.Column("step_id", Id, sa.ForeignKey("steps.id", ondelete="CASCADE"), nullable=False),
    sa.Column("take", sa.Integer, nullable=False),
    sa.Column("number", sa.Integer, nullable=False),
    sa.Column("job_id", Id, nullable=False),
    sa.Column("task_id", Id, nullable=False, index=True),
    sa.Column("attempt_id", Id),
    # pending, published
    sa.Column("state", sa.String(10), nullable=False),
    # whether this take is the one that films and downloads use
    sa.Column("is_current", sa.Boolean, nullable=False),
    _time("started_at"),
    sa.Column("duration_s", sa.Double),
    _time("published_at"),
    sa.Column("peak_vram", Big),
    sa.Column("quality", Json),
    # in this order, so that the takes of a frame stand together and a page of frames is one range
    sa.PrimaryKeyConstraint("step_id", "number", "take"),
)

frame_files = sa.Table(
    "frame_files",
    metadata,
    sa.Column("step_id", Id, nullable=False),
    sa.Column("take", sa.Integer, nullable=False),
    sa.Column("number", sa.Integer, nullable=False),
    sa.Column("output", Name, nullable=False),
    sa.Column("sha256", Sha, sa.ForeignKey("contents.sha256"), nullable=False, index=True),
    sa.Column("bytes", Big, nullable=False),
    sa.Column("width", sa.Integer, nullable=False),
    sa.Column("height", sa.Integer, nullable=False),
    sa.Column("channels", Json, nullable=False),
    sa.Column("dtype", sa.String(12), nullable=False),
    sa.Column("color_space", sa.String(40), nullable=False),
    sa.Column("format", sa.String(12), nullable=False),
    sa.ForeignKeyConstraint(
        ["step_id", "number", "take"],
        ["frames.step_id", "frames.number", "frames.take"],
        ondelete="CASCADE",
        name="fk_frame_files_frames",
    ),
    sa.PrimaryKeyConstraint("step_id", "number", "take", "output"),
)

artifacts = sa.Table(
    "artifacts",
    metadata,
    sa.Column("id", Id, primary_key=True),
    sa.Column("job_id", Id, sa.ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False, index=True),
    sa.Column("step_id", Id, nullable=False),
    sa.Column("task_id", Id, nullable=False),
    sa.Column("attempt_id", Id, nullable=False),
    sa.Column("name", Name, nullable=False),
    sa.Column("sha256", Sha, sa.ForeignKey("contents.sha256"), nullable=False, index=True),
    sa.Column("bytes", Big, nullable=False),
    sa.Column("media_type", sa.String(100), nullable=False),
    sa.Column("meta", Json, nullable=False),
    _time("created_at", nullable=False),
)

# --- machines ----------------------------------------------------------------------------------------

nodes = sa.Table(
    "nodes",
    metadata,
    sa.Column("id", Id, primary_key=True),
    sa.Column("name", Name, nullable=False, unique=True),
    # up, draining, drained, down
    sa.Column("state", sa.String(12), nullable=False),
    sa.Column("incarnation", Id, nullable=False),
    sa.Column("info", Json, nullable=False),
    sa.Column("version", sa.Integer, nullable=False, server_default="1"),
    _time("started_at", nullable=False),
    _time("seen_at", nullable=False),
)

slots = sa.Table(
    "slots",
    metadata,
    sa.Column("id", Id, primary_key=True),
    sa.Column("node_id", Id, sa.ForeignKey("nodes.id", ondelete="CASCADE"), nullable=False),
    sa.Column("name", Name, nullable=False),
    # ordered: the first pool with work wins
    sa.Column("pools", Json, nullable=False),
    sa.Column("device", Json, nullable=False),
    # starting, idle, busy, held, draining, dead
    sa.Column("state", sa.String(12), nullable=False),
    # names one process life of the slot; a new process has a new one
    sa.Column("incarnation", Id),
    sa.Column("pid", sa.Integer),
    sa.Column("warm", Json, nullable=False),
    sa.Column("hold_reason", sa.Text),
    sa.Column("restarts", sa.Integer, nullable=False, server_default="0"),
    _time("changed_at", nullable=False),
    _time("beat_at"),
    sa.UniqueConstraint("node_id", "name"),
)

pools = sa.Table(
    "pools",
    metadata,
    sa.Column("name", sa.String(40), primary_key=True),
    # most slots that this pool may use at once; NULL: no cap
    sa.Column("max_slots", sa.Integer),
    sa.Column("paused", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("version", sa.Integer, nullable=False, server_default="1"),
)

buffers = sa.Table(
    "buffers",
    metadata,
    sa.Column("id", Id, primary_key=True),
    sa.Column("node_id", Id, nullable=False),
    sa.Column("slot_id", Id),
    # vram, pinned, shm, spool, store
    sa.Column("medium", sa.String(8), nullable=False),
    # frame staging, checkpoint, weights, dataset
    sa.Column("purpose", sa.String(20), nullable=False),
    sa.Column("dtype", sa.String(12)),
    sa.Column("shape", Json),
    sa.Column("bytes", Big, nullable=False),
    sa.Column("task_id", Id),
    sa.Column("attempt_id", Id),
    sa.Column("epoch", sa.Integer),
    # reserved, filled, draining, released, orphaned
    sa.Column("state", sa.String(10), nullable=False),
    sa.Column("sha256", Sha),
    sa.Column("note", sa.Text),
    _time("created_at", nullable=False),
    _time("changed_at", nullable=False),
    sa.Index(
        "ix_buffers_live",
        "node_id",
        "medium",
        postgresql_where=sa.text("state <> 'released'"),
        sqlite_where=sa.text("state <> 'released'"),
    ),
    sa.Index("ix_buffers_attempt", "attempt_id"),
    sa.Index("ix_buffers_task", "task_id"),
)

byte_budgets = sa.Table(
    "byte_budgets",
    metadata,
    sa.Column("node_id", Id, sa.ForeignKey("nodes.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("medium", sa.String(8), primary_key=True),
    sa.Column("budget_bytes", Big, nullable=False),
    # equals the sum over live buffers
    sa.Column("reserved_bytes", Big, nullable=False, server_default="0"),
)

# --- models ------------------------------------------------------------------------------------------

model_versions = sa.Table(
    "model_versions",
    metadata,
    # over all of its files; what a version holds never changes
    sa.Column("digest", Sha, primary_key=True),
    # where its files lie; the one thing that may move
    sa.Column("folder", sa.Text, nullable=False),
    # what the kind found in it; the farm itself does not look inside
    sa.Column("document", Json, nullable=False),
    sa.Column("user_id", Id, sa.ForeignKey("users.id")),
    _time("added_at", nullable=False),
)

model_names = sa.Table(
    "model_names",
    metadata,
    sa.Column("name", sa.String(64), primary_key=True),
    sa.Column("digest", Sha, sa.ForeignKey("model_versions.digest"), primary_key=True),
    # the version that the bare name means; the others are reached as name@digest
    sa.Column("current", sa.Boolean, nullable=False),
    _time("named_at", nullable=False),
    sa.Index(
        "uq_model_names_current",
        "name",
        unique=True,
        postgresql_where=sa.text("current"),
        sqlite_where=sa.text("current"),
    ),
)

model_measurements = sa.Table(
    "model_measurements",
    metadata,
    sa.Column("digest", Sha, sa.ForeignKey("model_versions.digest", ondelete="CASCADE"), primary_key=True),
    # which choice was measured
    sa.Column("choice", sa.String(2000), primary_key=True),
    sa.Column("data", Json, nullable=False),
    _time("measured_at", nullable=False),
)

# --- the record --------------------------------------------------------------------------------------

events = sa.Table(
    "events",
    metadata,
    sa.Column("id", Serial, primary_key=True, autoincrement=True),
    # PostgreSQL: the writing transaction, so that readers stay below the snapshot's xmin; SQLite: 0
    sa.Column("xid", Big, nullable=False, server_default="0"),
    _time("at", nullable=False),
    sa.Column("type", sa.String(60), nullable=False),
    sa.Column("project_id", Id),
    sa.Column("job_id", Id, index=True),
    sa.Column("step_id", Id),
    sa.Column("task_id", Id),
    sa.Column("slot_id", Id),
    sa.Column("node_id", Id),
    sa.Column("data", Json, nullable=False),
    # the order in which readers may rely on it: see farm/events.py
    sa.Index("ix_events_order", "xid", "id"),
    # readers go on after the last id that they saw: one that comes twice would be missed
    sqlite_autoincrement=True,
)

leaders = sa.Table(
    "leaders",
    metadata,
    sa.Column("role", sa.String(40), primary_key=True),
    sa.Column("holder", Name, nullable=False),
    # grows with every change of holder; fences a leader that slept
    sa.Column("term", Big, nullable=False),
    _time("expires_at", nullable=False),
)
