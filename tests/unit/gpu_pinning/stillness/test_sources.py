"""What a bench can measure is said before anything starts: no GPU, no server, no model."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from gpu_pinning.errors import PinningError
from gpu_pinning.stillness import run as bench
from gpu_pinning.stillness.sources import DecodeServer


def free_port() -> int:
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        port: int = door.getsockname()[1]
        return port


def test_an_address_where_nobody_listens_is_told_from_a_server_without_models() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(PinningError) as caught:
        DecodeServer(url, None)
    assert f"url = {url}: nobody listens" in str(caught.value)
    assert "start the server first" in str(caught.value)


@pytest.mark.parametrize("form", ["graph", "eager"])
def test_a_form_for_gpus_is_refused_at_once_where_torch_sees_none(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "cuda_is_there", lambda: False)
    with pytest.raises(PinningError) as caught:
        bench.run(bench.Options(seconds=20, form=form, out=tmp_path / "out"))
    assert f"form = '{form}': needs torch with CUDA" in str(caught.value)
    assert "form cpu" in str(caught.value)
    assert not (tmp_path / "out").exists()
