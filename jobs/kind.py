"""What a kind is: three rooms in one folder, ``spec.py``, ``expand.py`` and ``engine.py``."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, cast

from pydantic import BaseModel, ValidationError

from farm.errors import FieldFault, InvalidSpec, NotInstalled
from farm.plan import JobPlan, StepPlan
from jobs.engine import Engine
from jobs.known_fields import instead_of

_EXTRAS: Final = {"render": "render", "encode": "render", "video": "video", "nerf": "nerf"}
"""Kind to the extra of this distribution that its engine needs."""


@dataclass(frozen=True, slots=True)
class Asset:
    """An asset of a job as ``expand`` sees it: where it stands in the job, its hash and size in bytes."""

    path: str
    sha256: str
    bytes: int


@dataclass(frozen=True, slots=True)
class ExpandContext:
    """What ``expand`` may look at besides the spec. ``expand`` is pure: no files, no clock, no network;
    what it looks up (models) it looks up here.
    """

    assets: Mapping[str, Asset] = field(default_factory=dict)
    max_tasks: int = 250_000
    max_frames: int = 1_000_000
    model: Callable[[str], Mapping[str, Any] | None] = lambda name: None
    """The document of a model version, by ``name`` or ``name@digest``."""
    model_names: Callable[[], list[str]] = list
    """The names that there are."""


class SpecModel(Protocol):
    """The pydantic model class of a kind's spec."""

    def __call__(self, **data: Any) -> BaseModel: ...


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of job. The rooms are imported when first needed; only ``engine`` may import heavy things.

    The folder's modules offer:

    - ``spec.py``: a pydantic model named ``Spec`` (``extra="forbid"``, every field described).
    - ``expand.py``: ``expand(spec, context) -> JobPlan`` and, where the kind has deferred steps,
      ``expand_deferred(spec, step_name, results, context) -> StepPlan``.
    - ``engine.py``: ``create() -> Engine``.
    - ``attachments.py``, where the kind has it: ``check(spec, plan, file)``.
    """

    name: str
    package: str

    def spec_model(self) -> type[BaseModel]:
        """The kind's ``Spec``."""
        return cast("type[BaseModel]", importlib.import_module(f"{self.package}.spec").Spec)

    def parse(self, data: Mapping[str, Any]) -> BaseModel:
        """Check a spec; raises :class:`farm.errors.InvalidSpec` with a pointer for each bad field."""
        try:
            return self.spec_model().model_validate(dict(data))
        except ValidationError as error:
            raise InvalidSpec(*_faults(self, error, data)) from None

    def expand(self, spec: BaseModel, context: ExpandContext) -> JobPlan:
        """Spec to steps and tasks."""
        return cast(JobPlan, importlib.import_module(f"{self.package}.expand").expand(spec, context))

    def check_attachments(self, spec: BaseModel, plan: JobPlan, file: Callable[[str], Path | None]) -> None:
        """Look at assets before the job is stored, where the kind can (``attachments.py``); cheap, light.

        ``file`` maps a job path to a local file. Raises :class:`farm.errors.InvalidSpec`.
        """
        if importlib.util.find_spec(f"{self.package}.attachments") is not None:
            importlib.import_module(f"{self.package}.attachments").check(spec, plan, file)

    def expand_deferred(
        self, spec: BaseModel, step_name: str, results: list[dict[str, Any]], context: ExpandContext
    ) -> StepPlan:
        """The tasks of a deferred step, from what the step it waited for found."""
        module = importlib.import_module(f"{self.package}.expand")
        return cast(StepPlan, module.expand_deferred(spec, step_name, results, context))

    def create_engine(self) -> Engine:
        """A fresh engine; imports what the kind needs to run.

        Raises :class:`farm.errors.NotInstalled` where this machine lacks a library of it.
        """
        try:
            module = importlib.import_module(f"{self.package}.engine")
        except ModuleNotFoundError as error:
            lacking = (error.name or "").partition(".")[0]
            if lacking in ("", self.package.partition(".")[0], "farm", "jobs"):
                raise
            extra = _EXTRAS.get(self.name)
            way = f": pip install 'stillframe[{extra}]' there" if extra else ""
            raise NotInstalled(
                f"this machine lacks {lacking}, which jobs of kind {self.name} need{way}, or let its slots "
                "serve other pools"
            ) from error
        return cast(Engine, module.create())


def _faults(kind: Kind, error: ValidationError, data: Mapping[str, Any]) -> tuple[str, list[FieldFault]]:
    faults = []
    for item in error.errors():
        path = _in_document(data, item["loc"])
        # a check of several fields together says which one it blames (jobs.fields.fault)
        path += item.get("ctx", {}).get("field", "").split("/") if item["type"] == "field_fault" else []
        pointer = "/".join(["/spec", *filter(None, path)])
        message = item["msg"].removeprefix("Value error, ")
        if item["type"] == "extra_forbidden":
            near = instead_of(kind.spec_model().model_json_schema(), data, path)
            message = f"kind {kind.name!r} has no such field; {near}"
        elif not isinstance(item["input"], dict | list) and item["type"] not in {
            "value_error",
            "field_fault",
        }:
            message = f"{message} (got {item['input']!r})"
        faults.append(FieldFault(pointer, message))
    text = "; ".join(f"{fault.pointer}: {fault.message}" for fault in faults[:5])
    return text, faults


def _in_document(data: Any, location: tuple[int | str, ...]) -> list[str]:
    """Pydantic's location without the tags of discriminated unions, which do not stand in the document."""
    path: list[str] = []
    for index, part in enumerate(location):
        if isinstance(data, Mapping):
            tag = part in _scalars(data)
            if tag and (part not in data or location[index + 1 : index + 2] in [(key,) for key in data]):
                continue
            data = data.get(str(part))
        elif isinstance(data, list | tuple) and isinstance(part, int):
            data = data[part] if part < len(data) else None
        path.append(str(part).replace("~", "~0").replace("/", "~1"))
    return path


def _scalars(data: Mapping[str, Any]) -> list[Any]:
    return [value for value in data.values() if isinstance(value, str)]
