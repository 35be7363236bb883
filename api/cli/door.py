"""The command line's way to a farm. The client's libraries are imported when a farm is first asked: a help
text needs none of them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.cli import terminal
from farm.errors import FarmError, InvalidInput, NotFound
from farm.ids import is_id

if TYPE_CHECKING:
    from farm.client import FarmClient

_PART = re.compile(r"(job_)?[0-9a-f]{4,32}")
_SHOWN = 5
_OFFERED = 30


def connect() -> FarmClient:
    """A client of the farm that FARM_URL and FARM_KEY name, or of the one in the user's key file."""
    from farm.client import FarmClient

    return FarmClient.connect(say=terminal.say)


def full_id(text: str) -> str:
    """A job's id from its beginning or its end, at least four digits of it; other ids are left alone.

    Raises :class:`farm.errors.NotFound` where no job has it and :class:`farm.errors.InvalidInput` where
    several do.
    """
    if is_id(text, "job") or not _PART.fullmatch(text):
        return text
    with connect() as farm:
        found = list(farm.jobs(limit=_SHOWN + 1, id=text))
    if not found:
        raise NotFound(f"no job's id begins or ends with {text!r}; `farm jobs` lists them")
    if len(found) > 1:
        shown = ", ".join(f"{job.id} ({job.name})" for job in found[:_SHOWN])
        more = " …" if len(found) > _SHOWN else ""
        raise InvalidInput(f"{text!r} is part of several jobs' ids: {shown}{more}; write more of it")
    return found[0].id


def full_ids(texts: list[str]) -> list[str]:
    """:func:`full_id` of each."""
    return [full_id(text) for text in texts]


def offer_jobs(incomplete: str) -> list[tuple[str, str]]:
    """Ids of the newest jobs that begin so, with their names, for the shell."""
    try:
        with connect() as farm:
            found = list(farm.jobs(limit=_OFFERED))
    except (FarmError, OSError):
        return []
    return [(job.id, f"{job.name} ({job.state})") for job in found if job.id.startswith(incomplete)]


def offer(*values: str) -> Any:
    """Completes one of these words."""

    def complete(incomplete: str) -> list[str]:
        return [value for value in values if value.startswith(incomplete)]

    return complete


JobId = Annotated[
    str,
    typer.Argument(
        metavar="JOB",
        help="Id of a job, or its beginning or end (`farm jobs` lists them).",
        callback=full_id,
        autocompletion=offer_jobs,
    ),
]
JobIds = Annotated[
    list[str],
    typer.Argument(
        metavar="JOB...",
        help="Ids of jobs, or their beginnings or ends.",
        callback=full_ids,
        autocompletion=offer_jobs,
    ),
]
