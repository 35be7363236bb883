"""Blender for this test session, and .blend files made by it: nothing here is a stand-in."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jobs.render.blender import installation
from jobs.render.blender.driver import BlenderDriver, wish_of
from jobs.render.engine import create
from jobs.render.held import Clock
from jobs.render.spec import Spec
from tests.unit.jobs.local_host import LocalHost

REPOSITORY = Path(__file__).resolve().parents[4]
REAL = REPOSITORY.parent / "shared" / "real" / "blend"
HERE = Path(__file__).parent
HOW = "`make test` installs it, or `farm blender install`"


@pytest.fixture(scope="session", autouse=True)
def python() -> Iterator[str]:
    """The Python of a Blender, which `make test` installs beside the repository where no other is named."""
    named = os.environ.get("FARM_BLENDER_HOME")
    os.environ["FARM_BLENDER_HOME"] = named or str(REPOSITORY / ".blender")
    try:
        found = installation.installed().get(installation.LTS)
        if found is None:
            pytest.skip(f"no Blender {installation.LTS} in {os.environ['FARM_BLENDER_HOME']}: {HOW}")
        yield found.command[0]
    finally:
        if named is None:
            del os.environ["FARM_BLENDER_HOME"]


def run_in_blender(python: str, script: str, *arguments: str) -> str:
    """Run a script of this folder in Blender's own Python, unconfined: it is the test's."""
    done = subprocess.run(
        [python, "-I", str(HERE / script), *arguments],
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="session")
def made(python: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of small .blend files, one for each thing that a preflight may find."""
    folder = tmp_path_factory.mktemp("blends")
    run_in_blender(python, "make_files.py", str(folder))
    return folder


@pytest.fixture
def direct(python: str, tmp_path: Path) -> Callable[..., Path]:
    """Renders frames of a .blend by plain ``bpy``; a folder of what was written, by frame and format."""

    def render(scene: Path, **wish: Any) -> Path:
        folder = tmp_path / "direct"
        folder.mkdir(exist_ok=True)
        run_in_blender(python, "render_directly.py", str(scene), str(folder), json.dumps(wish))
        return folder

    return render


@pytest.fixture
def job(tmp_path: Path) -> Callable[..., Job]:
    """Makes a job of some files; ``scene`` is the first of them."""
    count = iter(range(100))

    def make(*files: Path, **fields: Any) -> Job:
        host = LocalHost(tmp_path / f"host-{next(count)}", {path.name: path for path in files})
        return Job(host, {"scene": files[0].name, **fields})

    return make


@pytest.fixture(scope="module")
def fault(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., str]]:
    """What one of the made files says to a job's wishes: the fault that its preflight reports, or nothing.

    One child for all of a module: it opens the file anew for every job, as a job's own child does.
    """
    folder = tmp_path_factory.mktemp("faults")
    host = LocalHost(folder / "host", {path.name: path for path in made.glob("*.blend")})
    (folder / "child").mkdir()
    parsed, plan = host.plan("render", {"scene": "plain.blend"})
    task = next(host.tasks(parsed, plan.steps[0]))
    held = BlenderDriver().start("faults", Spec.model_validate(parsed), task, host, folder / "child")

    def ask(scene: str = "plain.blend", **fields: Any) -> str:
        spec = Spec.model_validate({"scene": scene, "frames": "1-2", **fields})
        inputs = held.child.inputs
        held.ask("load", path=str(inputs / scene), root=str(inputs), wish=wish_of(spec, 2, []))
        answer = held.wait(("loaded",), scene, Clock(60.0), host)
        return f"{answer['fault']['kind']}: {answer['fault']['message']}" if answer["fault"] else ""

    yield ask
    held.end(politely=False)


class Job:
    """A render job of Blender on a local host, run step by step with one engine, as one slot would."""

    def __init__(self, host: LocalHost, spec: dict[str, Any]) -> None:
        self.host = host
        self.spec = spec

    def run(self, until: str | None = None) -> LocalHost:
        """Run the steps, all or those up to ``until``. Raises what planning or an engine raises."""
        self.host.results.clear()
        parsed, plan = self.host.plan("render", self.spec)
        engine = create()
        engine.open(self.host)
        try:
            for planned in plan.steps:
                step = self.host.expanded("render", parsed, planned) if planned.deferred else planned
                for task in self.host.tasks(parsed, step):
                    engine.run(task, self.host)
                if step.name == until:
                    break
        finally:
            engine.close()
        return self.host

    def preflight(self) -> dict[str, Any]:
        """The preflight's report."""
        host = self.run(until="preflight")
        report: dict[str, Any] = host.results["preflight"][0]["preflight"]
        return report

    def file(self, number: int, output: str = "beauty.png", step: str = "render") -> Path:
        """A published file."""
        return self.host.published[step, number].files[output]
