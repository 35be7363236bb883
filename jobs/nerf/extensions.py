"""CUDA extensions (gsplat, nerfacc) are built ahead by ``farm node warm``, never inside a task.

A build takes minutes and all cores. It happens once per architecture and version, under a lock; a task
looks for the mark that a finished build leaves, and refuses without it.
"""

from __future__ import annotations

import fcntl
import importlib
import importlib.metadata
import importlib.util
import os
import time
from pathlib import Path
from typing import Final

from farm.errors import DeviceUnavailable, NotInstalled

PACKAGES: Final = ("gsplat", "nerfacc")


def folder() -> Path:
    """Where torch keeps built extensions, and we our marks."""
    base = os.environ.get("TORCH_EXTENSIONS_DIR") or str(Path.home() / ".cache" / "torch_extensions")
    return Path(base)


def mark_of(package: str) -> Path:
    """The mark of a finished build, for this GPU's architecture and these versions."""
    import torch

    major, minor = torch.cuda.get_device_capability()
    version = importlib.metadata.version(package)
    return folder() / f"stillframe-{package}-{version}-torch{torch.__version__}-sm{major}{minor}"


def require_built(package: str) -> None:
    """Raises :class:`NotInstalled` where the package's extension has not been built on this machine."""
    import torch

    if not torch.cuda.is_available():
        raise DeviceUnavailable(f"{package} runs on CUDA only, and this slot sees no GPU")
    if not mark_of(package).exists():
        raise NotInstalled(
            f"the CUDA extension of {package} is not built for this GPU: run `farm node warm` on the "
            f"node (it "
            "takes minutes), then retry"
        )


def build() -> list[tuple[str, str]]:
    """Build what is installed and not built yet; a line per package: what became of it."""
    import torch

    if not torch.cuda.is_available():
        raise DeviceUnavailable(
            "there is no GPU here that torch can use: extensions are built per architecture"
        )
    done = []
    folder().mkdir(parents=True, exist_ok=True)
    with (folder() / "stillframe.lock").open("w") as lock:
        # two nodes on one home folder, or two calls: one builds, the other waits and finds it built
        fcntl.flock(lock, fcntl.LOCK_EX)
        for package in PACKAGES:
            done.append((package, _build_one(package)))
    return done


def _build_one(package: str) -> str:
    if importlib.util.find_spec(package) is None:
        return "not installed"
    mark = mark_of(package)
    if mark.exists():
        return "built before"
    began = time.monotonic()
    _use(package)
    mark.write_text(f"{time.monotonic() - began:.1f} s\n")
    return f"built in {time.monotonic() - began:.0f} s"


def _use(package: str) -> None:
    """Call a kernel: that is what makes both packages compile."""
    import torch

    module = importlib.import_module(package)
    device = torch.device("cuda")
    if package == "gsplat":
        one = torch.tensor([[0.0, 0.0, 3.0]], device=device)
        lens = torch.tensor([[[20.0, 0, 8], [0, 20, 8], [0, 0, 1]]], device=device)
        module.rasterization(
            one, torch.tensor([[1.0, 0, 0, 0]], device=device), torch.full((1, 3), 0.2, device=device),
            torch.ones(1, device=device), torch.ones(1, 3, device=device), torch.eye(4, device=device)[None],
            lens, 16, 16,
        )  # fmt: skip
    else:
        module.render_weight_from_density(
            torch.zeros(2, device=device), torch.ones(2, device=device), torch.ones(2, device=device),
            ray_indices=torch.zeros(2, dtype=torch.long, device=device), n_rays=1,
        )  # fmt: skip
    torch.cuda.synchronize()
