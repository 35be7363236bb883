"""The first key of a farm: made once, kept in the user's key file."""

from __future__ import annotations

import getpass
from dataclasses import dataclass

from farm import keyring
from farm.client.credentials import Credentials, remember, stored_for
from farm.db.connect import Database
from farm.settings import Settings


@dataclass(frozen=True, slots=True)
class FirstKey:
    """``key`` is ``None`` when the farm has keys that were made elsewhere; ``fresh`` when it is new."""

    key: str | None
    fresh: bool


def first_key(settings: Settings, url: str) -> FirstKey:
    """Make the farm's first key, or find the one kept for this data folder; the command line then uses it.

    A farm that has a living key gets no second one: who lost the key makes a new one with another.
    """
    database = Database(settings.resolved_database_url)
    try:
        ring = keyring.Keyring.open(settings)
        stored = stored_for(settings.data)
        with database.write() as conn:
            if stored is not None and ring.find(conn, stored.key) is not None:
                secret, fresh = stored.key, False
            else:
                made = keyring.first_key(conn, ring, user=_user())
                if made is None:
                    return FirstKey(None, False)
                secret, fresh = made, True
            # inside the transaction: a key that could not be kept is not made
            remember(settings.data, Credentials(url, secret))
    finally:
        database.dispose()
    return FirstKey(secret, fresh)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "owner"
