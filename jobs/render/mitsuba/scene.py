"""A scene held open in the child: loaded once, rendered frame by frame. Imports Mitsuba; children only."""

from __future__ import annotations

import math
import os
import time
from pathlib import Path
from typing import Any

import mitsuba
import mitsuba.parser
import numpy as np

from farm.errors import DeviceUnavailable, EscapedPath, PermanentFailure
from farm.frame_range import FrameRange
from jobs.render.camera import (
    Bounds,
    FileCamera,
    KeyframeCamera,
    OrbitCamera,
    Pose,
    intrinsics,
    keyframe_pose,
    orbit_pose,
)
from jobs.render.mitsuba.pixels import Picture, auxiliary_layers, split_layers, write_outputs
from jobs.render.scene_paths import looks_outside
from jobs.render.spec import DEFAULT_SAMPLES, Spec

# Mitsuba's stubs describe no one variant; what runs is checked by rendering
mi: Any = mitsuba
parser: Any = mitsuba.parser

_PROGRESS_EVERY_S = 0.25


class _Progress(mitsuba.Appender):
    """Passes Mitsuba's progress on, and its warnings to stderr."""

    def __init__(self, answers: Any) -> None:
        super().__init__()
        self.answers = answers
        self.number: int | None = None
        self.said = 0.0

    def append(self, level: Any, text: str) -> None:
        print(text, flush=True)

    def log_progress(self, progress: float, name: str, formatted: str, eta: str, ptr: Any = None) -> None:
        now = time.monotonic()
        if self.number is not None and now - self.said > _PROGRESS_EVERY_S:
            self.said = now
            self.answers.send("progress", number=self.number, fraction=min(max(float(progress), 0.0), 1.0))


def load(request: dict[str, Any], answers: Any) -> HeldScene:
    """Set the variant, parse and build the scene.

    Raises :class:`farm.errors.DeviceUnavailable` where the variant does not run here, and
    :class:`farm.errors.PermanentFailure` or Mitsuba's own error for a broken scene.
    """
    import drjit as dr

    spec = Spec.model_validate(request["spec"])
    variant = str(request["variant"])
    try:
        mi.set_variant(variant)
        if variant.startswith("cuda"):
            dr.eval(mi.Float([1.0]) + 1.0)
            dr.sync_thread()
    except (ImportError, RuntimeError) as error:
        raise DeviceUnavailable(f"variant {variant} does not run here: {error}") from None
    dr.set_thread_count(max(1, int(request["threads"])))
    progress = _Progress(answers)
    logger = mi.logger()
    logger.clear_appenders()
    logger.add_appender(progress)
    mi.set_log_level(mi.LogLevel.Warn)
    root = Path(request["root"])
    if spec.suffix == ".xml":
        scene, sensor, bounds = _load_xml(root, spec, variant)
    else:
        from jobs.render.mitsuba.neutral_set import build

        scene, sensor, bounds = build(root / spec.scene, spec, Path(request["scratch"]))
    return HeldScene(spec, scene, sensor, bounds, variant, progress)


def _load_xml(root: Path, spec: Spec, variant: str) -> tuple[Any, Any, Bounds]:
    path = root / spec.scene
    config = parser.ParserConfig(variant)
    # merged meshes come in an order of chance, and with it other noise in every child
    config.merge_meshes = False
    # names are looked up beside the scene file first, as mi.load_file does
    mi.file_resolver().prepend(str(path.parent))
    state = parser.parse_file(config, str(path))
    parser.transform_all(config, state)
    _refuse_outside(state, path.parent, root)
    _set_integrators(state, spec)
    sensors = [node for node in state.nodes if node.type == mi.ObjectType.Sensor]
    camera = spec.resolved_camera
    index = camera.index if isinstance(camera, FileCamera) else 0
    if isinstance(camera, FileCamera) and index >= len(sensors):
        held = f"only {len(sensors)} cameras, from 0" if sensors else "no camera"
        raise PermanentFailure(f"{spec.scene} has {held}; set camera to orbit or keyframes, or another index")
    template = _sensor_template(state, sensors[index], spec) if sensors else {"type": "perspective"}
    made = parser.instantiate(config, state)
    scene = made[0] if isinstance(made, list) else made
    if not isinstance(scene, mi.Scene):
        raise PermanentFailure(f"{spec.scene} holds a {type(scene).__name__}, not a scene")
    return scene, make_sensor(template, spec), scene_bounds(scene)


def _refuse_outside(state: Any, home: Path, root: Path) -> None:
    """A second look at paths, now at what Mitsuba itself has parsed; links were looked at before."""
    for node in state.nodes:
        for name, value in node.props.items():
            outside = isinstance(value, str) and looks_outside(value)
            if outside and not Path(os.path.normpath(home / value)).is_relative_to(root):
                raise EscapedPath(f"{name} names {value[:200]!r}, outside the job's assets")


