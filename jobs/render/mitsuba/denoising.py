"""Denoisers of the beauty, each guided by albedo and normals."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import mitsuba
import numpy as np

from farm.errors import DeviceUnavailable, NotInstalled, TaskFailed
from jobs.render.mitsuba.pixels import Picture


def oidn() -> Callable[[Picture], Any]:
    """Intel Open Image Denoise on the CPU, by the binding of Mitsuba's makers.

    Raises :class:`farm.errors.NotInstalled` where the package is missing.
    """
    try:
        mitsuba_oidn = importlib.import_module("mitsuba_oidn")
    except ImportError:
        raise NotInstalled(
            "denoise oidn needs the package mitsuba-oidn: pip install 'stillframe[render]'"
        ) from None

    def denoise(picture: Picture) -> Any:
        beauty = picture["beauty"]
        clean = mitsuba_oidn.denoise(
            np.ascontiguousarray(beauty[..., :3]),
            albedo=np.ascontiguousarray(np.clip(picture["albedo"], 0.0, 1.0)),
            normal=np.ascontiguousarray(np.clip(picture["normal"], -1.0, 1.0)),
            hdr=True,
        )
        return _with_alpha(np.asarray(clean, dtype=np.float32), beauty)

    return denoise


def optix(size: tuple[int, int]) -> Callable[[Picture], Any]:
    """NVIDIA's OptiX denoiser; only under a cuda variant."""
    mi: Any = mitsuba
    try:
        denoiser = mi.OptixDenoiser(list(size), albedo=True, normals=True, temporal=False)
    except (AttributeError, RuntimeError) as error:
        raise DeviceUnavailable(f"the OptiX denoiser does not start here: {error}") from None

    def denoise(picture: Picture) -> Any:
        beauty = picture["beauty"]
        clean = denoiser(
            mi.TensorXf(np.ascontiguousarray(beauty[..., :3])),
            albedo=mi.TensorXf(np.ascontiguousarray(picture["albedo"])),
            normals=mi.TensorXf(np.ascontiguousarray(picture["normal"])),
        )
        return _with_alpha(np.array(clean, dtype=np.float32), beauty)

    return denoise


def _with_alpha(clean: Any, beauty: Any) -> Any:
    if not np.isfinite(clean).all():
        raise TaskFailed("the denoiser made pixels that are not finite")
    clean = np.maximum(clean, 0.0)
    return np.concatenate([clean, beauty[..., 3:4]], axis=-1) if beauty.shape[-1] == 4 else clean
