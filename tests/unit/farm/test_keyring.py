"""The secret that keys are checked by: one for all APIs of a farm."""

from __future__ import annotations

import stat
from pathlib import Path

from farm.keyring import Keyring
from farm.settings import Settings


def test_apis_with_folders_of_their_own_check_keys_alike_by_a_file_that_both_name(tmp_path: Path) -> None:
    shared = tmp_path / "keyring"
    one, two = (Keyring.open(Settings(data=tmp_path / name, keyring=shared)) for name in ("one", "two"))
    assert one.fingerprint("sfk_x") == two.fingerprint("sfk_x")
    assert stat.S_IMODE(shared.stat().st_mode) == 0o600
    alone = Keyring.open(Settings(data=tmp_path / "three"))
    assert alone.fingerprint("sfk_x") != one.fingerprint("sfk_x")
    assert (tmp_path / "three" / "keyring.secret").exists()
