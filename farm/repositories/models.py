"""Models by name: versions that never change, names that point at one of them, and measurements.

The farm keeps a version's document as the kind wrote it and looks inside nowhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from farm.db import tables as t
from farm.db.connect import db_now
from farm.errors import Conflict, NotFound
from farm.repositories.reading.keyset import Row, page, row, rows

_V, _N, _M = t.model_versions.c, t.model_names.c, t.model_measurements.c


def add_version(
    conn: sa.Connection,
    *,
    name: str,
    digest: str,
    folder: str,
    document: Mapping[str, Any],
    user_id: str | None,
) -> Row:
    """Let ``name`` mean this version from now on; a version that is known already only moves its folder."""
    known = row(conn, sa.select(t.model_versions).where(_V.digest == digest).with_for_update())
    if known is None:
        conn.execute(
            sa.insert(t.model_versions).values(
                digest=digest, folder=folder, document=dict(document), user_id=user_id, added_at=db_now()
            )
        )
    else:
        conn.execute(
            sa.update(t.model_versions)
            .where(_V.digest == digest)
            .values(folder=folder, document=dict(document))
        )
    conn.execute(sa.update(t.model_names).where(_N.name == name, _N.current).values(current=False))
    renamed = conn.execute(
        sa.update(t.model_names)
        .where(_N.name == name, _N.digest == digest)
        .values(current=True, named_at=db_now())
    )
    if not renamed.rowcount:
        conn.execute(
            sa.insert(t.model_names).values(name=name, digest=digest, current=True, named_at=db_now())
        )
    found = find(conn, name)
    assert found is not None
    return found


def find(conn: sa.Connection, reference: str) -> Row | None:
    """The version that ``name`` means, or ``name@digest`` (eight digits of it or more), or ``None``.

    A row has ``name, digest, current, folder, document, measured, added_at, named_at``. Raises
    :class:`farm.errors.Conflict` where a short digest fits two versions.
    """
    name, _, digest = reference.partition("@")
    query = _query().where(_N.name == name)
    query = query.where(_N.digest.startswith(digest, autoescape=True)) if digest else query.where(_N.current)
    found = rows(conn, query.limit(2))
    if len(found) > 1:
        raise Conflict(f"{reference} fits several versions; write more digits of the digest")
    return _with_measurements(conn, found)[0] if found else None


def names(conn: sa.Connection, limit: int = 50) -> list[str]:
    """The names that there are, in order."""
    return list(conn.execute(sa.select(_N.name).where(_N.current).order_by(_N.name).limit(limit)).scalars())


def list_models(
    conn: sa.Connection, *, every_version: bool, position: Sequence[Any] | None, limit: int
) -> list[Row]:
    """Current versions by name, or every one; keyset ``(name, digest)``. Rows as :func:`find` gives them."""
    query = _query() if every_version else _query().where(_N.current)
    return _with_measurements(conn, page(conn, query, (_N.name, _N.digest), position, limit))


def remove(conn: sa.Connection, reference: str) -> None:
    """Forget a name with all of its versions, or one version of it that is not current.

    Jobs that were submitted keep what they need; files are never touched. Raises
    :class:`farm.errors.NotFound`, and :class:`farm.errors.Conflict` for the current one of several versions.
    """
    found = find(conn, reference)
    if found is None:
        raise NotFound(f"there is no model {reference[:80]!r}")
    name, exact = found["name"], "@" in reference
    mine = _N.name == name
    if exact and found["current"]:
        others = conn.execute(sa.select(sa.func.count()).select_from(t.model_names).where(mine)).scalar_one()
        if others > 1:
            raise Conflict(f"{name} means this version now; add another one first, or remove the name whole")
    digests = list(conn.execute(sa.select(_N.digest).where(mine)).scalars())
    if exact:
        digests, mine = [found["digest"]], sa.and_(mine, _N.digest == found["digest"])
    conn.execute(sa.delete(t.model_names).where(mine))
    unnamed = sa.not_(sa.exists().where(_N.digest == _V.digest))
    conn.execute(sa.delete(t.model_versions).where(_V.digest.in_(digests), unnamed))


def measure(conn: sa.Connection, digest: str, choice: str, data: Mapping[str, Any]) -> None:
    """Keep a measurement of a choice; replaces an earlier one."""
    where = sa.and_(_M.digest == digest, _M.choice == choice)
    conn.execute(sa.delete(t.model_measurements).where(where))
    conn.execute(
        sa.insert(t.model_measurements).values(
            digest=digest, choice=choice, data=dict(data), measured_at=db_now()
        )
    )


def _query() -> sa.Select[Any]:
    joined = t.model_names.join(t.model_versions, _N.digest == _V.digest)
    return sa.select(
        _N.name, _N.digest, _N.current, _N.named_at, _V.folder, _V.document, _V.added_at
    ).select_from(joined)


def _with_measurements(conn: sa.Connection, found: list[Row]) -> list[Row]:
    digests = {one["digest"] for one in found}
    measured: dict[str, dict[str, Any]] = {digest: {} for digest in digests}
    query = sa.select(_M.digest, _M.choice, _M.data).where(_M.digest.in_(digests))
    for digest, choice, data in conn.execute(query):
        measured[digest][choice] = data
    return [{**one, "measured": measured[one["digest"]]} for one in found]
