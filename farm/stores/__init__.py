"""Contents by SHA-256: one interface, a folder behind it now, an object store later."""

from __future__ import annotations

from farm.errors import InvalidInput
from farm.stores.base import Store
from farm.stores.local import open_local

__all__ = ["Store", "open_store"]


def open_store(url: str, *, free_space_floor: int = 0) -> Store:
    """The store that ``url`` names: a folder's path or ``file:///…``.

    Raises :class:`InvalidInput` for a scheme that no store answers to.
    """
    scheme, separator, _ = url.partition("://")
    if not separator or scheme == "file":
        return open_local(url, free_space_floor)
    raise InvalidInput(f"FARM_STORE_URL {url!r}: no store speaks {scheme!r}; give a folder or file:///folder")
