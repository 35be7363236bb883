"""The OpenAPI document shows each request's body by an example that the farm would take."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from api.app import create_app
from farm.db.connect import Database
from farm.settings import Settings
from farm.stores import open_store


class _NoWakes:
    def wake(self, channel: str) -> bool:
        return True

    def wait(self, channels: str | list[str], timeout_s: float) -> bool:
        return False


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder: Path = tmp_path_factory.mktemp("farm")
    settings = Settings(data=folder)
    db = Database(f"sqlite:///{folder / 'farm.db'}")
    try:
        return create_app(settings, db, open_store(settings.resolved_store), _NoWakes()).openapi()
    finally:
        db.dispose()


def _bodies(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            for media_type, content in operation.get("requestBody", {}).get("content", {}).items():
                yield f"{method.upper()} {path}", media_type, content


def _examples(document: dict[str, Any], content: dict[str, Any]) -> list[Any]:
    schema = content["schema"]
    if "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    named = [one["value"] for one in content.get("examples", {}).values()]
    alone = [content["example"]] if "example" in content else []
    return [*named, *alone, *schema.get("examples", ())]


def test_every_request_body_has_an_example(document: dict[str, Any]) -> None:
    bodies = list(_bodies(document))
    assert len(bodies) >= 20
    assert [(what, kind) for what, kind, content in bodies if not _examples(document, content)] == []


def test_every_example_of_json_is_valid(document: dict[str, Any]) -> None:
    checked = 0
    for what, media_type, content in _bodies(document):
        if media_type != "application/json":
            continue
        schema = {**content["schema"], "components": document["components"]}
        for found in _examples(document, content):
            jsonschema_rs.Draft202012Validator(schema).validate(found)
            checked += 1
            assert found, what
    assert checked >= 17
