"""Run by Blender's Python: ``make_files.py FOLDER``. Makes the .blend files of the tests."""

from __future__ import annotations

import os
import re
import sys
import wave
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

scene = fresh()
other = scene.camera.copy()
other.name, other.location = "Other", (-4, -4, 3)
other.rotation_euler = (1.08, 0, -0.785)
scene.collection.objects.link(other)
for frame, camera in ((1, scene.camera), (3, other)):
    scene.timeline_markers.new(f"cut {frame}", frame=frame).camera = camera
save("markers")

scene = fresh()
scene.use_nodes = scene.cycles.shading_system = True
tree = scene.node_tree
layers = next((n for n in tree.nodes if n.type == "R_LAYERS"), None) or tree.nodes.new(
    "CompositorNodeRLayers"
)
inner = bpy.data.node_groups.new("Writes", "CompositorNodeTree")
inner.interface.new_socket("Image", in_out="INPUT", socket_type="NodeSocketColor")
files = inner.nodes.new("CompositorNodeOutputFile")
files.base_path = "//nested"
inner.links.new(inner.nodes.new("NodeGroupInput").outputs[0], files.inputs[0])
outer = bpy.data.node_groups.new("Holds", "CompositorNodeTree")
outer.interface.new_socket("Image", in_out="INPUT", socket_type="NodeSocketColor")
holder = outer.nodes.new("CompositorNodeGroup")
holder.node_tree = inner
outer.links.new(outer.nodes.new("NodeGroupInput").outputs[0], holder.inputs[0])
holder = tree.nodes.new("CompositorNodeGroup")
holder.node_tree = outer
tree.links.new(layers.outputs["Image"], holder.inputs[0])
files = tree.nodes.new("CompositorNodeOutputFile")
files.base_path = "//top"
tree.links.new(layers.outputs["Image"], files.inputs[0])
save("writes")

scene = fresh()
cube = bpy.data.objects["Cube"]
cube.modifiers.new("Hair", "PARTICLE_SYSTEM")
cube.particle_systems[0].settings.type = "HAIR"
cube.particle_systems[0].use_hair_dynamics = True
cube.shape_key_add(name="Basis")
cube.shape_key_add(name="Up")
paint = bpy.data.materials["Paint"].node_tree
for owner, path in (
    (cube.particle_systems[0].settings, "hair_length"),
    (cube.data.shape_keys.key_blocks["Up"], "value"),
    (paint.nodes["Principled BSDF"].inputs["Roughness"], "default_value"),
):
    curve = owner.driver_add(path)
    curve.driver.type = "SCRIPTED"
    curve.driver.expression = "len(__import__('os').listdir('/'))"
inner = bpy.data.node_groups.new("Simulates", "GeometryNodeTree")
output = inner.nodes.new("GeometryNodeSimulationOutput")
inner.nodes.new("GeometryNodeSimulationInput").pair_with_output(output)
outer = bpy.data.node_groups.new("Holds", "GeometryNodeTree")
outer.nodes.new("GeometryNodeGroup").node_tree = inner
cube.modifiers.new("Nodes", "NODES").node_group = outer
sun = bpy.data.lights[0]
sun.use_nodes = True
sun.node_tree.nodes.new("ShaderNodeScript")
save("hidden")


def sequence(name: str, path: str, start: int, offset: int) -> None:
    """Give the cube a sequence of five pictures by the path of its first."""
    textured(path)
    image = bpy.data.images["tex"]
    image.name, image.source = name, "SEQUENCE"
    user = bpy.data.materials["Paint"].node_tree.nodes["Image Texture"].image_user
    user.frame_duration, user.frame_start, user.frame_offset, user.use_auto_refresh = 5, start, offset, True


fresh()
sequence("hole", "//hole_0001.png", 1, 0)
save("hole")

scene = fresh()
sequence("pictures", "//pictures_011.png", 2, 10)
tiled = bpy.data.images.new("tiled", 4, 4, tiled=True)
tiled.tiles.new(1002)
tiled.source, tiled.filepath = "TILED", "//tiled.<UDIM>.png"
bpy.data.materials["Paint"].node_tree.nodes.new("ShaderNodeTexImage").image = tiled
sun = bpy.data.lights[0]
sun.use_nodes = True
lamp = sun.node_tree.nodes.new("ShaderNodeTexIES")
lamp.mode, lamp.filepath = "EXTERNAL", "//none.ies"
cube = bpy.data.objects["Cube"]
cube.modifiers.new("Mesh", "MESH_CACHE").filepath = "//none.mdd"
group = bpy.data.node_groups.new("Imports", "GeometryNodeTree")
group.nodes.new("GeometryNodeImportOBJ").inputs["Path"].default_value = "//none.obj"
cube.modifiers.new("Nodes", "NODES").node_group = group
volume = bpy.data.volumes.new("Smoke")
volume.filepath, volume.is_sequence, volume.sequence_mode = "//smoke_01.vdb", True, "REPEAT"
volume.frame_start, volume.frame_duration = 1, 3
scene.collection.objects.link(bpy.data.objects.new("Smoke", volume))
bpy.ops.cachefile.open(filepath=str(FOLDER / "none.abc"))
bpy.data.cache_files[0].filepath = "//none.abc"
cube.modifiers.new("Cache", "MESH_SEQUENCE_CACHE").cache_file = bpy.data.cache_files[0]
fonts = Path(bpy.utils.system_resource("DATAFILES", path="fonts"))
font = bpy.data.fonts.load(str(next(path for path in sorted(fonts.iterdir()) if "Mono" in path.name)))
font.name, font.filepath = "None", "//none.ttf"
curve = bpy.data.curves.new("Words", "FONT")
curve.font = font
scene.collection.objects.link(bpy.data.objects.new("Words", curve))
with wave.open(str(FOLDER / "none.wav"), "wb") as file:
    file.setparams((1, 1, 8000, 0, "NONE", ""))
    file.writeframes(bytes(80))
sound = bpy.data.sounds.load(str(FOLDER / "none.wav"))
sound.name, sound.filepath = "None", "//none.wav"
speaker = bpy.data.speakers.new("Speaker")
speaker.sound = sound
scene.collection.objects.link(bpy.data.objects.new("Speaker", speaker))
save("files")

scene = fresh()
cloth = bpy.data.objects["Cube"].modifiers.new("Cloth", "CLOTH")
cloth.point_cache.frame_end = 2
save("baked")
bpy.ops.wm.open_mainfile(filepath=str(FOLDER / "baked.blend"))
bpy.data.objects["Cube"].modifiers["Cloth"].point_cache.use_disk_cache = True
bpy.ops.ptcache.bake_all(bake=True)
save("baked")

# no Blender of today writes that engine: its name goes into the field of 32 bytes by hand
data, count = re.subn(rb"CYCLES\0.{6}", b"BLENDER_GAME\0", (FOLDER / "plain.blend").read_bytes(), flags=re.S)
assert count
(FOLDER / "engine_gone.blend").write_bytes(data)

# nor does one write what the next will: the version stands in the header
(FOLDER / "future.blend").write_bytes(b"BLENDER-v409" + (FOLDER / "plain.blend").read_bytes()[12:])

sys.stdout.flush()
os._exit(0)
