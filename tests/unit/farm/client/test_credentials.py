from __future__ import annotations

import errno
import json
import stat
from pathlib import Path

import pytest

from farm.client import credentials
from farm.client.credentials import Credentials, find_credentials, forget, remember, stored_for
from farm.errors import InvalidInput, Unauthenticated


@pytest.fixture(autouse=True)
def key_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("FARM_URL", "FARM_KEY", "FARM_KEY_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config" / "stillframe" / "key.json"


ONE = Credentials("http://127.0.0.1:8630", "sfk_one")
TWO = Credentials("http://127.0.0.1:8631", "sfk_two")


def test_a_key_is_kept_for_its_owner_alone(tmp_path: Path, key_file: Path) -> None:
    assert remember(tmp_path / "farm", ONE) == key_file
    assert stat.S_IMODE(key_file.stat().st_mode) == 0o600
    assert stat.S_IMODE(key_file.parent.stat().st_mode) == 0o700
    content = json.loads(key_file.read_text())
    assert (content["url"], content["key"]) == ("http://127.0.0.1:8630", "sfk_one")
    assert find_credentials() == ONE


def test_a_file_that_others_can_read_is_closed_again(tmp_path: Path, key_file: Path) -> None:
    remember(tmp_path / "farm", ONE)
    key_file.chmod(0o644)
    find_credentials()
    assert stat.S_IMODE(key_file.stat().st_mode) == 0o600


def test_the_farm_started_last_is_used_until_it_is_forgotten(tmp_path: Path) -> None:
    remember(tmp_path / "farm", ONE)
    remember(tmp_path / "demo", TWO)
    assert find_credentials() == TWO
    assert stored_for(tmp_path / "farm") == ONE
    forget(tmp_path / "demo")
    assert find_credentials() == ONE
    assert stored_for(tmp_path / "demo") is None


def test_forgetting_the_last_farm_removes_the_file(tmp_path: Path, key_file: Path) -> None:
    remember(tmp_path / "farm", ONE)
    forget(tmp_path / "farm")
    assert not key_file.exists()


def test_the_environment_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remember(tmp_path / "farm", ONE)
    monkeypatch.setenv("FARM_URL", "https://farm.example/")
    monkeypatch.setenv("FARM_KEY", "sfk_env")
    assert find_credentials() == Credentials("https://farm.example", "sfk_env")


def test_a_key_never_goes_to_another_farm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remember(tmp_path / "farm", ONE)
    monkeypatch.setenv("FARM_URL", "https://elsewhere.example")
    with pytest.raises(Unauthenticated, match=r"elsewhere\.example.*FARM_KEY"):
        find_credentials()
    monkeypatch.setenv("FARM_URL", ONE.url)
    assert find_credentials() == ONE


def test_without_any_key_the_way_out_is_named() -> None:
    with pytest.raises(Unauthenticated, match=r"farm up.*FARM_URL and FARM_KEY"):
        find_credentials()


@pytest.mark.parametrize("text", ["not json", "[]", '{"farms": 3}'])
def test_rubbish_in_the_key_file_is_an_error_that_names_it(key_file: Path, text: str) -> None:
    key_file.parent.mkdir(parents=True)
    key_file.write_text(text)
    with pytest.raises(InvalidInput, match=r"key\.json"):
        find_credentials()
    assert credentials.key_file().read_text() == text


def test_a_key_file_that_cannot_be_written_is_an_error_that_names_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**where: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("tempfile.mkstemp", refuse)
    with pytest.raises(InvalidInput, match=r"key\.json: Permission denied; .*FARM_KEY_FILE"):
        remember(tmp_path, ONE)