def _set_integrators(state: Any, spec: Spec) -> None:
    for node in state.nodes:
        if node.type == mi.ObjectType.Integrator:
            # a nested integrator (aov, moment) carries no light itself: the one inside it does
            carries = all(child.type != mi.ObjectType.Integrator for child in _children(state, node))
            if spec.max_depth is not None and carries:
                node.props["max_depth"] = spec.max_depth
            if spec.transparent and carries:
                node.props["hide_emitters"] = True


def _sensor_template(state: Any, node: Any, spec: Spec) -> dict[str, Any]:
    """The file's camera as a dictionary; its film and sampler keep their kind and filter, not their size."""
    wanted: dict[str, Any] = {"type": node.props.plugin_name()}
    for name, value in node.props.items():
        if not isinstance(value, mi.Properties.ResolvedReference):
            wanted[name] = value
            continue
        part = state.nodes[value.index()]
        plugin = part.props.plugin_name()
        if part.type == mi.ObjectType.Film:
            if plugin != "hdrfilm":
                raise PermanentFailure(
                    f"{spec.scene} films with {plugin}; only hdrfilm can be checked frame by frame"
                )
            for filter_node in _children(state, part):
                if filter_node.type == mi.ObjectType.ReconstructionFilter:
                    wanted["rfilter"] = _plain(filter_node)
        elif part.type == mi.ObjectType.Sampler:
            wanted["sampler"] = _plain(part)
        else:
            raise PermanentFailure(
                f"{spec.scene}: its camera holds a {plugin}, which is not supported; remove it"
            )
    return wanted


def _children(state: Any, node: Any) -> list[Any]:
    """Nodes that a node holds. ``Properties.references()`` leaves resolved references out."""
    held = [v for _, v in node.props.items() if isinstance(v, mi.Properties.ResolvedReference)]
    return [state.nodes[value.index()] for value in held]


def _plain(node: Any) -> dict[str, Any]:
    return {"type": node.props.plugin_name()} | dict(node.props.items())


def make_sensor(template: dict[str, Any], spec: Spec) -> Any:
    """A Mitsuba sensor with the job's film; raises where the sampler cannot take the job's samples."""
    wanted = dict(template)
    rfilter = wanted.pop("rfilter", {"type": "box" if spec.suffix != ".xml" else "gaussian"})
    if spec.pixel_filter != "file":
        rfilter = {"type": spec.pixel_filter}
    sampler = dict(wanted.pop("sampler", {"type": "independent"}))
    if spec.samples is not None or spec.suffix != ".xml":
        sampler["sample_count"] = spec.samples or DEFAULT_SAMPLES
    width, height = spec.size
    wanted["sampler"] = sampler
    wanted["film"] = {
        "type": "hdrfilm",
        "width": width,
        "height": height,
        "pixel_format": "rgba" if spec.transparent else "rgb",
        "component_format": "float32",
        "rfilter": rfilter,
    }
    sensor = mi.load_dict(wanted)
    count = int(sensor.sampler().sample_count())
    if spec.samples is not None and count != spec.samples:
        raise PermanentFailure(
            f"samples {spec.samples}: the scene's {sampler['type']} sampler would make it {count}; "
            f"ask for {count}"
        )
    return sensor


def scene_bounds(scene: Any) -> Bounds:
    """The sphere around everything in the scene that has a size."""
    box = scene.bbox()
    if not box.valid():
        return Bounds((0.0, 0.0, 0.0), 1.0)
    low, high = np.array(box.min).reshape(-1), np.array(box.max).reshape(-1)
    middle = (low + high) / 2.0
    return Bounds(
        (float(middle[0]), float(middle[1]), float(middle[2])), float(np.linalg.norm(high - low) / 2.0) or 1.0
    )


