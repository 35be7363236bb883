"""Assets: streamed in, verified, deduplicated; bad names refused; nothing half-written stays."""

from __future__ import annotations

import hashlib
import os

import pytest
import sqlalchemy as sa

from farm.db import tables as t
from farm.errors import OutOfSpace
from farm.stores.local import LocalStore, LocalUpload
from tests.integration.api.conftest import Farm


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def stored(farm: Farm) -> set[str]:
    return set(farm.store.iter_hashes())


def leftovers(farm: Farm) -> list[str]:
    assert isinstance(farm.store, LocalStore)
    return [path.name for path in (farm.store.folder / "tmp").iterdir()]


def test_bytes_go_in_once_and_come_out_whole_or_in_ranges(farm: Farm) -> None:
    data = os.urandom(3_000_000)
    path = f"/v1/assets/{digest(data)}"
    assert farm.call.head(path).status_code == 404
    assert farm.call.get(path).status_code == 404
    first = farm.call.put(path, content=(data[i : i + 70_001] for i in range(0, len(data), 70_001)))
    assert (first.status_code, first.json()["created"], first.json()["bytes"]) == (201, True, len(data))
    again = farm.call.put(path, content=data)
    assert (again.status_code, again.json()["created"]) == (200, False)
    head = farm.call.head(path)
    assert (head.status_code, head.headers["content-length"]) == (200, str(len(data)))
    whole = farm.call.get(path)
    assert whole.content == data
    assert whole.headers["content-type"] == "application/octet-stream"
    assert whole.headers["content-disposition"].startswith("attachment")
    assert "sandbox" in whole.headers["content-security-policy"]
    part = farm.call.get(path, headers={"Range": "bytes=1000000-2000000"})
    assert (part.status_code, part.content) == (206, data[1_000_000:2_000_001])
    assert part.headers["content-range"] == f"bytes 1000000-2000000/{len(data)}"
    assert farm.call.get(path, headers={"Range": f"bytes={len(data)}-"}).status_code == 416
    assert farm.call.get(path, headers={"If-None-Match": whole.headers["etag"]}).status_code == 304
    changed = farm.call.get(path, headers={"Range": "bytes=0-1", "If-Range": '"other"'})
    assert (changed.status_code, len(changed.content)) == (200, len(data))


def test_an_empty_file_is_a_file(farm: Farm) -> None:
    path = f"/v1/assets/{digest(b'')}"
    assert farm.call.put(path, content=b"").status_code == 201
    assert farm.call.get(path).content == b""


def test_a_wrong_hash_leaves_nothing(farm: Farm) -> None:
    answer = farm.call.put(f"/v1/assets/{digest(b'right')}", content=b"wrong")
    assert answer.status_code == 422
    assert answer.json()["type"] == "urn:stillframe:problem:hash-mismatch"
    assert digest(b"wrong") in answer.json()["detail"]
    assert stored(farm) == set()
    assert leftovers(farm) == []


@pytest.mark.parametrize("name", ["x", "A" * 64, "0" * 63, "..%2fx"])
def test_a_name_that_is_no_hash_is_refused(farm: Farm, name: str) -> None:
    assert farm.call.put(f"/v1/assets/{name}", content=b"x").status_code in (404, 422)
    assert stored(farm) == set()


def test_a_full_disk_is_507_and_leaves_nothing(farm: Farm, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: LocalUpload, chunk: bytes) -> None:
        raise OutOfSpace("the store's disk is full: free some space, or run `farm gc`")

    monkeypatch.setattr(LocalUpload, "write", full)
    answer = farm.call.put(f"/v1/assets/{digest(b'x')}", content=b"x")
    assert answer.status_code == 507
    assert answer.json()["type"] == "urn:stillframe:problem:out-of-space"
    assert leftovers(farm) == []
    assert farm.call.post("/v1/assets", files={"f": ("a", b"x")}).status_code == 507
    assert leftovers(farm) == []


