"""The splat viewer in Chromium under the dashboard's own policy: it draws what a file holds."""

from __future__ import annotations

import functools
import http.server
import io
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser, expect

from api.middleware.security_headers import PAGE_POLICY
from jobs.nerf.exports.splat_files import write_ply

STATIC = Path(__file__).resolve().parents[2] / "api" / "web" / "static"
PAGE = (
    '<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,"><main></main>'
    '<script type="module" src="/page.js"></script>'
)
SCRIPT = """
import { splatViewer } from "/js/parts/splats.js";
for (const name of ["splats.ply", "points.ply"]) {
  document.querySelector("main").append(splatViewer({ name, url: `/${name}` }));
}
"""


class Handler(http.server.SimpleHTTPRequestHandler):
    made: Path

    def translate_path(self, path: str) -> str:
        own = self.made / path.lstrip("/")
        return str(own if own.is_file() else STATIC / path.lstrip("/"))

    def end_headers(self) -> None:
        self.send_header("content-security-policy", PAGE_POLICY)
        super().end_headers()

    def log_message(self, *words: Any) -> None:
        pass


@pytest.fixture(name="address")
def serve(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "page.html").write_text(PAGE)
    (tmp_path / "page.js").write_text(SCRIPT)
    one = {
        "means": np.zeros((1, 3)),
        "scales": np.full((1, 3), np.log(0.4)),
        "quats": np.array([[1.0, 0, 0, 0]]),
        "opacities": np.full(1, 6.0),
        "sh0": np.array([[[1.772, -1.772, -1.772]]]),
        "shN": np.zeros((1, 0, 3)),
    }
    write_ply(tmp_path / "splats.ply", {k: v.astype(np.float32) for k, v in one.items()}, [])
    head = "ply\nformat binary_little_endian 1.0\nelement vertex 1\nproperty float x\nend_header\n"
    (tmp_path / "points.ply").write_bytes(head.encode() + bytes(4))
    handler = functools.partial(type("H", (Handler,), {"made": tmp_path}))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def test_it_draws_the_gaussians_of_a_file_and_refuses_another(browser: Browser, address: str) -> None:
    page = browser.new_page()
    complaints: list[str] = []
    page.on("console", lambda line: complaints.append(line.text) if line.type == "error" else None)
    page.goto(f"{address}/page.html")
    figures = page.locator("figure")
    figures.nth(1).get_by_role("button").click()
    expect(figures.nth(1).get_by_role("status")).to_contain_text("points, not Gaussians")
    figures.nth(0).get_by_role("button", name="Show in 3D").click()
    canvas = figures.nth(0).locator("canvas")
    expect(figures.nth(0).get_by_role("status")).to_contain_text("1 Gaussians")
    expect(canvas).to_have_attribute("data-drawn", "1")
    shot = canvas.screenshot()
    picture = np.asarray(Image.open(io.BytesIO(shot)).convert("RGB")).astype(int)
    height, width = picture.shape[:2]
    red = picture[..., 0] - picture[..., 1]
    # colour 0.5 + 0.282 * 1.772 = 1 in red, 0 in the others; opaque in the middle, gone at the corner
    assert red[height // 2, width // 2] > 200 and red[4, 4] < 40
    # a deviation of 0.4 at distance 3.2 with a focal length of 0.9 heights: half as strong 1.18 of them away
    reach = 1.18 * 0.4 / 3.2 * 0.9 * height
    assert (
        red[height // 2, int(width // 2 + 0.5 * reach)]
        > 120
        > red[height // 2, int(width // 2 + 2.2 * reach)]
    )
    canvas.press("ArrowLeft")
    expect(canvas).to_have_attribute("data-drawn", "2")
    page.close()
    assert complaints == []
