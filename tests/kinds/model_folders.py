"""Pipeline folders as the loaders of the farm see them: configurations and weights of a few bytes, no torch.

The configuration values are those of the published models' own ``config.json`` files.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

WAN_TRANSFORMER = {
    "_class_name": "WanTransformer3DModel",
    "patch_size": [1, 2, 2],
    "num_attention_heads": 12,
    "attention_head_dim": 128,
    "in_channels": 16,
    "num_layers": 30,
    "rope_max_seq_len": 1024,
}
WAN_VAE = {
    "_class_name": "AutoencoderKLWan",
    "z_dim": 16,
    "scale_factor_spatial": 8,
    "scale_factor_temporal": 4,
}
UNIPC = {"_class_name": "UniPCMultistepScheduler", "flow_shift": 3.0}
LTX_VAE = {
    "_class_name": "AutoencoderKLLTXVideo",
    "patch_size": 4,
    "patch_size_t": 1,
    "latent_channels": 128,
    "spatio_temporal_scaling": [True, True, True, False],
    "timestep_conditioning": False,
}
LTX_TRANSFORMER = {
    "_class_name": "LTXVideoTransformer3DModel",
    "patch_size": 1,
    "num_attention_heads": 32,
    "attention_head_dim": 64,
    "num_layers": 28,
}
COGVIDEOX_VAE = {
    "_class_name": "AutoencoderKLCogVideoX",
    "block_out_channels": [128, 256, 256, 512],
    "latent_channels": 16,
    "temporal_compression_ratio": 4,
}
COGVIDEOX_TRANSFORMER = {
    "_class_name": "CogVideoXTransformer3DModel",
    "in_channels": 16,
    "num_attention_heads": 48,
    "attention_head_dim": 64,
    "num_layers": 42,
    "patch_size": 2,
    "sample_width": 90,
    "sample_height": 60,
    "sample_frames": 49,
    "max_text_seq_length": 226,
    "use_rotary_positional_embeddings": True,
}


def safetensors(path: Path, tensors: dict[str, tuple[int, ...]], dtype: str = "F16") -> Path:
    """A safetensors file of zeros with these names and shapes."""
    width = {"F16": 2, "F32": 4}[dtype]
    head: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, shape in tensors.items():
        count = 1
        for side in shape:
            count *= side
        head[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + count * width]}
        at += count * width
    text = json.dumps(head).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(at))
    return path


def write_folder(
    root: Path,
    class_name: str | list[str],
    parts: dict[str, dict[str, Any]],
    extra: dict[str, Any] | None = None,
) -> Path:
    """A folder with these model components (name to configuration), a tokenizer and a text encoder."""
    root.mkdir(parents=True)
    index: dict[str, Any] = {"_class_name": class_name, "_diffusers_version": "0.38.0", **(extra or {})}
    index |= {
        "tokenizer": ["transformers", "T5TokenizerFast"],
        "text_encoder": ["transformers", "UMT5EncoderModel"],
    }
    for part, config in parts.items():
        index[part] = ["diffusers", config["_class_name"]]
        (root / part).mkdir()
        name = "scheduler_config.json" if config["_class_name"].endswith("Scheduler") else "config.json"
        (root / part / name).write_text(json.dumps(config))
        if name == "config.json":
            safetensors(root / part / "diffusion_pytorch_model.safetensors", {"weight": (2, 3)})
    (root / "tokenizer").mkdir()
    (root / "tokenizer" / "tokenizer.json").write_text("{}")
    (root / "text_encoder").mkdir()
    (root / "text_encoder" / "config.json").write_text('{"architectures": ["UMT5EncoderModel"]}')
    safetensors(root / "text_encoder" / "model.safetensors", {"shared.weight": (4, 4)})
    (root / "model_index.json").write_text(json.dumps(index))
    return root


def wan21(root: Path, **transformer: Any) -> Path:
    """Wan 2.1 T2V 1.3B."""
    parts = {"transformer": WAN_TRANSFORMER | transformer, "vae": WAN_VAE, "scheduler": UNIPC}
    return write_folder(root, "WanPipeline", parts)


def wan22(root: Path) -> Path:
    """Wan 2.2 T2V A14B: two experts."""
    expert = WAN_TRANSFORMER | {"num_attention_heads": 40, "num_layers": 40}
    parts = {"transformer": expert, "transformer_2": expert, "vae": WAN_VAE, "scheduler": UNIPC}
    return write_folder(root, "WanPipeline", parts, {"boundary_ratio": 0.875})


def ltx(root: Path, class_name: str = "LTXPipeline", **vae: Any) -> Path:
    """LTX-Video."""
    scheduler = {"_class_name": "FlowMatchEulerDiscreteScheduler"}
    parts = {"transformer": LTX_TRANSFORMER, "vae": LTX_VAE | vae, "scheduler": scheduler}
    return write_folder(root, class_name, parts)


def cogvideox(root: Path, class_name: str = "CogVideoXPipeline", **transformer: Any) -> Path:
    """CogVideoX 5B."""
    scheduler = {"_class_name": "CogVideoXDDIMScheduler"}
    parts = {"transformer": COGVIDEOX_TRANSFORMER | transformer, "vae": COGVIDEOX_VAE, "scheduler": scheduler}
    return write_folder(root, class_name, parts)
