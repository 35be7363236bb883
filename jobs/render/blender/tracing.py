"""Walks a .blend that nobody vouches for: what it names, without ever being led round in circles by it.

blender-asset-tracer does the reading. It is made for files of friends: it raises at a pointer that leads
nowhere (Blender 4.5 saves some with every Geometry Nodes modifier), follows a list that bites its own tail
for ever, opens every library that a path names, and unpacks whatever a compressed file holds. Only the child
of :mod:`jobs.render.blender.reader` imports this, because the tracer is changed for the whole process.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from blender_asset_tracer import blendfile, trace
from blender_asset_tracer.blendfile import exceptions, iterators, magic_compression
from blender_asset_tracer.trace import blocks2assets, file2blocks

_MAX_NOTES: Final = 20
_UNSUSPICIOUS: Final = 2**30
_MOST_TIMES: Final = 100
"""Scenes rarely unpack to ten times their size; past this many times (and a gibibyte) a file is a trap."""
_CUT_OFF: Final = "it is damaged or cut off"


class Damaged(Exception):
    """The file cannot be what a Blender wrote."""


class Oversized(Exception):
    """A compressed file unpacks to more than may be."""


class Walk:
    """One .blend and the libraries that it links: :attr:`usages` are the files that they name.

    ``may_open`` says which libraries may be looked into; ``unpacked`` is how many bytes all compressed files
    may unpack to together. ``unread`` names data-blocks that could not be followed, with the reason.
    """

    def __init__(self, path: Path, may_open: Callable[[Path], bool], unpacked: int) -> None:
        _harden(unpacked)
        self.unread: list[str] = []
        self.file = blendfile.open_cached(path)
        self._blocks = _Blocks(may_open, self._note)
        self._path = path

    def usages(self) -> Iterator[tuple[Any, Path]]:
        """Each use of a file by a data-block, and where it lies: absolute, links not followed."""
        seen: set[tuple[bytes, int, Path]] = set()
        blocks = self._blocks.iter_blocks(self._blocks.open_blendfile(self._path))
        for block in trace.asset_holding_blocks(blocks):
            try:
                for usage in blocks2assets.iter_assets(block):
                    key = (usage.block_name, usage.block.addr_old, usage.block.bfile.filepath)
                    if key not in seen:
                        seen.add(key)
                        yield usage, usage.abspath
            except (Damaged, MemoryError):
                raise
            except Exception as error:  # noqa: BLE001  the tracer raises whatever a block leads it to
                self._note(block, error)

    def _note(self, block: Any, error: Exception) -> None:
        if len(self.unread) < _MAX_NOTES:
            self.unread.append(f"{_name_of(block)} ({in_words(error)})")


class _Blocks(file2blocks.BlockIterator):
    """Goes from block to block; a block that cannot be followed is noted, and the others are."""

    def __init__(self, may_open: Callable[[Path], bool], note: Callable[[Any, Exception], None]) -> None:
        super().__init__()
        self._may_open, self._note = may_open, note

    def open_blendfile(self, bfilepath: Path) -> Any:
        """As the tracer's; a fault of a library names it."""
        try:
            return super().open_blendfile(bfilepath)
        except (Damaged, Oversized, MemoryError):
            raise
        except Exception as error:  # noqa: BLE001  the tracer raises whatever a broken file leads it to
            raise Damaged(f"the library {bfilepath.name} that it links: {in_words(error)}") from None

    def _queue_dependencies(self, block: Any) -> None:
        try:
            super()._queue_dependencies(block)
        except (Damaged, MemoryError):
            raise
        except Exception as error:  # noqa: BLE001  the tracer raises whatever a block leads it to
            self._note(block, error)

    def _visit_linked_blocks(self, blocks_per_lib: Any) -> Any:
        allowed = {}
        for library, blocks in blocks_per_lib.items():
            path = Path(library.to_path()).absolute()
            if is_plain(path) and self._may_open(path):
                allowed[library] = blocks
        return super()._visit_linked_blocks(allowed)  # type: ignore[no-untyped-call]


def is_plain(path: Path) -> bool:
    """Whether a regular file lies there (or a link leads to one)."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except (OSError, ValueError):
        return False


def in_words(error: Exception) -> str:
    """What is wrong with the file. No path of the machine is in it."""
    if isinstance(error, Damaged | Oversized):
        return str(error)
    if isinstance(error, exceptions.NoDNA1Block | EOFError):
        return _CUT_OFF
    if isinstance(error, exceptions.BlendFileError):
        return "its beginning is not that of a .blend file"
    if isinstance(error, RecursionError):
        return "its blocks lie in each other too deeply"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return f"there is no room to unpack it: {error.strerror}"
    if isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EPERM, errno.ENOENT, errno.EIO):
        return f"it cannot be opened: {error.strerror}"
    return f"{_CUT_OFF} ({type(error).__name__})"


def _name_of(block: Any) -> str:
    try:
        return bytes(block.id_name or b"")[2:].decode("utf-8", "replace") or str(block.dna_type_name)
    except Exception:  # noqa: BLE001  a broken block has no name
        return "a data-block"


def _harden(unpacked: int) -> None:
    """Pointers that lead nowhere are nothing, lists end, and unpacking does."""
    blendfile.set_strict_pointer_mode(False)
    iterators.listbase = _listbase
    left = [unpacked]
    plain = _decompressor

    def bounded(file: Any, mode: str, compression: Any) -> Any:
        packed = os.fstat(file.fileno()).st_size
        most = min(unpacked, max(_UNSUSPICIOUS, _MOST_TIMES * packed))
        return _Unpacking(plain(file, mode, compression), [left, [most]], most, packed)

    magic_compression._decompressor = bounded  # type: ignore[assignment]


_decompressor = magic_compression._decompressor


class _Unpacking:
    """A stream of unpacked bytes that counts what it gives."""

    def __init__(self, stream: Any, left: list[list[int]], limit: int, packed: int) -> None:
        self._stream, self._left, self._limit, self._packed = stream, left, limit, packed

    def __enter__(self) -> _Unpacking:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    def read(self, count: int) -> bytes:
        """As the stream's own. Raises :class:`Oversized` past the limit."""
        data: bytes = self._stream.read(count)
        for left in self._left:
            left[0] -= len(data)
        if any(left[0] < 0 for left in self._left):
            raise Oversized(
                f"its {_size(self._packed)} unpack to more than the limit of {_size(self._limit)}; "
                "save it without compression, or with less packed into it"
            )
        return data


def _size(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.2f} MiB"


def _listbase(block: Any, next_path: Any = b"next") -> Iterator[Any]:
    """The blocks of a linked list. Raises :class:`Damaged` where it leads back into itself."""
    seen = set()
    while block is not None:
        if block.addr_old in seen:
            raise Damaged(f"a list of {block.dna_type_name} in it leads back to its own beginning")
        seen.add(block.addr_old)
        yield block
        address = block[next_path]
        block = block.bfile.dereference_pointer(address) if address else None
