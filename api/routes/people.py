"""Projects, users and keys."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Response

from api import pages, versions
from api.auth import Admin, Anyone, Principal, Reader, not_found
from api.models.common import Page
from api.models.people import Key, KeyMade, KeyMake, Project, ProjectChange, ProjectMake, User, UserMake
from api.pages import Cursor, Limit
from api.problems import invalid_parameter
from api.route import FarmRoute
from api.services import Use
from api.versions import IfMatch
from farm import keyring
from farm.errors import Forbidden
from farm.repositories.reading import people

router = APIRouter(prefix="/v1", route_class=FarmRoute)

_CHANGED: dict[int | str, dict[str, Any]] = {
    412: {"description": "It changed"},
    428: {"description": "No tag"},
}


@router.get("/projects", tags=["people"])
def list_projects(
    use: Use, who: Reader, limit: Limit = pages.DEFAULT_LIMIT, cursor: Cursor = None
) -> Page[Project]:
    """Projects by name; with a key of one project, that one."""
    position = pages.decode("projects", cursor, [str])
    with use.db.read() as conn:
        rows = people.list_projects(conn, project_id=who.project_id, position=position, limit=limit + 1)
    rows, following = pages.page("projects", rows, limit, lambda row: [row["name"]])
    return Page[Project](items=[Project.model_validate(row) for row in rows], next=following)


@router.post("/projects", tags=["people"], status_code=201)
def make_project(body: ProjectMake, use: Use, who: Admin, response: Response) -> Project:
    """Make a project."""
    who.require_whole_farm("making a project")
    with use.writing() as conn:
        made = Project.model_validate(people.make_project(conn, body.model_dump()))
    response.headers["Location"] = f"/v1/projects/{made.id}"
    versions.tag(response, made.version)
    return made


@router.get("/projects/{project}", tags=["people"])
def read_project(project: str, use: Use, who: Reader, response: Response) -> Project:
    """One project, by id or name."""
    with use.db.read() as conn:
        found = find_project(conn, who, project)
    versions.tag(response, found["version"])
    return Project.model_validate(found)


@router.patch("/projects/{project}", tags=["people"], responses=_CHANGED)
def change_project(
    project: str, body: ProjectChange, use: Use, who: Admin, response: Response, if_match: IfMatch = None
) -> Project:
    """Change a project's name, share, cap or quota, or whether it reserves slots."""
    who.require_whole_farm("changing a project")
    version = versions.expected(if_match)
    values = body.model_dump(exclude_unset=True)
    for name in ("name", "share", "reserved"):
        if name in values and values[name] is None:
            raise invalid_parameter("body", name, f"{name} cannot be null; leave it out to keep it")
    with use.writing("scheduler") as conn:
        found = find_project(conn, who, project)
        changed = Project.model_validate(people.change_project(conn, found["id"], values, version))
    versions.tag(response, changed.version)
    return changed


def find_project(conn: Any, who: Principal, name_or_id: str) -> dict[str, Any]:
    """A project that the caller may see; raises :class:`farm.errors.NotFound`."""
    found = people.find_project(conn, name_or_id)
    if found is None or not who.sees(found["id"]):
        not_found("project", name_or_id)
    return found


@router.get("/users", tags=["people"])
def list_users(
    use: Use, who: Reader, limit: Limit = pages.DEFAULT_LIMIT, cursor: Cursor = None
) -> Page[User]:
    """Users by name; with a key of one project, yourself."""
    position = pages.decode("users", cursor, [str])
    own = who.user_id if who.project_id is not None else None
    with use.db.read() as conn:
        rows = people.list_users(conn, user_id=own, position=position, limit=limit + 1)
    rows, following = pages.page("users", rows, limit, lambda row: [row["name"]])
    return Page[User](items=[User.model_validate(row) for row in rows], next=following)


@router.post("/users", tags=["people"], status_code=201)
def make_user(body: UserMake, use: Use, who: Admin, response: Response) -> User:
    """Make a user."""
    who.require_whole_farm("making a user")
    with use.writing() as conn:
        made = User.model_validate(people.make_user(conn, body.name))
    response.headers["Location"] = f"/v1/users/{made.id}"
    return made


@router.get("/users/{user}", tags=["people"])
def read_user(user: str, use: Use, who: Reader) -> User:
    """One user, by id or name."""
    with use.db.read() as conn:
        found = people.find_user(conn, user)
    if found is None or (who.project_id is not None and found["id"] != who.user_id):
        not_found("user", user)
    return User.model_validate(found)


@router.get("/keys", tags=["keys"])
def list_keys(
    use: Use,
    who: Admin,
    revoked: Annotated[bool | None, Query()] = None,
    limit: Limit = pages.DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> Page[Key]:
    """Keys, newest first, without their secrets."""
    position = pages.decode("keys", cursor, [float, str])
    with use.db.read() as conn:
        rows = people.list_keys(
            conn, project_id=who.project_id, revoked=revoked, position=position, limit=limit + 1
        )
    rows, following = pages.page("keys", rows, limit, lambda row: [row["created_at"], row["id"]])
    return Page[Key](items=[Key.model_validate(row) for row in rows], next=following)


@router.post("/keys", tags=["keys"], status_code=201)
def make_key(body: KeyMake, use: Use, who: Admin, response: Response) -> KeyMade:
    """Make a key. Its secret stands in this answer and nowhere else, ever."""
    with use.writing() as conn:
        project_id = find_project(conn, who, body.project)["id"] if body.project is not None else None
        if who.project_id is not None and project_id != who.project_id:
            raise Forbidden("this key is limited to one project and makes keys of that project alone")
        user_id = who.user_id
        if body.user is not None:
            user = people.find_user(conn, body.user)
            if user is None or (who.project_id is not None and user["id"] != who.user_id):
                not_found("user", body.user)
            user_id = user["id"]
        secret, key_id = use.keyring.make_key(
            conn, name=body.name, scopes=sorted(set(body.scopes)), user_id=user_id, project_id=project_id
        )
        row = people.get_key(conn, key_id)
    response.headers["Location"] = f"/v1/keys/{key_id}"
    return KeyMade.model_validate({**(row or {}), "secret": secret})


@router.get("/keys/{key_id}", tags=["keys"])
def read_key(key_id: str, use: Use, who: Anyone) -> Key:
    """One key without its secret; with the scope admin any, else the one that you are using."""
    if key_id != who.key_id:
        who.require("admin")
    with use.db.read() as conn:
        return Key.model_validate(_key(conn, who, key_id))


@router.delete("/keys/{key_id}", tags=["keys"], status_code=204, response_class=Response)
def revoke_key(key_id: str, use: Use, who: Admin) -> None:
    """End a key, and the sessions that it opened, at once."""
    with use.writing() as conn:
        _key(conn, who, key_id)
        keyring.revoke_key(conn, key_id)


def _key(conn: Any, who: Principal, key_id: str) -> dict[str, Any]:
    found = people.get_key(conn, key_id)
    if found is None or not (found["id"] == who.key_id or who.sees(found["project_id"])):
        not_found("key", key_id)
    return found
