"""From a job's source to pictures, whichever kind of source it is."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Final

from farm.errors import PermanentFailure
from jobs.engine import Host
from jobs.nerf.inputs.archive import unpack
from jobs.nerf.inputs.colmap import find_model, read_colmap
from jobs.nerf.inputs.raw import Lens, RawPicture, RawScene
from jobs.nerf.inputs.transforms import read_transforms
from jobs.nerf.inputs.video import pick_frames
from jobs.nerf.names import is_junk, is_picture
from jobs.nerf.scene import check_matrix
from jobs.nerf.sources import ColmapSource, ImagesSource, JobSource, TransformsSource, VideoSource
from jobs.nerf.spec import Spec

_MASK_SUFFIXES: Final = (".png", ".jpg", ".jpeg")


def gather(spec: Spec, host: Host, folder: Path) -> RawScene:
    """The pictures of a job; what has to be unpacked goes into ``folder``.

    Raises :class:`PermanentFailure` that names what is missing or broken.
    """
    source = spec.source
    if isinstance(source, JobSource):
        return _of_job(source, host)
    if isinstance(source, VideoSource):
        return pick_frames(
            host.asset(source.path), source.path, folder / "picked", source.count, source.max_side, host
        )
    if source.path.lower().endswith(".zip"):
        root = unpack(host.asset(source.path), folder / "unpacked", source.path)
        inside = ""
    else:
        root, inside = host.assets(), source.path
    if isinstance(source, TransformsSource):
        scene = read_transforms(_json(root, inside, source.path), source.path)
    elif isinstance(source, ColmapSource):
        model = find_model(root / inside, source.path)
        scene = read_colmap(model, _images_of(root, source), source.path)
    else:
        scene = _pictures(root / inside, source)
    if spec.pictures.masks is not None:
        _add_masks(scene, host.assets() / spec.pictures.masks, spec.pictures.masks)
    if not scene.pictures:
        raise PermanentFailure(f"{source.path} holds no pictures (.jpg, .png, .tif, .webp, .heic)")
    return scene


def _pictures(folder: Path, source: ImagesSource) -> RawScene:
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    found = [p for p in files if is_picture(p.relative_to(folder).as_posix())]
    junk = [p for p in files if is_junk(p.relative_to(folder).as_posix())]
    scene = RawScene([RawPicture(p.relative_to(folder).as_posix(), p) for p in found])
    if junk:
        scene.notes.append(f"{source.path}: {len(junk)} files that systems leave behind were passed over")
    return scene


def _json(root: Path, inside: str, label: str) -> Path:
    if inside:
        return root / inside
    for name in ("transforms.json", "transforms_train.json"):
        found = sorted(p for p in root.rglob(name) if not is_junk(p.relative_to(root).as_posix()))
        if found:
            return found[0]
    raise PermanentFailure(f"{label} holds no transforms.json; put it beside the pictures")


def _images_of(root: Path, source: ColmapSource) -> Path:
    for path in (root / source.images, root / PurePosixPath(source.path).parent / source.images):
        if path.is_dir():
            return path
    raise PermanentFailure(
        f"there is no folder {source.images!r} with the model's pictures; set source.images"
    )


def _add_masks(scene: RawScene, folder: Path, label: str) -> None:
    missing = []
    for picture in scene.pictures:
        stem = folder / PurePosixPath(picture.name)
        choices = [stem, *(stem.with_suffix(s) for s in _MASK_SUFFIXES), Path(f"{stem}.png")]
        picture.mask = next((path for path in choices if path.is_file()), None)
        if picture.mask is None:
            missing.append(picture.name)
    if missing:
        raise PermanentFailure(
            f"{label} has no mask for {len(missing)} pictures: {', '.join(missing[:5])}; name masks like "
            f"pictures"
        )


def _of_job(source: JobSource, host: Host) -> RawScene:
    """The frames of another job with the exact cameras that its tasks report."""
    frames = host.frames(source.step, source.output, job=source.job)
    cameras = {
        int(camera["frame"]): camera
        for found in host.step_results(source.step, job=source.job)
        for camera in found.get("cameras", [])
    }
    if not frames:
        raise PermanentFailure(
            f"step {source.step!r} of {source.job} has no frames of output {source.output!r}; name its output"
        )
    without = [f.number for f in frames if not cameras.get(f.number, {}).get("intrinsics")]
    if without:
        raise PermanentFailure(
            f"{source.job} does not tell the cameras of frames {', '.join(map(str, without[:5]))}; its "
            f"renderer "
            "must report pinhole cameras (Mitsuba does)"
        )
    scene = RawScene([])
    for frame in frames:
        camera = cameras[frame.number]
        name = f"frame {frame.number}"
        matrix, notes = check_matrix(camera["camera_to_world"], name)
        scene.notes += notes
        lens = Lens.of("PINHOLE", frame.width, frame.height, camera["intrinsics"], name)
        scene.pictures.append(
            RawPicture(f"{frame.number:06d}", frame.path, matrix, lens, frame=frame.number, upright=True)
        )
    scene.about = {"registered": len(frames), "given": len(frames), "dropped": []}
    return scene
