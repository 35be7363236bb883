"""From a folder's configuration files to :class:`jobs.video.facts.Facts`, family by family. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from pydantic import ValidationError

from farm.errors import InvalidInput
from jobs.video.facts import Facts, SavedDefaults
from jobs.video.families import COGVIDEOX, EXACT_GENERIC, GENERIC, LTX, WAN_2_1, WAN_2_2, Family, Task

Config = Mapping[str, Any]
_WAN: Final = frozenset({"WanPipeline", "WanImageToVideoPipeline", "WanVideoToVideoPipeline"})
_LTX: Final = frozenset({"LTXPipeline", "LTXImageToVideoPipeline", "LTXConditionPipeline"})
_COGVIDEOX: Final = frozenset(COGVIDEOX.pipelines.values())


def facts_of(
    index: Config,
    components: Mapping[str, str],
    configs: Mapping[str, Config],
    saved: Config | None,
    parameters: Mapping[str, int],
    *,
    weight_bytes: int,
    remote_code: bool,
) -> Facts:
    """The facts of a folder. ``configs`` are the components' own; ``saved`` is its ``settings.json``.

    Raises :class:`farm.errors.InvalidInput` where the parts do not belong together.
    """
    name = index["_class_name"]
    name = str(name[-1] if isinstance(name, list) else name)
    common = {
        "pipeline_class": name,
        "components": dict(components),
        "parameters": dict(parameters),
        "weight_bytes": weight_bytes,
        "remote_code": remote_code,
    }
    if name in _WAN:
        found = _wan(index, components, configs)
    elif name in _LTX:
        found = _ltx(name, configs)
    elif name in _COGVIDEOX:
        found = _cogvideox(configs)
    else:
        found = _generic(name, components, configs)
    defaults = {**found.pop("defaults", {}), **_saved(saved)}
    denoiser = configs.get(found["denoisers"][0], {}) if found["denoisers"] else {}
    return Facts.model_validate(
        {
            **common,
            **found,
            "defaults": defaults,
            "denoiser_width": _width(denoiser),
            "denoiser_layers": denoiser.get("num_layers"),
        }
    )


def _saved(saved: Config | None) -> dict[str, Any]:
    if saved is None:
        return {}
    known = {key: saved[key] for key in SavedDefaults.model_fields if saved.get(key) is not None}
    if "width" in saved and "height" in saved:
        known["size"] = (saved["width"], saved["height"])
    if "fps" in known:
        known["fps"] = str(known["fps"])
    known["keep"] = "size" in known
    try:
        SavedDefaults.model_validate(known)
    except ValidationError as error:
        item = error.errors()[0]
        raise InvalidInput(f"settings.json: {'/'.join(map(str, item['loc']))}: {item['msg']}") from None
    return known


def _width(denoiser: Config) -> int | None:
    heads, dim = denoiser.get("num_attention_heads"), denoiser.get("attention_head_dim")
    return heads * dim if isinstance(heads, int) and isinstance(dim, int) else None


def _wan(index: Config, components: Mapping[str, str], configs: Mapping[str, Config]) -> dict[str, Any]:
    vae, scheduler = configs.get("vae", {}), configs.get("scheduler", {})
    boundary = index.get("boundary_ratio")
    expand = bool(index.get("expand_timesteps"))
    two = "transformer_2" in components
    if (boundary is not None) != two and "transformer" in components:
        missing = "transformer_2" if boundary is not None else "boundary_ratio in model_index.json"
        raise InvalidInput(f"a Wan 2.2 folder with two experts lacks {missing}; the folder is partial")
    denoisers = [part for part in ("transformer", "transformer_2") if part in components]
    if not denoisers:
        raise InvalidInput("a Wan folder needs a transformer; model_index.json names none")
    transformer = configs[denoisers[0]]
    record: Family = WAN_2_2 if two or expand else WAN_2_1
    latent, spatial = int(vae.get("z_dim", 16)), int(vae.get("scale_factor_spatial", record.spatial))
    temporal = int(vae.get("scale_factor_temporal", record.temporal))
    patch = transformer.get("patch_size", (1, record.patch, record.patch))
    divisor = spatial * max(int(patch[1]), int(patch[2]))
    rope = int(transformer.get("rope_max_seq_len", 1024))
    defaults: dict[str, Any] = {"flow_shift": scheduler.get("flow_shift")}
    if expand:
        # Wan 2.2 TI2V 5B, as its authors run it
        defaults |= {"size": (1280, 704), "frames": 121, "fps": "24", "steps": 50, "guidance": 5.0}
    return {
        "family": record.name,
        "tasks": _wan_tasks(transformer, components, latent, expand=expand, two=two),
        "denoisers": denoisers,
        "temporal": temporal,
        # the pipeline itself asks for multiples of 16, whatever the patch
        "size_divisor": math.lcm(divisor, 16),
        "most_frames": min(record.most_frames, (rope - 1) * temporal * int(patch[0]) + 1),
        "most_side": rope * divisor,
        "latent_channels": latent,
        "resume": record.resume,
        "boundary_ratio": boundary,
        "max_sequence_length": record.max_sequence_length,
        "defaults": defaults,
    }


def _wan_tasks(
    transformer: Config, components: Mapping[str, str], latent: int, *, expand: bool, two: bool
) -> list[Task]:
    """Channels tell the task: noise alone, or noise beside a mask of four and the image's latents."""
    channels = int(transformer.get("in_channels", 16))
    if expand:
        return ["t2v", "i2v"]
    if channels == latent:
        return ["t2v"] if two else ["t2v", "v2v"]
    if channels != 2 * latent + 4:
        raise InvalidInput(
            f"the transformer takes {channels} channels; with latents of {latent} the farm knows {latent} "
            f"(text) and {2 * latent + 4} (image)"
        )
    if transformer.get("image_dim") is not None and "image_encoder" not in components:
        raise InvalidInput("the transformer looks at image embeddings, but there is no image_encoder")
    if transformer.get("pos_embed_seq_len") is not None:
        # positions for the tokens of two images: one alone does not fit
        return ["flf2v"]
    return ["i2v"] if transformer.get("image_dim") is not None else ["i2v", "flf2v"]


