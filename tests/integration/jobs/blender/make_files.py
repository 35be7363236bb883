"""Run by Blender's Python: ``make_files.py FOLDER``. Makes the .blend files of the tests."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

import bpy

FOLDER = Path(sys.argv[1])


def fresh(*, camera: bool = True) -> Any:
    """A moving cube under a light, 48x36, 4 samples, frames 1 to 5."""
    bpy.ops.wm.read_factory_settings(use_empty=True)
    scene = bpy.context.scene
    scene.render.engine = "CYCLES"
    scene.cycles.device = "CPU"
    scene.cycles.samples = 4
    scene.cycles.use_adaptive_sampling = False
    scene.cycles.use_denoising = False
    scene.render.resolution_x, scene.render.resolution_y = 96, 72
    scene.render.resolution_percentage = 50
    scene.frame_start, scene.frame_end = 1, 5
    bpy.ops.mesh.primitive_cube_add(size=1.6)
    cube = bpy.context.object
    cube.name = "Cube"
    for frame, angle in ((1, 0.0), (5, 1.0)):
        cube.rotation_euler = (0, 0, angle)
        cube.keyframe_insert("rotation_euler", frame=frame)
    material = bpy.data.materials.new("Paint")
    material.use_nodes = True
    material.node_tree.nodes["Principled BSDF"].inputs["Base Color"].default_value = (0.8, 0.2, 0.1, 1)
    cube.data.materials.append(material)
    bpy.ops.object.light_add(type="SUN", rotation=(0.6, 0.2, 0.3))
    bpy.context.object.data.energy = 3
    if camera:
        bpy.ops.object.camera_add(location=(4, -4, 3), rotation=(1.08, 0, 0.785))
        scene.camera = bpy.context.object
        scene.camera.name = "Shot"
    return scene


def textured(path: str) -> None:
    """Give the cube an image by ``path``."""
    image = bpy.data.images.new("tex", 4, 4)
    image.source = "FILE"
    image.filepath = path
    image.filepath_raw = path
    tree = bpy.data.materials["Paint"].node_tree
    node = tree.nodes.new("ShaderNodeTexImage")
    node.image = image
    tree.links.new(node.outputs["Color"], tree.nodes["Principled BSDF"].inputs["Base Color"])


def save(name: str) -> None:
    """Save it, with paths as they are."""
    bpy.ops.wm.save_as_mainfile(filepath=str(FOLDER / f"{name}.blend"), relative_remap=False, compress=False)


fresh()
save("plain")

fresh(camera=False)
save("no_camera")

for label, path in {
    "missing_image": "//tex/none.png",
    "absolute": "/nowhere/on/this/machine/tex.png",
    "foreign": "C:\\textures\\tex.png",
    "escape": "//../../secret",
    "secret": str(FOLDER.parent / "secret"),
}.items():
    fresh()
    textured(path)
    save(label)

fresh()
bpy.data.objects["Cube"].name = "Part"
save("lib")
fresh()
with bpy.data.libraries.load(str(FOLDER / "lib.blend"), link=True, relative=False) as (source, target):
    target.objects = ["Part"]
bpy.context.scene.collection.objects.link(target.objects[0])
bpy.data.libraries[0].filepath = "//lib.blend"
save("linked")

fresh()
save("partless")
fresh()
with bpy.data.libraries.load(str(FOLDER / "lib.blend"), link=True, relative=False) as (source, target):
    target.objects = ["Part"]
bpy.context.scene.collection.objects.link(target.objects[0])
bpy.data.libraries[0].filepath = "//partless.blend"
save("lacking")

fresh()
tree = bpy.data.materials["Paint"].node_tree
tree.nodes.new("ShaderNodeScript").script = bpy.data.texts.new("shade.osl")
save("osl")

scene = fresh()
bpy.context.view_layer.objects.active = bpy.data.objects["Cube"]
bpy.data.objects["Cube"].modifiers.new("Cloth", "CLOTH")
save("unbaked")

# a Geometry Nodes modifier without bakes, as every file of today has some
fresh()
group = bpy.data.node_groups.new("Grow", "GeometryNodeTree")
group.interface.new_socket("Geometry", in_out="OUTPUT", socket_type="NodeSocketGeometry")
cone = group.nodes.new("GeometryNodeMeshCone")
group.links.new(cone.outputs["Mesh"], group.nodes.new("NodeGroupOutput").inputs[0])
bpy.data.objects["Cube"].modifiers.new("Grow", "NODES").node_group = group
save("geometry_nodes")

scene = fresh()
for label in ("Soft", "Smoke", "Wet", "Sparks", "Brick", "Nodes"):
    bpy.ops.mesh.primitive_cube_add(size=0.5)
    item = bpy.context.object
    item.name = label
    if label == "Soft":
        item.modifiers.new("Soft", "SOFT_BODY")
    elif label == "Smoke":
        item.modifiers.new("Fluid", "FLUID").fluid_type = "DOMAIN"
    elif label == "Wet":
        item.modifiers.new("Paint", "DYNAMIC_PAINT").ui_type = "CANVAS"
        bpy.ops.dpaint.type_toggle(type="CANVAS")
        item.modifiers["Paint"].canvas_settings.canvas_surfaces[0].surface_type = "WAVE"
    elif label == "Sparks":
        item.modifiers.new("Sparks", "PARTICLE_SYSTEM")
    elif label == "Brick":
        bpy.ops.rigidbody.object_add()
    else:
        group = bpy.data.node_groups.new("Simulates", "GeometryNodeTree")
        output = group.nodes.new("GeometryNodeSimulationOutput")
        group.nodes.new("GeometryNodeSimulationInput").pair_with_output(output)
        item.modifiers.new("Nodes", "NODES").node_group = group
save("simulations")

scene = fresh()
text = bpy.data.texts.new("hello.py")
text.use_module = True
text.write(
    "import pathlib, bpy\nfor p in ('/out', '/tmp', '.'):\n    pathlib.Path(p, 'script-ran').touch()\n"
)
text.write("bpy.context.scene.render.resolution_x = 10\n")
cube = bpy.data.objects["Cube"]
curve = cube.driver_add("location", 2)
curve.driver.type = "SCRIPTED"
curve.driver.expression = "5 + (len(__import__('os').listdir('/')) > 0)"
save("scripts")

scene = fresh()
scene.render.filepath = str(FOLDER.parent / "elsewhere" / "frame-####")
scene.use_nodes = True
tree = scene.node_tree
layers = next((n for n in tree.nodes if n.type == "R_LAYERS"), None) or tree.nodes.new(
    "CompositorNodeRLayers"
)
out = next((n for n in tree.nodes if n.type == "COMPOSITE"), None) or tree.nodes.new(
    "CompositorNodeComposite"
)
files = tree.nodes.new("CompositorNodeOutputFile")
files.base_path = str(FOLDER.parent / "elsewhere")
invert = tree.nodes.new("CompositorNodeInvert")
tree.links.new(layers.outputs["Image"], invert.inputs["Color"])
tree.links.new(invert.outputs["Color"], out.inputs["Image"])
tree.links.new(layers.outputs["Image"], files.inputs[0])
save("elsewhere")

scene = fresh()
scene.cycles.use_denoising = True
save("denoised")

scene = fresh()
scene.cycles.time_limit = 30
scene.render.use_multiview = scene.render.use_stamp = True
scene.render.use_border = scene.render.use_crop_to_border = True
strips = scene.sequence_editor_create().strips
strips.new_effect(name="Black", type="COLOR", channel=1, frame_start=1, frame_end=5)
save("edit")

# no Blender of today writes that engine: its name goes into the field of 32 bytes by hand
data, count = re.subn(rb"CYCLES\0.{6}", b"BLENDER_GAME\0", (FOLDER / "plain.blend").read_bytes(), flags=re.S)
assert count
(FOLDER / "engine_gone.blend").write_bytes(data)

# nor does one write what the next will: the version stands in the header
(FOLDER / "future.blend").write_bytes(b"BLENDER-v409" + (FOLDER / "plain.blend").read_bytes()[12:])

sys.stdout.flush()
os._exit(0)
