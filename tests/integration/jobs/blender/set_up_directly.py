"""Run by Blender's Python: ``set_up_directly.py PROGRAM SCENE FOLDER WISH``. The child's setup, unconfined.

No sandbox hides here what a file would do: what the setup leaves on is done.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import bpy

program, scene_path, folder, wish = sys.argv[1:5]
sys.path.insert(0, program)
from program import opening, pictures, setup  # type: ignore[import-not-found]  # noqa: E402

opening.open_scene(bpy, Path(scene_path))
scene, facts = setup.configure(bpy, {"threads": 2, "device": "cpu", **json.loads(wish)})
output = {"name": "beauty.png", "format": "png", "dtype": "uint8"}
pictures.render(bpy, scene, scene.frame_start, [output], Path(folder))
print(json.dumps({"facts": facts, "osl": [bool(s.cycles.shading_system) for s in bpy.data.scenes]}))
sys.stdout.flush()
os._exit(0)
