"""Errors of the child; ``kind`` is what the parent maps to the farm's own error tree."""

from __future__ import annotations


class Fault(Exception):
    """Something that was asked for cannot be done."""

    kind = "failed"


class BadInput(Fault):
    """The file or the spec is at fault: trying again cannot help."""

    kind = "permanent"


class NoDevice(Fault):
    """The device that was asked for is not there."""

    kind = "device"
