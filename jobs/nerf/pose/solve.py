"""Find the cameras of photographs, judge what was found, and name every picture that was dropped."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

import numpy as np
from PIL import Image

from farm.errors import PermanentFailure, TaskFailed
from jobs.engine import Host
from jobs.nerf.inputs.pictures import open_picture, orientation, upright
from jobs.nerf.inputs.raw import Lens, RawPicture, RawScene
from jobs.nerf.spec import PoseSettings, safe_name

FLIP: Final = np.diag([1.0, -1.0, -1.0, 1.0])
"""COLMAP's camera axes (x right, y down, z ahead) to OpenGL's and back."""
FEWEST: Final = 3
ALL_PAIRS: Final = 200
"""Up to so many pictures every pair is compared."""
_BLANK: Final = 2.0
"""Standard deviation of grey values (0 to 255) below which a picture shows nothing."""
_SHOWN: Final = 12


def solve(
    scene: RawScene, settings: PoseSettings, host: Host, folder: Path, *, threads: int, seed: int
) -> RawScene:
    """Cameras for the pictures of ``scene``; those that could not be placed are gone from the result.

    Raises :class:`PermanentFailure`, naming pictures and ways out, where there are too few, where they are
    blank or alike, where too few were placed, or where the cameras make no sense.
    """
    _enough(scene)
    images = folder / "images"
    images.mkdir(parents=True)
    lists = _lay_out(scene, settings, images, host)
    matching = matching_for(scene, settings)
    request = {
        "folder": str(folder), "images": str(images), "threads": threads, "seed": seed,
        "feature_side": settings.feature_side, "max_features": settings.max_features,
        "camera_model": settings.camera_model, "mapper": settings.mapper, "matching": matching,
        "groups": lists["groups"],
    }  # fmt: skip
    host.log.write(
        f"posing {len(scene.pictures)} pictures: {matching} matching, {settings.mapper} mapping, "
        f"{len(lists['groups'])} lenses of model {settings.camera_model}"
    )
    answer = _run_child(request, host)
    return _judge(scene, settings, answer, lists["names"], host)


def matching_for(scene: RawScene, settings: PoseSettings) -> str:
    """Which pictures are compared, where the job leaves that open."""
    if settings.matching != "auto":
        return settings.matching
    if len(scene.pictures) <= ALL_PAIRS:
        return "exhaustive"
    return "sequential" if scene.in_time else "vocabulary"


def _enough(scene: RawScene) -> None:
    count = len(scene.pictures)
    if count < FEWEST:
        names = ", ".join(p.name for p in scene.pictures) or "none"
        raise PermanentFailure(
            f"{count} pictures ({names}) are too few to find cameras by; take at least {FEWEST}, better "
            f"20, with "
            "much overlap"
        )


def _lay_out(scene: RawScene, settings: PoseSettings, images: Path, host: Host) -> dict[str, Any]:
    """Upright copies for pycolmap under plain names, grouped by lens; refuses what shows nothing twice."""
    names: dict[str, RawPicture] = {}
    groups: dict[tuple[Any, ...], dict[str, Any]] = {}
    tiny: dict[bytes, list[str]] = {}
    blank: list[str] = []
    for index, picture in enumerate(scene.pictures):
        host.check()
        image = open_picture(picture.path, picture.name)
        exif = image.getexif().get_ifd(0x8769)
        make = (image.getexif().get(0x0110), exif.get(0xA434), exif.get(0x920A))
        turned = orientation(image) >= 5
        shown = upright(image)
        grey = np.asarray(shown.convert("L").resize((32, 32)), dtype=np.float64)
        if grey.std() < _BLANK:
            blank.append(picture.name)
        tiny.setdefault(np.rint(grey / 2).astype(np.uint8).tobytes(), []).append(picture.name)
        name = f"{index:05d}_{safe_name(Path(picture.name).stem)}.jpg"
        names[name] = picture
        flat = shown.convert("RGBA") if "A" in shown.getbands() else shown.convert("RGB")
        if flat.mode == "RGBA":
            under = Image.new("RGBA", flat.size, (0, 0, 0, 255))
            flat = Image.alpha_composite(under, flat).convert("RGB")
        flat.save(images / name, quality=97, subsampling=0)
        single = settings.single_camera
        key = ("one", shown.size) if single else (*make, shown.size, turned)
        group = groups.setdefault(
            key, {"names": [], "width": shown.width, "height": shown.height, "focal": None}
        )
        group["names"].append(name)
        group["focal"] = group["focal"] or _exif_focal(exif, shown.size)
    count = len(scene.pictures)
    if len(tiny) <= max(1, count // 4) and count - len(tiny) >= FEWEST - 1:
        alike = max(tiny.values(), key=len)
        raise PermanentFailure(
            f"{len(alike)} of {count} pictures are the same ({', '.join(alike[:4])}...): a scene needs views "
            "from different places; take the copies out"
        )
    if len(blank) > count // 2:
        raise PermanentFailure(
            f"{len(blank)} of {count} pictures show nothing ({', '.join(blank[:4])}...); take sharp, lit "
            "pictures of something with texture"
        )
    if blank:
        host.log.write(f"these pictures show nothing: {', '.join(blank)}")
    return {"names": names, "groups": list(groups.values())}


def _exif_focal(exif: Any, size: tuple[int, int]) -> float | None:
    """Focal length in pixels from EXIF's 35 mm equivalent (36 mm wide film)."""
    try:
        value = float(exif.get(0xA405) or 0.0)
    except (TypeError, ValueError):
        return None
    return value / 36.0 * max(size) if value > 0 else None


