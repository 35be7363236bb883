"""What becomes of a task when an attempt of it ends: the rules of retries, in one place.

Done ends it. Parked and interrupted work goes back free. A failure spends a retry, and so does the death of
a slot; ``max_retries`` retries come after the first attempt, with a back-off that doubles. Node losses are
free a few times, then they count. A wish to cancel that was made meanwhile wins over every way back.
"""

from __future__ import annotations

from farm.db.rows import clean_json, clean_text
from farm.frame_range import FrameRange
from farm.lifecycle.task_rows import TaskRow
from farm.records import AttemptReport
from farm.settings import Settings
from farm.states import AttemptState, TaskState

Closing = tuple[AttemptReport, AttemptState, str | None, str | None]
"""How an attempt's row is closed: its report, state, error type and error."""


def leaves_rest(task: TaskRow, report: AttemptReport, lacking: int) -> bool:
    """Whether the attempt ended well before its chunk did: frames are published, ``lacking`` more are not."""
    return (
        report.state == AttemptState.DONE
        and report.split is not None
        and task.frames is not None
        and 0 < lacking < len(FrameRange.parse(task.frames))
    )


def conclude(task: TaskRow, report: AttemptReport, now: float, config: Settings, lacking: int) -> Closing:
    """Move the task (in memory) as its counted report says; how to close the attempt.

    ``lacking`` is the number of its frames that are not published; where it leaves them to others
    (:func:`leaves_rest`) a task that becomes done is to be split.
    """
    state, kind = report.state, report.error_type
    error = clean_text(report.error)[:20_000] if report.error else None
    cancelled = task.cancel_requested or task.wish == "cancel"
    if report.checkpoint is not None:
        task.checkpoint = report.checkpoint
    if leaves_rest(task, report, lacking):
        lacking = 0
        # else nobody wants the rest any more
        state = AttemptState.CANCELLED if cancelled else state
    if state == AttemptState.DONE and lacking:
        state, kind = AttemptState.FAILED, "frames-missing"
        error = f"the attempt ended well, but {lacking} of its frames were never published"
    if state == AttemptState.DONE:
        task.result = clean_json(report.result)
        task.checkpoint = None
        task.progress = 1.0
        task.to_end(TaskState.DONE, now)
    elif state == AttemptState.CANCELLED or cancelled:
        task.checkpoint = None
        task.to_end(TaskState.CANCELLED, now)
        if state in (AttemptState.PARKED, AttemptState.INTERRUPTED):
            state = AttemptState.CANCELLED
    elif state in (AttemptState.PARKED, AttemptState.INTERRUPTED):
        task.to_ready(now)
    elif state == AttemptState.LOST:
        task.solo = task.solo or report.killed_slot
        error = error or "the slot ended while it ran this task"
        spend_retry(task, now, config, error, charged=report.charged)
    else:
        task.solo = task.solo or report.killed_slot
        spend_retry(task, now, config, error or "the attempt failed", permanent=report.permanent)
    return report, state, kind, error


def lose_to_node(task: TaskRow, now: float, config: Settings, error: str) -> bool:
    """The node went away with the task; whether this loss counted as a retry."""
    task.node_losses += 1
    charged = task.node_losses > config.free_node_losses
    spend_retry(task, now, config, error, charged=charged)
    return charged


def spend_retry(
    task: TaskRow, now: float, config: Settings, error: str, *, charged: bool = True, permanent: bool = False
) -> None:
    """Back to ready after a back-off, or failed when no retry is left."""
    if charged or permanent:
        task.charged += 1
    if permanent or task.charged > task.max_retries:
        task.to_end(TaskState.FAILED, now, error)
        return
    if not charged:
        task.to_ready(now)
        return
    pause = min(config.retry_backoff_max_s, config.retry_backoff_s * 2.0 ** (task.charged - 1))
    task.to_ready(now, not_before=now + pause)
    task.error = error
