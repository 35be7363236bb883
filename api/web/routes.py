"""Routes of the dashboard's pages and of their scripts, styles and fonts.

A page is a shell: it holds no farm data and needs no key. Its script asks ``/v1`` with the session cookie,
and sends people without a session to the sign-in page. So the dashboard can do nothing that the REST API
does not allow, and there is one place that checks rights.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from fastapi.staticfiles import StaticFiles
from fastapi.templating import Jinja2Templates

_HERE = Path(__file__).resolve().parent

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)
_templates = Jinja2Templates(directory=_HERE / "templates")
_static = StaticFiles(directory=_HERE / "static")


def _page(request: Request, name: str, **values: Any) -> HTMLResponse:
    response = _templates.TemplateResponse(request, f"{name}.html", {"page": name, **values})
    response.headers["Cache-Control"] = "no-cache"
    return response


@router.get("/")
async def home() -> RedirectResponse:
    """The job list is the front page."""
    return RedirectResponse("/jobs", status_code=307)


@router.get("/signin")
async def signin(request: Request) -> HTMLResponse:
    """Asks for a key once."""
    return _page(request, "signin")


@router.get("/jobs")
async def jobs(request: Request) -> HTMLResponse:
    """The live job list."""
    return _page(request, "jobs")


@router.get("/jobs/{job_id}")
async def job(request: Request, job_id: str) -> HTMLResponse:
    """One job; its script reads the id from the address."""
    return _page(request, "job")


@router.get("/machines")
async def machines(request: Request) -> HTMLResponse:
    """Nodes and slots."""
    return _page(request, "machines")


@router.get("/stillness")
async def stillness(request: Request) -> HTMLResponse:
    """A run of the stillness bench, live."""
    return _page(request, "stillness")


@router.get("/buffers")
async def buffers(request: Request) -> HTMLResponse:
    """Buffers and byte budgets."""
    return _page(request, "buffers")


@router.get("/submit")
async def submit(request: Request) -> HTMLResponse:
    """A form for a render job."""
    return _page(request, "submit")


@router.get("/submit/video")
async def submit_video(request: Request) -> HTMLResponse:
    """A form for a video job."""
    return _page(request, "submit_video", page="submit", kind="video")


@router.get("/static/{path:path}")
async def static(request: Request, path: str) -> Response:
    """Scripts, styles and fonts. Asked about each time (304 by ETag), so that an upgrade shows at once."""
    response = await _static.get_response(path, request.scope)
    response.headers["Cache-Control"] = "no-cache"
    return response