def _ltx(name: str, configs: Mapping[str, Config]) -> dict[str, Any]:
    vae, transformer = configs.get("vae", {}), configs.get("transformer", {})
    scaling = sum(map(bool, vae.get("spatio_temporal_scaling", (True, True, True, False))))
    spatial = int(vae.get("spatial_compression_ratio") or int(vae.get("patch_size", 4)) * 2**scaling)
    temporal = int(vae.get("temporal_compression_ratio") or int(vae.get("patch_size_t", 1)) * 2**scaling)
    divisor = spatial * int(transformer.get("patch_size", 1))
    tasks: list[Task] = ["t2v", "i2v"]
    if name == "LTXConditionPipeline":
        tasks += ["flf2v", "v2v"]
    denoising_vae = bool(vae.get("timestep_conditioning"))
    return {
        "family": LTX.name,
        "tasks": tasks,
        "denoisers": ["transformer"],
        "temporal": temporal,
        "size_divisor": math.lcm(divisor, 32),
        "most_frames": LTX.most_frames,
        "latent_channels": int(vae.get("latent_channels", 128)),
        "resume": LTX.resume,
        "max_sequence_length": LTX.max_sequence_length,
        "decode_timestep": 0.05 if denoising_vae else None,
        "decode_noise_scale": 0.025 if denoising_vae else None,
    }


def _cogvideox(configs: Mapping[str, Config]) -> dict[str, Any]:
    vae, transformer = configs.get("vae", {}), configs.get("transformer", {})
    blocks = vae.get("block_out_channels", (128, 256, 256, 512))
    spatial = 2 ** (len(blocks) - 1)
    latent = int(vae.get("latent_channels", 16))
    patch, patch_t = int(transformer.get("patch_size", 2)), transformer.get("patch_size_t")
    size = (
        int(transformer.get("sample_width", 90)) * spatial,
        int(transformer.get("sample_height", 60)) * spatial,
    )
    image = int(transformer.get("in_channels", 16)) == 2 * latent
    tasks: list[Task] = ["i2v"] if image else ["t2v", "v2v"]
    limit = int(transformer.get("max_text_seq_length", COGVIDEOX.max_sequence_length))
    learned = bool(transformer.get("use_learned_positional_embeddings"))
    # the 2B model alone has fixed sinusoids for positions, and was trained in float16
    rotary = bool(transformer.get("use_rotary_positional_embeddings"))
    return {
        "family": COGVIDEOX.name,
        "tasks": tasks,
        "denoisers": ["transformer"],
        "temporal": int(vae.get("temporal_compression_ratio", 4)),
        "temporal_patch": patch_t,
        "size_divisor": spatial * patch,
        "fixed_size": size if learned else None,
        "most_frames": COGVIDEOX.most_frames,
        "latent_channels": latent,
        "resume": COGVIDEOX.resume,
        "max_sequence_length": limit,
        "defaults": {
            "size": size,
            "frames": int(transformer.get("sample_frames", 49)),
            "fps": "16" if patch_t else "8",
            "dtype": None if rotary else "float16",
        },
    }


def _generic(name: str, components: Mapping[str, str], configs: Mapping[str, Config]) -> dict[str, Any]:
    denoisers = [part for part in GENERIC.denoisers if part in components]
    vae = configs.get("vae", {})
    blocks = vae.get("block_out_channels", (1,) * 4)
    spatial = int(vae.get("spatial_compression_ratio") or 2 ** (len(blocks) - 1))
    temporal = int(vae.get("temporal_compression_ratio") or vae.get("scale_factor_temporal") or 1)
    patch = configs.get(denoisers[0], {}).get("patch_size", 1) if denoisers else 1
    patch = max(patch) if isinstance(patch, list | tuple) else patch
    task: Task = "t2v"
    if "ImageToVideo" in name or "Image2Video" in name:
        task = "i2v"
    elif "VideoToVideo" in name or "Video2Video" in name:
        task = "v2v"
    return {
        "family": GENERIC.name,
        "tasks": [task],
        "denoisers": denoisers,
        "temporal": temporal,
        "size_divisor": spatial * int(patch or 1),
        "most_frames": GENERIC.most_frames,
        "latent_channels": int(vae.get("latent_channels") or vae.get("z_dim") or 4),
        "resume": "exact" if name in EXACT_GENERIC else "restart",
        "max_sequence_length": GENERIC.max_sequence_length,
    }
