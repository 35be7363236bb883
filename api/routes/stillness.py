"""The stillness bench on this machine, live: what `farm bench stillness --live` writes in the data folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter
from fastapi import Path as InPath
from fastapi.responses import Response

from api.auth import Reader
from api.models.stillness import Stillness
from api.route import FarmRoute
from api.services import Use
from farm.errors import NotFound

router = APIRouter(prefix="/v1", route_class=FarmRoute)
_LARGEST = 4 * 2**20
_NONE = "no stillness run is shown here: start one on this machine with `farm bench stillness --live`"


@router.get("/stillness", tags=["machines"])
def read_stillness(use: Use, who: Reader) -> Stillness:
    """The run of the stillness bench that goes on, or went on last, on the API's machine."""
    try:
        return Stillness.model_validate(json.loads(_read(use.settings.stillness / "live.json")))
    except ValueError:
        # not ours, or of another version
        raise NotFound(_NONE) from None


@router.get("/stillness/pictures/{pool}", tags=["machines"], response_class=Response)
def read_picture(pool: Annotated[str, InPath(pattern="^[a-z]{1,20}$")], use: Use, who: Reader) -> Response:
    """The last picture (PNG) of a pool's work in that run."""
    return Response(_read(use.settings.stillness / f"picture-{pool}.png"), media_type="image/png")


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_LARGEST)
    except OSError:
        raise NotFound(_NONE) from None
