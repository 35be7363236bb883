"""The tiny model's parts: sizes, tokenizer and pipeline, all in diffusers' and transformers' own classes.

The shape is Wan 2.1's, made small: sixteen latent channels, eight-fold spatial and four-fold temporal
compression, patches of (1, 2, 2), a UMT5 text encoder, UniPC with flow prediction.
"""

from __future__ import annotations

import importlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jobs.video.tiny.clips import ALL_WISHES, FPS, FRAMES, PHRASINGS, SIZE

WEIGHTS = Path(__file__).parent / "weights"
"""The trained pipeline folder."""

SETTINGS_FILE = "settings.json"

VAE: dict[str, Any] = {
    "base_dim": 20,
    "decoder_base_dim": 32,
    "z_dim": 16,
    "dim_mult": [1, 2, 2],
    "num_res_blocks": 1,
    "temperal_downsample": [True, True],
    "in_channels": 12,  # RGB in pixel blocks of 2x2: convolutions at half size keep a CPU fast
    "out_channels": 12,
    "patch_size": 2,
    "scale_factor_temporal": 4,
    "scale_factor_spatial": 8,
}

TRANSFORMER: dict[str, Any] = {
    "patch_size": (1, 2, 2),
    "num_attention_heads": 5,
    "attention_head_dim": 32,
    "in_channels": 16,
    "out_channels": 16,
    "text_dim": 64,
    "freq_dim": 128,
    "ffn_dim": 480,
    "num_layers": 7,
    "rope_max_seq_len": 64,
}

TEXT_ENCODER: dict[str, Any] = {
    "d_model": 64,
    "d_kv": 16,
    "num_heads": 4,
    "d_ff": 160,
    "num_layers": 2,
    "relative_attention_num_buckets": 16,
    "relative_attention_max_distance": 32,
    "dropout_rate": 0.0,
    "feed_forward_proj": "gated-gelu",
    "pad_token_id": 0,
    "eos_token_id": 2,
}

FLOW_SHIFT = 3.0


@dataclass(frozen=True)
class Settings:
    """How a film is made; the model's obedience is stated at these settings and no others."""

    width: int = SIZE
    height: int = SIZE
    frames: int = FRAMES
    fps: int = FPS
    steps: int = 16
    guidance: float = 3.0
    flow_shift: float = FLOW_SHIFT
    negative_prompt: str = ""
    max_sequence_length: int = 512  # WanPipeline's default
    dtype: str = "float32"

    def write(self, folder: Path) -> None:
        """Write the settings into a pipeline folder."""
        (folder / SETTINGS_FILE).write_text(json.dumps(asdict(self), indent=2) + "\n")

    @classmethod
    def read(cls, folder: Path) -> Settings:
        """Read a pipeline folder's settings; OSError where there are none, TypeError on unknown names."""
        return cls(**json.loads((folder / SETTINGS_FILE).read_text()))


def vocabulary() -> dict[str, int]:
    """Word to token id: padding 0, unknown 1, end 2, then every word of the phrasings in order."""
    words = dict.fromkeys(
        word
        for phrasing in PHRASINGS
        for wish in ALL_WISHES
        for word in phrasing.format(**vars(wish)).split()
    )
    return {word: i for i, word in enumerate(("<pad>", "<unk>", "</s>", *sorted(words)))}


def build_tokenizer() -> Any:
    """A word-level tokenizer: lower case, split at spaces and punctuation, an end token after each prompt."""
    tokenizers = importlib.import_module("tokenizers")
    transformers = importlib.import_module("transformers")
    words = vocabulary()
    core = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    core.normalizer = tokenizers.normalizers.Lowercase()
    core.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    core.post_processor = tokenizers.processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", words["</s>"])]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="<pad>",
        unk_token="<unk>",
        eos_token="</s>",
        padding_side="right",
        model_max_length=512,
    )


def build_text_encoder() -> Any:
    """An untrained text encoder."""
    transformers = importlib.import_module("transformers")
    return transformers.UMT5EncoderModel(
        transformers.UMT5Config(vocab_size=len(vocabulary()), **TEXT_ENCODER)
    )


def build_vae() -> Any:
    """An untrained VAE; its latents' mean and deviation are set after training.

    PyTorch's own start of a convolution shrinks what passes and adds a bias to it: after twenty layers hue
    is lost under the bias, and a VAE so begun reached 19 dB and grey objects in 4,400 steps. This start
    keeps the signal's size, has no bias, and gives the posterior next to no noise (log variance -8).
    """
    diffusers = importlib.import_module("diffusers")
    torch = importlib.import_module("torch")
    channels = VAE["z_dim"]
    vae = diffusers.AutoencoderKLWan(**VAE, latents_mean=[0.0] * channels, latents_std=[1.0] * channels)
    for part in vae.modules():
        if isinstance(part, torch.nn.Conv2d | torch.nn.Conv3d):
            torch.nn.init.kaiming_normal_(part.weight, nonlinearity="linear")
            torch.nn.init.zeros_(part.bias)
    vae.quant_conv.weight.data[channels:] *= 0.1
    vae.quant_conv.bias.data[channels:] = -8.0
    return vae


def build_transformer() -> Any:
    """An untrained denoiser."""
    diffusers = importlib.import_module("diffusers")
    return diffusers.WanTransformer3DModel(**TRANSFORMER)


def build_pipeline(vae: Any, text_encoder: Any, transformer: Any) -> Any:
    """A WanPipeline of the given parts with the tiny model's tokenizer and scheduler."""
    diffusers = importlib.import_module("diffusers")
    scheduler = diffusers.UniPCMultistepScheduler(
        prediction_type="flow_prediction",
        use_flow_sigmas=True,
        flow_shift=FLOW_SHIFT,
        num_train_timesteps=1000,
    )
    return diffusers.WanPipeline(
        tokenizer=build_tokenizer(),
        text_encoder=text_encoder,
        vae=vae,
        scheduler=scheduler,
        transformer=transformer,
    )


def load_pipeline(folder: Path = WEIGHTS, device: str = "cpu") -> Any:
    """The pipeline of a folder in float32 (the stored float16 weights upcast), safetensors only."""
    diffusers = importlib.import_module("diffusers")
    torch = importlib.import_module("torch")
    pipeline = diffusers.WanPipeline.from_pretrained(
        str(folder), torch_dtype=torch.float32, use_safetensors=True, local_files_only=True
    )
    pipeline.set_progress_bar_config(disable=True)
    return pipeline.to(device)
