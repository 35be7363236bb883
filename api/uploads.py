"""Bytes that stream in: into the store's own upload, piece by piece, never whole in memory."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from fastapi import Request
from fastapi.concurrency import run_in_threadpool
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from api import asset_paths
from api.problems import HttpProblem
from farm.stores import Store
from farm.stores.base import CHUNK, Upload

MAX_PARTS = 1000
MAX_HEADERS = 16_384
_DRIVE = re.compile(rb'filename="?(?:[A-Za-z]:)?\\')


async def in_chunks(request: Request, size: int = CHUNK) -> AsyncIterator[bytes]:
    """The body in pieces of about ``size`` bytes: the server hands over smaller ones."""
    waiting = bytearray()
    async for piece in request.stream():
        waiting += piece
        if len(waiting) >= size:
            yield bytes(waiting)
            waiting.clear()
    if waiting:
        yield bytes(waiting)


async def receive(request: Request, store: Store, sha256: str) -> tuple[str, int]:
    """Store the body under the hash that it must have; gives hash and size.

    Raises :class:`farm.errors.HashMismatch` or :class:`farm.errors.OutOfSpace`; nothing stays behind then,
    nor when the caller goes away half-way.
    """
    declared = request.headers.get("content-length", "")
    if declared.isdigit():
        await run_in_threadpool(store.check_space, int(declared))
    upload = await run_in_threadpool(store.begin)
    try:
        async for chunk in in_chunks(request):
            await run_in_threadpool(upload.write, chunk)
        return await run_in_threadpool(upload.commit, sha256)
    finally:
        await run_in_threadpool(upload.abort)


@dataclass(slots=True)
class ReceivedFile:
    """A file of a form, in the store."""

    name: str
    sha256: str
    bytes: int


@dataclass(slots=True)
class _Form:
    """Callbacks of the multipart parser; they run in a worker thread, one piece of the body at a time."""

    store: Store
    files: list[ReceivedFile] = field(default_factory=list)
    finished: bool = False
    _upload: Upload | None = None
    _name: str = ""
    _header: bytearray = field(default_factory=bytearray)
    _value: bytearray = field(default_factory=bytearray)
    _headers: dict[bytes, bytes] = field(default_factory=dict)

    def callbacks(self) -> dict[str, Any]:
        return {
            "on_part_begin": self.part_begin,
            "on_header_field": self.header_field,
            "on_header_value": self.header_value,
            "on_header_end": self.header_end,
            "on_headers_finished": self.headers_finished,
            "on_part_data": self.part_data,
            "on_part_end": self.part_end,
            "on_end": self.end,
        }

    def part_begin(self) -> None:
        if len(self.files) >= MAX_PARTS:
            raise HttpProblem(
                413, "too-large", f"a form may hold {MAX_PARTS} files; send the rest in another"
            )
        self._headers.clear()

    def header_field(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]
        self._bounded()

    def header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]
        self._bounded()

    def _bounded(self) -> None:
        if len(self._header) + len(self._value) > MAX_HEADERS:
            raise HttpProblem(413, "too-large", f"a part's header is over {MAX_HEADERS} bytes")

    def header_end(self) -> None:
        self._headers[bytes(self._header).lower()] = bytes(self._value)
        self._header.clear()
        self._value.clear()

    def headers_finished(self) -> None:
        header = self._headers.get(b"content-disposition", b"")
        _, options = parse_options_header(header)
        if _DRIVE.search(header):
            # the parser would keep the last part of such a name and drop the rest
            raise _bad_name("a file name is absolute (it begins with a drive)", "filename")
        if b"filename" not in options:
            field_name = options.get(b"name", b"").decode("utf-8", "replace")
            raise _bad_name(f"the part {field_name[:80]!r} has no file name; send files alone", field_name)
        self._name = options[b"filename"].decode("utf-8", "replace")
        if fault := asset_paths.fault_of(self._name):
            raise _bad_name(f"file name {self._name[:120]!r}: {fault}", self._name)
        self._upload = self.store.begin()

    def part_data(self, data: bytes, start: int, end: int) -> None:
        assert self._upload is not None
        self._upload.write(data[start:end])

    def part_end(self) -> None:
        assert self._upload is not None
        sha256, size = self._upload.commit()
        self._upload = None
        self.files.append(ReceivedFile(self._name, sha256, size))

    def end(self) -> None:
        self.finished = True

    def abort(self) -> None:
        if self._upload is not None:
            self._upload.abort()


async def receive_form(request: Request, store: Store) -> list[ReceivedFile]:
    """Store every file of a multipart form.

    Raises a 415 for another kind of body, a 422 for a file name that leads out of its folder or a broken
    form, and :class:`farm.errors.OutOfSpace`. Files before the fault stay as unreferenced contents, which
    garbage collection removes.
    """
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    boundary = options.get(b"boundary", b"")
    if kind != b"multipart/form-data" or not boundary:
        raise HttpProblem(
            415,
            "unsupported-media-type",
            "send files as multipart/form-data, or one file by PUT /v1/assets/HASH",
        )
    form = _Form(store)
    try:
        parser = MultipartParser(boundary, form.callbacks())  # type: ignore[arg-type]
        async for chunk in in_chunks(request):
            await run_in_threadpool(parser.write, chunk)
        parser.finalize()
    except FormParserError as error:
        raise _bad_form(str(error)) from error
    finally:
        await run_in_threadpool(form.abort)
    if not form.finished:
        raise _bad_form("it ends before its last boundary")
    if not form.files:
        raise _bad_form("it holds no file")
    return form.files


def _bad_form(message: str) -> HttpProblem:
    text = f"the form cannot be read: {message}"
    return HttpProblem(422, "invalid-input", text, faults=[{"in": "form", "pointer": "", "message": text}])


def _bad_name(message: str, name: str) -> HttpProblem:
    pointer = "/" + name[:80].replace("~", "~0").replace("/", "~1").replace("\0", "�")
    return HttpProblem(
        422, "invalid-input", message, faults=[{"in": "form", "pointer": pointer, "message": message}]
    )
