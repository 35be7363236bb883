"""Run by Blender's Python: ``make_hostile.py FOLDER``. Files that would attack at load, one for each door.

Each script says in a file ``said`` of its working folder how far it came. ``memory`` and ``huge`` need no
script: their geometry and their picture are too big for any machine.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import bpy

FOLDER = Path(sys.argv[1])
SCRIPTS = {
    # the test writes the port of its own listener over these digits
    "network": """
        import socket
        PORT = int("10000")
        socket.create_connection(("127.0.0.1", PORT), 3)
        say("connected")
    """,
    "forks": """
        import os, time
        made = 0
        try:
            for _ in range(500):
                if os.fork() == 0:
                    time.sleep(30)
                    os._exit(0)
                made += 1
        finally:
            say(f"forked {made}")
    """,
    "allocation": """
        held = []
        try:
            for _ in range(400):
                held.append(bytearray(2**28))
        finally:
            got = len(held)
            held.clear()
            say(f"got {got * 0.25} GiB")
    """,
}


def fresh() -> None:
    """A cube that a camera looks at, one sample."""
    bpy.ops.wm.read_factory_settings(use_empty=True)
    scene = bpy.context.scene
    scene.render.engine = "CYCLES"
    scene.cycles.samples = 1
    scene.render.resolution_x, scene.render.resolution_y = 32, 24
    bpy.ops.mesh.primitive_cube_add()
    bpy.ops.object.camera_add(location=(4, -4, 3), rotation=(1.08, 0, 0.785))
    scene.camera = bpy.context.object


def save(name: str) -> None:
    """Save it uncompressed."""
    bpy.ops.wm.save_as_mainfile(filepath=str(FOLDER / f"{name}.blend"), compress=False)


for name, body in SCRIPTS.items():
    fresh()
    text = bpy.data.texts.new(f"{name}.py")
    text.use_module = True
    lines = [line[8:] for line in body.strip("\n").splitlines()]
    text.write(
        "import pathlib\n"
        "def say(words):\n"
        "    pathlib.Path('said').write_text(words)\n"
        "try:\n    " + "\n    ".join(lines) + "\nexcept BaseException as error:\n"
        "    if not pathlib.Path('said').exists():\n        say(type(error).__name__)\n"
    )
    save(name)

fresh()
cube = bpy.data.objects["Cube"]
for _ in range(3):
    cube.modifiers.new("Array", "ARRAY").count = 1000
save("memory")

fresh()
bpy.context.scene.render.resolution_x = bpy.context.scene.render.resolution_y = 65_536
save("huge")

sys.stdout.flush()
os._exit(0)
