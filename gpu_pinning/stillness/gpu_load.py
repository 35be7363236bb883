"""What the farm does on a GPU, as the bench runs it: torch alone, random weights, shapes of the real thing.

Imported by the process that runs the load alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

WIDTH, HEIGHT = 832, 480


def video_and_nerf(device: str = "cuda") -> Callable[[], None]:
    """A block of a denoise step and a step of NeRF training, one after the other: a slot's GPU does both.

    On a CPU in small, for trials.
    """
    real = importlib.util.find_spec("diffusers") is not None
    if device == "cuda":
        block, step = diffusers_wan() if real else wan(), train()
    else:
        if real:
            block = diffusers_wan(device, layers=2, heads=2, head=24, inner=96, latent=(2, 4, 6), frames=2)
        else:
            block = wan(device, layers=2, tokens=64, text=8, width=96, inner=192, heads=2, frames=2)
        step = train(device, rays=64, samples=8, grid=16)

    def unit() -> None:
        block()
        step()

    return unit


class _Caught(Exception):
    """Ends a model's forward pass before its first block."""


def diffusers_wan(
    device: str = "cuda",
    *,
    layers: int = 30,
    heads: int = 12,
    head: int = 128,
    inner: int = 8960,
    text: int = 512,
    latent: tuple[int, int, int] = (21, 60, 104),
    frames: int = 81,
) -> Callable[[], None]:
    """Blocks of diffusers' own Wan 2.1 1.3B over 832x480x81, with random weights, one a unit.

    What the first block gets is caught from the model's own forward pass; each step begins with it. As in
    :func:`wan` each block is waited for, and frames go to page-locked memory after the last one.
    """
    import diffusers

    transformer: Any = diffusers.WanTransformer3DModel
    torch.manual_seed(2)
    on_gpu = device == "cuda"
    with torch.device(device):
        model: Any = transformer(
            num_attention_heads=heads, attention_head_dim=head, ffn_dim=inner, num_layers=layers
        )
        model = model.to(torch.bfloat16).requires_grad_(False)
        noise = torch.randn(1, model.config.in_channels, *latent, dtype=torch.bfloat16)
        told = torch.randn(1, text, model.config.text_dim, dtype=torch.bfloat16)
        moment = torch.full((1,), 500, dtype=torch.long)
        made = torch.zeros(frames, HEIGHT, WIDTH, 3, dtype=torch.uint8)
    caught: dict[str, Any] = {}

    def catch(_: Any, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        caught.update(given=given, named=named)
        raise _Caught

    handle = model.blocks[0].register_forward_pre_hook(catch, with_kwargs=True)
    with torch.inference_mode(), contextlib.suppress(_Caught):
        model(hidden_states=noise, timestep=moment, encoder_hidden_states=told)
    handle.remove()
    first, *rest = caught["given"]
    named = caught["named"]
    host = torch.empty(made.shape, dtype=torch.uint8, pin_memory=on_gpu)
    x, at = first, 0

    def unit() -> None:
        nonlocal x, at
        with torch.inference_mode():
            x = model.blocks[at](x, *rest, **named)
            at = (at + 1) % layers
            if at == 0:
                x = first
                host.copy_(made, non_blocking=True)
            if on_gpu:
                torch.cuda.synchronize()

    unit.state = lambda: (x, at)  # type: ignore[attr-defined]
    return unit


def wan(
    device: str = "cuda",
    *,
    layers: int = 30,
    tokens: int = 32_760,
    text: int = 512,
    width: int = 1536,
    inner: int = 8960,
    heads: int = 12,
    frames: int = 81,
) -> Callable[[], None]:
    """Blocks of a DiT as wide and deep as Wan 2.1 1.3B over 832x480x81 (32,760 tokens, 512 of text).

    Each block is waited for, so that little is left in the GPU's queue when the process is stopped; after the
    last one of a step, 97 MB of frames go to page-locked memory.
    """
    torch.manual_seed(2)
    on_gpu = device == "cuda"
    kind: dict[str, Any] = {"device": device, "dtype": torch.bfloat16}

    def weight(rows: int, columns: int) -> Any:
        return torch.randn(rows, columns, **kind).mul_(columns**-0.5)

    blocks = [
        {
            "qkv": weight(3 * width, width),
            "out": weight(width, width),
            "query": weight(width, width),
            "text": weight(2 * width, width),
            "back": weight(width, width),
            "up": weight(inner, width),
            "down": weight(width, inner),
        }
        for _ in range(layers)
    ]
    x = torch.randn(tokens, width, **kind)
    told = torch.randn(text, width, **kind)
    made = torch.zeros(frames, HEIGHT, WIDTH, 3, dtype=torch.uint8, device=device)
    host = torch.empty(made.shape, dtype=torch.uint8, pin_memory=on_gpu)
    at = 0

    def attend(query: Any, key: Any, value: Any) -> Any:
        parts = [part.view(1, -1, heads, width // heads).transpose(1, 2) for part in (query, key, value)]
        return F.scaled_dot_product_attention(*parts).transpose(1, 2).reshape(-1, width)

    def unit() -> None:
        nonlocal x, at
        block = blocks[at]
        with torch.inference_mode():
            normed = F.rms_norm(x, (width,))
            x = x + F.linear(attend(*F.linear(normed, block["qkv"]).chunk(3, dim=-1)), block["out"])
            key, value = F.linear(told, block["text"]).chunk(2, dim=-1)
            x = x + F.linear(attend(F.linear(x, block["query"]), key, value), block["back"])
            x = F.rms_norm(x + F.linear(F.gelu(F.linear(x, block["up"])), block["down"]), (width,))
            at = (at + 1) % layers
            if at == 0:
                host.copy_(made, non_blocking=True)
            if on_gpu:
                torch.cuda.synchronize()

    unit.state = lambda: (x, at)  # type: ignore[attr-defined]
    return unit


def denoise(
    device: str = "cuda", *, tokens: int | None = None, width: int | None = None, heads: int | None = None
) -> Callable[[], None]:
    """Small denoise steps, with a result to compare: 8,192 tokens of width 3,072 on a GPU, few on a CPU."""
    torch.manual_seed(2)
    on_gpu = device == "cuda"
    tokens = tokens or (8192 if on_gpu else 256)
    width = width or (3072 if on_gpu else 128)
    heads = heads or (24 if on_gpu else 2)
    kind: dict[str, Any] = {"device": device, "dtype": torch.bfloat16}
    weights = [torch.randn(4 * width, width, **kind).mul_(width**-0.5) for _ in range(4)]
    back = [torch.randn(width, 4 * width, **kind).mul_((4 * width) ** -0.5) for _ in range(4)]
    x = torch.randn(tokens, width, **kind)
    host = torch.empty(tokens, width, dtype=torch.bfloat16, pin_memory=on_gpu)

    def unit() -> None:
        nonlocal x
        with torch.inference_mode():
            for up, down in zip(weights, back, strict=True):
                mixed = x.view(1, tokens, heads, width // heads).transpose(1, 2)
                mixed = (
                    F.scaled_dot_product_attention(mixed, mixed, mixed).transpose(1, 2).reshape(tokens, width)
                )
                x = F.rms_norm(x + mixed + F.linear(F.gelu(F.linear(x, up)), down), (width,))
            host.copy_(x, non_blocking=True)
            if on_gpu:
                torch.cuda.synchronize()

    unit.result = lambda: hashlib.sha256(host.view(torch.uint8).numpy().tobytes()).hexdigest()  # type: ignore[attr-defined]
    return unit


def train(
    device: str = "cuda", *, rays: int = 4096, samples: int = 64, grid: int = 128, features: int = 8
) -> Callable[[], None]:
    """Steps of a dense-grid NeRF: features by trilinear lookup, a small network, volume rendering, Adam."""
    torch.manual_seed(3)
    on_gpu = device == "cuda"
    volume = torch.nn.Parameter(torch.randn(1, features, grid, grid, grid, device=device).mul_(0.1))
    network = torch.nn.Sequential(torch.nn.Linear(features, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4)).to(
        device
    )
    optimiser = torch.optim.Adam([volume, *network.parameters()], lr=1e-2)
    starts = torch.rand(rays, 1, 3, device=device).mul_(2).sub_(1)
    ends = torch.rand(rays, 1, 3, device=device).mul_(2).sub_(1)
    along = torch.linspace(0, 1, samples, device=device).view(1, samples, 1)
    points = (starts + (ends - starts) * along).view(1, rays, samples, 1, 3)
    wanted = torch.rand(rays, 3, device=device)
    losses: list[Any] = []

    def unit() -> None:
        found = F.grid_sample(volume, points, align_corners=True)
        told = network(found.view(features, rays * samples).t()).view(rays, samples, 4)
        alpha = 1 - torch.exp(-F.softplus(told[..., :1]) * 4 / samples)
        passed = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha[:, :-1] + 1e-6], 1), 1)
        colours = (alpha * passed * torch.sigmoid(told[..., 1:])).sum(1)
        loss: Any = F.mse_loss(colours, wanted)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
        losses[:] = [loss.detach()]
        if on_gpu:
            torch.cuda.synchronize()

    unit.loss = lambda: float(losses[0])  # type: ignore[attr-defined]
    return unit
