"""Small scenes for the tests, written on the spot."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

SCENE = """<scene version="3.0.0">
  <integrator type="path"><integer name="max_depth" value="4"/></integrator>
  <sensor type="perspective">
    <string name="fov_axis" value="x"/><float name="fov" value="50"/>
    <transform name="to_world"><lookat origin="0, 1.5, 5" target="0, 0, 0" up="0, 1, 0"/></transform>
    <film type="hdrfilm">
      <integer name="width" value="32"/><integer name="height" value="24"/><rfilter type="box"/>
    </film>
    <sampler type="independent"><integer name="sample_count" value="4"/></sampler>
  </sensor>
  <shape type="sphere"><float name="radius" value="1"/>
    <bsdf type="roughplastic"><texture name="diffuse_reflectance" type="bitmap">
      <string name="filename" value="textures/checks.png"/></texture></bsdf>
  </shape>
  <shape type="rectangle">
    <transform name="to_world">
      <rotate x="1" angle="-90"/><scale value="6"/><translate y="-1"/>
    </transform>
    <bsdf type="diffuse"><rgb name="reflectance" value="0.4, 0.4, 0.45"/></bsdf>
  </shape>
  EXTRA
  <emitter type="constant"><rgb name="radiance" value="RADIANCE"/></emitter>
</scene>
"""
DIRECT = """
import json, sys
import mitsuba as mi, numpy as np
job = json.loads(sys.argv[1])
mi.set_variant("scalar_rgb")
scene = mi.load_file(job["scene"], optimize=False)
sensor = scene.sensors()[0]
if job.get("sensor"):
    wanted = job["sensor"]
    look = wanted.pop("look_at")
    wanted["to_world"] = mi.ScalarTransform4f().look_at(**look)
    sensor = mi.load_dict(wanted)
integrator = scene.integrator()
if job.get("aovs"):
    integrator = mi.load_dict({"type": "aov", "aovs": job["aovs"], "img": integrator})
image = mi.render(scene, sensor=sensor, integrator=integrator, spp=job["spp"], seed=job["seed"])
np.save(job["to"] + ".npy", np.array(image))
rgb = mi.TensorXf(np.ascontiguousarray(np.array(image)[..., :3]))
mi.util.write_bitmap(job["to"] + ".png", rgb, write_async=False)
matrix = np.array(sensor.world_transform().matrix, dtype=float).reshape(4, 4)
np.save(job["to"] + ".matrix.npy", matrix)
"""


def write_scene(folder: Path, *, extra: str = "", radiance: str = "0.9, 1.0, 1.1") -> dict[str, Path]:
    """A ball with a texture on a floor under an even sky; returns job paths to files."""
    (folder / "textures").mkdir(parents=True, exist_ok=True)
    checks = ((np.indices((16, 16)).sum(0) % 2)[..., None] * np.array([200, 60, 30]) + 40).astype(np.uint8)
    Image.fromarray(checks).save(folder / "textures" / "checks.png")
    text = SCENE.replace("EXTRA", extra).replace("RADIANCE", radiance)
    (folder / "scene.xml").write_text(text)
    return {"scene.xml": folder / "scene.xml", "textures/checks.png": folder / "textures" / "checks.png"}


def render_directly(folder: Path, to: Path, **job: Any) -> tuple[Any, Any, Any]:
    """The same scene by Mitsuba alone, in its own process: linear pixels, 8-bit pixels, camera matrix."""
    job = {"scene": str(folder / "scene.xml"), "to": str(to), "spp": 4, **job}
    subprocess.run([sys.executable, "-c", DIRECT, json.dumps(job)], check=True, timeout=120)
    return (
        np.load(f"{to}.npy"),
        np.asarray(Image.open(f"{to}.png")),
        np.load(f"{to}.matrix.npy"),
    )
