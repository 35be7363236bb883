"""Radiance fields and splats on one GPU, by the kind's own engine: ``python -m tests.benchmarks.nerf_gpu``.

Trains on a rendered 100-view 800x800 object set (``--set FOLDER``, made by :mod:`tests.benchmarks.nerf_set`;
without it three balls drawn by formula) for ``--seconds`` and says held-out PSNR, when it was reached, peak
memory, and how many 1080p views a second were rendered and written. Bounds: 33 dB within 60 s for both, 30
views/s for splats.

``--parts`` are done in order, each followed by the figures so far as JSON in ``--out``:

- kernels: the fused encoding against plain torch, values and gradients, and the time of both
- build: gsplat's and nerfacc's extensions; the libraries are kept in ``--keep`` as .xz files
- nerf, splat: a whole job: pose, train, evaluate, views
- steps: where an iteration of each method spends its time, by torch's profiler

``--extensions FOLDER`` takes libraries that an earlier ``--keep`` left. ``--device cpu`` runs all lines of it
on a machine without a GPU at toy sizes, by the forms for CPUs, and judges nothing. ``--budget`` seconds after
which no further part is begun. Exit codes: 0 the bounds were kept, 1 not, 3 it could not be run here, with
the reason.
"""

from __future__ import annotations

import argparse
import json
import lzma
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from tests.benchmarks.machine import Figure, hardware

NOT_RUN = 3
BOUND_DB, BOUND_S, BOUND_FPS = 33.0, 60.0, 30.0
FILM = {"splat": 120, "nerf": 24}
PARTS = ("kernels", "build", "splat", "nerf", "steps")


def say(text: str) -> None:
    """A line, at once."""
    print(text, flush=True)


def why_not(device: str) -> str:
    """Why it cannot be run here; empty when it can."""
    try:
        import torch
    except ImportError:
        return "torch is not installed"
    if device == "cuda" and not torch.cuda.is_available():
        return "torch sees no NVIDIA GPU"
    return ""


# --- parts -------------------------------------------------------------------------------------------------


def build(asked: argparse.Namespace) -> dict[str, Any]:
    """Build the extensions, or take those that were built before; keep them where that is asked."""
    if asked.device == "cpu":
        return {"built": "nothing on a CPU"}
    from jobs.nerf import extensions

    if asked.extensions is not None:
        for package in extensions.PACKAGES:
            take(asked.extensions, package)
    began = time.monotonic()
    found = extensions.build()
    took = time.monotonic() - began
    for package, what in found:
        say(f"{package}: {what}")
    if asked.keep is not None:
        asked.keep.mkdir(parents=True, exist_ok=True)
        for package in extensions.PACKAGES:
            library = extensions.library_of(package) if extensions.installed(package) else None
            if library is not None:
                packed = lzma.compress(library.read_bytes(), preset=3)
                name = f"{library.parent.name}--{library.name}.xz"
                (asked.keep / name.replace("+", "_plus_")).write_bytes(packed)
                say(f"{name}: {library.stat().st_size / 2**20:.1f} MiB, {len(packed) / 2**20:.1f} MiB packed")
    return {"built": dict(found), "build_s": round(took, 1)}


def take(folder: Path, package: str) -> None:
    """Put a kept library where the kind looks for it."""
    from jobs.nerf import extensions

    if not extensions.installed(package):
        return
    place = extensions.place_of(package)
    for path in folder.glob(f"stillframe-{package}-*--*.xz"):
        name, _, library = path.name.removesuffix(".xz").replace("_plus_", "+").partition("--")
        if name == place.name and not place.exists():
            place.mkdir(parents=True)
            (place / library).write_bytes(lzma.decompress(path.read_bytes()))
            say(f"{package}: taken from {folder}")
        elif name != place.name:
            say(f"{package}: {name} is not for this machine, which wants {place.name}")


def kernels(asked: argparse.Namespace) -> dict[str, Any]:
    """The fused encoding against the plain one."""
    if asked.device == "cpu":
        return {}
    import torch

    from jobs.nerf.methods.encoding import encode, encode_plain
    from jobs.nerf.methods.hash import HashGrid
    from jobs.nerf.methods.loader import Options

    device = torch.device("cuda")
    field = HashGrid(Options(), True, 1.2, device)
    dice = torch.Generator(device).manual_seed(0)
    table = torch.rand(field.values["table"].shape, generator=dice, device=device)
    cube = torch.rand(2**18, 3, generator=dice, device=device) * 2.2 - 1.1
    grad = torch.rand(2**18, 32, generator=dice, device=device)
    made, times = [], []
    for encoder in (encode_plain, encode):
        own = table.clone().requires_grad_()
        for _ in range(3):
            torch.cuda.synchronize()
            began = time.perf_counter()
            out = encoder(own, cube, field.levels)
            (gradient,) = torch.autograd.grad(out, own, grad)
            torch.cuda.synchronize()
            took = time.perf_counter() - began
        made.append((out.detach(), gradient))
        times.append(took * 1e3)
    apart = [float((a - b).abs().max() / a.abs().max()) for a, b in zip(*made, strict=True)]
    say(
        f"encoding 262,144 points, there and back: plain {times[0]:.2f} ms, fused {times[1]:.2f} ms, "
        f"apart by {apart[0]:.1e} and {apart[1]:.1e} of the largest"
    )
    if max(apart) > 1e-4:
        raise AssertionError(f"the fused encoding is not the plain one: {apart}")
    return {
        "encode_plain_ms": times[0], "encode_fused_ms": times[1], "encode_apart": apart, **blurs(dice, device)
    }  # fmt: skip


