"""Blender as the renderer: its child, its preflight, its frames and its parts."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Final

from farm.errors import DeviceUnavailable, EscapedPath, PermanentFailure
from jobs.engine import Host, StoredArtifact, TaskContext
from jobs.render.blender import scene_file
from jobs.render.blender.installation import UNPINNED, choose
from jobs.render.blender.plan import PART_NAME, canary_of, child_outputs, parts_of
from jobs.render.bounds import Limits
from jobs.render.child_process import Child
from jobs.render.driver import links, memory_limit, owner, process_limit
from jobs.render.frames import render_frames, staging
from jobs.render.held import Clock, Held
from jobs.render.sandbox import Program, Room, confinement
from jobs.render.scene_paths import check_scene
from jobs.render.spec import Spec

_CHECKED: Final = {".obj", ".ply", ".glb", ".gltf"}
_MESA: Final = "/usr/share/glvnd/egl_vendor.d/50_mesa.json"
_MEDIA: Final = {"png": "image/png", "jpeg": "image/jpeg", "exr": "image/x-exr"}


class BlenderDriver:
    """Starts and asks the child of :mod:`jobs.render.blender.program`."""

    def start(self, key: str, spec: Spec, task: TaskContext, host: Host, folder: Path) -> Held:
        """Choose the Blender and start its child, which opens nothing yet."""
        with host.phase("fetch"):
            root = host.assets()
        facts: dict[str, Any] = {"began": time.monotonic()}
        blender = choose(_version(spec, task))
        threads = _threads(task)
        on_gpu = spec.device != "cpu"
        limit = memory_limit(spec)
        program = Program(
            blender.command, (*blender.folders, Path(__file__).resolve().parent), {"TMPDIR": "."}
        )
        files = UNPINNED.get(spec.device, ())
        room = Room(root, folder, links(root, _linked(root)), cuda=on_gpu, devices=files)
        limits = Limits(limit, process_limit(threads), private=not on_gpu)
        child = Child(program, room, _environment(spec, root, threads, on_gpu), limits)
        return Held(child, key, limit, facts | {"version": blender.version})

    def load(self, held: Held, spec: Spec, task: TaskContext, host: Host) -> None:
        """Check the scene's paths, then open the file, look through it, and set it up as the job asks."""
        # while Blender starts: it takes longer than this
        file = _look(held.child, spec, host, held.facts["version"])
        held.ask(
            "load",
            path=str(held.child.inputs / spec.scene),
            root=str(held.child.inputs),
            wish=wish_of(spec, _threads(task), list(task.device.get("pci") or ())),
        )
        answer = held.wait(("loaded",), f"loading {spec.scene}", Clock(spec.frame_timeout_s), host)
        _check_version(held.facts["version"], str(answer["report"]["blender"]))
        load_s = time.monotonic() - float(held.facts["began"])
        held.facts |= {
            "report": _report(answer, spec, file),
            "facts": answer["facts"],
            "fault": answer["fault"],
            "load_s": round(load_s, 4),
            "inspect_s": round(float(answer["inspect_s"]), 4),
            "open_s": round(float(answer["seconds"]), 4),
            "confinement": held.child.describe(),
        }
        host.log.write(
            f"{spec.scene} loaded in {load_s:.2f} s (opened, looked through and set up in "
            f"{answer['seconds']:.2f} s): Blender {answer['report']['blender']}, {_threads(task)} threads, "
            f"child confined by {held.facts['confinement']}"
        )
        for finding in held.facts["report"]["findings"]:
            host.log.write(f"{finding['severity']}: {finding['message']}")
        if answer["fault"] and answer["fault"]["kind"] == "device":
            raise DeviceUnavailable(answer["fault"]["message"])

    def work(self, held: Held, spec: Spec, task: TaskContext, host: Host) -> None:
        """Do the task's stage: look, try, render, render a part, or merge the parts."""
        stage = task.payload["stage"]
        if stage == "preflight":
            host.result({"preflight": held.facts["report"], "device": _device(held)})
            return
        if held.facts["fault"]:
            raise PermanentFailure(held.facts["fault"]["message"])
        if stage == "canary":
            self._canary(held, spec, task, host)
        elif stage == "part":
            self._part(held, spec, task, host)
        elif stage == "merge":
            self._merge(held, spec, task, host)
        else:
            self._frames(held, spec, task, host)

    def _canary(self, held: Held, spec: Spec, task: TaskContext, host: Host) -> None:
        """Render the middle frame and keep it as artifacts: the render step takes it over."""
        number = int(task.payload["number"])
        answer = self._one(held, spec, number, child_outputs(spec, held.facts["facts"]), host)
        about = {name: answer[name] for name in ("started_at", "seconds", "peak_rss")}
        for output, path in held.take(answer, host.scratch, f"frame {number}").items():
            kind = _MEDIA[next(o.format for o in spec.outputs if o.name == output)]
            meta = {"number": number, "output": output, **about}
            host.publish_artifact(f"canary-{output}", path, kind, meta)
        host.log.write(f"frame {number}: {float(answer['seconds']):.2f} s")
        host.result(
            {
                "preflight": task.step["preflight"],
                "frame_s": answer["seconds"],
                "load_s": held.facts["load_s"],
                "device": _device(held),
            }
        )

    def _frames(self, held: Held, spec: Spec, task: TaskContext, host: Host) -> None:
        ahead = list(task.payload["ahead"])
        ready = self._canary_files(task, host)
        request = {"outputs": child_outputs(spec, held.facts["facts"])}
        # within a task as between tasks: first and last frame before the rest
        rest = [number for number in task.frames or () if not ready or number != task.payload["canary"]]
        rest.sort(key=lambda number: ahead.index(number) if number in ahead else len(ahead))
        target_s = spec.chunk_target(float(held.facts["load_s"]))

        def take_over() -> None:
            if ready:
                self._take_over(int(task.payload["canary"]), ready, host)

        times = render_frames(
            held, rest, task, host, spec.frame_timeout_s, request, target_s, meanwhile=take_over
        )
        host.result(
            {"device": _device(held), "frame_s": round(sum(times) / len(times), 4) if times else None}
        )

    def _canary_files(self, task: TaskContext, host: Host) -> dict[str, StoredArtifact]:
        """The canary's files by output, if its frame is of this task; another take renders its own."""
        number = task.payload.get("canary")
        if task.take != 1 or number is None or number not in (task.frames or ()):
            return {}
        stored = [each for each in host.stored_artifacts("canary") if each.meta.get("number") == number]
        found = {str(each.meta["output"]): each for each in stored}
        return found if set(found) == {str(output["name"]) for output in task.outputs} else {}

    def _take_over(self, number: int, ready: Mapping[str, StoredArtifact], host: Host) -> None:
        """Publish the canary's frame as this step's."""
        about: Mapping[str, Any] = next(iter(ready.values())).meta
        with host.phase("write"):
            host.publish(
                number,
                {
                    output: Path(shutil.copyfile(stored.path, host.scratch / f"{number}-{output}"))
                    for output, stored in ready.items()
                },
                started_at=float(about["started_at"]),
                duration_s=float(about["seconds"]),
                quality={"peak_rss": about["peak_rss"]},
            )
        host.log.write(f"frame {number}: taken over from the canary")

    def _part(self, held: Held, spec: Spec, task: TaskContext, host: Host) -> None:
        number, index = int(task.payload["number"]), int(task.payload["index"])
        held.ask("set", part=task.payload["part"])
        held.wait(("ready",), f"part {index}", Clock(60.0), host)
        output = {"name": PART_NAME, "format": "exr", "dtype": "float32"}
        answer = self._one(held, spec, number, [output], host, what=f"frame {number}, part {index}")
        (path,) = held.take(answer, host.scratch, f"part {index}").values()
        meta = {"index": index, "number": number, **task.payload["part"], "seconds": answer["seconds"]}
        host.publish_artifact(f"part-{index:04d}.exr", path, _MEDIA["exr"], meta)
        host.log.write(f"part {index} of frame {number}: {float(answer['seconds']):.2f} s")
        host.result({"device": _device(held), "seconds": answer["seconds"]})

    def _merge(self, held: Held, spec: Spec, task: TaskContext, host: Host) -> None:
        """Merge the parts, check that they cover the picture, and publish the frame."""
        from jobs.render.blender import merging

        facts = held.facts["facts"]
        numbers = list(task.frames or ())
        if not numbers:
            return
        (number,) = numbers
        with staging(task, host), host.phase("work"):
            stored = host.stored_artifacts("parts")
            size = (int(facts["width"]), int(facts["height"]))
            began, started = time.monotonic(), time.time()
            merged = merging.merge(stored, parts_of(spec, facts), size, list(facts["channels"]))
            outputs = child_outputs(spec, facts)
            answer: dict[str, Any] = {"files": {}}
            pictures = [output for output in outputs if output["format"] != "exr"]
            if pictures:
                source = held.child.room.output / "merged.exr"
                merging.write_beauty(merged, facts["view_layers"][0], source)
                source.chmod(0o644)
                held.ask(
                    "develop",
                    number=number,
                    source=str(held.child.output / source.name),
                    outputs=pictures,
                    folder=str(held.child.output),
                )
                answer = held.wait(
                    ("developed",), f"frame {number}", Clock(spec.frame_timeout_s), host, number=number
                )
                source.unlink()
            files = held.take(answer, host.scratch, f"frame {number}")
            for output in outputs:
                if output["format"] == "exr":
                    files[output["name"]] = host.scratch / f"{number}-{output['name']}"
                    half = output["dtype"] == "float16"
                    merging.write(merged, files[output["name"]], half=half)
            seconds = sum(float(part.meta["seconds"]) for part in stored) + time.monotonic() - began
            with host.phase("write"):
                host.publish(number, files, started_at=started, duration_s=seconds, quality={})
        host.log.write(f"frame {number}: {len(stored)} parts merged")

    def _one(
        self,
        held: Held,
        spec: Spec,
        number: int,
        outputs: list[dict[str, Any]],
        host: Host,
        what: str = "",
    ) -> dict[str, Any]:
        with host.phase("work"):
            held.ask("frame", number=number, folder=str(held.child.output), outputs=outputs)
            return held.wait(
                ("frame",),
                what or f"frame {number}",
                Clock(spec.frame_timeout_s),
                host,
                number=number,
                share=(0.0, 1.0),
            )


