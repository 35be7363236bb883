"""Structure from motion with pycolmap, in a process of its own: one request on stdin, JSON lines on stdout.

Features, matches, mapping. A crash of the native code ends this process, not the slot, and the farm can
freeze or end it at any moment.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any


def say(event: str, **data: Any) -> None:
    """One line for the parent."""
    _OUT.write(json.dumps({"event": event, **data}) + "\n")
    _OUT.flush()


def main() -> int:
    """Do what the request asks; the answer is the last line."""
    request = json.loads(sys.stdin.readline())
    import pycolmap as colmap

    colmap.set_random_seed(int(request["seed"]))
    folder = Path(request["folder"])
    images = Path(request["images"])
    database = folder / "database.db"
    threads = int(request["threads"])
    started = time.monotonic()
    _features(colmap, request, database, images, threads)
    say("phase", name="matching", share=0.45, seconds=time.monotonic() - started)
    _match(colmap, request, database, threads)
    say("phase", name="mapping", share=0.7, seconds=time.monotonic() - started)
    models = _map(colmap, request, database, images, folder, threads)
    say("done", seconds=time.monotonic() - started, models=[_told(model, images) for model in models])
    return 0


def _features(colmap: Any, request: dict[str, Any], database: Path, images: Path, threads: int) -> None:
    options = colmap.FeatureExtractionOptions()
    options.num_threads = threads
    options.use_gpu = False
    options.max_image_size = request["feature_side"]
    options.sift.max_num_features = request["max_features"]
    for number, group in enumerate(request["groups"]):
        reader = colmap.ImageReaderOptions()
        reader.camera_model = request["camera_model"]
        if group.get("focal"):
            reader.camera_params = _guess(request["camera_model"], group)
        colmap.extract_features(
            database_path=database, image_path=images, image_names=group["names"],
            camera_mode=colmap.CameraMode.SINGLE, reader_options=reader, extraction_options=options,
            device=colmap.Device.cpu,
        )  # fmt: skip
        say("phase", name="features", share=0.4 * (number + 1) / len(request["groups"]))


def _guess(model: str, group: dict[str, Any]) -> str:
    """Starting parameters in COLMAP's order, from a focal length in pixels."""
    focal, x, y = group["focal"], group["width"] / 2, group["height"] / 2
    head = [focal, x, y] if model.startswith("SIMPLE") or model == "RADIAL" else [focal, focal, x, y]
    rest = {
        "SIMPLE_PINHOLE": 0, "PINHOLE": 0, "SIMPLE_RADIAL": 1, "RADIAL": 2, "OPENCV": 4, "OPENCV_FISHEYE": 4,
    }[model]  # fmt: skip
    return ",".join(str(value) for value in [*head, *[0.0] * rest])


def _match(colmap: Any, request: dict[str, Any], database: Path, threads: int) -> None:
    matching = colmap.FeatureMatchingOptions()
    matching.num_threads = threads
    matching.use_gpu = False
    common = {"database_path": database, "matching_options": matching, "device": colmap.Device.cpu}
    if request["matching"] == "sequential":
        pairing = colmap.SequentialPairingOptions()
        pairing.overlap = 10
        pairing.quadratic_overlap = True
        pairing.loop_detection = False
        colmap.match_sequential(pairing_options=pairing, **common)
    elif request["matching"] == "vocabulary":
        colmap.match_vocabtree(**common)
    else:
        colmap.match_exhaustive(**common)


def _map(
    colmap: Any, request: dict[str, Any], database: Path, images: Path, folder: Path, threads: int
) -> list[Any]:
    output = folder / "sparse"
    output.mkdir(exist_ok=True)
    if request["mapper"] == "global":
        options = colmap.GlobalPipelineOptions()
        options.num_threads = threads
        options.random_seed = request["seed"]
        options.mapper.bundle_adjustment.ceres.use_gpu = False
        options.mapper.global_positioning.use_gpu = False
        found = colmap.global_mapping(database, images, output, options)
    else:
        options = colmap.IncrementalPipelineOptions()
        options.num_threads = threads
        options.random_seed = request["seed"]
        found = colmap.incremental_mapping(database, images, output, options)
    return sorted(found.values(), key=lambda model: -model.num_reg_images())


def _told(model: Any, images: Path) -> dict[str, Any]:
    """A reconstruction as JSON: lenses, camera-to-world matrices (COLMAP's axes), points, mean error."""
    model.extract_colors_for_all_images(str(images))
    return {
        "error": float(model.compute_mean_reprojection_error()),
        "track": float(model.compute_mean_track_length()),
        "lenses": {
            str(key): {
                "model": camera.model_name, "width": camera.width, "height": camera.height,
                "params": [float(value) for value in camera.params],
            }
            for key, camera in model.cameras.items()
        },
        "pictures": [
            {
                "name": image.name, "lens": str(image.camera_id), "points": image.num_points3D,
                "matrix": image.cam_from_world().inverse().matrix().tolist(),
            }
            for image in (model.image(key) for key in model.reg_image_ids())
        ],
        "points": [
            [*(round(float(v), 6) for v in point.xyz), *(int(v) for v in point.color), round(point.error, 3)]
            for point in model.points3D.values()
            if point.track.length() >= 3
        ],
    }  # fmt: skip


if __name__ == "__main__":
    # the native code logs on stdout as well: its lines go to stderr, ours to what was stdout
    _OUT = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        code = main()
    except Exception as error:  # noqa: BLE001  the parent reports it
        say("failed", message=f"{type(error).__name__}: {error}"[:2000])
        code = 1
    _OUT.flush()
    os._exit(code)
