"""Which files Blender reads: a .blend may name any file of a machine, and only these are ever sent."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from jobs.render.blender.tracing import is_plain

_IMAGES: Final = (
    "png jpg jpeg jpe jp2 j2c j2k exr sxr tif tiff tx tga bmp dds hdr rgb rgba sgi bw iris cin dpx webp psd "
    "psb pdd gif avif"
)
_FILMS: Final = "mp4 m4v mov avi mkv webm mpg mpeg mp2 m2v m2ts mts ts vob ogv mxf flv wmv dv divx 3gp qt"
_SOUNDS: Final = "wav mp3 ogg oga opus flac aac m4a aif aiff wma ac3 eac3 mka"
_FONTS: Final = "ttf otf ttc otc pfb pfa woff woff2"
_SCENES: Final = "blend usd usda usdc usdz abc obj ply stl fbx gltf glb dae"
_CACHES: Final = "bphys vdb uni bobj mdd pc2 bvox btx exr"
_OTHERS: Final = "ies osl oso"
_NAMES: Final = frozenset(
    f".{name}"
    for names in (_IMAGES, _FILMS, _SOUNDS, _FONTS, _SCENES, _CACHES, _OTHERS)
    for name in names.split()
)
_CACHE_NAMES: Final = frozenset(f".{name}" for name in _CACHES.split())
_BAKED: Final = {"meta": re.compile(r"\d+(_\d+)?\.json"), "blobs": re.compile(r"\d+(_\d+)?\.(blob|vdb)")}
"""Folders of a Geometry Nodes bake, and the files in them."""
_BEGINNINGS: Final = (
    b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"\x76\x2f\x31\x01", b"II*\x00", b"MM\x00*", b"BM", b"GIF8",
    b"DDS ", b"#?RADIANCE", b"8BPS", b"SDPX", b"XPDS", b"BLENDER", b"OggS", b"fLaC", b"OTTO",
    b"\x00\x01\x00\x00\x00", b"Ogawa",
)  # fmt: skip
"""How files begin that Blender knows whatever they are called."""


def is_readable(path: Path, *, in_cache: bool = False) -> bool:
    """Whether ``path`` is a regular file of a kind that Blender reads, by its name or its first bytes.

    ``in_cache``: it was found in a folder that the scene names as a cache, where only caches are.
    """
    if not is_plain(path):
        return False
    name = path.name.lower()
    suffix = path.suffix.lower()
    if suffix in _CACHE_NAMES or name.endswith(".bobj.gz"):
        return True
    baked = _BAKED.get(path.parent.name)
    if in_cache:
        return baked is not None and baked.fullmatch(name) is not None
    return suffix in _NAMES or _begins_as_known(path)


def _begins_as_known(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            first = file.read(12)
    except OSError:
        return False
    return first.startswith(_BEGINNINGS) or (
        first[:4] == b"RIFF" and first[8:] in (b"WEBP", b"WAVE", b"AVI ")
    )
