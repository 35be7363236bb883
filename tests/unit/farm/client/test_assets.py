from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from farm.client.assets import hash_assets, upload
from farm.client.credentials import Credentials
from farm.client.transport import Transport
from farm.errors import HashMismatch, InvalidInput
from tests.unit.farm.client.scripted_server import ScriptedServer, answer, no_answer


def transport(server: ScriptedServer) -> Transport:
    return Transport(Credentials(server.url, "k"), sleep=lambda s: None)


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_only_what_the_farm_lacks_is_sent_and_each_content_once(tmp_path: Path) -> None:
    contents = {"scene.xml": b"<scene/>", "a/rock.ply": b"ply", "b/copy.ply": b"ply"}
    for name, data in contents.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    local = hash_assets({name: tmp_path / name for name in contents})
    lacking = json.dumps({"missing": [sha(b"ply")]}).encode()
    with ScriptedServer([answer(200, lacking), answer(201)]) as server:
        assert upload(transport(server), local) == 3
    ask, put = server.asked
    assert sorted(json.loads(ask.body)["sha256"]) == sorted([sha(b"<scene/>"), sha(b"ply")])
    assert (put.method, put.path, put.body) == ("PUT", f"/v1/assets/{sha(b'ply')}", b"ply")


def test_a_broken_upload_is_sent_again_from_its_beginning(tmp_path: Path) -> None:
    data = b"x" * 100_000
    (tmp_path / "mesh.ply").write_bytes(data)
    local = hash_assets({"mesh.ply": tmp_path / "mesh.ply"})
    lacking = json.dumps({"missing": [sha(data)]}).encode()
    with ScriptedServer([answer(200, lacking), no_answer, answer(201)]) as server:
        upload(transport(server), local)
    assert [asked.body for asked in server.asked[1:]] == [data, data]


def test_a_file_that_changed_after_it_was_hashed_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mesh.ply"
    path.write_bytes(b"first")
    local = hash_assets({"mesh.ply": path})
    path.write_bytes(b"second one")
    lacking = json.dumps({"missing": [sha(b"first")]}).encode()
    with ScriptedServer([answer(200, lacking)]) as server, pytest.raises(HashMismatch, match="changed"):
        upload(transport(server), local)


def test_a_missing_file_is_named_with_its_job_path(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"tex/wood\.png") as caught:
        hash_assets({"tex/wood.png": tmp_path / "wood.png"})
    assert caught.value.faults[0].pointer == "/assets/tex/wood.png"
