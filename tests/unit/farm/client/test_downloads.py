from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from farm.client.credentials import Credentials
from farm.client.downloads import download
from farm.client.transport import Transport
from farm.errors import HashMismatch, InvalidInput, NotFound
from tests.unit.farm.client.scripted_server import ScriptedServer, answer, cut_off

FILM = bytes(range(256)) * 40
SHA = hashlib.sha256(FILM).hexdigest()


def transport(server: ScriptedServer) -> Transport:
    return Transport(Credentials(server.url, "k"), sleep=lambda s: None)


def test_a_file_appears_when_its_hash_is_right(tmp_path: Path) -> None:
    counted: list[int] = []
    with ScriptedServer([answer(200, FILM)]) as server:
        path = download(transport(server), "/film", tmp_path / "new" / "film.mp4", SHA, counted.append)
    assert path.read_bytes() == FILM
    assert sum(counted) == len(FILM)
    assert [one.name for one in path.parent.iterdir()] == ["film.mp4"]


def test_a_broken_transfer_goes_on_where_it_stopped(tmp_path: Path) -> None:
    script = [cut_off(FILM[:4000], len(FILM)), answer(206, FILM[4000:])]
    with ScriptedServer(script) as server:
        path = download(transport(server), "/film", tmp_path / "film.mp4", SHA)
    assert path.read_bytes() == FILM
    assert server.asked[1].headers["Range"] == "bytes=4000-"


def test_a_server_that_knows_no_ranges_sends_all_again(tmp_path: Path) -> None:
    with ScriptedServer([cut_off(FILM[:4000], len(FILM)), answer(200, FILM)]) as server:
        path = download(transport(server), "/film", tmp_path / "film.mp4", SHA)
    assert path.read_bytes() == FILM


def test_wrong_bytes_are_refused_and_leave_nothing(tmp_path: Path) -> None:
    with ScriptedServer([answer(200, FILM[:-1] + b"!")]) as server, pytest.raises(HashMismatch, match="film"):
        download(transport(server), "/film", tmp_path / "film.mp4", SHA)
    assert list(tmp_path.iterdir()) == []


def test_a_refusal_leaves_nothing_and_an_older_file_stays(tmp_path: Path) -> None:
    target = tmp_path / "film.mp4"
    target.write_bytes(b"older")
    with ScriptedServer([answer(404)]) as server, pytest.raises(NotFound):
        download(transport(server), "/film", target, SHA)
    assert [one.name for one in tmp_path.iterdir()] == ["film.mp4"]
    assert target.read_bytes() == b"older"


def test_a_file_that_is_right_already_is_not_fetched(tmp_path: Path) -> None:
    target = tmp_path / "film.mp4"
    target.write_bytes(FILM)
    with ScriptedServer([answer(500)]) as server:
        assert download(transport(server), "/film", target, SHA) == target
    assert server.asked == []


def test_a_folder_as_target_is_named(tmp_path: Path) -> None:
    with ScriptedServer([answer(200, FILM)]) as server, pytest.raises(InvalidInput, match="folder"):
        download(transport(server), "/film", tmp_path, SHA)


def test_a_file_where_a_folder_must_be_is_said_and_not_a_trace(tmp_path: Path) -> None:
    (tmp_path / "taken").touch()
    with (
        ScriptedServer([answer(200, FILM)]) as server,
        pytest.raises(InvalidInput, match=r"cannot write .*taken"),
    ):
        download(transport(server), "/film", tmp_path / "taken" / "film.mp4", SHA)
