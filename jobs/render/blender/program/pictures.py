"""Renders one frame and writes its files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .faults import Fault


def render(bpy: Any, scene: Any, number: int, outputs: list[dict[str, Any]], folder: Path) -> dict[str, str]:
    """Render ``number`` once and write every output; returns output name to file name in ``folder``.

    An output is ``{"name", "format", "dtype", "alpha", "quality"}``. Raises :class:`Fault`, naming the frame.
    """
    scene.frame_set(number)
    # a multilayer EXR is written whole only by the render operator; the others are saved from its result
    ordered = sorted(outputs, key=lambda output: output["format"] != "exr")
    written: dict[str, str] = {}
    for index, output in enumerate(ordered):
        path = folder / f"{number}-{output['name']}"
        apply_format(scene.render.image_settings, output)
        if index == 0:
            scene.render.filepath = str(path)
            outcome = bpy.ops.render.render(write_still=True, scene=scene.name)
            if "FINISHED" not in outcome:
                raise Fault(f"frame {number}: Blender did not finish the render: {outcome}")
        else:
            bpy.data.images["Render Result"].save_render(str(path), scene=scene)
        if not path.is_file():
            raise Fault(f"frame {number}: Blender reported success but wrote no {output['name']}")
        written[output["name"]] = path.name
    return written


def develop(
    bpy: Any, scene: Any, source: Path, number: int, outputs: list[dict[str, Any]], folder: Path
) -> dict[str, str]:
    """Write a picture in linear light (``source``, an EXR of the pass ``Combined``) as a render's own.

    It goes in as what an engine rendered, so that view transform and dither are those of a whole render, to
    the last bit: an image that is loaded and saved is not dithered.
    """
    render, written = scene.render, {}
    before = render.engine, render.use_compositing, render.use_border
    # the border is still that of a part
    render.engine, render.use_compositing, render.use_border = _reader(bpy, source), False, False
    try:
        bpy.ops.render.render(scene=scene.name)
    finally:
        render.engine, render.use_compositing, render.use_border = before
    for output in outputs:
        path = folder / f"{number}-{output['name']}"
        apply_format(render.image_settings, output)
        bpy.data.images["Render Result"].save_render(str(path), scene=scene)
        if not path.is_file():
            raise Fault(f"frame {number}: Blender reported success but wrote no {output['name']}")
        written[output["name"]] = path.name
    return written


def _reader(bpy: Any, source: Path) -> str:
    """An engine that renders what is in ``source``; its name."""

    def render(self: Any, depsgraph: Any) -> None:
        settings = depsgraph.scene.render
        size = (
            side * settings.resolution_percentage // 100
            for side in (settings.resolution_x, settings.resolution_y)
        )
        result = self.begin_result(0, 0, *size)
        result.layers[0].load_from_file(str(source))
        self.end_result(result)

    name = "STILLFRAME_READER"
    known = getattr(bpy.types, name, None)
    if known is not None:
        bpy.utils.unregister_class(known)
    members = {"bl_idname": name, "bl_label": "Reader", "render": render}
    bpy.utils.register_class(type(name, (bpy.types.RenderEngine,), members))
    return name


def apply_format(settings: Any, output: dict[str, Any]) -> None:
    """Blender's image settings for an output."""
    kind = output["format"]
    if hasattr(settings, "media_type"):
        # since 5.0 it decides which formats there are
        settings.media_type = "MULTI_LAYER_IMAGE" if kind == "exr" else "IMAGE"
    if kind == "exr":
        settings.file_format = "OPEN_EXR_MULTILAYER"
        settings.color_depth = "32" if output["dtype"] == "float32" else "16"
        settings.exr_codec = "ZIP"
        return
    if kind == "jpeg":
        settings.file_format = "JPEG"
        settings.quality = output.get("quality", 90)
    else:
        settings.file_format = "PNG"
        settings.color_depth = "16" if output["dtype"] == "uint16" else "8"
        settings.compression = 15
    settings.color_mode = "RGBA" if output.get("alpha") else "RGB"
