"""A live run of the stillness bench, served from the files that it writes."""

from __future__ import annotations

import numpy as np

from gpu_pinning.stillness.live import Live, write_png
from tests.integration.api.conftest import Farm


def test_without_a_run_the_answer_says_how_to_start_one(farm: Farm) -> None:
    answer = farm.call.get("/v1/stillness")
    assert answer.status_code == 404 and "farm bench stillness --live" in answer.json()["detail"]
    assert farm.call.get("/v1/stillness/pictures/render").status_code == 404


def test_a_run_is_served_as_it_stands_with_its_pictures(farm: Farm) -> None:
    live = Live(farm.settings.stillness, {"decode": "numpy", "loads": ["encode: 2"], "hurt": True})
    live.now("farm", True, True)
    write_png(live.picture("render"), np.zeros((4, 6, 3), np.uint8))
    live.write()
    found = farm.call.get("/v1/stillness").json()
    assert (found["decode"], found["arm"], found["isolation"], found["over"]) == ("numpy", "farm", True, None)
    assert found["pictures"] == ["render"] and found["at"].endswith("Z")
    picture = farm.call.get("/v1/stillness/pictures/render")
    assert picture.headers["content-type"] == "image/png"
    assert picture.content == live.picture("render").read_bytes()
    live.end("still", ["p99 1.0"])
    assert farm.call.get("/v1/stillness").json()["over"]["verdict"] == "still"


def test_a_file_that_is_no_run_and_a_name_that_is_no_pool_are_refused(farm: Farm) -> None:
    farm.settings.stillness.mkdir(parents=True)
    (farm.settings.stillness / "live.json").write_text('{"torn": ')
    assert farm.call.get("/v1/stillness").status_code == 404
    (farm.settings.stillness / "live.json").write_text('{"version": 9}')
    assert farm.call.get("/v1/stillness").status_code == 404
    for name in ("..%2Flive", "A", "a" * 21):
        assert farm.call.get(f"/v1/stillness/pictures/{name}").status_code in (404, 422)


def test_it_needs_a_key(farm: Farm) -> None:
    farm.call.headers.pop("Authorization")
    assert farm.call.get("/v1/stillness").status_code == 401
