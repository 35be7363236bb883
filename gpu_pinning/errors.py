"""The errors of gpu_pinning, one tree::

    PinningError
    ├── ConfigError        farm.toml: names the field, the value and the fix
    ├── TopologyError      a machine, live or recorded, that cannot be read
    ├── FenceError         a fence that could not be put up, or did not read back
    │   └── KillRefused    killing this slot would take others down with it (MPS)
    ├── MigError           a MIG instance that was asked for and is not there
    ├── Claimed            cores or GPUs that another agent of this machine gives out
    └── DeviceBusy         video memory that did not come free in time

The docstring of each class is its default message.
"""

from __future__ import annotations


class PinningError(Exception):
    """gpu_pinning could not do what was asked."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (self.__doc__ or "").strip())


class ConfigError(PinningError):
    """farm.toml cannot be used.

    ``problems`` holds one ``(field, value, fix)`` for each bad field, all of them at once.
    """

    def __init__(self, source: str, problems: list[tuple[str, object, str]]) -> None:
        self.source = source
        self.problems = problems
        lines = [f"{field} = {value!r}: {fix}" for field, value, fix in problems]
        super().__init__(f"{source}: " + "; ".join(lines))


class TopologyError(PinningError):
    """The machine could not be read."""


class FenceError(PinningError):
    """A fence could not be put up."""


class KillRefused(FenceError):
    """This slot is an MPS client: killing it would take every other client of the GPU down. Drain it."""


class MigError(PinningError):
    """A MIG instance that was asked for is not there."""


class Claimed(PinningError):
    """Another agent on this machine gives out the same cores or GPUs."""


class DeviceBusy(PinningError):
    """Video memory of a dead slot was not seen free in time."""
