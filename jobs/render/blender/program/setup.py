"""Sets an open file up as a job asks: what it does not name stays as the file says."""

from __future__ import annotations

from typing import Any

from . import cameras, colors, devices, overrides, passes, trees
from .faults import BadInput, NoDevice

ENGINES = ("cycles", "eevee", "workbench")
_EEVEE = "BLENDER_EEVEE"


def configure(bpy: Any, wish: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Apply ``wish`` (the job's settings by name); returns the scene and the facts that follow from it.

    Raises :class:`BadInput` for names that the file does not have, and :class:`NoDevice`.
    """
    scene = _pick_scene(bpy, wish.get("scene"))
    layers = _pick_layers(scene, wish.get("view_layer"))
    applied = overrides.apply(bpy, wish.get("overrides", []))
    render = scene.render
    engine = _pick_engine(bpy, scene, wish.get("engine"))
    if engine == "CYCLES":
        used = devices.choose(bpy, scene, wish["device"], wish.get("pci") or [])
    else:
        used = [_graphics(engine)]
    if wish.get("resolution"):
        render.resolution_x, render.resolution_y = wish["resolution"]
        render.resolution_percentage = 100
    if wish.get("resolution_percentage"):
        render.resolution_percentage = wish["resolution_percentage"]
    _sampling(scene, engine, wish)
    for name, owner, attribute in (
        ("motion_blur", render, "use_motion_blur"),
        ("compositor", render, "use_compositing"),
        ("transparent", render, "film_transparent"),
    ):
        if wish.get(name) is not None:
            setattr(owner, attribute, wish[name])
    _color(bpy, scene, wish)
    for layer in layers:
        _passes(bpy, scene, layer, wish.get("passes", []))
    _settle(bpy, scene, wish["threads"])
    if wish.get("lights") == "studio":
        _studio(bpy, scene)
    _camera(bpy, scene, layers[0], wish)
    for each in applied:
        each.check("the job's other fields, or what a farm decides, say otherwise; leave one of them out")
    if applied:
        # animation moves a property back at every frame
        for frame in wish.get("frames") or (scene.frame_start, scene.frame_end):
            scene.frame_set(frame)
            for each in applied:
                each.check("the file animates it; remove its keys or its driver")
    names, wide = passes.channels(scene, layers)
    return scene, {
        "scene": scene.name,
        "view_layers": [layer.name for layer in layers],
        "engine": engine,
        "devices": used,
        "camera": scene.camera.name,
        "camera_markers": cameras.markers(scene),
        "frame_start": scene.frame_start,
        "frame_end": scene.frame_end,
        "frame_step": scene.frame_step,
        "width": render.resolution_x * render.resolution_percentage // 100,
        "height": render.resolution_y * render.resolution_percentage // 100,
        "samples": _samples(scene, engine),
        "view_transform": scene.view_settings.view_transform,
        "transparent": bool(render.film_transparent),
        "compositor": passes.composites(scene),
        "denoising": engine == "CYCLES" and bool(scene.cycles.use_denoising),
        "adaptive": engine == "CYCLES" and bool(scene.cycles.use_adaptive_sampling),
        "channels": names,
        "wide": wide,
    }


def set_part(scene: Any, part: dict[str, Any]) -> None:
    """Render only a part: ``border`` (left, bottom, right, top in pixels from the lower left corner) or a
    range of samples (``first``, ``count``). No denoiser and no compositor runs over a part."""
    render = scene.render
    scene.cycles.use_denoising = False
    render.use_compositing = False
    border = part.get("border")
    render.use_border = render.use_crop_to_border = border is not None
    if border is not None:
        width = render.resolution_x * render.resolution_percentage // 100
        height = render.resolution_y * render.resolution_percentage // 100
        # Blender cuts towards zero in single precision: a quarter pixel keeps it on the right one
        render.border_min_x, render.border_max_x = ((border[i] + 0.25) / width for i in (0, 2))
        render.border_min_y, render.border_max_y = ((border[i] + 0.25) / height for i in (1, 3))
    if part.get("count"):
        scene.cycles.use_sample_subset = True
        scene.cycles.sample_offset = part["first"]
        scene.cycles.sample_subset_length = part["count"]


def _pick_scene(bpy: Any, name: str | None) -> Any:
    if name is None:
        return bpy.context.scene
    scene = bpy.data.scenes.get(name)
    if scene is None:
        names = ", ".join(repr(each.name) for each in bpy.data.scenes)
        raise BadInput(f"there is no scene {name!r} in the file; it has {names}")
    if bpy.context.window is not None:
        bpy.context.window.scene = scene
    return scene


def _pick_layers(scene: Any, name: str | None) -> list[Any]:
    """The view layers that are rendered: the named one, or those that the file renders."""
    if name is None:
        return [layer for layer in scene.view_layers if layer.use] or [_none_is_on(scene)]
    layer = scene.view_layers.get(name)
    if layer is None:
        names = ", ".join(repr(each.name) for each in scene.view_layers)
        raise BadInput(f"there is no view layer {name!r} in scene {scene.name!r}; it has {names}")
    for other in scene.view_layers:
        other.use = other == layer
    return [layer]


def _none_is_on(scene: Any) -> Any:
    raise BadInput(f"no view layer of scene {scene.name!r} is switched on; name one in blender.view_layer")


def _pick_engine(bpy: Any, scene: Any, name: str | None) -> str:
    # EEVEE was called so from 4.2 to 4.5 alone
    eevee = f"{_EEVEE}_NEXT" if (4, 2) <= tuple(bpy.app.version[:2]) < (5, 0) else _EEVEE
    names = {"cycles": "CYCLES", "eevee": eevee, "workbench": "BLENDER_WORKBENCH"}
    if name is not None:
        scene.render.engine = names[name]
    engine = scene.render.engine
    if engine not in names.values():
        raise BadInput(
            f"the file's engine {engine!r} does not exist in Blender {bpy.app.version_string}; "
            f"choose one of {', '.join(ENGINES)} in blender.engine"
        )
    return str(engine)


def _graphics(engine: str) -> str:
    """EEVEE and Workbench draw through OpenGL; without it Blender ends the process, so it is asked first."""
    import ctypes

    missing = []
    for library in ("libEGL.so.1", "libGL.so.1"):
        try:
            ctypes.CDLL(library)
        except OSError:
            missing.append(library)
    if missing:
        what = "EEVEE" if engine.startswith(_EEVEE) else "Workbench"
        raise NoDevice(
            f"{what} needs OpenGL, and this node lacks {' and '.join(missing)}; install it "
            "(Debian: apt-get install libegl1 libgl1 libgl1-mesa-dri), or choose blender.engine: cycles"
        )
    return "OpenGL"


def _sampling(scene: Any, engine: str, wish: dict[str, Any]) -> None:
    samples = wish.get("samples")
    if engine == "CYCLES":
        cycles = scene.cycles
        if samples:
            cycles.samples = samples
            # what was asked for happens: an adaptive stop would take fewer
            cycles.use_adaptive_sampling = False
        if wish.get("adaptive") is not None:
            cycles.use_adaptive_sampling = wish["adaptive"]
        if wish.get("seed") is not None:
            cycles.seed = wish["seed"]
            cycles.use_animated_seed = True
        # a limit of time makes pictures differ from run to run
        cycles.time_limit = 0
        _denoiser(cycles, wish.get("denoiser"))
    elif samples and engine.startswith(_EEVEE):
        scene.eevee.taa_render_samples = samples
    elif samples:
        raise BadInput("Workbench has no samples; leave samples out, or choose cycles or eevee")


def _denoiser(cycles: Any, name: str | None) -> None:
    if name is not None:
        cycles.use_denoising = name != "none"
    if name is not None and name != "none":
        try:
            cycles.denoiser = name.upper()
        except TypeError as error:
            raise BadInput(f"denoiser {name!r} is not there: {error}") from None
    if cycles.use_denoising and not cycles.denoiser:
        # some distributions build none in, and Blender says so at the first frame only
        raise BadInput("this Blender is built without the file's denoiser; set blender.denoiser: none")


def _samples(scene: Any, engine: str) -> int | None:
    if engine == "CYCLES":
        return int(scene.cycles.samples)
    return int(scene.eevee.taa_render_samples) if engine.startswith(_EEVEE) else None


def _color(bpy: Any, scene: Any, wish: dict[str, Any]) -> None:
    colors.check(bpy)
    view = scene.view_settings
    for name in ("view_transform", "look"):
        if wish.get(name):
            try:
                setattr(view, name, wish[name])
            except TypeError as error:
                raise BadInput(f"{name} {wish[name]!r} is not in this OCIO configuration: {error}") from None
    for name in ("exposure", "gamma"):
        if wish.get(name) is not None:
            setattr(view, name, wish[name])


def _passes(bpy: Any, scene: Any, layer: Any, names: list[str]) -> None:
    """Switch passes on. A pass that the engine does not write is refused, not left out in silence."""
    for name in names:
        switch = f"use_pass_{name}"
        own = layer.cycles if scene.render.engine == "CYCLES" else layer.eevee
        owner = next((o for o in (layer, own) if hasattr(o, switch)), None)
        if owner is None:
            raise BadInput(f"there is no pass {name!r} in Blender {bpy.app.version_string}")
        setattr(owner, switch, False)
        without = len(passes.channels(scene, [layer])[0])
        setattr(owner, switch, True)
        if len(passes.channels(scene, [layer])[0]) == without:
            raise BadInput(f"{scene.render.engine} writes no pass {name!r}; leave it out of blender.passes")


def _settle(bpy: Any, scene: Any, threads: int) -> None:
    """What a file may not decide on a farm: where files go, and which other files are written."""
    render = scene.render
    render.use_sequencer = False
    # a border as the file has it leaves the rest black; the picture keeps its size
    render.use_crop_to_border = False
    render.use_file_extension = False
    render.use_overwrite = True
    render.use_placeholder = False
    render.use_multiview = False
    render.use_stamp = False
    render.threads_mode = "FIXED"
    render.threads = threads
    render.image_settings.color_management = "FOLLOW_SCENE"
    # a compositor may show other scenes of the file, and nest its outputs in groups
    for _, node in trees.file_outputs(bpy.data):
        node.mute = True
    for each in bpy.data.scenes:
        if getattr(each, "cycles", None) is not None:
            # the program of a script node would run
            each.cycles.shading_system = False


def _camera(bpy: Any, scene: Any, layer: Any, wish: dict[str, Any]) -> None:
    name = wish.get("camera")
    if name:
        # a marker would take another camera at its frame
        for marker in scene.timeline_markers:
            marker.camera = None
    if name == "auto":
        start, end = scene.frame_start, scene.frame_end
        frames = wish.get("frames") or sorted({start, (start + end) // 2, end})
        cameras.add_auto_camera(bpy, scene, layer, frames)
    elif name:
        item = scene.objects.get(name)
        if item is None or item.type != "CAMERA":
            names = ", ".join(repr(each.name) for each in scene.objects if each.type == "CAMERA")
            raise BadInput(f"there is no camera {name!r} in scene {scene.name!r}; it has {names or 'none'}")
        scene.camera = item
    if scene.camera is None and any(marker.camera for marker in scene.timeline_markers):
        scene.frame_set((wish.get("frames") or [scene.frame_start])[0])
    if scene.camera is None:
        raise BadInput(
            f"scene {scene.name!r} has no camera; name one in blender.camera, or set it to auto "
            "to frame all visible objects"
        )


def _studio(bpy: Any, scene: Any) -> None:
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