def wish_of(spec: Spec, threads: int, pci: list[str]) -> dict[str, Any]:
    """The job's settings as the child takes them; ``None`` is as the file says. ``pci``: the slot's GPUs."""
    settings = spec.settings
    frames = spec.frame_range() if spec.frames is not None else None
    return {
        **settings.model_dump(
            mode="json", exclude={"version", "ocio", "allow_missing", "tiles", "sample_ranges"}
        ),
        "lights": settings.lights or ("file" if spec.suffix == ".blend" else "studio"),
        "device": spec.device,
        "pci": pci,
        "samples": spec.samples,
        "resolution": spec.resolution,
        "transparent": spec.transparent,
        "seed": spec.seed,
        "threads": threads,
        "every_frame": list(frames) if frames else None,
        "frames": sorted({frames.first, canary_of(frames), frames.last}) if frames else None,
    }


def _report(answer: Mapping[str, Any], spec: Spec, file: scene_file.SceneFile | None) -> dict[str, Any]:
    """The preflight's report: what the child found, what the file says of itself, and what cannot be."""
    report = dict(answer["report"])
    findings = list(report["findings"])
    scene = spec.settings.scene or report["active_scene"]
    engines = file.engines if file else {}
    engine = engines.get(scene)
    if engine is not None and engine not in scene_file.KNOWN_ENGINES:
        gone = spec.settings.engine is None
        text = f"the engine of scene {scene!r}, {engine}, does not exist in Blender {report['blender']}"
        findings.insert(
            0,
            {
                "code": "engine_gone",
                "severity": "error" if gone else "note",
                "message": text
                + (
                    "; set blender.engine to cycles, eevee or workbench"
                    if gone
                    else "; the job names another"
                ),
            },
        )
    view = file.views.get(scene) if file else None
    shown = (answer["facts"] or {}).get("view_transform", view)
    if spec.settings.ocio and not spec.settings.view_transform and view != shown:
        findings.insert(
            0,
            {
                "code": "view_gone",
                "severity": "error",
                "message": f"the OCIO configuration has no view {view!r}, which scene {scene!r} asks for, "
                f"and would show {shown!r}; name one in blender.view_transform",
            },
        )
    for unread in file.unread if file else ():
        text = f"{unread} could not be followed, so files that it names were not looked for"
        findings.append({"code": "unread", "severity": "warning", "missing": False, "message": text})
    fault = answer["fault"]
    if fault is not None:
        findings.insert(
            0, {"code": "wish", "severity": "error", "missing": False, "message": fault["message"]}
        )
    version = ".".join(str(report["blender"]).split(".")[:2])
    return {
        **report,
        "findings": findings,
        "file_engines": dict(engines),
        "facts": answer["facts"],
        "fault": fault,
        "version": version,
    }


