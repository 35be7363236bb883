"""One open file, its settings, and its frames."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import cameras, devices, findings, overrides
from .faults import BadInput, Fault

IMPORTERS = {
    ".glb": ("import_scene", "gltf"),
    ".gltf": ("import_scene", "gltf"),
    ".obj": ("wm", "obj_import"),
    ".ply": ("wm", "ply_import"),
    ".usd": ("wm", "usd_import"),
    ".usda": ("wm", "usd_import"),
    ".usdc": ("wm", "usd_import"),
    ".usdz": ("wm", "usd_import"),
}
ENGINES = {"cycles": "CYCLES", "eevee": "BLENDER_EEVEE_NEXT", "workbench": "BLENDER_WORKBENCH"}
_EVENT_INTERVAL_S = 0.5


class Session:
    """State of the child: which file is open and how it is set up."""

    def __init__(self, bpy: Any, send: Callable[[dict[str, Any]], None]) -> None:
        self._bpy = bpy
        self._send = send
        self._scene: Any = None
        self._layer: Any = None
        self._formats: list[dict[str, Any]] = []
        self._last_event = 0.0
        self._failure: str | None = None
        bpy.app.handlers.render_stats.append(self._on_stats)
        bpy.app.handlers.render_cancel.append(self._on_cancel)

    def handle(self, action: str, request: dict[str, Any]) -> dict[str, Any]:
        """Answer one request: ``open``, ``inspect``, ``configure``, ``render`` or ``quit``."""
        began = time.monotonic()
        if action == "open":
            answer = self._open(Path(request["path"]))
        elif action == "inspect":
            answer = findings.inspect(self._bpy, request["root"])
        elif action == "configure":
            answer = self._configure(request["settings"])
        elif action == "render":
            answer = self._render(request["frame"], Path(request["folder"]))
        elif action == "quit":
            answer = {}
        else:
            raise Fault(f"the child knows no request {action!r}")
        answer["seconds"] = time.monotonic() - began
        return answer

    def _open(self, path: Path) -> dict[str, Any]:
        bpy = self._bpy
        suffix = path.suffix.lower()
        if suffix == ".blend":
            try:
                bpy.ops.wm.open_mainfile(filepath=str(path), load_ui=False, use_scripts=False)
            except RuntimeError as error:
                raise BadInput(
                    f"{path.name} cannot be opened by Blender {bpy.app.version_string}: {error}"
                ) from None
            if tuple(bpy.data.version[:2]) > tuple(bpy.app.version[:2]):
                saved = ".".join(map(str, bpy.data.version[:2]))
                raise BadInput(
                    f"{path.name} was saved by Blender {saved}, this node has {bpy.app.version_string}; "
                    "save it for this version, or choose a Blender version that is at least as new"
                )
        elif suffix in IMPORTERS:
            bpy.ops.wm.read_factory_settings(use_empty=True)
            group, name = IMPORTERS[suffix]
            try:
                outcome = getattr(getattr(bpy.ops, group), name)(filepath=str(path))
            except RuntimeError as error:
                raise BadInput(f"{path.name} cannot be imported: {error}") from None
            if "FINISHED" not in outcome or not bpy.data.objects:
                raise BadInput(f"{path.name} cannot be imported, or holds no object")
        else:
            raise BadInput(f"{path.name}: Blender opens .blend and imports {', '.join(sorted(IMPORTERS))}")
        self._scene = None
        return {}

    def _configure(self, wish: dict[str, Any]) -> dict[str, Any]:
        bpy = self._bpy
        scene = self._pick_scene(wish.get("scene"))
        layer = self._pick_layer(scene, wish.get("view_layer"))
        overrides.apply(bpy, wish.get("overrides", []))
        render = scene.render
        engine = self._pick_engine(scene, wish.get("engine"))
        used = (
            ["CPU"]
            if engine != "CYCLES"
            else devices.choose(bpy, scene, wish["device"], wish.get("pci_address"))
        )
        if wish.get("resolution"):
            render.resolution_x, render.resolution_y = wish["resolution"]
            render.resolution_percentage = 100
        if wish.get("resolution_percentage"):
            render.resolution_percentage = wish["resolution_percentage"]
        self._sampling(scene, engine, wish)
        if wish.get("motion_blur") is not None:
            render.use_motion_blur = wish["motion_blur"]
        self._color(scene, wish)
        if wish.get("compositor") is not None:
            render.use_compositing = wish["compositor"]
        if wish.get("transparent") is not None:
            render.film_transparent = wish["transparent"]
        self._passes(layer, wish.get("passes", []))
        render.use_sequencer = False
        render.use_persistent_data = True
        render.use_file_extension = True
        render.use_overwrite = True
        render.use_placeholder = False
        render.use_multiview = False
        render.use_stamp = False
        render.threads_mode = "FIXED"
        render.threads = wish["threads"]
        self._silence_other_outputs(scene)
        self._border(scene, wish.get("border"))
        camera = wish.get("camera")
        if wish.get("lights") == "studio":
            self._studio(scene)
        if camera == "auto":
            cameras.add_auto_camera(bpy, scene, layer, wish.get("auto_frames") or [scene.frame_current])
        elif camera:
            item = scene.objects.get(camera)
            if item is None or item.type != "CAMERA":
                names = ", ".join(repr(each.name) for each in scene.objects if each.type == "CAMERA")
                raise BadInput(
                    f"there is no camera {camera!r} in scene {scene.name!r}; it has {names or 'none'}"
                )
            scene.camera = item
        if scene.camera is None:
            raise BadInput(f"scene {scene.name!r} has no camera; name one, or ask for camera 'auto'")
        self._scene, self._layer, self._formats = scene, layer, wish["outputs"]
        scale = render.resolution_percentage / 100
        return {
            "scene": scene.name,
            "view_layer": layer.name,
            "engine": engine,
            "devices": used,
            "camera": scene.camera.name,
            "width": int(render.resolution_x * scale),
            "height": int(render.resolution_y * scale),
            "samples": scene.cycles.samples if engine == "CYCLES" else scene.eevee.taa_render_samples,
            "view_transform": scene.view_settings.view_transform,
        }

    def _pick_scene(self, name: str | None) -> Any:
        bpy = self._bpy
        if name is None:
            return bpy.context.scene
        scene = bpy.data.scenes.get(name)
        if scene is None:
            names = ", ".join(repr(each.name) for each in bpy.data.scenes)
            raise BadInput(f"there is no scene {name!r} in the file; it has {names}")
        if bpy.context.window is not None:
            bpy.context.window.scene = scene
        return scene

    def _pick_layer(self, scene: Any, name: str | None) -> Any:
        if name is None:
            return scene.view_layers[0]
        layer = scene.view_layers.get(name)
        if layer is None:
            names = ", ".join(repr(each.name) for each in scene.view_layers)
            raise BadInput(f"there is no view layer {name!r} in scene {scene.name!r}; it has {names}")
        for other in scene.view_layers:
            other.use = other == layer
        return layer

    def _pick_engine(self, scene: Any, name: str | None) -> str:
        if name is not None:
            scene.render.engine = ENGINES[name]
        engine = scene.render.engine
        if engine not in ENGINES.values():
            raise BadInput(
                f"the file's engine {engine or 'is one that'!r} no longer exists in Blender "
                f"{self._bpy.app.version_string}; choose one of {', '.join(ENGINES)}"
            )
        return str(engine)

    def _sampling(self, scene: Any, engine: str, wish: dict[str, Any]) -> None:
        samples = wish.get("samples")
        if engine == "CYCLES":
            cycles = scene.cycles
            if samples:
                cycles.samples = samples
                # what was asked for happens: an adaptive stop would take fewer
                cycles.use_adaptive_sampling = bool(wish.get("adaptive", False))
            if wish.get("sample_offset"):
                cycles.sample_offset = wish["sample_offset"]
            if wish.get("seed") is not None:
                cycles.seed = wish["seed"]
                cycles.use_animated_seed = True
            cycles.time_limit = 0
            denoiser = wish.get("denoiser")
            if denoiser == "none":
                cycles.use_denoising = False
            elif denoiser:
                cycles.use_denoising = True
                try:
                    cycles.denoiser = denoiser.upper()
                except TypeError as error:
                    raise BadInput(f"denoiser {denoiser!r} is not there: {error}") from None
        elif samples and engine == "BLENDER_EEVEE_NEXT":
            scene.eevee.taa_render_samples = samples
        elif samples:
            raise BadInput("Workbench has no samples; leave samples out, or choose cycles or eevee")

    def _color(self, scene: Any, wish: dict[str, Any]) -> None:
        for name, owner in (("view_transform", scene.view_settings), ("look", scene.view_settings)):
            if wish.get(name):
                try:
                    setattr(owner, name, wish[name])
                except TypeError as error:
                    raise BadInput(
                        f"{name} {wish[name]!r} is not in this OCIO configuration: {error}"
                    ) from None
        for name in ("exposure", "gamma"):
            if wish.get(name) is not None:
                setattr(scene.view_settings, name, wish[name])

    def _passes(self, layer: Any, names: list[str]) -> None:
        for name in names:
            owner = layer if hasattr(layer, f"use_pass_{name}") else layer.cycles
            if not hasattr(owner, f"use_pass_{name}"):
                raise BadInput(f"there is no pass {name!r} in Blender {self._bpy.app.version_string}")
            setattr(owner, f"use_pass_{name}", True)

    def _silence_other_outputs(self, scene: Any) -> None:
        """File output nodes write wherever the file says; the farm publishes what the job asked for."""
        if scene.use_nodes and scene.node_tree is not None:
            for node in scene.node_tree.nodes:
                if node.type == "OUTPUT_FILE":
                    node.mute = True

    def _border(self, scene: Any, border: list[float] | None) -> None:
        render = scene.render
        if border is None:
            return
        render.use_border = render.use_crop_to_border = True
        render.border_min_x, render.border_min_y, render.border_max_x, render.border_max_y = border

    def _studio(self, scene: Any) -> None:
        bpy = self._bpy
        if scene.world is None:
            scene.world = bpy.data.worlds.new("stillframe studio")
        scene.world.use_nodes = True
        for node in scene.world.node_tree.nodes:
            if node.type == "BACKGROUND":
                node.inputs["Color"].default_value = (0.55, 0.58, 0.62, 1.0)
                node.inputs["Strength"].default_value = 0.6
        for name, rotation, energy in (("key", (0.75, 0.1, 0.6), 3.0), ("rim", (-1.0, 0.0, 2.6), 1.5)):
            light = bpy.data.lights.new(f"stillframe {name}", "SUN")
            light.energy, light.angle = energy, 0.2
            holder = bpy.data.objects.new(f"stillframe {name}", light)
            holder.rotation_euler = rotation
            scene.collection.objects.link(holder)

    def _render(self, frame: int, folder: Path) -> dict[str, Any]:
        bpy, scene = self._bpy, self._scene
        if scene is None:
            raise Fault("nothing is configured")
        self._failure = None
        scene.frame_set(frame)
        settings = scene.render.image_settings
        # a multilayer EXR is written whole only by the render operator; the others are saved from its result
        ordered = sorted(self._formats, key=lambda item: item["format"] != "exr")
        written: dict[str, str] = {}
        for index, output in enumerate(ordered):
            path = folder / f"{frame:06d}.{output['name']}"
            _apply_format(settings, output)
            if index == 0:
                scene.render.filepath = str(path)
                outcome = bpy.ops.render.render(write_still=True, scene=scene.name)
                if "FINISHED" not in outcome or self._failure:
                    raise Fault(
                        f"frame {frame}: Blender did not finish the render: {self._failure or outcome}"
                    )
            else:
                bpy.data.images["Render Result"].save_render(str(path), scene=scene)
            if not path.is_file():
                raise Fault(f"frame {frame}: Blender reported success but wrote no {path.name}")
            written[output["name"]] = str(path)
        return {"files": written}

    def _on_stats(self, stats: Any, *_: Any) -> None:
        now = time.monotonic()
        if isinstance(stats, str) and now - self._last_event >= _EVENT_INTERVAL_S:
            self._last_event = now
            self._send({"event": "stats", "text": stats[:300]})

    def _on_cancel(self, *_: Any) -> None:
        self._failure = "it was cancelled inside Blender (out of memory, or a device error; see the log)"


def _apply_format(settings: Any, output: dict[str, Any]) -> None:
    kind = output["format"]
    if kind == "exr":
        settings.file_format = "OPEN_EXR_MULTILAYER" if output.get("multilayer", True) else "OPEN_EXR"
        settings.color_depth = "32" if output["dtype"] == "float32" else "16"
        settings.exr_codec = "ZIP"
    elif kind == "jpeg":
        settings.file_format = "JPEG"
        settings.quality = output.get("quality", 92)
    else:
        settings.file_format = "PNG"
        settings.color_depth = "16" if output["dtype"] == "uint16" else "8"
        settings.compression = 15
    if kind != "exr" or not output.get("multilayer", True):
        settings.color_mode = (
            "RGBA" if "A" in output["channels"] else ("RGB" if len(output["channels"]) > 1 else "BW")
        )
