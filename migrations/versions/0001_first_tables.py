"""The farm's first tables: who, contents, work, frames, machines, buffers, events."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")
SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "buffers",
        sa.Column("id", sa.String(length=48), nullable=False),
        sa.Column("node_id", sa.String(length=48), nullable=False),
        sa.Column("slot_id", sa.String(length=48), nullable=True),
        sa.Column("medium", sa.String(length=8), nullable=False),
        sa.Column("purpose", sa.String(length=20), nullable=False),
        sa.Column("dtype", sa.String(length=12), nullable=True),
        sa.Column("shape", JSON, nullable=True),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("task_id", sa.String(length=48), nullable=True),
        sa.Column("attempt_id", sa.String(length=48), nullable=True),
        sa.Column("epoch", sa.Integer(), nullable=True),
        sa.Column("state", sa.String(length=10), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=True),
        sa.Column("note", sa.Text(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("changed_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_buffers")),
    )
    op.create_index("ix_buffers_attempt", "buffers", ["attempt_id"], unique=False)
    op.create_index(
        "ix_buffers_live",
        "buffers",
        ["node_id", "medium"],
        unique=False,
        postgresql_where=sa.text("state <> 'released'"),
        sqlite_where=sa.text("state <> 'released'"),
    )
    op.create_index("ix_buffers_task", "buffers", ["task_id"], unique=False)
    op.create_table(
        "contents",
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("touched_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("sha256", name=op.f("pk_contents")),
    )
    op.create_table(
        "events",
        sa.Column("id", SERIAL, autoincrement=True, nullable=False),
        sa.Column("xid", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("type", sa.String(length=60), nullable=False),
        sa.Column("project_id", sa.String(length=48), nullable=True),
        sa.Column("job_id", sa.String(length=48), nullable=True),
        sa.Column("step_id", sa.String(length=48), nullable=True),
        sa.Column("task_id", sa.String(length=48), nullable=True),
        sa.Column("slot_id", sa.String(length=48), nullable=True),
        sa.Column("node_id", sa.String(length=48), nullable=True),
        sa.Column("data", JSON, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_events")),
    )
    op.create_index(op.f("ix_events_job_id"), "events", ["job_id"], unique=False)
    op.create_index("ix_events_order", "events", ["xid", "id"], unique=False)
    op.create_table(
        "idempotency",
        sa.Column("key_id", sa.String(length=48), nullable=False),
        sa.Column("idempotency_key", sa.String(length=255), nullable=False),
        sa.Column("method", sa.String(length=8), nullable=False),
        sa.Column("path", sa.String(length=500), nullable=False),
        sa.Column("body_sha256", sa.String(length=64), nullable=False),
        sa.Column("status", sa.Integer(), nullable=True),
        sa.Column("response", JSON, nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("key_id", "idempotency_key", name=op.f("pk_idempotency")),
    )
    op.create_table(
        "leaders",
        sa.Column("role", sa.String(length=40), nullable=False),
        sa.Column("holder", sa.String(length=200), nullable=False),
        sa.Column("term", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("role", name=op.f("pk_leaders")),
    )
    op.create_table(
        "nodes",
        sa.Column("id", sa.String(length=48), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("state", sa.String(length=12), nullable=False),
        sa.Column("incarnation", sa.String(length=48), nullable=False),
        sa.Column("info", JSON, nullable=False),
        sa.Column("version", sa.Integer(), server_default="1", nullable=False),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("seen_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_nodes")),
        sa.UniqueConstraint("name", name=op.f("uq_nodes_name")),
    )
    op.create_table(
        "pools",
        sa.Column("name", sa.String(length=40), nullable=False),
        sa.Column("max_slots", sa.Integer(), nullable=True),
        sa.Column("paused", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("version", sa.Integer(), server_default="1", nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_pools")),
    )
    op.create_table(
        "projects",
        sa.Column("id", sa.String(length=48), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("share", sa.Double(), server_default="1", nullable=False),
        sa.Column("max_slots", sa.Integer(), nullable=True),
        sa.Column("quota_slot_s", sa.Double(), nullable=True),
        sa.Column("used_slot_s", sa.Double(), server_default="0", nullable=False),
        sa.Column("used_gpu_s", sa.Double(), server_default="0", nullable=False),
        sa.Column("version", sa.Integer(), server_default="1", nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_projects")),
        sa.UniqueConstraint("name", name=op.f("uq_projects_name")),
    )
    op.create_table(
        "users",
        sa.Column("id", sa.String(length=48), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_users")),
        sa.UniqueConstraint("name", name=op.f("uq_users_name")),
    )
    op.create_table(
        "byte_budgets",
        sa.Column("node_id", sa.String(length=48), nullable=False),
        sa.Column("medium", sa.String(length=8), nullable=False),
        sa.Column("budget_bytes", sa.BigInteger(), nullable=False),
        sa.Column("reserved_bytes", sa.BigInteger(), server_default="0", nullable=False),
        sa.ForeignKeyConstraint(
            ["node_id"], ["nodes.id"], name=op.f("fk_byte_budgets_node_id_nodes"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("node_id", "medium", name=op.f("pk_byte_budgets")),
    )
    op.create_table(
        "jobs",
        sa.Column("id", sa.String(length=48), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("kind", sa.String(length=40), nullable=False),
        sa.Column("project_id", sa.String(length=48), nullable=False),
        sa.Column("user_id", sa.String(length=48), nullable=False),
        sa.Column("priority", sa.Integer(), server_default="50", nullable=False),
        sa.Column("labels", JSON, nullable=False),
        sa.Column("spec", JSON, nullable=False),
        sa.Column("state", sa.String(length=12), nullable=False),
        sa.Column("paused", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("cancel_requested", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("waiting_on", sa.Integer(), server_default="0", nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("version", sa.Integer(), server_default="1", nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=True),
        sa.Column("finished_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_jobs_project_id_projects")),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_jobs_user_id_users")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
    )
    op.create_index("ix_jobs_project_created", "jobs", ["project_id", "created_at"], unique=False)
    op.create_index("ix_jobs_state_created", "jobs", ["state", "created_at"], unique=False)
    op.create_table(
        "keys",
        sa.Column("id", sa.String(length=48), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("hmac", sa.String(length=64), nullable=False),
        sa.Column("hint", sa.String(length=12), nullable=False),
        sa.Column("scopes", JSON, nullable=False),
        sa.Column("user_id", sa.String(length=48), nullable=False),
        sa.Column("project_id", sa.String(length=48), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("used_at", sa.Double(), nullable=True),
        sa.Column("revoked_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_keys_project_id_projects")),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_keys_user_id_users")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_keys")),
        sa.UniqueConstraint("hmac", name=op.f("uq_keys_hmac")),
    )
    op.create_table(
        "slots",
        sa.Column("id", sa.String(length=48), nullable=False),
        sa.Column("node_id", sa.String(length=48), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("pools", JSON, nullable=False),
        sa.Column("device", JSON, nullable=False),
        sa.Column("state", sa.String(length=12), nullable=False),
        sa.Column("incarnation", sa.String(length=48), nullable=True),
        sa.Column("pid", sa.Integer(), nullable=True),
        sa.Column("warm", JSON, nullable=False),
        sa.Column("hold_reason", sa.Text(), nullable=True),
        sa.Column("restarts", sa.Integer(), server_default="0", nullable=False),
        sa.Column("changed_at", sa.Double(), nullable=False),
        sa.Column("beat_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(
            ["node_id"], ["nodes.id"], name=op.f("fk_slots_node_id_nodes"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_slots")),
        sa.UniqueConstraint("node_id", "name", name=op.f("uq_slots_node_id_name")),
    )
    op.create_table(
        "artifacts",
        sa.Column("id", sa.String(length=48), nullable=False),
        sa.Column("job_id", sa.String(length=48), nullable=False),
        sa.Column("step_id", sa.String(length=48), nullable=False),
        sa.Column("task_id", sa.String(length=48), nullable=False),
        sa.Column("attempt_id", sa.String(length=48), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("media_type", sa.String(length=100), nullable=False),
        sa.Column("meta", JSON, nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_artifacts_job_id_jobs"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["sha256"], ["contents.sha256"], name=op.f("fk_artifacts_sha256_contents")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_artifacts")),
    )
    op.create_index(op.f("ix_artifacts_job_id"), "artifacts", ["job_id"], unique=False)
    op.create_index(op.f("ix_artifacts_sha256"), "artifacts", ["sha256"], unique=False)
    op.create_table(
        "job_assets",
        sa.Column("job_id", sa.String(length=48), nullable=False),
        sa.Column("path", sa.String(length=1000), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_job_assets_job_id_jobs"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["sha256"], ["contents.sha256"], name=op.f("fk_job_assets_sha256_contents")),
        sa.PrimaryKeyConstraint("job_id", "path", name=op.f("pk_job_assets")),
    )
    op.create_index(op.f("ix_job_assets_sha256"), "job_assets", ["sha256"], unique=False)
    op.create_table(
        "job_dependencies",
        sa.Column("job_id", sa.String(length=48), nullable=False),
        sa.Column("after_job_id", sa.String(length=48), nullable=False),
        sa.Column("satisfied", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.ForeignKeyConstraint(
            ["after_job_id"],
            ["jobs.id"],
            name=op.f("fk_job_dependencies_after_job_id_jobs"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_job_dependencies_job_id_jobs"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", "after_job_id", name=op.f("pk_job_dependencies")),
    )
    op.create_index(
        op.f("ix_job_dependencies_after_job_id"), "job_dependencies", ["after_job_id"], unique=False
    )
    op.create_table(
        "steps",
        sa.Column("id", sa.String(length=48), nullable=False),
        sa.Column("job_id", sa.String(length=48), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("engine", sa.String(length=40), nullable=False),
        sa.Column("pool", sa.String(length=40), nullable=False),
        sa.Column("state", sa.String(length=12), nullable=False),
        sa.Column("deferred", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("deferred_on", sa.String(length=48), nullable=True),
        sa.Column("waiting_on", sa.Integer(), server_default="0", nullable=False),
        sa.Column("payload", JSON, nullable=False),
        sa.Column("outputs", JSON, nullable=False),
        sa.Column("requires", JSON, nullable=False),
        sa.Column("warm_key", sa.String(length=200), nullable=True),
        sa.Column("max_retries", sa.Integer(), nullable=False),
        sa.Column("timeout_s", sa.Double(), nullable=True),
        sa.Column("no_progress_s", sa.Double(), nullable=False),
        sa.Column("take", sa.Integer(), server_default="1", nullable=False),
        sa.Column("n_blocked", sa.Integer(), server_default="0", nullable=False),
        sa.Column("n_ready", sa.Integer(), server_default="0", nullable=False),
        sa.Column("n_dispatched", sa.Integer(), server_default="0", nullable=False),
        sa.Column("n_running", sa.Integer(), server_default="0", nullable=False),
        sa.Column("n_done", sa.Integer(), server_default="0", nullable=False),
        sa.Column("n_failed", sa.Integer(), server_default="0", nullable=False),
        sa.Column("n_cancelled", sa.Integer(), server_default="0", nullable=False),
        sa.Column("n_unreachable", sa.Integer(), server_default="0", nullable=False),
        sa.Column("frames_total", sa.Integer(), server_default="0", nullable=False),
        sa.Column("frames_done", sa.Integer(), server_default="0", nullable=False),
        sa.Column("mean_task_s", sa.Double(), nullable=True),
        sa.Column("started_at", sa.Double(), nullable=True),
        sa.Column("finished_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_steps_job_id_jobs"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_steps")),
        sa.UniqueConstraint("job_id", "name", name=op.f("uq_steps_job_id_name")),
        sa.UniqueConstraint("job_id", "position", name=op.f("uq_steps_job_id_position")),
    )
    op.create_index(
        "ix_steps_ready",
        "steps",
        ["pool"],
        unique=False,
        postgresql_where=sa.text("n_ready > 0"),
        sqlite_where=sa.text("n_ready > 0"),
    )
    op.create_table(
        "web_sessions",
        sa.Column("id", sa.String(length=48), nullable=False),
        sa.Column("hmac", sa.String(length=64), nullable=False),
        sa.Column("csrf", sa.String(length=64), nullable=False),
        sa.Column("key_id", sa.String(length=48), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["key_id"], ["keys.id"], name=op.f("fk_web_sessions_key_id_keys")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_web_sessions")),
        sa.UniqueConstraint("hmac", name=op.f("uq_web_sessions_hmac")),
    )
    op.create_table(
        "frames",
        sa.Column("step_id", sa.String(length=48), nullable=False),
        sa.Column("take", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("job_id", sa.String(length=48), nullable=False),
        sa.Column("task_id", sa.String(length=48), nullable=False),
        sa.Column("attempt_id", sa.String(length=48), nullable=True),
        sa.Column("state", sa.String(length=10), nullable=False),
        sa.Column("is_current", sa.Boolean(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=True),
        sa.Column("duration_s", sa.Double(), nullable=True),
        sa.Column("published_at", sa.Double(), nullable=True),
        sa.Column("peak_vram", sa.BigInteger(), nullable=True),
        sa.Column("quality", JSON, nullable=True),
        sa.ForeignKeyConstraint(
            ["step_id"], ["steps.id"], name=op.f("fk_frames_step_id_steps"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("step_id", "number", "take", name=op.f("pk_frames")),
    )
    op.create_index(op.f("ix_frames_task_id"), "frames", ["task_id"], unique=False)
    op.create_table(
        "step_dependencies",
        sa.Column("step_id", sa.String(length=48), nullable=False),
        sa.Column("on_step_id", sa.String(length=48), nullable=False),
        sa.Column("mode", sa.String(length=8), nullable=False),
        sa.Column("satisfied", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.ForeignKeyConstraint(
            ["on_step_id"],
            ["steps.id"],
            name=op.f("fk_step_dependencies_on_step_id_steps"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["step_id"], ["steps.id"], name=op.f("fk_step_dependencies_step_id_steps"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("step_id", "on_step_id", name=op.f("pk_step_dependencies")),
    )
    op.create_index(
        op.f("ix_step_dependencies_on_step_id"), "step_dependencies", ["on_step_id"], unique=False
    )
    op.create_table(
        "tasks",
        sa.Column("id", sa.String(length=48), nullable=False),
        sa.Column("step_id", sa.String(length=48), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("take", sa.Integer(), server_default="1", nullable=False),
        sa.Column("state", sa.String(length=12), nullable=False),
        sa.Column("epoch", sa.Integer(), server_default="0", nullable=False),
        sa.Column("rank", sa.Integer(), server_default="0", nullable=False),
        sa.Column("frames", sa.Text(), nullable=True),
        sa.Column("payload", JSON, nullable=True),
        sa.Column("seconds", sa.Double(), nullable=True),
        sa.Column("waiting_on", sa.Integer(), server_default="0", nullable=False),
        sa.Column("charged", sa.Integer(), server_default="0", nullable=False),
        sa.Column("node_losses", sa.Integer(), server_default="0", nullable=False),
        sa.Column("solo", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("slot_id", sa.String(length=48), nullable=True),
        sa.Column("ready_at", sa.Double(), nullable=True),
        sa.Column("not_before", sa.Double(), nullable=True),
        sa.Column("dispatched_at", sa.Double(), nullable=True),
        sa.Column("started_at", sa.Double(), nullable=True),
        sa.Column("lease_expires_at", sa.Double(), nullable=True),
        sa.Column("finished_at", sa.Double(), nullable=True),
        sa.Column("wish", sa.String(length=8), nullable=True),
        sa.Column("checkpoint", sa.String(length=64), nullable=True),
        sa.Column("result", JSON, nullable=True),
        sa.Column("progress", sa.Double(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["step_id"], ["steps.id"], name=op.f("fk_tasks_step_id_steps"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tasks")),
        sa.UniqueConstraint("step_id", "take", "position", name=op.f("uq_tasks_step_id_take_position")),
    )
    op.create_index(
        "ix_tasks_busy",
        "tasks",
        ["slot_id"],
        unique=False,
        postgresql_where=sa.text("state IN ('dispatched', 'running')"),
        sqlite_where=sa.text("state IN ('dispatched', 'running')"),
    )
    op.create_index("ix_tasks_pick", "tasks", ["step_id", "state", "rank", "position"], unique=False)
    op.create_table(
        "attempts",
        sa.Column("serial", SERIAL, autoincrement=True, nullable=False),
        sa.Column("id", sa.String(length=48), nullable=False),
        sa.Column("task_id", sa.String(length=48), nullable=False),
        sa.Column("job_id", sa.String(length=48), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("slot_id", sa.String(length=48), nullable=False),
        sa.Column("node_id", sa.String(length=48), nullable=False),
        sa.Column("state", sa.String(length=12), nullable=False),
        sa.Column("charged", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("error_type", sa.String(length=80), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.Column("queue_s", sa.Double(), nullable=True),
        sa.Column("fetch_s", sa.Double(), nullable=True),
        sa.Column("load_s", sa.Double(), nullable=True),
        sa.Column("work_s", sa.Double(), nullable=True),
        sa.Column("write_s", sa.Double(), nullable=True),
        sa.Column("held_s", sa.Double(), nullable=True),
        sa.Column("slot_s", sa.Double(), nullable=True),
        sa.Column("cpu_s", sa.Double(), nullable=True),
        sa.Column("gpu_s", sa.Double(), nullable=True),
        sa.Column("energy_j", sa.Double(), nullable=True),
        sa.Column("peak_rss", sa.BigInteger(), nullable=True),
        sa.Column("peak_vram", sa.BigInteger(), nullable=True),
        sa.Column("device", JSON, nullable=True),
        sa.ForeignKeyConstraint(
            ["task_id"], ["tasks.id"], name=op.f("fk_attempts_task_id_tasks"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("serial", name=op.f("pk_attempts")),
        sa.UniqueConstraint("id", name=op.f("uq_attempts_id")),
        sa.UniqueConstraint("task_id", "epoch", name=op.f("uq_attempts_task_id_epoch")),
    )
    op.create_index(op.f("ix_attempts_job_id"), "attempts", ["job_id"], unique=False)
    op.create_index(op.f("ix_attempts_task_id"), "attempts", ["task_id"], unique=False)
    op.create_table(
        "frame_files",
        sa.Column("step_id", sa.String(length=48), nullable=False),
        sa.Column("take", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("output", sa.String(length=200), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("width", sa.Integer(), nullable=False),
        sa.Column("height", sa.Integer(), nullable=False),
        sa.Column("channels", JSON, nullable=False),
        sa.Column("dtype", sa.String(length=12), nullable=False),
        sa.Column("color_space", sa.String(length=40), nullable=False),
        sa.Column("format", sa.String(length=12), nullable=False),
        sa.ForeignKeyConstraint(["sha256"], ["contents.sha256"], name=op.f("fk_frame_files_sha256_contents")),
        sa.ForeignKeyConstraint(
            ["step_id", "number", "take"],
            ["frames.step_id", "frames.number", "frames.take"],
            name="fk_frame_files_frames",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("step_id", "number", "take", "output", name=op.f("pk_frame_files")),
    )
    op.create_index(op.f("ix_frame_files_sha256"), "frame_files", ["sha256"], unique=False)
    op.create_table(
        "task_dependencies",
        sa.Column("task_id", sa.String(length=48), nullable=False),
        sa.Column("on_task_id", sa.String(length=48), nullable=False),
        sa.ForeignKeyConstraint(
            ["on_task_id"],
            ["tasks.id"],
            name=op.f("fk_task_dependencies_on_task_id_tasks"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["task_id"], ["tasks.id"], name=op.f("fk_task_dependencies_task_id_tasks"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("task_id", "on_task_id", name=op.f("pk_task_dependencies")),
    )
    op.create_index(
        op.f("ix_task_dependencies_on_task_id"), "task_dependencies", ["on_task_id"], unique=False
    )


def downgrade() -> None:
    op.drop_index(op.f("ix_task_dependencies_on_task_id"), table_name="task_dependencies")
    op.drop_table("task_dependencies")
    op.drop_index(op.f("ix_frame_files_sha256"), table_name="frame_files")
    op.drop_table("frame_files")
    op.drop_index(op.f("ix_attempts_task_id"), table_name="attempts")
    op.drop_index(op.f("ix_attempts_job_id"), table_name="attempts")
    op.drop_table("attempts")
    op.drop_index("ix_tasks_pick", table_name="tasks")
    op.drop_index(
        "ix_tasks_busy",
        table_name="tasks",
        postgresql_where=sa.text("state IN ('dispatched', 'running')"),
        sqlite_where=sa.text("state IN ('dispatched', 'running')"),
    )
    op.drop_table("tasks")
    op.drop_index(op.f("ix_step_dependencies_on_step_id"), table_name="step_dependencies")
    op.drop_table("step_dependencies")
    op.drop_index(op.f("ix_frames_task_id"), table_name="frames")
    op.drop_table("frames")
    op.drop_table("web_sessions")
    op.drop_index(
        "ix_steps_ready",
        table_name="steps",
        postgresql_where=sa.text("n_ready > 0"),
        sqlite_where=sa.text("n_ready > 0"),
    )
    op.drop_table("steps")
    op.drop_index(op.f("ix_job_dependencies_after_job_id"), table_name="job_dependencies")
    op.drop_table("job_dependencies")
    op.drop_index(op.f("ix_job_assets_sha256"), table_name="job_assets")
    op.drop_table("job_assets")
    op.drop_index(op.f("ix_artifacts_sha256"), table_name="artifacts")
    op.drop_index(op.f("ix_artifacts_job_id"), table_name="artifacts")
    op.drop_table("artifacts")
    op.drop_table("slots")
    op.drop_table("keys")
    op.drop_index("ix_jobs_state_created", table_name="jobs")
    op.drop_index("ix_jobs_project_created", table_name="jobs")
    op.drop_table("jobs")
    op.drop_table("byte_budgets")
    op.drop_table("users")
    op.drop_table("projects")
    op.drop_table("pools")
    op.drop_table("nodes")
    op.drop_table("leaders")
    op.drop_table("idempotency")
    op.drop_index("ix_events_order", table_name="events")
    op.drop_index(op.f("ix_events_job_id"), table_name="events")
    op.drop_table("events")
    op.drop_table("contents")
    op.drop_index("ix_buffers_task", table_name="buffers")
    op.drop_index(
        "ix_buffers_live",
        table_name="buffers",
        postgresql_where=sa.text("state <> 'released'"),
        sqlite_where=sa.text("state <> 'released'"),
    )
    op.drop_index("ix_buffers_attempt", table_name="buffers")
    op.drop_table("buffers")
