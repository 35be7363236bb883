"""CUDA extensions (gsplat, nerfacc) are built ahead by ``farm node warm``, never inside a task.

A build takes minutes and all cores. It happens once per package, version, torch, Python and architecture,
under a lock, and leaves the finished library in a folder of that name; tasks load it from there and refuse
where it is missing. Neither package's own loader, which would compile, is asked again.
"""

from __future__ import annotations

import fcntl
import importlib
import importlib.metadata
import importlib.util
import os
import shutil
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from farm.errors import DeviceUnavailable, NotInstalled

PACKAGES: Final = ("gsplat", "nerfacc")
_MEMORY_PER_JOB: Final = 3 * 2**30
"""What one run of the compiler may take: fewer run at once where memory is short."""


def folder() -> Path:
    """Where torch keeps built extensions, and we the finished ones."""
    base = os.environ.get("TORCH_EXTENSIONS_DIR") or str(Path.home() / ".cache" / "torch_extensions")
    return Path(base)


def place_of(package: str) -> Path:
    """The folder of a finished build, for this GPU's architecture and these versions."""
    import torch

    major, minor = torch.cuda.get_device_capability()
    version = importlib.metadata.version(package)
    python = f"py{sys.version_info.major}{sys.version_info.minor}"
    return folder() / f"stillframe-{package}-{version}-torch{torch.__version__}-{python}-sm{major}{minor}"


def library_of(package: str) -> Path | None:
    """The finished library, where there is one."""
    return next(iter(sorted(place_of(package).glob("*.so"))), None)


def require_built(package: str) -> None:
    """Load the package's extension. Raises :class:`NotInstalled` where it was not built on this machine."""
    import torch

    if not torch.cuda.is_available():
        raise DeviceUnavailable(f"{package} runs on CUDA only, and this slot sees no GPU")
    if not load_built(package):
        raise NotInstalled(
            f"the CUDA extension of {package} is not built for this GPU: run `farm node warm` on the node "
            "(it takes minutes), then retry"
        )


def load_built(package: str) -> bool:
    """Load the package's extension where it is installed and built; whether it is there."""
    if not installed(package):
        return False
    name = f"{package}.csrc"
    if name in sys.modules:
        return True
    library = library_of(package)
    if library is None:
        return False
    # both packages look for an extension that came with them under this name before they compile one
    sys.modules[name] = _open(library)
    return True


def _open(library: Path) -> ModuleType:
    """The extension module in a file; the name it was built under stands before the first dot."""
    found = importlib.util.spec_from_file_location(library.name.partition(".")[0], library)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def installed(package: str) -> bool:
    """Whether the package itself is there."""
    return importlib.util.find_spec(package) is not None


def build() -> list[tuple[str, str]]:
    """Build what is installed and not built yet; a line per package: what became of it.

    A package that cannot be compiled costs the others nothing: its line says why.
    """
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
            try:
                done.append((package, _build_one(package)))
            except NotInstalled as error:
                done.append((package, f"FAILED: {error.message}"))
    return done


def _build_one(package: str) -> str:
    if not installed(package):
        return "not installed"
    if library_of(package) is not None:
        return "built before"
    began = time.monotonic()
    library = _compile(package)
    place = place_of(package)
    part = place.with_name(f".{place.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    shutil.copyfile(library, part / library.name)
    shutil.rmtree(place, ignore_errors=True)
    part.rename(place)
    return f"built in {time.monotonic() - began:.0f} s"


def _compile(package: str) -> Path:
    """Let the package compile its extension for this GPU alone, prove it by a kernel, and say where it lies.

    Raises :class:`NotInstalled` with the compiler's last words.
    """
    import psutil
    import torch
    from torch.utils import cpp_extension

    if cpp_extension.CUDA_HOME is None:
        raise NotInstalled(
            f"{package} is compiled with nvcc, which is not here: install CUDA's toolkit "
            f"{torch.version.cuda}, or set CUDA_HOME"
        )
    major, minor = torch.cuda.get_device_capability()
    fit = max(1, int(psutil.virtual_memory().available // _MEMORY_PER_JOB))
    os.environ.setdefault("TORCH_CUDA_ARCH_LIST", f"{major}.{minor}")
    os.environ.setdefault("MAX_JOBS", str(min(len(os.sched_getaffinity(0)), fit)))
    try:
        backend: Any = importlib.import_module(f"{package}.cuda._backend")
        library = Path(backend._C.__file__)
        _use(package)
    except (RuntimeError, OSError, ImportError, AttributeError) as error:
        raise NotInstalled(f"{package} could not be compiled: {str(error)[-2000:]}") from error
    # loaded already: opened once more from where it is kept, its types would be there twice
    sys.modules[f"{package}.csrc"] = backend._C
    return library


def _use(package: str) -> None:
    """Call a kernel."""
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