def test_a_declared_length_that_cannot_fit_is_refused_before_a_byte_is_read(
    farm: Farm, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(self: LocalStore, nbytes: int) -> None:
        raise OutOfSpace(f"{nbytes} bytes do not fit")

    monkeypatch.setattr(LocalStore, "check_space", none_left)
    answer = farm.call.put(f"/v1/assets/{digest(b'xyz')}", content=b"xyz")
    assert (answer.status_code, answer.json()["detail"]) == (507, "3 bytes do not fit")


def test_a_form_stores_each_file_and_says_its_hash(farm: Farm) -> None:
    big = os.urandom(2_500_000)
    answer = farm.call.post(
        "/v1/assets",
        files=[
            ("file", ("scene/a.xml", b"<scene/>")),
            ("file", ("ü.bin", big)),
            ("other", ("again", b"<scene/>")),
        ],
    )
    assert answer.status_code == 201, answer.text
    assert [(a["name"], a["sha256"], a["bytes"]) for a in answer.json()["assets"]] == [
        ("scene/a.xml", digest(b"<scene/>"), 8),
        ("ü.bin", digest(big), len(big)),
        ("again", digest(b"<scene/>"), 8),
    ]
    assert stored(farm) == {digest(b"<scene/>"), digest(big)}
    with farm.db.read() as conn:
        assert set(conn.scalars(sa.select(t.contents.c.sha256))) == stored(farm)


def multipart(filename: bytes, data: bytes = b"evil") -> dict[str, object]:
    body = b'--b\r\nContent-Disposition: form-data; name="f"; filename="' + filename + b'"\r\n\r\n' + data
    return {
        "content": body + b"\r\n--b--\r\n",
        "headers": {"Content-Type": "multipart/form-data; boundary=b"},
    }


@pytest.mark.parametrize(
    "filename",
    [
        b"../../x", b"/etc/passwd", b"a\0b", b"x" * 300, b"..", b"C:\\x", b"..\\x", b"", b"a/../../b",
        b"\xff\0", b"a\x1bb", b"./a",
    ],
)  # fmt: skip
def test_names_that_lead_out_are_refused_and_nothing_is_stored(farm: Farm, filename: bytes) -> None:
    answer = farm.call.post("/v1/assets", **multipart(filename))  # type: ignore[arg-type]
    assert answer.status_code == 422, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert stored(farm) == set()
    assert leftovers(farm) == []


@pytest.mark.parametrize(
    "body",
    [
        b"", b"--b", b"--b\r\n", b"--b--\r\n", b"nonsense",
        b'--b\r\nContent-Disposition: form-data; name="f"; filename="a"\r\n\r\ncut off',
        b'--b\r\nContent-Disposition: form-data; name="f"\r\n\r\nno file\r\n--b--\r\n',
        b"--b\r\n\r\nno header\r\n--b--\r\n",
        b"--b\r\nX: " + b"y" * 100_000 + b"\r\n\r\n\r\n--b--\r\n",
    ],
)  # fmt: skip
def test_a_broken_form_is_refused(farm: Farm, body: bytes) -> None:
    answer = farm.call.post(
        "/v1/assets", content=body, headers={"Content-Type": "multipart/form-data; boundary=b"}
    )
    assert answer.status_code in (413, 422), answer.text
    assert stored(farm) == set()
    assert leftovers(farm) == []


def test_another_kind_of_form_is_refused(farm: Farm) -> None:
    assert farm.call.post("/v1/assets", json={"a": 1}).status_code == 415
    assert farm.call.post("/v1/assets", data={"a": "1"}).status_code == 415


def test_missing_hashes_are_named_once_in_the_order_asked(farm: Farm) -> None:
    have = farm.upload(b"have")
    asked = ["2" * 64, have, "1" * 64, "2" * 64]
    answer = farm.call.post("/v1/assets/missing", json={"sha256": asked})
    assert answer.json() == {"missing": ["2" * 64, "1" * 64]}
    assert farm.call.post("/v1/assets/missing", json={"sha256": ["x"]}).status_code == 422
    assert farm.call.post("/v1/assets/missing", json={"sha256": []}).status_code == 422
