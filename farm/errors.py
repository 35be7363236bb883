"""The one error tree of the project.

    FarmError
    ├── InvalidInput            422  a field has a value the farm cannot take
    │   ├── InvalidSpec              one or more fields of a job's spec
    │   ├── InvalidFrameRange        a frame range, with the position of the fault
    │   ├── UnknownKind              no such kind; names the ones there are
    │   └── LimitExceeded            too many tasks, frames or bytes in one request
    ├── NotFound                404  no such job, step, task, frame, asset…
    ├── Conflict                409  the thing is in a state that does not allow this
    │   ├── IdempotencyMismatch      same Idempotency-Key, another body
    │   └── StillAnswering           same Idempotency-Key, the first request is not answered yet
    ├── PreconditionFailed      412  If-Match names an older version
    ├── TooLarge                413  the body is over the limit
    ├── Unauthenticated         401  no key, or a key that is unknown or revoked
    ├── Forbidden               403  the key lacks a scope, or the Host or CSRF check failed
    ├── HashMismatch            422  the bytes do not have the SHA-256 that was named
    ├── Unavailable             503  broker, database or store cannot be reached
    │   └── OutOfSpace          507  the disk or a byte budget is full
    ├── NotInstalled                 a program or an extra is missing; names the package
    └── TaskError                    raised inside an attempt, by engines and by the host
        ├── TaskFailed               the work failed; spends a retry
        │   ├── UnverifiedFrame      the written file does not read back as declared
        │   ├── EscapedPath          a scene names a path outside the job's assets
        │   ├── DeviceUnavailable    the device asked for is not there
        │   ├── TimedOut             wall-clock or no-progress limit
        │   └── PermanentFailure     retrying cannot help: fails at once, whatever the retry budget
        └── Interrupted              not a fault of the work; spends no retry
            ├── CancelRequested
            ├── ParkRequested
            └── FencedOff            the attempt's epoch is over; nothing it made counts

A message is written for the person who reads it: it names the field, the value and what to do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class FieldFault:
    """One bad field: JSON pointer into the request body (``/spec/frames``) and what is wrong with it."""

    pointer: str
    message: str


class FarmError(Exception):
    """Something the farm was asked to do cannot be done."""

    status: ClassVar[int] = 500
    slug: ClassVar[str] = "farm-error"
    title: ClassVar[str] = "The farm could not do this"

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or "").strip().splitlines()[0])

    @property
    def message(self) -> str:
        """The text for the person who reads it."""
        return str(self.args[0])


class InvalidInput(FarmError):
    """A field has a value that the farm cannot take."""

    status = 422
    slug = "invalid-input"
    title = "A field has a value that the farm cannot take"

    def __init__(self, message: str | None = None, faults: list[FieldFault] | None = None) -> None:
        super().__init__(message)
        self.faults = faults or []


class InvalidSpec(InvalidInput):
    """The job's spec has a field with a value that the farm cannot take."""

    slug = "invalid-spec"
    title = "The job's spec is not valid"


class InvalidFrameRange(InvalidInput):
    """The frame range cannot be read."""

    slug = "invalid-frame-range"
    title = "The frame range cannot be read"

    def __init__(self, message: str, position: int, pointer: str = "") -> None:
        super().__init__(message, [FieldFault(pointer, message)])
        self.position = position


class UnknownKind(InvalidInput):
    """There is no such kind of job."""

    slug = "unknown-kind"
    title = "There is no such kind of job"


class LimitExceeded(InvalidInput):
    """The request is over a limit of this farm."""

    slug = "limit-exceeded"
    title = "The request is over a limit of this farm"


class NotFound(FarmError):
    """There is no such thing."""

    status = 404
    slug = "not-found"
    title = "There is no such thing"


class Conflict(FarmError):
    """The thing is in a state that does not allow this."""

    status = 409
    slug = "conflict"
    title = "The thing is in a state that does not allow this"


class IdempotencyMismatch(Conflict):
    """This Idempotency-Key was used before with another request."""

    slug = "idempotency-mismatch"
    title = "This Idempotency-Key was used before with another request"


class StillAnswering(Conflict):
    """The first request with this Idempotency-Key is still being answered; send it again in a moment."""

    slug = "still-answering"
    title = "The first request with this Idempotency-Key is still being answered"


class PreconditionFailed(FarmError):
    """The thing has changed since you read it; read it again."""

    status = 412
    slug = "precondition-failed"
    title = "The thing has changed since you read it"


class TooLarge(FarmError):
    """The body is over the limit."""

    status = 413
    slug = "too-large"
    title = "The body is over the limit"


class Unauthenticated(FarmError):
    """No valid key was given."""

    status = 401
    slug = "unauthenticated"
    title = "No valid key was given"


class Forbidden(FarmError):
    """This key may not do that."""

    status = 403
    slug = "forbidden"
    title = "This key may not do that"


class HashMismatch(InvalidInput):
    """The bytes do not have the SHA-256 that was named."""

    slug = "hash-mismatch"
    title = "The bytes do not have the SHA-256 that was named"


class Unavailable(FarmError):
    """Something the farm needs cannot be reached."""

    status = 503
    slug = "unavailable"
    title = "Something the farm needs cannot be reached"


class OutOfSpace(Unavailable):
    """The disk or a byte budget is full."""

    status = 507
    slug = "out-of-space"
    title = "The disk or a byte budget is full"


class NotInstalled(FarmError):
    """A program or an extra that this needs is not installed."""

    status = 501
    slug = "not-installed"
    title = "A program or an extra that this needs is not installed"


class TaskError(FarmError):
    """An attempt ended without finishing its task."""

    slug = "task-error"


class TaskFailed(TaskError):
    """The work of an attempt failed."""

    slug = "task-failed"


class UnverifiedFrame(TaskFailed):
    """A written frame does not read back as it was declared."""

    slug = "unverified-frame"


class EscapedPath(TaskFailed):
    """A scene names a path outside the job's assets."""

    slug = "escaped-path"


class DeviceUnavailable(TaskFailed):
    """The device that the job asked for is not there."""

    slug = "device-unavailable"


class TimedOut(TaskFailed):
    """The attempt passed its time limit, or showed no progress for too long."""

    slug = "timed-out"


class PermanentFailure(TaskFailed):
    """Retrying cannot help: the input itself is at fault."""

    slug = "permanent-failure"


class Interrupted(TaskError):
    """The attempt was stopped by the farm; no fault of the work."""

    slug = "interrupted"


class CancelRequested(Interrupted):
    """A person cancelled the work."""

    slug = "cancelled"


class ParkRequested(Interrupted):
    """The slot is wanted for something else; the work goes on later from its checkpoint."""

    slug = "parked"


class FencedOff(Interrupted):
    """This attempt is over; another one may be running."""

    slug = "fenced-off"
