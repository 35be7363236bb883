"""Every file that an open scene reads, frame by frame where it is a sequence."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import trees

_DIGITS = re.compile(r"(\d+)(?=\D*$)")
_BLOCKS = ("movieclips", "sounds", "fonts", "cache_files", "volumes")


@dataclass
class Used:
    """``what`` it is, the ``name`` of its owner, the path as ``written``, its ``library`` and ``users``.

    ``numbers`` are the files of a sequence that the frames need, ``None`` for a single file.
    """

    what: str
    name: str
    written: str
    library: Any = None
    users: int = 1
    numbers: set[int] | None = None
    tiles: list[int] = field(default_factory=list)


def used(data: Any, frames: list[int]) -> Iterator[Used]:
    """The files that rendering ``frames`` reads. Texts, edits and output paths are no such files."""
    for library in data.libraries:
        if getattr(library, "packed_file", None) is None:
            yield Used("library", library.name, library.filepath)
    yield from _images(data, frames)
    for name in _BLOCKS:
        for block in getattr(data, name):
            path = block.filepath
            if not path or path == "<builtin>" or getattr(block, "packed_file", None) is not None:
                continue
            what = name.rstrip("s").replace("_", " ")
            more = (block.library, block.users)
            yield Used(what, block.name, path, *more, numbers=_numbers(name, block, frames))
            for layer in getattr(block, "layers", ()) if name == "cache_files" else ():
                yield Used("cache layer", block.name, layer.filepath, *more)
    for tree, owner in trees.every(data):
        for node in tree.nodes:
            yield from _of_node(node, owner)
    for item in data.objects:
        for modifier in item.modifiers:
            yield from _of_modifier(modifier, item, frames)


def lacking(each: Used, path: str) -> list[str]:
    """The parts of ``path`` that are not there: empty if it is whole, else file names (at most all)."""
    if each.tiles:
        names = [
            path.replace("<UDIM>", str(tile)).replace(
                "<UVTILE>", f"u{(tile - 1001) % 10 + 1}_v{(tile - 1001) // 10 + 1}"
            )
            for tile in each.tiles
        ]
    elif each.numbers is not None:
        names = [numbered(path, number) for number in sorted(each.numbers)]
    else:
        names = [path]
    return [Path(name).name for name in names if not Path(name).exists()]


def numbered(path: str, number: int) -> str:
    """``path`` with its last digits replaced, as wide as they were."""
    place = Path(path)
    return str(place.with_name(_DIGITS.sub(lambda m: f"{number:0{len(m[1])}d}", place.name, count=1)))


def _images(data: Any, frames: list[int]) -> Iterator[Used]:
    wanted: dict[Any, set[int]] = {}
    for user, image, clipped in _image_users(data):
        if image is not None and image.source == "SEQUENCE":
            wanted.setdefault(image, set()).update(image_numbers(user, frames, clipped=clipped))
    for image in data.images:
        if (
            image.source in {"FILE", "SEQUENCE", "MOVIE", "TILED"}
            and not image.packed_files
            and image.filepath
        ):
            sequence = image.source == "SEQUENCE" and _DIGITS.search(Path(image.filepath).name)
            tiles = [tile.number for tile in image.tiles] if image.source == "TILED" else []
            yield Used(
                "image",
                image.name,
                image.filepath,
                image.library,
                image.users,
                wanted.get(image) if sequence else None,
                tiles,
            )


def _image_users(data: Any) -> Iterator[tuple[Any, Any, bool]]:
    """Everything that picks a file of a sequence, its image, and whether it shows nothing past its end."""
    for tree, _ in trees.every(data):
        for node in tree.nodes:
            image = getattr(node, "image", None)
            if image is not None:
                # a compositor's node is its own user
                own = getattr(node, "image_user", None)
                yield (
                    (node, image, True)
                    if own is None and hasattr(node, "frame_duration")
                    else (own, image, False)
                )
    for texture in data.textures:
        if texture.type == "IMAGE":
            yield texture.image_user, texture.image, False


def image_numbers(user: Any, frames: list[int], *, clipped: bool) -> set[int]:
    """The files that an image user shows at ``frames`` (Blender's own rule, ``BKE_image_user_frame_get``)."""
    if user is None:
        return set()
    if not clipped and not user.use_auto_refresh:
        return {user.frame_current}
    length, found = user.frame_duration, set()
    for frame in frames if length else ():
        place = frame - user.frame_start + 1
        if user.use_cyclic:
            place = (place - 1) % length + 1
        elif clipped and not 1 <= place <= length:
            continue
        found.add(min(max(place, 0), length) + user.frame_offset)
    return found


def _numbers(kind: str, block: Any, frames: list[int]) -> set[int] | None:
    """The files of a sequence of volumes, caches or clip pictures; ``None`` for a single file."""
    first = _DIGITS.search(block.filepath.replace("\\", "/").split("/")[-1])
    if first is None:
        return None
    if kind == "volumes" and block.is_sequence:
        return volume_numbers(block, frames)
    if kind == "cache_files" and block.is_sequence:
        return {round(block.frame) if block.override_frame else frame for frame in frames}
    if kind == "movieclips" and block.source == "SEQUENCE":
        start, shift = block.frame_start, block.frame_offset
        inside = [frame for frame in frames if start <= frame < start + block.frame_duration]
        return {int(first[1]) + frame - start + shift for frame in inside}
    return None


def volume_numbers(volume: Any, frames: list[int]) -> set[int]:
    """The files of a volume sequence at ``frames``, by its mode."""
    length, mode, found = volume.frame_duration, volume.sequence_mode, set()
    for frame in frames if length else ():
        place = frame - volume.frame_start + 1
        if mode == "CLIP" and not 1 <= place <= length:
            continue
        if mode == "EXTEND":
            place = min(max(place, 1), length)
        elif mode == "REPEAT":
            place = (place - 1) % length + 1
        elif mode == "PING_PONG":
            turn = max(1, length * 2 - 2)
            place = (place - 1) % turn + 1
            place = length * 2 - place if place > length else place
        found.add(place + volume.frame_offset)
    return found


def _of_node(node: Any, owner: Any) -> Iterator[Used]:
    more = (owner.library, owner.users)
    if node.type == "TEX_IES" and node.mode == "EXTERNAL" and node.filepath:
        yield Used("IES texture", owner.name, node.filepath, *more)
    for socket in node.inputs if node.bl_idname.startswith("GeometryNodeImport") else ():
        if socket.name == "Path" and not socket.is_linked and socket.default_value:
            yield Used("import node", owner.name, socket.default_value, *more)


def _of_modifier(modifier: Any, item: Any, frames: list[int]) -> Iterator[Used]:
    more = (item.library, item.users)
    if modifier.type == "MESH_CACHE" and modifier.filepath:
        yield Used("mesh cache", item.name, modifier.filepath, *more)
    if modifier.type == "MULTIRES" and modifier.is_external and modifier.filepath:
        yield Used("multires file", item.name, modifier.filepath, *more)
    if modifier.type == "NODES" and modifier.node_group is not None:
        tree = modifier.node_group
        for socket in tree.interface.items_tree if hasattr(tree, "interface") else ():
            path = modifier.get(socket.identifier) if getattr(socket, "subtype", "") == "FILE_PATH" else None
            if isinstance(path, str) and path:
                yield Used("file of the modifier", item.name, path, *more)
    if modifier.type == "FLUID" and modifier.fluid_type == "DOMAIN":
        domain = modifier.domain_settings
        if domain.has_cache_baked_data:
            first, last = domain.cache_frame_start, domain.cache_frame_end
            suffix = ".vdb" if domain.cache_data_format == "OPENVDB" else ".uni"
            path = f"{domain.cache_directory.rstrip('/')}/data/fluid_data_0001{suffix}"
            shift = domain.cache_frame_offset
            numbers = {frame - shift for frame in frames if first <= frame - shift <= last}
            yield Used("fluid cache", item.name, path, *more, numbers=numbers)
    for cache in (getattr(modifier, "point_cache", None), _particles(modifier)):
        if cache is not None and cache.use_external and cache.filepath:
            yield Used("point cache", item.name, cache.filepath, *more)
        elif cache is not None and cache.use_disk_cache and cache.is_baked:
            stem = Path(_saved_as(item)).stem
            yield Used("point cache", item.name, f"//blendcache_{stem}", *more)


def _particles(modifier: Any) -> Any:
    return modifier.particle_system.point_cache if modifier.type == "PARTICLE_SYSTEM" else None


def _saved_as(item: Any) -> str:
    """The file that ``item`` was saved in, as Blender names point caches after it."""
    import bpy

    return str(item.library.filepath if item.library else bpy.data.filepath)
