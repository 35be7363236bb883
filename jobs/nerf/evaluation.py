"""Judge a field by pictures that it never saw: figures as JSON, side-by-side pictures as one HTML page."""

from __future__ import annotations

import base64
import html
import io
import json
from pathlib import Path
from typing import Any, Final

import numpy as np
from PIL import Image

from jobs.engine import Host
from jobs.nerf.held import Held
from jobs.nerf.inputs.pictures import read_mask, read_rgba
from jobs.nerf.metrics import Lpips, psnr, ssim
from jobs.nerf.rendering import to_png
from jobs.nerf.spec import Spec

REPORT: Final = "report.json"
PAGE: Final = "report.html"
_SHOWN: Final = 24
"""Pictures that the page shows; figures are given for all."""
_SIDE: Final = 480

Files = list[tuple[str, Path, str]]


def evaluate(spec: Spec, held: Held, folder: Path, host: Host) -> tuple[dict[str, Any], Files]:
    """Figures for every held-out picture, and the files of the report.

    Where none is held out the training pictures are looked at, and the report says so.
    """
    views = held.scene.of("test")
    split = "test" if views else "train"
    views = views or held.scene.of("train")
    lpips = Lpips()
    rows: list[dict[str, Any]] = []
    shown: list[tuple[dict[str, Any], list[Any]]] = []
    behind = held.look.shown.cpu().numpy()
    for index, view in enumerate(views):
        host.check()
        real = read_rgba(folder / view.file).astype(np.float64) / 255.0
        alpha = real[..., 3:]
        wanted = real[..., :3] * alpha + (1.0 - alpha) * behind
        made = np.asarray(held.field.picture(view, held.look, host.check), dtype=np.float64)
        keep = read_mask(folder / view.mask) if view.mask else None
        if keep is not None:
            made = np.where(keep[..., None], made, wanted)
        row = {
            "name": view.name, "frame": view.frame, "width": view.width, "height": view.height,
            "psnr": round(psnr(made, wanted, keep), 4), "ssim": round(ssim(made, wanted), 5),
        }  # fmt: skip
        distance = lpips.value(made, wanted)
        if distance is not None:
            row["lpips"] = round(distance, 5)
        rows.append(row)
        if len(shown) < _SHOWN:
            apart = np.clip(np.abs(made - wanted) * 4.0, 0, 1)
            shown.append((row, [wanted, made, apart]))
        host.progress(0.98 * (index + 1) / len(views), f"{view.name}: {row['psnr']:.2f} dB")
    mean = {key: round(float(np.mean([row[key] for row in rows])), 5) for key in ("psnr", "ssim")}
    if rows and "lpips" in rows[0]:
        mean["lpips"] = round(float(np.mean([row["lpips"] for row in rows])), 5)
    found = {
        "split": split, "mean": mean, "lpips": lpips.why or "measured", "views": rows, "method": spec.method,
        "form": spec.chosen_form, "seed": spec.seed, "size": held.field.describe(),
    }  # fmt: skip
    host.log.write(
        f"{len(rows)} {'held-out' if split == 'test' else 'TRAINING'} pictures: {mean['psnr']:.2f} dB PSNR, "
        f"{mean['ssim']:.4f} SSIM, LPIPS {mean.get('lpips', lpips.why)}"
    )
    report, page = host.scratch / REPORT, host.scratch / PAGE
    report.write_text(json.dumps(found, indent=1), "utf-8")
    page.write_text(_page(found, shown), "utf-8")
    return found, [(REPORT, report, "application/json"), (PAGE, page, "text/html")]


def _image(pixels: Any) -> str:
    colour = np.asarray(pixels, dtype=np.float32)
    side = max(colour.shape[:2])
    data = to_png(colour)
    if side > _SIDE:
        image = Image.open(io.BytesIO(data))
        image.thumbnail((_SIDE, _SIDE))
        out = io.BytesIO()
        image.save(out, "PNG")
        data = out.getvalue()
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


def _page(found: dict[str, Any], shown: list[tuple[dict[str, Any], list[Any]]]) -> str:
    """One self-contained page without scripts."""
    mean = found["mean"]
    what = "held-out" if found["split"] == "test" else "training (none was held out)"
    blocks = []
    for row, pictures in shown:
        cells = "".join(
            f'<figure><img src="{_image(pixels)}" alt="{label}"><figcaption>{label}</figcaption></figure>'
            for label, pixels in zip(("picture", "made", "difference x4"), pictures, strict=True)
        )
        lpips = f", LPIPS {row['lpips']:.4f}" if "lpips" in row else ""
        blocks.append(
            f"<section><h2>{html.escape(str(row['name']))}</h2><p>{row['psnr']:.2f} dB, SSIM "
            f"{row['ssim']:.4f}{lpips}</p><div>{cells}</div></section>"
        )
    lpips = f"{mean['lpips']:.4f}" if "lpips" in mean else html.escape(str(found["lpips"]))
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Evaluation</title><style>'
        "body{font:15px/1.5 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem}"
        "section>div{display:flex;gap:.5rem;flex-wrap:wrap}figure{margin:0}"
        "img{image-rendering:pixelated;min-width:240px;max-width:100%}figcaption{color:#666}"
        f"</style><h1>{html.escape(found['method'])} ({html.escape(found['form'])})</h1>"
        f"<p>{len(found['views'])} {what} pictures: <b>{mean['psnr']:.2f} dB</b> PSNR, SSIM "
        f"{mean['ssim']:.4f}, LPIPS {lpips}. Seed {found['seed']}, {html.escape(found['size'])}.</p>"
        + "".join(blocks)
        + "</html>"
    )
