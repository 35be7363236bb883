"""Models: add a version, list, read, remove, and keep what was measured."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from pydantic import ValidationError

from api import pages
from api.auth import Admin, Reader, not_found
from api.models.video_models import (
    ListedModel,
    Measured,
    MeasuredAdd,
    Model,
    ModelAdd,
    ModelDetail,
    ModelPage,
    ModelRules,
)  # fmt: skip
from api.pages import Cursor, Limit
from api.route import FarmRoute
from api.services import Use
from farm.errors import FieldFault, InvalidInput
from farm.repositories import models
from jobs.video.gates import Gate
from jobs.video.models import WEIGHTS, ModelVersion, digest_of, version_of
from jobs.video.resolve import preset_defaults

router = APIRouter(prefix="/v1", route_class=FarmRoute)


@router.get("/models", tags=["models"])
def list_models(
    use: Use,
    who: Reader,
    versions: Annotated[bool, Query(description="Older versions as well")] = False,
    limit: Limit = pages.DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> ModelPage:
    """Models by name."""
    position = pages.decode("models", cursor, [str, str])
    with use.db.read() as conn:
        rows = models.list_models(conn, every_version=versions, position=position, limit=limit + 1)
    rows, following = pages.page("models", rows, limit, lambda row: [row["name"], row["digest"]])
    return ModelPage(
        items=[Model.model_validate(_shown(row)) for row in rows],
        next=following,
        data=[ListedModel(id=row["name"], created=int(row["added_at"])) for row in rows if row["current"]],
    )


@router.post("/models", tags=["models"], status_code=201)
def add_model(body: ModelAdd, use: Use, who: Admin, response: Response) -> ModelDetail:
    """Add a version; the name means it from now on. What is there already keeps its digest.

    Jobs that were submitted keep the version that they were submitted with.
    """
    who.require_whole_farm("adding a model")
    _check(body)
    digest = digest_of(body.files)
    document = body.model_dump(mode="json", include={"remote_code", "files", "facts"})
    try:
        ModelVersion.model_validate({**document, "name": body.name, "digest": digest, "folder": body.folder})
    except ValidationError as error:  # pragma: no cover - the body's own types are the same
        raise InvalidInput(str(error.errors()[0]["msg"])) from None
    with use.writing() as conn:
        row = models.add_version(
            conn, name=body.name, digest=digest, folder=body.folder, document=document, user_id=who.user_id
        )
    response.headers["Location"] = f"/v1/models/{body.name}@{digest}"
    return ModelDetail.model_validate(_shown(row))


@router.get("/models/{model}", tags=["models"])
def read_model(model: str, use: Use, who: Reader) -> ModelDetail:
    """One version, by `name` or `name@digest`, with its files."""
    with use.db.read() as conn:
        row = models.find(conn, model)
    if row is None:
        not_found("model", model)
    return ModelDetail.model_validate(_shown(row))


@router.delete("/models/{model}", tags=["models"], status_code=204, response_class=Response)
def remove_model(model: str, use: Use, who: Admin) -> None:
    """Forget a name with its versions, or `name@digest` alone. Files stay; so do jobs that were submitted."""
    who.require_whole_farm("removing a model")
    with use.writing() as conn:
        models.remove(conn, model)


@router.put("/models/{model}/measurements", tags=["models"])
def measure_model(model: str, body: MeasuredAdd, use: Use, who: Admin) -> ModelDetail:
    """Keep how like the plain films those of a lossy choice are, as `farm models gate` measured it."""
    who.require_whole_farm("measuring a model")
    with use.writing() as conn:
        row = models.find(conn, model)
        if row is None:
            not_found("model", model)
        models.measure(conn, row["digest"], body.choice, body.model_dump(exclude={"choice"}))
        row = models.find(conn, model)
    return ModelDetail.model_validate(_shown(row or {}))


def _check(body: ModelAdd) -> None:
    faults = []
    if not PurePosixPath(body.folder).is_absolute():
        faults.append(FieldFault("/folder", "write the folder's absolute path, the same on every node"))
    for index, file in enumerate(body.files):
        path = PurePosixPath(file.path)
        if path.is_absolute() or ".." in path.parts or "\0" in file.path or str(path) != file.path:
            faults.append(
                FieldFault(f"/files/{index}/path", f"{file.path[:80]!r} is no path inside the folder")
            )
        elif path.suffix == ".py" and not body.remote_code:
            faults.append(
                FieldFault(f"/files/{index}/path", "Python needs remote_code, which allows it to run")
            )
    if not any(file.path.endswith(WEIGHTS) for file in body.files):
        faults.append(
            FieldFault("/files", "there are no .safetensors among the files, and nothing else is read")
        )
    if len({file.path for file in body.files}) != len(body.files):
        faults.append(FieldFault("/files", "a file is named twice"))
    if body.facts.remote_code and not body.remote_code:
        faults.append(
            FieldFault("/remote_code", "this folder brings Python of its own; remote_code allows it")
        )
    if faults:
        raise InvalidInput("; ".join(f"{f.pointer}: {f.message}" for f in faults[:5]), faults[:100])


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    version = ModelVersion.model_validate(version_of(row))
    facts, record = version.facts, version.facts.record()
    standard = preset_defaults(facts, "standard")
    defaults = {
        name: getattr(standard, name)
        for name in ("size", "frames", "fps", "steps", "guidance", "guidance_2", "flow_shift")
        if getattr(standard, name) is not None
    }
    rules = {task: facts.counts(task) for task in facts.tasks}
    return {
        "name": version.name,
        "digest": version.digest,
        "current": row["current"],
        "family": facts.family,
        "title": record.title,
        "pipeline_class": facts.pipeline_class,
        "tasks": {
            task: ModelRules(frames=rule.describe(), least_frames=rule.least, most_frames=rule.most)
            for task, rule in rules.items()
        },
        "resume": facts.resume,
        "size_divisor": facts.size_divisor,
        "fixed_size": facts.fixed_size,
        "defaults": defaults,
        "experts": facts.denoisers,
        "schedulers": list(record.schedulers),
        "attention": list(record.backends),
        "caches": list(record.caches),
        "dtypes": list(record.dtypes),
        "max_sequence_length": facts.max_sequence_length,
        "parameters": facts.parameters,
        "weight_bytes": facts.weight_bytes,
        "folder": version.folder,
        "remote_code": version.remote_code,
        "measured": {choice: _measured(gate) for choice, gate in version.gates.items()},
        "files": version.files,
        "added_at": row["added_at"],
        "named_at": row["named_at"],
    }


def _measured(gate: Gate) -> Measured:
    return Measured.model_validate({**gate.model_dump(), "passed": gate.passed})
