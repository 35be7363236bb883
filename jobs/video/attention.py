"""Attention kernels: set through diffusers' dispatcher, tried with a small call first, and told by name."""

from __future__ import annotations

import contextlib
import importlib
from typing import Any

from farm.errors import PermanentFailure
from jobs.video.families import BACKENDS, CUDA_ONLY, Backend

torch: Any = importlib.import_module("torch")
_python_dispatch: Any = importlib.import_module("torch.utils._python_dispatch")


def probe(backend: Backend, device: Any, dtype: Any, head: int = 64) -> list[str]:
    """Run a small attention call; the names of the operators that really ran, such as cuDNN's.

    Raises :class:`farm.errors.PermanentFailure` with the reason where the backend does not work here: some
    import well and fail at their first call.
    """
    device = torch.device(device)
    if backend in CUDA_ONLY and device.type != "cuda":
        raise PermanentFailure(f"/attention: {backend} needs an NVIDIA GPU; choose native")
    dispatch = importlib.import_module("diffusers.models.attention_dispatch")
    q = torch.randn(1, 128, 2, head, device=device, dtype=dtype)

    def attend() -> Any:
        with torch.no_grad():
            name = dispatch.AttentionBackendName(BACKENDS[backend])
            return dispatch.dispatch_attention_fn(q, q, q, backend=name)

    try:
        out = attend()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        if out.shape != q.shape or not bool(torch.isfinite(out.float()).all()):
            raise RuntimeError("its output is not finite or has the wrong shape")
    except Exception as error:  # every library fails in its own way
        raise PermanentFailure(
            f"/attention: {backend} does not work here ({type(error).__name__}: {str(error)[:300]}); "
            "choose native"
        ) from error
    seen = _Operators()
    # a compiled kernel (flex) cannot be looked into
    with contextlib.suppress(RuntimeError), seen:
        attend()
    return seen.attention() or [backend]


class _Operators(_python_dispatch.TorchDispatchMode):  # type: ignore[misc]  # torch is untyped here
    """Writes down the operators that run, after dispatch: which kernel the choice really led to."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.name())
        return func(*args, **(kwargs or {}))

    def attention(self) -> list[str]:
        """Those that attend."""
        return sorted({name for name in self.names if "attention" in name or "flash" in name})


class Attention:
    """Sets backends on denoisers; each is probed once per device, number type and head size."""

    def __init__(self) -> None:
        self._ran: dict[tuple[str, str, str, int], list[str]] = {}

    def use(self, backend: Backend, denoisers: list[Any], device: Any, dtype: Any) -> list[str]:
        """Let the denoisers attend with ``backend``; the operators that it runs.

        Raises :class:`farm.errors.PermanentFailure` where it does not work.
        """
        config = getattr(denoisers[0], "config", None)
        head = int(getattr(config, "attention_head_dim", None) or 64)
        key = (backend, str(device), str(dtype), head)
        if key not in self._ran:
            self._ran[key] = probe(backend, device, dtype, head)
        for denoiser in denoisers:
            if hasattr(denoiser, "set_attention_backend"):
                try:
                    denoiser.set_attention_backend(BACKENDS[backend])
                except (ValueError, RuntimeError, ImportError) as error:
                    raise PermanentFailure(f"/attention: {error}") from error
            elif backend != "native":
                raise PermanentFailure(
                    f"/attention: {type(denoiser).__name__} takes no backend; leave attention out"
                )
        return self._ran[key]

    @staticmethod
    def reset(denoisers: list[Any]) -> None:
        """Back to torch's own choice, for whoever comes next."""
        for denoiser in denoisers:
            if hasattr(denoiser, "reset_attention_backend"):
                denoiser.reset_attention_backend()
