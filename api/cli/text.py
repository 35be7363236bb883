"""Numbers and times as people read them."""

from __future__ import annotations

from datetime import UTC, datetime

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def size(nbytes: float | None) -> str:
    """Bytes in binary units: ``1.5 GiB``."""
    if nbytes is None:
        return "–"  # noqa: RUF001
    value = float(nbytes)
    for unit in _UNITS:
        if abs(value) < 1024 or unit == _UNITS[-1]:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError("the last unit returns")


def duration(seconds: float | None) -> str:
    """Seconds as ``0.4 s``, ``42 s``, ``3:07`` or ``2:03:11``."""
    if seconds is None:
        return "–"  # noqa: RUF001
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def ago(moment: datetime | None, now: datetime | None = None) -> str:
    """How long ago a moment was: ``12 s ago``, ``3 h ago``, else the date."""
    if moment is None:
        return "–"  # noqa: RUF001
    now = now or datetime.now(UTC)
    seconds = (now - moment.astimezone(UTC)).total_seconds()
    if seconds < 60:
        return f"{max(0, int(seconds))} s ago"
    if seconds < 3600:
        return f"{int(seconds // 60)} min ago"
    if seconds < 86_400:
        return f"{int(seconds // 3600)} h ago"
    return moment.astimezone().strftime("%Y-%m-%d")


def percent(fraction: float) -> str:
    """A fraction as whole per cent; 100 only when it is all."""
    return f"{min(int(fraction * 100), 99) if fraction < 1 else 100} %"
