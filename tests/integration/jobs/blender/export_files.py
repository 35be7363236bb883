"""Run by Blender's Python: ``export_files.py FOLDER``. A cube in the formats that Blender imports."""

from __future__ import annotations

import os
import sys

import bpy

folder = sys.argv[1]
bpy.ops.wm.read_factory_settings(use_empty=True)
bpy.ops.mesh.primitive_cube_add(size=1.6)
bpy.ops.export_scene.gltf(filepath=f"{folder}/cube.glb", export_format="GLB")
bpy.ops.export_scene.gltf(filepath=f"{folder}/cube.gltf", export_format="GLTF_SEPARATE")
bpy.ops.wm.obj_export(filepath=f"{folder}/cube.obj")
bpy.ops.wm.ply_export(filepath=f"{folder}/cube.ply")
bpy.ops.wm.usd_export(filepath=f"{folder}/cube.usdc")
cube = bpy.context.object
for frame, angle in ((3, 0.0), (9, 1.0)):
    cube.rotation_euler = (0, 0, angle)
    cube.keyframe_insert("rotation_euler", frame=frame)
scene = bpy.context.scene
scene.frame_start, scene.frame_end = 3, 9
bpy.ops.export_scene.gltf(filepath=f"{folder}/turning.glb", export_format="GLB")
bpy.ops.wm.usd_export(filepath=f"{folder}/turning.usdc", export_animation=True)
sys.stdout.flush()
os._exit(0)
