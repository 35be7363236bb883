"""ETag and If-Match of things that people change: the tag is the version of what can be changed."""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import Header, Response

from api.problems import HttpProblem

_TAG = re.compile(r'^(?:W/)?"(\d{1,9})"$')

IfMatch = Annotated[
    str | None,
    Header(alias="If-Match", description="The ETag that you read, or `*` to change whatever is there"),
]


def tag(response: Response, version: int) -> None:
    """Put the ETag of a version on a response."""
    response.headers["ETag"] = f'"{version}"'


def expected(if_match: str | None) -> int | None:
    """The version that an If-Match names; ``None`` for ``*``.

    Raises a 428 when the header is missing and a 412 when it is no tag of ours.
    """
    if if_match is None:
        raise HttpProblem(
            428,
            "precondition-required",
            "send If-Match with the ETag that you read, or * to change whatever is there",
        )
    if if_match.strip() == "*":
        return None
    match = _TAG.match(if_match.strip())
    if match is None:
        raise HttpProblem(412, "precondition-failed", f"If-Match {if_match[:40]!r} is not an ETag of this")
    return int(match[1])
