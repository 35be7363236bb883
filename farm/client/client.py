"""The farm's REST API as Python methods."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from farm.client import assets, downloads, events
from farm.client.credentials import Credentials, find_credentials
from farm.client.fleet_models import Budget, Buffer, Guard, Key, Node, Pool, Project, Slot
from farm.client.models import Answer, Artifact, Attempt, Event, Frame, Job, Page, Reason, Step, Task
from farm.client.transport import Transport
from farm.client.video_models import VideoModel

Item = TypeVar("Item", bound=Answer)
PAGE = 200


class FarmClient:
    """Talks to one farm. Every method raises the :class:`farm.errors.FarmError` that the farm answered.

    >>> with FarmClient.connect() as farm:                          # doctest: +SKIP
    ...     files = farm.upload({"scene.xml": Path("scene.xml")})
    ...     job = farm.submit(name="turntable", kind="render", spec={...}, assets=files)
    ...     for event in farm.events(job=job.id): ...
    """

    def __init__(self, transport: Transport) -> None:
        self.transport = transport

    @classmethod
    def connect(
        cls, url: str | None = None, key: str | None = None, *, say: Callable[[str], None] | None = None
    ) -> FarmClient:
        """A client for ``FARM_URL`` and ``FARM_KEY``, or for the farm of the user's key file.

        ``say`` is told in words when a request has to wait for the farm.
        """
        return cls(Transport(find_credentials(url, key), say=say))

    @classmethod
    def of(cls, credentials: Credentials) -> FarmClient:
        """A client for this address and key."""
        return cls(Transport(credentials))

    def __enter__(self) -> FarmClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.transport.close()

    @property
    def url(self) -> str:
        """The farm's address."""
        return self.transport.url

    # --- jobs ------------------------------------------------------------------------------------------

    def submit(
        self,
        *,
        name: str,
        kind: str,
        spec: Mapping[str, Any],
        assets: Mapping[str, str] | None = None,
        project: str | None = None,
        priority: int | None = None,
        labels: Mapping[str, str] | None = None,
        after: Sequence[str] = (),
        paused: bool = False,
        idempotency_key: str | None = None,
    ) -> Job:
        """Submit a job; ``assets`` maps job paths to hashes that :meth:`upload` returned.

        The same ``idempotency_key`` and body give the same job again, however often they are sent.
        """
        body: dict[str, Any] = {"name": name, "kind": kind, "spec": dict(spec), "assets": dict(assets or {})}
        optional = {
            "project": project,
            "priority": priority,
            "labels": dict(labels) if labels else None,
            "after": list(after) or None,
            "paused": paused or None,
        }
        body |= {field: value for field, value in optional.items() if value is not None}
        return self.submit_body(body, idempotency_key)

    def submit_body(self, body: Mapping[str, Any], idempotency_key: str | None = None) -> Job:
        """Submit a job as the API's own JSON."""
        answer = self.transport.post("/v1/jobs", json=dict(body), idempotency_key=idempotency_key)
        return Job.model_validate(answer.json())

    def jobs(self, *, limit: int | None = None, **filters: Any) -> Iterator[Job]:
        """Jobs, newest first; filters ``state, project, kind, q, paused``."""
        return self._list("/v1/jobs", Job, limit, filters)

    def job(self, job_id: str) -> Job:
        """One job with its steps."""
        return Job.model_validate(self._get(f"/v1/jobs/{job_id}"))

    def steps(self, job_id: str) -> list[Step]:
        """The steps of a job, in order."""
        return list(self._list(f"/v1/jobs/{job_id}/steps", Step, None, {}))

    def cancel(self, job_id: str) -> Job:
        """Cancel a job: what waits is cancelled at once, what runs stops at its next step."""
        return self._act(job_id, "cancel")

    def pause(self, job_id: str) -> Job:
        """Pause a job: nothing new begins, what runs is parked."""
        return self._act(job_id, "pause")

    def resume(self, job_id: str) -> Job:
        """Let a paused job go on."""
        return self._act(job_id, "resume")

    def retry(self, job_id: str) -> Job:
        """Run the failed tasks of a job again, and only those."""
        return self._act(job_id, "retry")

    def prioritise(self, job_id: str, priority: int) -> Job:
        """Change a job's priority (0 to 100, higher first)."""
        answer = self.transport.request(
            "PATCH", f"/v1/jobs/{job_id}", json={"priority": priority}, headers={"If-Match": "*"}
        )
        return Job.model_validate(answer.json())

    def delete(self, job_id: str) -> None:
        """Delete an ended job."""
        self.transport.request("DELETE", f"/v1/jobs/{job_id}")

    def why(self, subject: str) -> list[Reason]:
        """What a job or task waits for."""
        family = "tasks" if subject.startswith("task_") else "jobs"
        return list(self._list(f"/v1/{family}/{subject}/why", Reason, None, {}))

    # --- what a job is made of and what came out -------------------------------------------------------

    def tasks(self, job_id: str, *, limit: int | None = None, **filters: Any) -> Iterator[Task]:
        """Tasks of a job; filters ``step, state``."""
        return self._list(f"/v1/jobs/{job_id}/tasks", Task, limit, filters)

    def preview(self, task_id: str) -> bytes | None:
        """A PNG of a task's work in progress; ``None`` where there is none now."""
        answer = self.transport.request("GET", f"/v1/tasks/{task_id}/preview")
        return answer.content if answer.status_code == 200 else None

    def attempts(self, subject: str, *, limit: int | None = None, **filters: Any) -> Iterator[Attempt]:
        """Attempts of a job or of a task, newest first; filter ``state``."""
        family = "tasks" if subject.startswith("task_") else "jobs"
        return self._list(f"/v1/{family}/{subject}/attempts", Attempt, limit, filters)

    def frames(self, job_id: str, *, limit: int | None = None, **filters: Any) -> Iterator[Frame]:
        """Frames of a job by number; filters ``step, state, take, current``."""
        return self._list(f"/v1/jobs/{job_id}/frames", Frame, limit, filters)

    def attempt(self, attempt_id: str) -> Attempt:
        """One attempt."""
        return Attempt.model_validate(self._get(f"/v1/attempts/{attempt_id}"))

    def artifacts(self, job_id: str) -> list[Artifact]:
        """Files that came out of a job besides frames: films, reports."""
        return list(self._list(f"/v1/jobs/{job_id}/artifacts", Artifact, None, {}))

    def log(self, attempt_id: str) -> Iterator[str]:
        """An attempt's log as text; bytes that are no UTF-8 come as replacement characters."""
        with self.transport.stream(f"/v1/attempts/{attempt_id}/log") as response:
            response.encoding = "utf-8"
            yield from response.iter_text()

    def follow_log(self, attempt_id: str, *, offset: int = 0) -> Iterator[str]:
        """An attempt's log from byte ``offset`` on, live, until the attempt has ended."""
        return events.follow_log(self.transport, attempt_id, offset=offset)

    def download_artifact(
        self, artifact: Artifact, target: Path, received: Callable[[int], None] | None = None
    ) -> Path:
        """Fetch an artifact into the file ``target``, verified."""
        path = artifact.url or f"/v1/artifacts/{artifact.id}/content"
        return downloads.download(self.transport, path, target, artifact.sha256, received)

    def download_frame(
        self, frame: Frame, output: str, target: Path, received: Callable[[int], None] | None = None
    ) -> Path:
        """Fetch one output of a frame into the file ``target``, verified."""
        file = next(file for file in frame.files if file.output == output)
        path = file.url or f"/v1/frames/{frame.step_id}/{frame.take}/{frame.number}/{output}"
        return downloads.download(self.transport, path, target, file.sha256, received)

    # --- assets ----------------------------------------------------------------------------------------

    def upload(self, files: Mapping[str, Path], sent: Callable[[int], None] | None = None) -> dict[str, str]:
        """Send files (by job path) that the farm lacks; returns their hashes by job path."""
        local = assets.hash_assets(files)
        assets.upload(self.transport, local, sent)
        return {name: asset.sha256 for name, asset in local.items()}

    # --- the farm --------------------------------------------------------------------------------------

    def nodes(self) -> list[Node]:
        """Every machine."""
        return list(self._list("/v1/nodes", Node, None, {}))

    def guard(self, node: str) -> Guard:
        """The guard of a node (id or name) and its neighbours."""
        return Guard.model_validate(self._get(f"/v1/nodes/{node}/guard"))

    def slots(self, **filters: Any) -> list[Slot]:
        """Slots; filter ``node``."""
        return list(self._list("/v1/slots", Slot, None, filters))

    def pools(self) -> list[Pool]:
        """Every pool."""
        return list(self._list("/v1/pools", Pool, None, {}))

    def projects(self) -> list[Project]:
        """Projects that this key may see."""
        return list(self._list("/v1/projects", Project, None, {}))

    def make_project(self, name: str, **fields: Any) -> Project:
        """Make a project; fields ``share, max_slots, quota_slot_s, reserved``."""
        return Project.model_validate(
            self.transport.post("/v1/projects", json={"name": name, **fields}).json()
        )

    def change_project(self, project_id: str, **fields: Any) -> Project:
        """Change the named fields of a project; null lifts a cap or quota."""
        answer = self.transport.request(
            "PATCH", f"/v1/projects/{project_id}", json=fields, headers={"If-Match": "*"}
        )
        return Project.model_validate(answer.json())

    def buffers(self, *, limit: int | None = None, **filters: Any) -> Iterator[Buffer]:
        """Buffers; filters ``node, medium, state``."""
        return self._list("/v1/buffers", Buffer, limit, filters)

    def budgets(self) -> list[Budget]:
        """Byte budgets of every node and medium."""
        return list(self._list("/v1/budgets", Budget, None, {}))

    def models(self, *, versions: bool = False) -> list[VideoModel]:
        """Models by name; older versions as well where asked for."""
        return list(self._list("/v1/models", VideoModel, None, {"versions": versions or None}))

    def model(self, reference: str) -> VideoModel:
        """One version, by ``name`` or ``name@digest``, with its files."""
        return VideoModel.model_validate(self._get(f"/v1/models/{reference}"))

    def add_model(self, document: Mapping[str, Any]) -> VideoModel:
        """Add a version; ``document`` is what ``POST /v1/models`` takes."""
        return VideoModel.model_validate(self.transport.post("/v1/models", json=dict(document)).json())

    def remove_model(self, reference: str) -> None:
        """Forget a name, or one version of it; files stay."""
        self.transport.request("DELETE", f"/v1/models/{reference}")

    def measure_model(self, reference: str, measured: Mapping[str, Any]) -> VideoModel:
        """Keep a measurement of a lossy choice."""
        answer = self.transport.request("PUT", f"/v1/models/{reference}/measurements", json=dict(measured))
        return VideoModel.model_validate(answer.json())

    def keys(self) -> list[Key]:
        """Keys, without their secrets."""
        return list(self._list("/v1/keys", Key, None, {}))

    def make_key(
        self, name: str, scopes: Sequence[str], *, user: str | None = None, project: str | None = None
    ) -> Key:
        """Make a key; its ``secret`` is in this answer and never shown again."""
        body = {"name": name, "scopes": list(scopes), "user": user, "project": project}
        body = {field: value for field, value in body.items() if value is not None}
        return Key.model_validate(self.transport.post("/v1/keys", json=body).json())

    def revoke_key(self, key_id: str) -> None:
        """End a key at once."""
        self.transport.request("DELETE", f"/v1/keys/{key_id}")

    def drain_node(self, node_id: str) -> Node:
        """Let a node park what runs and take nothing new; the node as it is then."""
        return Node.model_validate(self.transport.post(f"/v1/nodes/{node_id}/drain").json())

    def resume_node(self, node_id: str) -> Node:
        """Let a drained node take work again; the node as it is then."""
        return Node.model_validate(self.transport.post(f"/v1/nodes/{node_id}/resume").json())

    def collect_garbage(self, *, dry_run: bool) -> Answer:
        """Remove contents that nothing refers to; ``dry_run`` only counts them."""
        return Answer.model_validate(self.transport.post("/v1/gc", json={"dry_run": dry_run}).json())

    def events(
        self, *, job: str | None = None, last_id: int | None = None, stop: Callable[[], bool] = lambda: False
    ) -> Iterator[Event]:
        """Events, live, each once and in order; see :func:`farm.client.events.follow`."""
        return events.follow(self.transport, job=job, last_id=last_id, stop=stop)

    # --- inside ----------------------------------------------------------------------------------------

    def _get(self, path: str) -> Any:
        return self.transport.request("GET", path).json()

    def _act(self, job_id: str, verb: str) -> Job:
        return Job.model_validate(self.transport.post(f"/v1/jobs/{job_id}/{verb}").json())

    def _list(
        self, path: str, model: type[Item], limit: int | None, filters: Mapping[str, Any]
    ) -> Iterator[Item]:
        left = limit
        cursor: str | None = None
        while left is None or left > 0:
            size = PAGE if left is None else min(PAGE, left)
            query = {name: _text(value) for name, value in filters.items() if value is not None}
            answer = self.transport.request("GET", path, params={**query, "limit": size, "cursor": cursor})
            page = Page[model].model_validate(answer.json())  # type: ignore[valid-type]
            yield from page.items
            left = None if left is None else left - len(page.items)
            cursor = page.next
            if cursor is None or not page.items:
                return


def _text(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value
