"""Who asks, and what they may do: a key in the Authorization header, or a browser session's cookie.

Scopes: ``read`` looks; ``submit`` submits, follows and commands one's own jobs; ``operate`` commands any job,
nodes and pools; ``admin`` may everything, people and keys among it; ``worker`` is for node agents. A key of
one project sees that project's things alone, and one that may submit and no more its user's jobs: all others
are "not found".
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NoReturn

from fastapi import Request, Security
from fastapi.security import APIKeyCookie, HTTPBearer, SecurityScopes

from api.services import Services, services_in
from farm import keyring
from farm.errors import Forbidden, NotFound, Unauthenticated
from farm.repositories import sessions

COOKIE = "farm_session"
CSRF_HEADER = "x-csrf-token"
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})

_bearer = HTTPBearer(auto_error=False, scheme_name="key", description="A key, as `Authorization: Bearer`")
_cookie = APIKeyCookie(
    name=COOKIE,
    auto_error=False,
    scheme_name="session",
    description="A session from `POST /v1/session`; unsafe methods also need X-CSRF-Token",
)


@dataclass(frozen=True, slots=True)
class Principal:
    """The caller of a request."""

    key_id: str
    user_id: str
    scopes: frozenset[str]
    project_id: str | None
    session_id: str | None = None
    csrf: str | None = None
    expires_at: float | None = None

    def may(self, scope: str) -> bool:
        """Whether the caller has a scope; ``admin`` has all."""
        return scope in self.scopes or "admin" in self.scopes

    def require(self, *scopes: str) -> None:
        """Raise :class:`farm.errors.Forbidden` unless the caller has one of the scopes."""
        if not any(self.may(scope) for scope in scopes):
            raise Forbidden(
                f"this needs a key with the scope {' or '.join(scopes)}; "
                f"this key has {', '.join(sorted(self.scopes)) or 'none'}"
            )

    def require_whole_farm(self, what: str) -> None:
        """Raise :class:`farm.errors.Forbidden` for a key of one project."""
        if self.project_id is not None:
            raise Forbidden(f"{what} concerns the whole farm, and this key is limited to one project")

    def sees(self, project_id: str | None) -> bool:
        """Whether things of this project are visible."""
        return self.project_id is None or self.project_id == project_id

    @property
    def own_alone(self) -> bool:
        """Whether only its user's own jobs are visible."""
        return not (self.may("read") or self.may("operate"))

    def sees_job(self, job: Mapping[str, Any]) -> bool:
        """Whether a job, with its ``project_id`` and ``user_id``, is visible."""
        return self.sees(job["project_id"]) and (not self.own_alone or job["user_id"] == self.user_id)

    def require_command(self, job: dict[str, Any]) -> None:
        """Raise :class:`farm.errors.Forbidden` unless the caller may command this job."""
        if self.may("operate"):
            return
        self.require("submit", "operate")
        if job["user_id"] != self.user_id:
            raise Forbidden("this job is another user's; commanding it needs a key with the scope operate")


def authenticate(request: Request) -> Principal:
    """The caller of a request, from its key or its cookie. Blocking.

    Raises :class:`farm.errors.Unauthenticated`, and :class:`farm.errors.Forbidden` where a session's unsafe
    request lacks its CSRF token.
    """
    services = services_in(request)
    header = request.headers.get("authorization")
    if header is not None:
        kind, _, secret = header.partition(" ")
        if kind.lower() != "bearer" or not secret.strip():
            raise Unauthenticated("send the key as `Authorization: Bearer KEY`")
        return of_secret(services, secret.strip())
    token = request.cookies.get(COOKIE)
    if not token:
        raise Unauthenticated("send a key as `Authorization: Bearer KEY`, or sign in at POST /v1/session")
    with services.db.read() as conn:
        session = sessions.find_session(conn, token[:200])
    if session is None:
        raise Unauthenticated("this session is over; sign in again")
    if request.method not in SAFE_METHODS:
        _check_csrf(request, session["csrf"])
    return Principal(
        key_id=session["key_id"],
        user_id=session["user_id"],
        scopes=frozenset(session["scopes"]),
        project_id=session["project_id"],
        session_id=session["id"],
        csrf=session["csrf"],
        expires_at=session["expires_at"],
    )


def of_secret(services: Services, secret: str) -> Principal:
    """The caller who has this key. Raises :class:`farm.errors.Unauthenticated`."""
    with services.db.read() as conn:
        key = services.keyring.find(conn, secret[:300])
    if key is None:
        raise Unauthenticated("this key is unknown or was revoked; ask for another one")
    if key.stale:
        with services.db.write() as conn:
            keyring.note_use(conn, key.id)
    return Principal(key.id, key.user_id, key.scopes, key.project_id)


def _check_csrf(request: Request, expected: str) -> None:
    given = request.headers.get(CSRF_HEADER, "")
    if not hmac.compare_digest(given.encode(), expected.encode()):
        raise Forbidden("a session's changes need its CSRF token in the header X-CSRF-Token")


async def _principal(
    request: Request,
    scopes: SecurityScopes,
    _key: Annotated[Any, Security(_bearer)],
    _session: Annotated[Any, Security(_cookie)],
) -> Principal:
    # the route class has authenticated already; this checks scopes and documents both ways
    principal = request.state.principal
    assert isinstance(principal, Principal)
    principal.require(*scopes.scopes)
    return principal


Reader = Annotated[Principal, Security(_principal, scopes=["read"])]
Viewer = Annotated[Principal, Security(_principal, scopes=["read", "submit"])]
"""May look at jobs and all that belongs to them: any with ``read``, one's own with ``submit``."""
Submitter = Annotated[Principal, Security(_principal, scopes=["submit"])]
Commander = Annotated[Principal, Security(_principal, scopes=["submit", "operate"])]
"""May command jobs: one's own with ``submit``, any with ``operate``."""
Operator = Annotated[Principal, Security(_principal, scopes=["operate"])]
Admin = Annotated[Principal, Security(_principal, scopes=["admin"])]
Anyone = Annotated[Principal, Security(_principal, scopes=["read", "submit", "operate", "worker"])]


def not_found(what: str, name: str) -> NoReturn:
    """Raise the same :class:`farm.errors.NotFound` for what is missing and for what is out of sight."""
    raise NotFound(f"there is no {what} {name[:80]!r}")
