"""Tiny video pipelines with random weights, in diffusers' own folder layout: the shapes of the real families.

:func:`folder` builds one on first use and keeps it for the test session, so that a test pays for it once.
A pipeline is 0.2 to 1 MB and makes 5 to 9 frames of 32x32 in about a second on a CPU.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

_WORDS = (
    "a an the red green blue small large cat dog boat square circle triangle runs jumps moves over under "
    "left right up down slowly quickly in on sea forest city film grain blurry low quality shot of and"
)


def tokenizer(limit: int = 512) -> Any:
    """A unigram tokenizer of T5's kind, trained on the spot on a handful of words."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.Unigram())
    core.pre_tokenizer = pre_tokenizers.Metaspace()
    core.decoder = decoders.Metaspace()
    core.train_from_iterator(
        [_WORDS] * 3,
        trainers.UnigramTrainer(
            vocab_size=120, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False
        ),
    )
    core.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", core.token_to_id("</s>"))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        model_max_length=limit,
        padding_side="right",
    )


def _text_encoder(kind: str) -> Any:
    import transformers

    shape = {
        "vocab_size": 160,
        "d_model": 32,
        "d_kv": 8,
        "num_heads": 4,
        "d_ff": 37,
        "num_layers": 2,
        "dropout_rate": 0.0,
        "decoder_start_token_id": 0,
        "feed_forward_proj": "gated-gelu",
        "relative_attention_num_buckets": 8,
    }
    if kind == "umt5":
        return transformers.UMT5EncoderModel(transformers.UMT5Config(**shape)).eval()
    return transformers.T5EncoderModel(transformers.T5Config(**shape)).eval()


def _wan_vae() -> Any:
    from diffusers import AutoencoderKLWan

    return AutoencoderKLWan(
        base_dim=3,
        z_dim=16,
        dim_mult=[1, 1, 1, 1],
        num_res_blocks=1,
        temperal_downsample=[False, True, True],
    ).eval()


def _wan_transformer(in_channels: int = 16) -> Any:
    from diffusers import WanTransformer3DModel

    return WanTransformer3DModel(
        patch_size=(1, 2, 2),
        num_attention_heads=2,
        attention_head_dim=12,
        in_channels=in_channels,
        out_channels=16,
        text_dim=32,
        freq_dim=32,
        ffn_dim=32,
        num_layers=2,
        cross_attn_norm=True,
        qk_norm="rms_norm_across_heads",
        rope_max_seq_len=32,
    ).eval()


def _unipc() -> Any:
    from diffusers import UniPCMultistepScheduler

    return UniPCMultistepScheduler(
        prediction_type="flow_prediction", use_flow_sigmas=True, num_train_timesteps=1000, flow_shift=3.0
    )


def wan() -> Any:
    """Wan 2.1, text to video."""
    from diffusers import WanPipeline

    return WanPipeline(
        tokenizer=tokenizer(),
        text_encoder=_text_encoder("umt5"),
        vae=_wan_vae(),
        scheduler=_unipc(),
        transformer=_wan_transformer(),
    )


def wan22() -> Any:
    """Wan 2.2, text to video: two experts, the second below 0.875 of the timesteps."""
    from diffusers import WanPipeline

    return WanPipeline(
        tokenizer=tokenizer(),
        text_encoder=_text_encoder("umt5"),
        vae=_wan_vae(),
        scheduler=_unipc(),
        transformer=_wan_transformer(),
        transformer_2=_wan_transformer(),
        boundary_ratio=0.875,
    )


def wan22_image() -> Any:
    """Wan 2.2, image to video: the image goes in as 20 more latent channels, no image encoder."""
    from diffusers import WanImageToVideoPipeline

    return WanImageToVideoPipeline(
        tokenizer=tokenizer(),
        text_encoder=_text_encoder("umt5"),
        vae=_wan_vae(),
        scheduler=_unipc(),
        image_processor=None,
        image_encoder=None,
        transformer=_wan_transformer(36),
        transformer_2=_wan_transformer(36),
        boundary_ratio=0.875,
    )


