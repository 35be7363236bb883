"""Browser sessions: a key is given once and exchanged for a cookie."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from api import auth
from api.auth import Anyone, Principal
from api.models.people import Login, Session
from api.route import FarmRoute, PublicRoute
from api.services import Services, Use
from farm.repositories import sessions
from farm.repositories.reading import people

login = APIRouter(prefix="/v1", route_class=PublicRoute)
router = APIRouter(prefix="/v1", route_class=FarmRoute)


@login.post("/session", tags=["session"], status_code=201)
def open_session(request: Request, response: Response, body: Login, use: Use) -> Session:
    """Exchange a key for a session cookie (HttpOnly, SameSite=Strict) and a CSRF token.

    An Idempotency-Key has no effect here: exchanging a key twice gives two sessions and harms nothing.
    """
    who = auth.of_secret(use, body.key)
    with use.db.write() as conn:
        opened = sessions.open_session(conn, who.key_id)
    response.set_cookie(
        auth.COOKIE,
        opened.token,
        max_age=int(sessions.LIFETIME_S),
        path="/",
        secure=use.settings.behind_tls or request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )
    return _session(use, who, opened.csrf, opened.expires_at)


@router.get("/session", tags=["session"])
def read_session(use: Use, who: Anyone) -> Session:
    """Who you are, and the CSRF token of your session."""
    return _session(use, who, who.csrf, who.expires_at)


@router.delete("/session", tags=["session"], status_code=204, response_class=Response)
def close_session(request: Request, use: Use, who: Anyone) -> Response:
    """Sign out: the session ends and its cookie is removed."""
    if who.session_id is not None:
        with use.db.write() as conn:
            sessions.close_session(conn, who.session_id)
    response = Response(status_code=204)
    secure = use.settings.behind_tls or request.url.scheme == "https"
    response.delete_cookie(auth.COOKIE, path="/", secure=secure, httponly=True, samesite="strict")
    return response


def _session(use: Services, who: Principal, csrf: str | None, expires_at: float | None) -> Session:
    with use.db.read() as conn:
        user = people.find_user(conn, who.user_id)
    return Session.model_validate(
        {
            "user": user["name"] if user else "",
            "user_id": who.user_id,
            "key_id": who.key_id,
            "scopes": sorted(who.scopes),
            "project_id": who.project_id,
            "csrf": csrf,
            "expires_at": expires_at,
        }
    )