def _look(child: Child, spec: Spec, host: Host, version: str) -> scene_file.SceneFile | None:
    """Check the paths of the scene before Blender sees it; what a .blend says of itself."""
    if spec.suffix == ".blend":
        found = scene_file.read(child.room, spec.scene, child, host)
        found.fits(spec.scene, version)
        return found
    if spec.suffix in _CHECKED:
        check_scene(child.room.inputs, spec.scene, owner(host))
    elif confinement().name != "bubblewrap":
        raise EscapedPath(
            f"{spec.scene}: the paths in a {spec.suffix} cannot be checked, so it is opened under bubblewrap "
            "only; apt-get install bubblewrap"
        )
    return None


def _linked(root: Path) -> set[str]:
    """Every job path, where some of the files are links that the farm made; else nothing."""
    paths = [path for path in root.rglob("*") if path.is_file()]
    if not any(path.is_symlink() for path in paths):
        return set()
    return {PurePosixPath(path.relative_to(root)).as_posix() for path in paths}


def _device(held: Held) -> dict[str, Any]:
    """How and on what this was rendered."""
    facts = held.facts["facts"] or {}
    return {
        "renderer": "blender",
        "version": held.facts["report"]["blender"],
        **{name: facts.get(name) for name in ("engine", "devices", "samples")},
        **{name: held.facts[name] for name in ("load_s", "open_s", "inspect_s", "confinement")},
        "peak_rss": held.child.peak(),
    }


