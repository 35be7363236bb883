"""Alembic migrations of the farm's database; run them through :mod:`farm.db.migrate`."""
