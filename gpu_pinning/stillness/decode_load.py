"""A decode-shaped load, a stamp a step: ``python -m gpu_pinning.stillness.decode_load FORM STAMPS``.

Forms:

- ``graph``: one token for a batch of eight on a model of 7B shapes (32 layers, width 4096, feed-forward
  11008, 32 heads, bfloat16, 1,024 tokens of KV cache each, random weights), captured in a CUDA graph. Each
  step ends like an engine's: the chosen tokens are copied to the host and waited for.
- ``eager``: the same without a graph: some 400 launches a step, so that the host is what limits it.
- ``cpu``: the same shape in small with numpy on one thread, for machines without a GPU. It shows how the
  measurement works and what cores and caches do; it says nothing about a GPU server.

Torch and numpy are imported by the process that runs the load alone.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpu_pinning.stillness.farm_load import die_with_parent
from gpu_pinning.stillness.stamps import StampReader, StampWriter

FORMS = ("graph", "eager", "cpu")
LAYERS, WIDTH, INNER, HEADS, BATCH, CONTEXT, VOCABULARY = 32, 4096, 11008, 32, 8, 1024, 32000
_CPU_LAYERS, _CPU_WIDTH, _CPU_INNER = 2, 384, 1024


def describe(form: str) -> str:
    """The model of a form in words, for reports."""
    if form == "cpu":
        return f"numpy float32, {_CPU_LAYERS} layers of width {_CPU_WIDTH}, one thread: CPU form"
    how = "CUDA graph" if form == "graph" else "eager (launch-bound)"
    return f"7B shapes, bfloat16, batch {BATCH}, context {CONTEXT}, {how}"


def make_step(form: str) -> Callable[[], None]:
    """A function that does one engine step. Raises :class:`ValueError`, or what torch raises without CUDA."""
    if form not in FORMS:
        raise ValueError(f"form is {form!r}, but must be one of {', '.join(FORMS)}")
    return _cpu_step() if form == "cpu" else _cuda_step(graph=form == "graph")


def _cpu_step() -> Callable[[], None]:
    import numpy as np

    random = np.random.default_rng(0)

    def weight(rows: int, columns: int) -> Any:
        return (random.standard_normal((rows, columns)) / rows**0.5).astype(np.float32)

    layers = [
        (weight(_CPU_WIDTH, 3 * _CPU_WIDTH), weight(_CPU_WIDTH, _CPU_INNER), weight(_CPU_INNER, _CPU_WIDTH))
        for _ in range(_CPU_LAYERS)
    ]
    state = random.standard_normal((BATCH, _CPU_WIDTH)).astype(np.float32)

    def step() -> None:
        nonlocal state
        for qkv, up, down in layers:
            mixed = (state @ qkv)[:, :_CPU_WIDTH]
            state = state + mixed + np.maximum(mixed @ up, 0) @ down
            state = state / (np.linalg.norm(state, axis=1, keepdims=True) + 1e-6)

    return step


def decode_model(device: str) -> tuple[Callable[[], None], Callable[[], None]]:
    """The model on a device: one step's arithmetic, and the copy of its tokens to the host.

    Both only put work on the current stream.
    """
    import torch
    import torch.nn.functional as F

    torch.manual_seed(0)
    kind: dict[str, Any] = {"device": device, "dtype": torch.bfloat16}
    head = WIDTH // HEADS

    def weight(rows: int, columns: int) -> Any:
        return torch.randn(rows, columns, **kind).mul_(columns**-0.5)

    layers = [
        {
            "qkv": weight(3 * WIDTH, WIDTH),
            "out": weight(WIDTH, WIDTH),
            "up": weight(2 * INNER, WIDTH),
            "down": weight(WIDTH, INNER),
            "norm": torch.ones(WIDTH, **kind),
            "k": torch.randn(BATCH, HEADS, CONTEXT, head, **kind),
            "v": torch.randn(BATCH, HEADS, CONTEXT, head, **kind),
        }
        for _ in range(LAYERS)
    ]
    embedding = torch.randn(VOCABULARY, WIDTH, **kind).mul_(WIDTH**-0.5)
    tokens = torch.zeros(BATCH, dtype=torch.long, device=device)
    place = torch.zeros(1, dtype=torch.long, device=device)
    seen = torch.zeros(BATCH, dtype=torch.long, pin_memory=device == "cuda")

    def forward() -> None:
        x = F.embedding(tokens, embedding)
        for layer in layers:
            normed = F.rms_norm(x, (WIDTH,), layer["norm"])
            q, k, v = F.linear(normed, layer["qkv"]).view(BATCH, 3, HEADS, 1, head).unbind(1)
            layer["k"].index_copy_(2, place, k)
            layer["v"].index_copy_(2, place, v)
            mixed = F.scaled_dot_product_attention(q, layer["k"], layer["v"]).reshape(BATCH, WIDTH)
            x = x + F.linear(mixed, layer["out"])
            gate, up = F.linear(F.rms_norm(x, (WIDTH,), layer["norm"]), layer["up"]).chunk(2, dim=-1)
            x = x + F.linear(F.silu(gate) * up, layer["down"])
        tokens.copy_(F.linear(x, embedding).argmax(-1))
        place.add_(1).remainder_(CONTEXT)

    def tell() -> None:
        seen.copy_(tokens, non_blocking=True)

    return forward, tell


def _cuda_step(graph: bool) -> Callable[[], None]:
    import torch

    if not torch.cuda.is_available():
        raise RuntimeError("CUDA is not available: use the form 'cpu'")
    with torch.inference_mode():
        forward, tell = decode_model("cuda")
        cuda: Any = torch.cuda
        side = cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                forward()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        if graph:
            captured = torch.cuda.CUDAGraph()
            with torch.cuda.graph(captured):
                forward()

            # the graph knows addresses alone: weights that nobody holds would be given to somebody else
            return _step_of(captured.replay, tell, torch.cuda.current_stream().synchronize, held=forward)
    return _step_of(forward, tell, torch.cuda.current_stream().synchronize)


def _step_of(
    launch: Callable[[], None], tell: Callable[[], None], wait: Callable[[], None], held: object = None
) -> Callable[[], None]:
    """A step: put it on the device, have its tokens told, wait. It keeps ``held`` alive.

    Its attribute ``launch_share()`` measures which share of a step the host takes to launch it.
    """
    import torch

    def step() -> None:
        with torch.inference_mode():
            launch()
            tell()
            wait()

    def launch_share(steps: int = 30) -> float:
        shares = []
        for _ in range(steps):
            begin = time.perf_counter()
            with torch.inference_mode():
                launch()
                launched = time.perf_counter()
                tell()
                wait()
            shares.append((launched - begin) / (time.perf_counter() - begin))
        return sorted(shares)[steps // 2]

    step.held = held  # type: ignore[attr-defined]
    step.launch_share = launch_share  # type: ignore[attr-defined]
    return step


class StampProbe:
    """The steps of a load as the guard's probe sees a server's tokens."""

    def __init__(self, path: Path) -> None:
        from gpu_pinning.guard.probe import Gap

        self._gap = Gap
        self._stamps = StampReader(path)
        self._next = len(self._stamps)
        self._last: float | None = None
        self.error: str | None = None
        self.refused = False
        self.token_at: float | None = None
        self.started_at = 0.0

    def start(self) -> None:
        """Count from here on."""
        self.started_at = time.monotonic()
        self._next = len(self._stamps)

    def stop(self) -> None:
        """Nothing runs."""

    def take(self) -> list[Any]:
        """Gaps since the last call."""
        stamps = self._stamps.since(self._next)
        self._next += len(stamps)
        gaps = []
        for at in stamps:
            if self._last is not None:
                gaps.append(self._gap(at, at - self._last))
            self._last = self.token_at = at
        return gaps


def main(form: str, stamps: str) -> None:
    """Step until killed; ends with its parent."""
    die_with_parent()
    parent = os.getppid()
    step = make_step(form)
    for _ in range(20):
        step()
    if (launch_share := getattr(step, "launch_share", None)) is not None:
        Path(f"{stamps}.facts").write_text(json.dumps({"launch_share": round(launch_share(), 4)}))
    writer = StampWriter(Path(stamps))
    while os.getppid() == parent and not writer.full:
        step()
        writer.stamp()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
