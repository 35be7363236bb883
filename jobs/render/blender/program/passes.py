"""Channels that Blender writes into a multilayer EXR: one entry per channel, as the file names them.

Cycles tells its own list of passes (``cycles.engine.list_render_passes``); EEVEE and Workbench keep theirs in
C++, so theirs are a table here, which the tests hold against files that Blender wrote.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

_EEVEE = (
    ("use_pass_z", "Depth", "Z"),
    ("use_pass_mist", "Mist", "Z"),
    ("use_pass_normal", "Normal", "XYZ"),
    ("use_pass_position", "Position", "XYZ"),
    ("use_pass_vector", "Vector", "XYZW"),
    ("use_pass_diffuse_direct", "DiffDir", "RGB"),
    ("use_pass_diffuse_color", "DiffCol", "RGB"),
    ("use_pass_glossy_direct", "GlossDir", "RGB"),
    ("use_pass_glossy_color", "GlossCol", "RGB"),
    ("use_pass_emit", "Emit", "RGB"),
    ("use_pass_environment", "Env", "RGB"),
    ("use_pass_shadow", "Shadow", "RGB"),
    ("use_pass_ambient_occlusion", "AO", "RGB"),
)
_EEVEE_OWN = (
    ("use_pass_volume_direct", "VolumeDir", "RGB"),
    ("use_pass_transparent", "Transp", "RGBA"),
)
_CRYPTO = (
    ("use_pass_cryptomatte_object", "CryptoObject"),
    ("use_pass_cryptomatte_asset", "CryptoAsset"),
    ("use_pass_cryptomatte_material", "CryptoMaterial"),
)
_DATA = {"VALUE", "VECTOR"}


def channels(scene: Any, layers: list[Any]) -> tuple[list[str], bool]:
    """Channel names of a multilayer EXR of ``layers``, and whether some are always 32 bits wide.

    Data (depth, normals, indices, cryptomatte) keeps 32 bits also in a file of half floats.
    """
    names: list[str] = []
    wide = False
    for layer in layers:
        for name, letters, kind in _of_engine(scene, layer):
            names += [f"{layer.name}.{name}.{letter}" for letter in letters]
            wide = wide or kind in _DATA or name.startswith("Crypto")
    if composites(scene):
        names += [f"Composite.Combined.{letter}" for letter in "RGBA"]
    return names, wide


def composites(scene: Any) -> bool:
    """Whether the compositor makes the picture: it is on, and its tree has an output that is not muted."""
    tree = compositor_tree(scene)
    output = "COMPOSITE" if hasattr(scene, "node_tree") else "GROUP_OUTPUT"
    return bool(
        scene.render.use_compositing
        and tree is not None
        and any(node.type == output and not node.mute for node in tree.nodes)
    )


def compositor_tree(scene: Any) -> Any:
    """The compositor's nodes, or ``None`` where it is off; 5.0 keeps them in a node group of their own."""
    if hasattr(scene, "node_tree"):
        return scene.node_tree if scene.use_nodes else None
    return scene.compositing_node_group


def _of_engine(scene: Any, layer: Any) -> Iterator[tuple[str, str, str]]:
    """Name, letters and kind (``COLOR``, ``VALUE``, ``VECTOR``) of each pass of a layer."""
    engine = scene.render.engine
    if engine == "CYCLES":
        for name, letters, kind in importlib.import_module("cycles.engine").list_render_passes(scene, layer):
            # a switched-off beauty is listed all the same, but the file does not hold it
            if name != "Combined" or layer.use_pass_combined:
                yield name, letters, kind
        return
    if layer.use_pass_combined:
        yield "Combined", "RGBA", "COLOR"
    if engine == "BLENDER_WORKBENCH":
        if layer.use_pass_z:
            yield "Depth", "Z", "VALUE"
        return
    for owner, table in ((layer, _EEVEE), (layer.eevee, _EEVEE_OWN)):
        for switch, name, letters in table:
            if getattr(owner, switch):
                yield name, letters, "COLOR" if letters.startswith("RGB") else "VECTOR"
    depth = (min(16, layer.pass_cryptomatte_depth) + 1) // 2
    for switch, name in _CRYPTO:
        if getattr(layer, switch):
            for level in range(depth):
                yield f"{name}{level:02d}", "rgba", "COLOR"
    for aov in layer.aovs:
        if aov.is_valid:
            yield aov.name, "X" if aov.type == "VALUE" else "RGBA", aov.type
