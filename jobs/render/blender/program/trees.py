"""Every node tree of the open file: groups by themselves, and those that live inside another data-block."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def datablocks(data: Any) -> Iterator[Any]:
    """Every data-block of every kind, whatever kinds this Blender has."""
    for prop in data.bl_rna.properties:
        if prop.type == "COLLECTION":
            yield from getattr(data, prop.identifier)


def embedded(block: Any) -> Any:
    """The tree inside a material, light, world, scene, line style or texture, or ``None``."""
    return getattr(block, "node_tree", None)


def every(data: Any) -> Iterator[tuple[Any, Any]]:
    """Each tree once, with the data-block that it belongs to (a group belongs to itself)."""
    for group in data.node_groups:
        yield group, group
    for name in ("materials", "lights", "worlds", "scenes", "linestyles", "textures"):
        for block in getattr(data, name):
            tree = embedded(block)
            # since 5.0 a scene has none: its compositor is a group
            if tree is not None:
                yield tree, block


def within(tree: Any) -> Iterator[Any]:
    """The nodes of ``tree`` and of all groups that it holds, each group once."""
    seen, waiting = set(), [tree]
    while waiting:
        each = waiting.pop()
        if each is None or each in seen:
            continue
        seen.add(each)
        for node in each.nodes:
            yield node
            waiting.append(getattr(node, "node_tree", None))


def file_outputs(data: Any) -> Iterator[tuple[Any, Any]]:
    """Nodes that write files of their own in any compositor, groups included, with their owners."""
    for tree, owner in every(data):
        for node in tree.nodes:
            if node.type == "OUTPUT_FILE":
                yield owner, node
