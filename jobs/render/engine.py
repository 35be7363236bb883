"""The engine of ``render``: keeps one renderer's child open per scene, whichever renderer it is."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import psutil

from farm.errors import ParkRequested, PermanentFailure
from jobs.engine import Host, TaskContext
from jobs.render import bounds
from jobs.render.blender.driver import BlenderDriver
from jobs.render.driver import ROOT_FOLDER, Driver
from jobs.render.held import Held
from jobs.render.mitsuba.driver import MitsubaDriver
from jobs.render.sandbox import confinement
from jobs.render.spec import Spec


class RenderEngine:
    """Runs render tasks; the renderer is always in a child."""

    def __init__(self) -> None:
        self._held: Held | None = None
        self._drivers: dict[str, Driver] = {"mitsuba": MitsubaDriver(), "blender": BlenderDriver()}

    def open(self, host: Host) -> None:
        """Remove what a killed slot left behind, and find out how children are confined here."""
        _remove_stale(host.scratch.parent)
        bounds.remove_stale()
        host.log.write(f"children are confined by {confinement().describe()}")

    def close(self) -> None:
        """End the child."""
        self._drop(politely=True)

    def run(self, task: TaskContext, host: Host) -> None:
        """Do one task, in the child that has its scene loaded or in a fresh one."""
        spec = Spec.model_validate(dict(task.spec))
        driver = self._drivers[spec.engine]
        key = str(task.step.get("warm_key") or task.job_id)
        try:
            held = self._warm(key, host) or self._load(driver, key, spec, task, host)
            host.keep_warm(key)
            with host.frozen([held.child.pid]):
                driver.work(held, spec, task, host)
        except BaseException as error:
            # whatever the child is still doing belongs to a task that is over
            idle = self._held is not None and self._held.idle
            if not (idle and isinstance(error, ParkRequested | PermanentFailure)):
                self._drop()
            raise

    def _warm(self, key: str, host: Host) -> Held | None:
        held = self._held
        if held is not None and held.key == key and held.child.alive():
            host.log.write("the scene is still loaded")
            return held
        return None

    def _load(self, driver: Driver, key: str, spec: Spec, task: TaskContext, host: Host) -> Held:
        folder = Path(tempfile.mkdtemp(prefix=f"{ROOT_FOLDER}{os.getpid()}-", dir=host.scratch.parent))
        before, self._held = self._held, None
        if before is not None:
            before.child.kill()
        try:
            held = self._held = driver.start(key, spec, task, host, folder)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        finally:
            # the kernel takes a while to clear up after a child: the next one starts meanwhile
            if before is not None:
                before.end(politely=False)
        try:
            with host.phase("load"), host.frozen([held.child.pid]):
                driver.load(held, spec, task, host)
        except BaseException:
            self._drop()
            raise
        return held

    def _drop(self, *, politely: bool = False) -> None:
        held, self._held = self._held, None
        if held is not None:
            held.end(politely=politely)


def _remove_stale(folder: Path) -> None:
    """Remove the folders of children whose slot has died."""
    for path in folder.glob(f"{ROOT_FOLDER}*-*"):
        owner = path.name.removeprefix(ROOT_FOLDER).partition("-")[0]
        if owner.isdigit() and not psutil.pid_exists(int(owner)):
            shutil.rmtree(path, ignore_errors=True)


def create() -> RenderEngine:
    """A fresh engine."""
    return RenderEngine()