def _run_child(request: dict[str, Any], host: Host) -> dict[str, Any]:
    environment = {**os.environ, "OMP_NUM_THREADS": str(request["threads"]), "GLOG_minloglevel": "1"}
    child = subprocess.Popen(
        [sys.executable, "-m", "jobs.nerf.pose.child"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=host.log.fileno(),
        env=environment,
        start_new_session=True,
    )
    try:
        with host.frozen([child.pid]):
            return _talk(child, request, host)
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        for stream in (child.stdin, child.stdout):
            if stream is not None:
                stream.close()


def _talk(child: subprocess.Popen[bytes], request: dict[str, Any], host: Host) -> dict[str, Any]:
    assert child.stdin is not None and child.stdout is not None
    child.stdin.write((json.dumps(request) + "\n").encode())
    child.stdin.flush()
    os.set_blocking(child.stdout.fileno(), False)
    waiting = b""
    said = time.monotonic()
    note, share = "looking for features", 0.02
    with selectors.DefaultSelector() as selector:
        selector.register(child.stdout, selectors.EVENT_READ)
        while True:
            host.check()
            if selector.select(0.1):
                block = child.stdout.read()
                if block == b"":
                    raise TaskFailed(
                        f"pycolmap ended without an answer (exit code {child.wait()}); see the log"
                    )
                waiting += block or b""
            *lines, waiting = waiting.split(b"\n")
            for line in lines:
                answer: dict[str, Any] = json.loads(line)
                if answer["event"] == "done":
                    return answer
                if answer["event"] == "failed":
                    raise PermanentFailure(f"the cameras could not be found: {answer['message']}")
                note, share = str(answer["name"]), float(answer["share"])
                host.progress(share, note)
            if time.monotonic() - said > 5.0:
                # it cannot tell how far it is; that it lives is what the limit asks
                said = time.monotonic()
                host.progress(share, note)


def _judge(
    scene: RawScene, settings: PoseSettings, answer: dict[str, Any], names: dict[str, RawPicture], host: Host
) -> RawScene:
    models = answer["models"]
    count = len(scene.pictures)
    if not models:
        raise PermanentFailure(
            f"none of {count} pictures could be placed: they share too little. Take them closer together, of "
            "something with texture, or give the cameras in a transforms.json"
        )
    best = models[0]
    placed = {item["name"]: item for item in best["pictures"]}
    dropped = [picture.name for name, picture in names.items() if name not in placed]
    share = len(placed) / count
    shown = ", ".join(dropped[:_SHOWN]) + (
        f" and {len(dropped) - _SHOWN} more" if len(dropped) > _SHOWN else ""
    )
    if share < settings.min_registered:
        apart = [len(model["pictures"]) for model in models[1:]]
        also = (
            f" Others fit together by themselves ({', '.join(map(str, apart))} pictures): these may be "
            f"two scenes."
            if apart
            else ""
        )
        raise PermanentFailure(
            f"{len(placed)} of {count} pictures could be placed, under pose.min_registered "
            f"({settings.min_registered:g}); not placed: {shown}.{also} Take these out, add pictures between "
            "them and the others, or lower pose.min_registered"
        )
    lenses = {
        key: Lens(item["model"], item["width"], item["height"], tuple(item["params"]))
        for key, item in best["lenses"].items()
    }
    notes = list(scene.notes)
    pictures = []
    for name, picture in names.items():
        if name in placed:
            matrix = np.vstack([np.array(placed[name]["matrix"]), [0, 0, 0, 1.0]]) @ FLIP
            picture.matrix, picture.lens, picture.upright = matrix, lenses[placed[name]["lens"]], True
            pictures.append(picture)
    points = np.array([row[:6] for row in best["points"]], dtype=np.float64).reshape(-1, 6)
    points[:, 3:] /= 255.0
    _make_sense(pictures, points, best, settings, notes)
    if dropped:
        notes.append(f"not placed: {shown}")
    about = {
        "registered": len(placed), "given": count, "dropped": dropped,
        "reprojection_error": round(float(best["error"]), 4), "track_length": round(float(best["track"]), 2),
        "mapper": settings.mapper, "seconds": round(float(answer["seconds"]), 1), "points": len(points),
    }  # fmt: skip
    host.log.write(
        f"{len(placed)} of {count} pictures placed, {best['error']:.3f} pixels, {len(points):,} points, "
        f"{answer['seconds']:.1f} s" + (f"; not placed: {shown}" if dropped else "")
    )
    return RawScene(pictures, points, notes, scene.in_time, about)


def _make_sense(
    pictures: list[RawPicture], points: Any, best: dict[str, Any], settings: PoseSettings, notes: list[str]
) -> None:
    """Refuse cameras that no photographer could have had."""
    if best["error"] > settings.max_error:
        raise PermanentFailure(
            f"the cameras fit badly: {best['error']:.2f} pixels in the mean, over pose.max_error "
            f"({settings.max_error:g}); leave blurred pictures out, or choose another pose.camera_model"
        )
    places = np.stack([p.matrix[:3, 3] for p in pictures if p.matrix is not None])
    spread = np.linalg.norm(places - np.median(places, 0), axis=1)
    if not np.isfinite(places).all() or spread.max() < 1e-6:
        raise PermanentFailure(
            "all cameras stand in one place: without moving the camera nothing can be told about depth"
        )
    for picture in pictures:
        lens = picture.lens
        assert lens is not None
        wide = lens.width / (2 * lens.value("fl_x"))
        if not 0.02 < wide < 20.0:
            raise PermanentFailure(
                f"{picture.name}: a focal length of {lens.value('fl_x'):.0f} pixels was found for a picture "
                f"{lens.width} wide, which no lens has; choose pose.camera_model SIMPLE_RADIAL or add "
                f"pictures"
            )
    if len(points) < 10 * len(pictures):
        notes.append(f"only {len(points)} points hold {len(pictures)} cameras together")