def blurs(dice: Any, device: Any) -> dict[str, Any]:
    """The blur of the structural loss against a convolution in float64, and its time, there and back."""
    import torch

    from jobs.nerf.methods.structure import blur, window

    maps = torch.rand(15, 800, 800, generator=dice, device=device)
    grad = torch.rand(15, 790, 790, generator=dice, device=device)
    line = torch.tensor(window(), dtype=torch.float64, device=device)
    own, exact = maps.clone().requires_grad_(), maps.double().requires_grad_()
    found = blur(own)
    wanted = torch.nn.functional.conv2d(exact[:, None], line.view(1, 1, 11, 1))
    wanted = torch.nn.functional.conv2d(wanted, line.view(1, 1, 1, 11))[:, 0]
    (slope,) = torch.autograd.grad(found, own, grad)
    (wanted_slope,) = torch.autograd.grad(wanted, exact, grad.double())
    pairs = ((found, wanted), (slope, wanted_slope))
    apart = [float((a.detach().double() - b.detach()).abs().max()) for a, b in pairs]
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(20):
        torch.autograd.grad(blur(own), own, grad)
    torch.cuda.synchronize()
    took = (time.perf_counter() - began) / 20 * 1e3
    say(f"blur of 15 maps of 800x800, there and back: {took:.3f} ms, off by {apart[0]:.1e}, {apart[1]:.1e}")
    if max(apart) > 1e-6:
        raise AssertionError(f"the blur is not exact in float32: {apart}")
    return {"blur_ms": took, "blur_apart": apart}


def spec_of(method: str, asked: argparse.Namespace) -> dict[str, Any]:
    """The job that is measured."""
    cuda = asked.device == "cuda"
    train: dict[str, Any] = {
        "seconds": asked.seconds, "preview_s": max(1.0, asked.seconds / 12), "checkpoint_s": 3600.0,
    }  # fmt: skip
    if not cuda:
        train |= {"iterations": 40, "resolution": 32, "samples": 24, "ray_samples": 4000}
    return {
        "source": "set/transforms.json", "method": method, "device": asked.device, "train": train,
        "path": {"type": "orbit"}, "frames": f"1-{FILM[method] if cuda else 4}",
        "resolution": [1920, 1080] if cuda else [64, 36], "chunk_frames": 1000,
    }  # fmt: skip