def skyreels() -> Any:
    """SkyReels V2, text to video: a family that the farm knows only through the generic loader."""
    from diffusers import SkyReelsV2Pipeline, SkyReelsV2Transformer3DModel

    return SkyReelsV2Pipeline(
        tokenizer=tokenizer(),
        text_encoder=_text_encoder("umt5"),
        vae=_wan_vae(),
        scheduler=_unipc(),
        transformer=SkyReelsV2Transformer3DModel(
            num_attention_heads=2,
            attention_head_dim=12,
            text_dim=32,
            freq_dim=32,
            ffn_dim=32,
            num_layers=2,
            rope_max_seq_len=32,
        ).eval(),
    )


def ltx() -> Any:
    """LTX-Video, text to video: packed latents, 32-fold spatial and 8-fold temporal compression."""
    from diffusers import (
        AutoencoderKLLTXVideo,
        FlowMatchEulerDiscreteScheduler,
        LTXPipeline,
        LTXVideoTransformer3DModel,
    )

    return LTXPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True, shift_terminal=0.1),
        vae=AutoencoderKLLTXVideo(
            latent_channels=8,
            block_out_channels=(8, 8, 8, 8),
            decoder_block_out_channels=(8, 8, 8, 8),
            layers_per_block=(1, 1, 1, 1, 1),
            decoder_layers_per_block=(1, 1, 1, 1, 1),
            patch_size=4,
            timestep_conditioning=False,
        ).eval(),
        text_encoder=_text_encoder("t5"),
        tokenizer=tokenizer(128),
        transformer=LTXVideoTransformer3DModel(
            in_channels=8,
            out_channels=8,
            num_attention_heads=4,
            attention_head_dim=8,
            cross_attention_dim=32,
            num_layers=2,
            caption_channels=32,
        ).eval(),
    )


def cogvideox() -> Any:
    """CogVideoX, text to video: latents with frames first, 8-fold spatial and 4-fold temporal compression."""
    from diffusers import (
        AutoencoderKLCogVideoX,
        CogVideoXDDIMScheduler,
        CogVideoXPipeline,
        CogVideoXTransformer3DModel,
    )

    return CogVideoXPipeline(
        tokenizer=tokenizer(226),
        text_encoder=_text_encoder("t5"),
        vae=AutoencoderKLCogVideoX(
            block_out_channels=(8, 8, 8, 8),
            latent_channels=4,
            layers_per_block=1,
            norm_num_groups=2,
            temporal_compression_ratio=4,
            sample_height=32,
            sample_width=32,
        ).eval(),
        transformer=CogVideoXTransformer3DModel(
            num_attention_heads=2,
            attention_head_dim=16,
            in_channels=4,
            out_channels=4,
            time_embed_dim=2,
            text_embed_dim=32,
            num_layers=2,
            sample_width=4,
            sample_height=4,
            sample_frames=9,
            patch_size=2,
            temporal_compression_ratio=4,
            max_text_seq_length=16,
            use_rotary_positional_embeddings=True,
        ).eval(),
        scheduler=CogVideoXDDIMScheduler(
            snr_shift_scale=3.0, prediction_type="v_prediction", rescale_betas_zero_snr=True
        ),
    )


BUILDERS: dict[str, Callable[[], Any]] = {
    "wan": wan,
    "wan22": wan22,
    "wan22_image": wan22_image,
    "ltx": ltx,
    "cogvideox": cogvideox,
    "skyreels": skyreels,
}
_built: dict[str, Path] = {}
_root: list[Path] = []


def folder(name: str) -> Path:
    """Folder of the pipeline ``name``, built once in this process; read-only for tests."""
    if name not in _built:
        if not _root:
            _root.append(Path(tempfile.mkdtemp(prefix="tiny-pipelines-")))
            _forget_at_exit(_root[0], os.getpid())
        _built[name] = build(name, _root[0] / name)
    return _built[name]


def build(name: str, path: Path) -> Path:
    """Write the pipeline ``name`` to ``path``; the same bytes every time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(list(BUILDERS).index(name) + 1)
        BUILDERS[name]().save_pretrained(path, safe_serialization=True)
    return path


def copy(name: str, path: Path) -> Path:
    """A copy of its own, for a test that damages it."""
    return Path(shutil.copytree(folder(name), path))


def _forget_at_exit(path: Path, pid: int) -> None:
    import atexit

    def forget() -> None:
        if os.getpid() == pid:
            shutil.rmtree(path, ignore_errors=True)

    atexit.register(forget)