class HeldScene:
    """A loaded scene with its camera, integrator and output plan."""

    def __init__(
        self, spec: Spec, scene: Any, sensor: Any, bounds: Bounds, variant: str, progress: _Progress
    ) -> None:
        self.spec = spec
        self.scene = scene
        self.sensor = sensor
        self.bounds = bounds
        self.variant = variant
        self.progress = progress
        self.frames: FrameRange = spec.frame_range()
        self.layers = auxiliary_layers(spec)
        base = self._integrator()
        if self.layers:
            names = ",".join(f"{layer}:{_AOVS[layer]}" for layer in self.layers)
            self.integrator = mi.load_dict({"type": "aov", "aovs": names, "img": base})
        else:
            self.integrator = base
        self.params = mi.traverse(self.sensor)
        self.denoiser = make_denoiser(spec)

    def _integrator(self) -> Any:
        spec = self.spec
        if spec.integrator == "file":
            found = self.scene.integrator()
            if found is not None:
                return found
        kind = "path" if spec.integrator == "file" else spec.integrator
        wanted: dict[str, Any] = {"type": kind, "hide_emitters": spec.transparent}
        if spec.max_depth is not None and kind != "direct":
            wanted["max_depth"] = spec.max_depth
        return mi.load_dict(wanted)

    def facts(self) -> dict[str, Any]:
        """What the parent records about the device and the scene."""
        return {
            "mitsuba": mi.__version__,
            "variant": self.variant,
            "samples": int(self.sensor.sampler().sample_count()),
            "bounds": {"center": list(self.bounds.center), "radius": self.bounds.radius},
        }

    def pose(self, number: int) -> Pose | None:
        """Where the camera is in a frame; ``None`` for the file's own camera, which stands still."""
        camera = self.spec.resolved_camera
        if isinstance(camera, OrbitCamera):
            return orbit_pose(camera, number, self.frames, self.bounds, self.spec.size)
        if isinstance(camera, KeyframeCamera):
            return keyframe_pose(camera, number)
        return None

    def camera(self, number: int) -> dict[str, Any]:
        """The exact camera of a frame: camera-to-world (OpenGL convention) and intrinsics in pixels.

        Intrinsics are ``None`` for cameras that are not pinholes (orthographic, shifted, fisheye).
        """
        size = self.spec.size
        pose = self.pose(number)
        if pose is not None:
            try:
                matrix = pose.camera_to_world()
            except ValueError as error:
                raise PermanentFailure(f"frame {number}: {error}; change the keyframes around it") from None
            return {"frame": number, "camera_to_world": matrix, "intrinsics": intrinsics(pose.fov, size)}
        world = np.array(self.sensor.world_transform().matrix, dtype=np.float64).reshape(4, 4)
        matrix = (world @ np.diag([-1.0, 1.0, -1.0, 1.0])).tolist()
        pinhole = "x_fov" in self.params and not any(
            float(np.array(self.params[f"principal_point_offset_{axis}"]).reshape(-1)[0]) for axis in "xy"
        )
        fov = float(np.array(self.params["x_fov"]).reshape(-1)[0]) if pinhole else 0.0
        return {
            "frame": number,
            "camera_to_world": matrix,
            "intrinsics": intrinsics(fov, size) if pinhole else None,
        }

    def render(self, number: int, folder: Path) -> dict[str, Any]:
        """Render one frame and write its outputs into ``folder``; raises where pixels are not finite."""
        pose = self.pose(number)
        if pose is not None:
            self._move(number, pose)
        self.progress.number, self.progress.said = number, time.monotonic()
        seed = ((self.spec.seed or 0) + number) % 2**32
        try:
            image = mi.render(
                self.scene, sensor=self.sensor, integrator=self.integrator, seed=seed,
                spp=int(self.sensor.sampler().sample_count()),
            )  # fmt: skip
            pixels = np.array(image, dtype=np.float32)
        finally:
            self.progress.number = None
        picture: Picture = split_layers(pixels, self.integrator, self.spec, self.layers, number)
        if self.denoiser is not None:
            picture["beauty"] = self.denoiser(picture)
        files = write_outputs(picture, self.spec, folder, number)
        luminance = picture["beauty"][..., :3] @ np.array([0.2126, 0.7152, 0.0722], np.float32)
        return {"files": files, "quality": {"mean_luminance": round(float(luminance.mean()), 6)}}

    def _move(self, number: int, pose: Pose) -> None:
        try:
            matrix = np.array(pose.camera_to_world())
        except ValueError as error:
            raise PermanentFailure(f"frame {number}: {error}; change the keyframes around it") from None
        if "x_fov" not in self.params or not math.isfinite(float(matrix.sum())):
            raise PermanentFailure("the scene's camera cannot be moved; remove it from the file")
        transform = mi.ScalarTransform4f(matrix @ np.diag([-1.0, 1.0, -1.0, 1.0]))
        self.params["to_world"] = type(self.params["to_world"])(transform)
        self.params["x_fov"] = pose.fov
        self.params.update()


_AOVS = {"depth": "depth", "normal": "sh_normal", "albedo": "albedo"}


def make_denoiser(spec: Spec) -> Any:
    """A function from a picture to its denoised beauty, or ``None``."""
    if spec.denoise == "none":
        return None
    if spec.denoise == "oidn":
        from jobs.render.mitsuba.denoising import oidn

        return oidn()
    from jobs.render.mitsuba.denoising import optix

    return optix(spec.size)
