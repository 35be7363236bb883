"""What ``farm doctor`` finds of the farm's own parts: does the database answer, is its schema this version's,
does the broker answer."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa

from farm.errors import FarmError
from farm.settings import Settings
from gpu_pinning import DoctorFinding

_WAIT_S = 2.0


def reachable(settings: Settings) -> list[DoctorFinding]:
    """Findings on database and broker; nothing is made or changed."""
    return [_database(settings.resolved_database_url), _broker(settings)]


def _database(url: str) -> DoctorFinding:
    parsed = sa.engine.make_url(url)
    shown = parsed.render_as_string(hide_password=True)
    if parsed.get_backend_name() == "sqlite" and not Path(parsed.database or "").exists():
        return DoctorFinding(
            check="database",
            level="ok",
            what=f"{shown} is not there yet: `farm up` or `farm api` makes it",
        )
    try:
        from farm.db.migrate import require_current

        arguments = {} if parsed.get_backend_name() == "sqlite" else {"connect_timeout": int(_WAIT_S)}
        engine = sa.create_engine(url, connect_args=arguments)
        try:
            with engine.connect() as conn:
                conn.execute(sa.text("SELECT 1"))
        finally:
            engine.dispose()
        require_current(url)
    except FarmError as error:
        return _bad(
            "database", f"{shown}: {error.message}", "run `farm api` of this version once: it migrates"
        )
    except (sa.exc.SQLAlchemyError, OSError) as error:
        text = str(getattr(error, "orig", None) or error).strip().splitlines()[0]
        return _bad(
            "database", f"{shown} does not answer: {text}", "start the database, or correct FARM_DATABASE_URL"
        )
    return DoctorFinding(check="database", level="ok", what=f"{shown} answers, and its schema is current")


def _broker(settings: Settings) -> DoctorFinding:
    if not settings.broker_url:
        from farm.broker.embedded import find_server

        try:
            program = find_server()
        except FarmError as error:
            return _bad("broker", error.message, "apt-get install redis-server")
        return DoctorFinding(
            check="broker", level="ok", what=f"FARM_BROKER_URL is empty: `farm up` starts {program}"
        )
    import redis

    try:
        client = redis.Redis.from_url(
            settings.broker_url.replace("redis+socket://", "unix://"),
            socket_timeout=_WAIT_S,
            socket_connect_timeout=_WAIT_S,
        )
        client.ping()
    except (redis.RedisError, OSError, ValueError) as error:
        return _bad("broker", f"the broker does not answer: {error}", "start it, or correct FARM_BROKER_URL")
    return DoctorFinding(check="broker", level="ok", what="the broker answers")


def _bad(check: str, what: str, mend: str) -> DoctorFinding:
    return DoctorFinding(
        check=check, level="bad", what=what, effect=f"no work without the {check}", mend=mend
    )
