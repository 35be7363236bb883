"""Run by Blender's Python: ``render_directly.py SCENE FOLDER WISH``. The plainest render there is."""

from __future__ import annotations

import json
import os
import sys

import bpy

scene_path, folder, wish = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
bpy.ops.wm.open_mainfile(filepath=scene_path, load_ui=False, use_scripts=False)
scene = bpy.context.scene
scene.render.threads_mode, scene.render.threads = "FIXED", 2
scene.render.use_file_extension = False
if "samples" in wish:
    scene.cycles.samples = wish["samples"]
    scene.cycles.use_adaptive_sampling = False
if "resolution" in wish:
    scene.render.resolution_x, scene.render.resolution_y = wish["resolution"]
    scene.render.resolution_percentage = 100
for name in wish.get("passes", ()):
    setattr(scene.view_layers[0], f"use_pass_{name}", True)
for path, value in wish.get("set", {}).items():
    group, name = path.split(".")
    setattr(getattr(scene, group), name, value)
settings = scene.render.image_settings
for number in wish["frames"]:
    scene.frame_set(number)
    for kind, suffix in (("PNG", "png"), ("OPEN_EXR_MULTILAYER", "exr")):
        if suffix in wish.get("formats", ["png"]):
            settings.file_format = kind
            settings.color_depth = "8" if suffix == "png" else "32"
            if suffix == "png":
                settings.color_mode = "RGB"
            scene.render.filepath = f"{folder}/{number}.{suffix}"
            bpy.ops.render.render(write_still=True)
sys.stdout.flush()
os._exit(0)
