"""The kinds that this farm knows. Adding one is adding its folder and one line here."""

from __future__ import annotations

import os

from farm.errors import FieldFault, UnknownKind
from jobs.kind import Kind

_BUILT_IN = {
    "nerf": "jobs.nerf",
    "render": "jobs.render",
    "encode": "jobs.encode",
    "video": "jobs.video",
}


def kinds() -> dict[str, Kind]:
    """All kinds by name. ``FARM_EXTRA_KINDS`` adds packages of one's own: ``name=package,name=package``."""
    packages = dict(_BUILT_IN)
    for item in filter(None, os.environ.get("FARM_EXTRA_KINDS", "").split(",")):
        name, _, package = item.partition("=")
        packages[name.strip()] = package.strip()
    return {name: Kind(name, package) for name, package in packages.items()}


def kind(name: str) -> Kind:
    """The kind of that name; raises :class:`farm.errors.UnknownKind` that names the choices."""
    known = kinds()
    if name not in known:
        message = f"there is no kind {name!r}; this farm knows {', '.join(sorted(known))}"
        raise UnknownKind(message, [FieldFault("/kind", message)])
    return known[name]