def job(method: str, asked: argparse.Namespace, folder: Path, files: dict[str, Path]) -> dict[str, Any]:
    """One method, from pictures to views."""
    import torch

    from tests.unit.jobs.local_host import LocalHost

    class Timed(LocalHost):
        """Says when the views began to be published."""

        def check(self) -> None:
            super().check()
            if self.step == "views":
                marks.setdefault("views", time.monotonic())

    marks: dict[str, float] = {}
    if asked.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    host = Timed(folder / method, files, spool_budget=2**40)
    host.threads = asked.threads
    began = time.monotonic()
    host.run_job("nerf", spec_of(method, asked))
    took = time.monotonic() - began
    views_s = began + took - marks["views"]
    trained, judged = host.results["train"][0], host.results["evaluate"][0]["mean"]
    views = [frame for (step, _), frame in host.published.items() if step == "views"]
    reached = [row for row in trained["curve"] if row[3] >= BOUND_DB]
    found = {
        "form": trained["form"], "size": trained["size"], "psnr": judged["psnr"], "ssim": judged["ssim"],
        "train_s": trained["seconds"], "iterations": trained["iterations"], "peak_vram": trained["peak_vram"],
        "reached_33db_s": reached[0][1] if reached else None, "curve": trained["curve"],
        "views": len(views), "views_s": round(views_s, 3), "views_per_s": round(len(views) / views_s, 2),
        "a_view_s": round(sum(v.duration_s for v in views) / len(views), 4), "job_s": round(took, 1),
    }  # fmt: skip
    if asked.pictures is not None:
        asked.pictures.mkdir(parents=True, exist_ok=True)
        middle = views[len(views) // 2]
        (asked.pictures / f"{method}.png").write_bytes(next(iter(middle.files.values())).read_bytes())
    say(
        f"{method} ({found['form']}): {found['psnr']:.2f} dB held out after {found['train_s']:.1f} s and "
        f"{found['iterations']} iterations, 33 dB after {found['reached_33db_s']} s, {found['size']}, peak "
        f"{(found['peak_vram'] or 0) / 2**30:.2f} GiB; views rendered, written and published at "
        f"{found['views_per_s']:.1f}/s ({found['a_view_s'] * 1e3:.0f} ms each); whole job {took:.0f} s"
    )
    return found


def steps(asked: argparse.Namespace, folder: Path, files: dict[str, Path]) -> dict[str, Any]:
    """Where an iteration spends its time, by kernel, after 200 iterations."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    from jobs.nerf.packing import unpack_dataset
    from jobs.nerf.spec import Spec
    from jobs.nerf.training import Trainer
    from tests.unit.jobs.local_host import LocalHost

    cuda = asked.device == "cuda"
    found: dict[str, Any] = {}
    for method in [m for m in ("splat", "nerf") if m in asked.parts]:
        host = LocalHost(folder / f"steps-{method}", files, spool_budget=2**40)
        spec = spec_of(method, asked)
        spec["train"] = {**spec["train"], "seconds": None, "iterations": 4000}
        stepped = Spec.model_validate(spec)
        host.run_steps("nerf", spec, ("pose",))
        trainer = Trainer(stepped, unpack_dataset(host, host.scratch), host.scratch, host)
        trainer.field.prepare(trainer.pictures.views)
        trainer.field.begin(trainer.scene, trainer.pictures)
        for _ in range(200 if cuda else 3):
            trainer._iterate()
        if cuda:
            torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(50 if cuda else 2):
            trainer._iterate()
        if cuda:
            torch.cuda.synchronize()
        each_ms = (time.perf_counter() - began) / (50 if cuda else 2) * 1e3
        kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
        with profile(activities=kinds) as profiled:
            for _ in range(10 if cuda else 1):
                trainer._iterate()
        order = "self_device_time_total" if cuda else "self_cpu_time_total"
        table = profiled.key_averages().table(sort_by=order, row_limit=18, max_name_column_width=50)
        say(f"{method}: {each_ms:.2f} ms an iteration")
        say("\n".join(line[:200] for line in table.splitlines()))
        found[method] = {"iteration_ms": each_ms}
    return found


# --- all of it ---------------------------------------------------------------------------------------------


def figures_of(found: dict[str, Any]) -> list[Figure]:
    """What is judged."""
    figures = []
    for method in ("splat", "nerf"):
        if "psnr" not in (row := found.get(method, {})):
            continue
        figures += [
            Figure(f"{method}: held-out PSNR", row["psnr"], "dB", BOUND_DB, True),
            Figure(f"{method}: seconds of training", row["train_s"], "s", BOUND_S),
            Figure(f"{method}: peak memory", (row["peak_vram"] or 0) / 2**30, "GiB"),
            Figure(
                f"{method}: 1080p views rendered and written", row["views_per_s"], "/s",
                BOUND_FPS if method == "splat" else None, True,
            ),
        ]  # fmt: skip
    return figures


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", default=",".join(PARTS), type=lambda text: text.split(","))
    parser.add_argument("--set", type=Path)
    parser.add_argument("--seconds", type=float, default=55.0)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--extensions", type=Path)
    parser.add_argument("--pictures", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--budget", type=float, default=1e9)
    asked = parser.parse_args()
    if unknown := [part for part in asked.parts if part not in PARTS]:
        parser.error(f"--parts: {', '.join(unknown)} is none of {', '.join(PARTS)}")
    return asked


def main() -> int:
    """Measure; 0 when all bounds were kept."""
    import os

    from tests.unit.jobs.nerf.scenes import assets_of, write_set

    asked = parse()
    asked.threads = asked.threads or len(os.sched_getaffinity(0))
    if why := why_not(asked.device):
        say(f"not run: {why}")
        return NOT_RUN
    say(hardware())
    began = time.monotonic()
    found: dict[str, Any] = {"hardware": hardware()}
    failed = False
    with tempfile.TemporaryDirectory(prefix="stillframe-nerf-") as name:
        folder = Path(name)
        if asked.set is None:
            write_set(folder / "set", 100 if asked.device == "cuda" else 12)
        files = assets_of(asked.set or folder / "set")
        for part in asked.parts:
            if time.monotonic() - began > asked.budget:
                say(f"{part}: not begun, the budget of {asked.budget:g} s is spent")
                failed = True
                continue
            try:
                if part == "build":
                    found[part] = build(asked)
                elif part == "kernels":
                    found[part] = kernels(asked)
                elif part == "steps":
                    found[part] = steps(asked, folder, files)
                else:
                    found[part] = job(part, asked, folder, files)
            except Exception:  # one part's failure must not cost the others
                failed = True
                found[part] = {"failed": traceback.format_exc()}
                say(f"{part} FAILED after {time.monotonic() - began:.0f} s\n{traceback.format_exc()}")
            if asked.out is not None:
                asked.out.write_text(json.dumps(found, indent=1), "utf-8")
    figures = figures_of(found)
    for figure in figures:
        say(str(figure))
    judged = asked.device == "cpu" or all(figure.kept for figure in figures)
    return 0 if judged and not failed else 1


if __name__ == "__main__":
    sys.exit(main())
