"""How an attempt's end is told: what its error means, and whose fault it was."""

from __future__ import annotations

import traceback

from farm.errors import (
    CancelRequested,
    FarmError,
    Interrupted,
    NotInstalled,
    OutOfSpace,
    ParkRequested,
    PermanentFailure,
)
from farm.records import AttemptReport
from farm.states import AttemptState
from workers.disks import Disks, tells_of_full_disk

_EXTRAS = {
    **dict.fromkeys(("mitsuba", "mitsuba_oidn", "drjit", "OpenEXR", "trimesh", "av"), "render"),
    **dict.fromkeys(("torch", "diffusers", "transformers", "peft", "safetensors"), "video"),
    **dict.fromkeys(("pycolmap", "gsplat"), "nerf"),
}
"""Which extra brings a module that is missing."""


def describe(error: Exception, report: AttemptReport) -> str | None:
    """Write into the report what the error means; the lines for the attempt's log, None where it has none.

    A failure spends a retry, a permanent one all of them; what the farm asked for spends none.
    """
    report.state = AttemptState.FAILED
    if isinstance(error, ParkRequested):
        report.state = AttemptState.PARKED
    elif isinstance(error, CancelRequested):
        report.state = AttemptState.CANCELLED
    elif isinstance(error, Interrupted):
        report.state = AttemptState.INTERRUPTED
    report.charged = report.state is AttemptState.FAILED
    if report.state is not AttemptState.FAILED:
        return None
    report.permanent = isinstance(error, PermanentFailure | NotInstalled)
    if isinstance(error, OSError) and tells_of_full_disk(error):
        where = error.filename or "while a frame was written"
        error = OutOfSpace(f"the disk is full ({where}): free some space or run `farm gc`")
    if isinstance(error, ModuleNotFoundError) and (extra := _EXTRAS.get(str(error.name).partition(".")[0])):
        error = NotInstalled(f"{error} on this node: pip install 'stillframe[{extra}]'")
        report.permanent = True
    if isinstance(error, FarmError):
        report.error_type, report.error = error.slug, error.message
        return f"failed: {error.message}"
    report.error_type, report.error = type(error).__name__, f"{type(error).__name__}: {error}"
    return "".join(traceback.format_exception(error))


def blame_disk(report: AttemptReport, disks: Disks) -> str | None:
    """Whether a failed attempt failed for want of room; then it is free, and the slot is to be held for this.

    To be asked when the attempt's own files are gone: room that is there now was taken by the attempt
    itself, and then the failure is its own. A permanent failure stays one.
    """
    if report.state is not AttemptState.FAILED or report.permanent:
        return None
    told = report.error_type == OutOfSpace.slug or tells_of_full_disk(Exception(report.error))
    full = disks.refuses() if told else disks.short()
    if full is not None:
        report.state, report.charged = AttemptState.INTERRUPTED, False
        report.error_type = OutOfSpace.slug
    return full