def _version(spec: Spec, task: TaskContext) -> str | None:
    """The job's version; what the preflight ran on binds the steps after it."""
    found = task.step.get("preflight")
    return str(found["version"]) if found else spec.settings.version


def _check_version(named: str, found: str) -> None:
    """A program that is another Blender than its node's administrator said renders nothing."""
    if found.split(".")[:2] != named.split("."):
        raise DeviceUnavailable(f"FARM_BLENDER names a Blender {named} which is {found}; correct its version")


def _threads(task: TaskContext) -> int:
    return int(task.device.get("threads") or len(os.sched_getaffinity(0)))


def _environment(spec: Spec, root: Path, threads: int, on_gpu: bool) -> dict[str, str]:
    env = {"OMP_NUM_THREADS": str(threads)}
    if spec.settings.ocio is not None:
        inside = confinement().name == "bubblewrap"
        env["OCIO"] = f"{'/assets' if inside else root}/{spec.settings.ocio}"
    if not on_gpu:
        # without bubblewrap OpenGL would find the machine's first GPU, whoever owns it
        env |= {"LIBGL_ALWAYS_SOFTWARE": "1", "__EGL_VENDOR_LIBRARY_FILENAMES": _MESA}
    if on_gpu:
        env |= {n: os.environ[n] for n in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER") if n in os.environ}
    return env
