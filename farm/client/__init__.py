"""The Python client of a farm: ``from farm.client import FarmClient``."""

from farm.client.client import FarmClient
from farm.client.credentials import Credentials, find_credentials

__all__ = ["Credentials", "FarmClient", "find_credentials"]
