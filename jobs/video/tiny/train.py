"""Train the tiny text-to-video model from nothing, measure it and write the pipeline folder.

    python -m jobs.video.tiny.train --out FOLDER --device cuda --vae-steps N --steps N

Two stages: the VAE on generated clips, then text encoder and denoiser together on the VAE's latents, by flow
matching (Lipman et al., 2022; velocity = noise - latents, as Wan). Neither stage sees the held-out wishes,
and the judge takes no part in training. After it, guidance and steps are chosen on *training* wishes with
other seeds than the obedience test's; only then are the 72 films made, once.

`--vae-seconds` and `--seconds` set the lengths by the clock instead; the log says how many steps that was.
Float32 on a CPU; bfloat16 products on CUDA. A training run is not reproducible to the bit across devices.
"""

from __future__ import annotations

import argparse
import copy
import functools
import importlib
import json
import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from jobs.video.tiny import model
from jobs.video.tiny.clips import FRAMES, TRAINING, Wish, draw_prompt
from jobs.video.tiny.judge import judge
from jobs.video.tiny.obedience import contact_sheet, make_films, measure, score
from jobs.video.tiny.trainer import Averager, Length, Optimizer, Trainer, learning_rate

SHORT_TEXT, LONG_TEXT = 32, 512  # padded prompt lengths that training alternates between
EMPTY_PROMPTS = 0.12  # share of prompts left empty, for guidance
KL_WEIGHT = 2e-4  # per pixel value
VALIDATION_SEED = 1_000_000  # validation noise starts here; the obedience test uses seeds 0 to 71


def decode_unclamped(vae: Any, latents: Any) -> Any:
    """AutoencoderKLWan's decode without its last clamp, which takes the gradient from overshot pixels."""
    unpatchify = importlib.import_module("diffusers.models.autoencoders.autoencoder_kl_wan").unpatchify
    vae.clear_cache()
    latents = vae.post_quant_conv(latents)
    parts = []
    for i in range(latents.shape[2]):
        vae._conv_idx = [0]
        parts.append(
            vae.decoder(
                latents[:, :, i : i + 1], feat_cache=vae._feat_map, feat_idx=vae._conv_idx, first_chunk=i == 0
            )
        )
    vae.clear_cache()
    return unpatchify(torch.cat(parts, dim=2), patch_size=vae.config.patch_size)


def train_vae(
    trainer: Trainer, vae: Any, length: Length, batch: int, peak: float, size: int, frames: int
) -> None:
    """Stage one: square and absolute error on windows, heavier near the object; latents drawn to N(0, 1).

    Windows (`size` pixels both ways, `frames` long) hold mostly object and cost a fraction of the whole clip.
    They want all frames of a clip: trained on nine, which pass through every path of the causal VAE, it
    decodes later frames worse (docs/explanation/tiny_model.md, runs 2 and 3).
    """
    optimizer, average = Optimizer(vae, trainer.device), Averager(vae)
    report = torch.zeros(2, device=trainer.device)  # mean square error, divergence
    scenes = trainer.windows(trainer.wishes(batch), size, frames)

    def update() -> None:
        clips = trainer.clips(scenes, size, frames)
        chroma = clips.amax(dim=1) - clips.amin(dim=1)
        near = F.max_pool3d((chroma > 0.2).float(), (1, 5, 5), stride=1, padding=(0, 2, 2))[:, None]
        weight = 1.0 + 2.0 * near
        with trainer.autocast():
            posterior = vae.encode(clips).latent_dist
            mean, logvar = posterior.mean.float(), posterior.logvar.float()
            latents = mean + torch.exp(0.5 * logvar) * torch.randn_like(mean)
            made = decode_unclamped(vae, latents).float()
        off = made - clips
        error = (weight * (off**2 + 0.1 * off.abs())).mean()
        divergence = 0.5 * (mean**2 + logvar.exp() - 1.0 - logvar).sum() / clips.numel()
        report.copy_(torch.stack([(off**2).mean(), divergence]).detach())
        optimizer.step(error + KL_WEIGHT * divergence)

    run, ahead, step = None, 32, 0
    for step, progress in length.walk():
        if step % ahead == 0:
            stock = trainer.windows(trainer.wishes(ahead * batch), size, frames)
        at = step % ahead * batch
        for name, values in vars(stock).items():
            getattr(scenes, name).copy_(values[at : at + batch])
        optimizer.set_rate(learning_rate(peak, step, progress))
        run = run or trainer.recorded(update)
        run()
        average.update(step)
        if step % 250 == 0:
            square, divergence = report.tolist()
            trainer.log(
                f"vae step {step} progress {progress:.3f} psnr {10 * math.log10(4.0 / square):.2f} dB "
                f"kl {divergence:.4f}"
            )
    square = report[0].item()
    average.apply()
    trainer.log(f"vae last psnr before averaging {10 * math.log10(4.0 / square):.2f} dB")
    trainer.log(f"vae done after {step + 1} steps of {batch} windows {size}x{size}x{frames}")


def check_vae(trainer: Trainer, vae: Any, rounds: int) -> float:
    """Peak signal-to-noise ratio in dB of encode (mean) and decode on fresh whole clips, float32.

    Logs it for each frame too: a frame far below the others shows what training did not cover.
    """
    errors = torch.zeros(FRAMES)
    with torch.no_grad():
        for _ in range(rounds):
            clips = trainer.clips(trainer.scenes(list(TRAINING)))
            made = vae.decode(vae.encode(clips).latent_dist.mode()).sample
            errors += ((made - clips) ** 2).mean(dim=(0, 1, 3, 4)).cpu() / rounds
    trainer.log(f"vae psnr by frame {[round(10 * math.log10(4.0 / e), 1) for e in errors.tolist()]}")
    return 10 * math.log10(4.0 / errors.mean().item())


def encode_pool(trainer: Trainer, vae: Any, size: int, batch: int) -> tuple[Any, list[Wish]]:
    """Latents of `size` fresh clips, normalised; sets the VAE's latents_mean and latents_std.

    The deviation is that of posterior samples: a channel that the VAE leaves unused stays near zero instead
    of being blown up to noise.
    """
    means, wishes = [], []
    total, square = torch.zeros(16, device=trainer.device), torch.zeros(16, device=trainer.device)
    with torch.no_grad():
        for at in range(0, size, batch):
            some = trainer.wishes(min(batch, size - at))
            with trainer.autocast():
                posterior = vae.encode(trainer.clips(trainer.scenes(some))).latent_dist
            mean = posterior.mean.float()
            total += mean.mean(dim=(2, 3, 4)).sum(dim=0)
            square += (mean**2 + posterior.var.float()).mean(dim=(2, 3, 4)).sum(dim=0)
            means.append(mean.half())
            wishes += some
    centre = total / size
    deviation = (square / size - centre**2).sqrt()
    vae.register_to_config(latents_mean=centre.tolist(), latents_std=deviation.tolist())
    shape = (1, -1, 1, 1, 1)
    pool = torch.cat(means)
    for at in range(0, size, 4096):
        pool[at : at + 4096] = (pool[at : at + 4096].float() - centre.view(shape)) / deviation.view(shape)
    return pool, wishes


def prompt_table(trainer: Trainer, tokenizer: Any, variants: int) -> tuple[Any, Any]:
    """Token ids and masks of random phrasings: (len(TRAINING) * variants + 1, SHORT_TEXT), the empty last."""
    prompts = [draw_prompt(wish, trainer.rng) for wish in TRAINING for _ in range(variants)]
    tokens = tokenizer(
        [*prompts, ""], padding="max_length", max_length=SHORT_TEXT, truncation=True, return_tensors="pt"
    )
    return tokens.input_ids.to(trainer.device), tokens.attention_mask.to(trainer.device).float()


def train_denoiser(
    trainer: Trainer,
    text_encoder: Any,
    transformer: Any,
    pool: tuple[Any, list[Wish]],
    length: Length,
    batch: int,
    peak: float,
) -> None:
    """Stage two: text encoder and denoiser together, mean squared error of the velocity."""
    latents, wishes = pool
    variants, device = 64, trainer.device
    ids, masks = prompt_table(trainer, model.build_tokenizer(), variants)
    places = {wish: i for i, wish in enumerate(TRAINING)}
    rows = torch.tensor([places[w] * variants for w in wishes], device=device)
    both = torch.nn.ModuleList([text_encoder, transformer])
    optimizer, average = Optimizer(both, device), Averager(both)
    running = torch.ones((), device=device)  # the mean square of noise minus latents is about 2

    def update(padded: int) -> None:
        pick = torch.randint(len(latents), (batch,), device=device)
        row = rows[pick] + torch.randint(variants, (batch,), device=device)
        row = row.masked_fill(torch.rand(batch, device=device) < EMPTY_PROMPTS, len(ids) - 1)
        clean = latents[pick].float()
        noise = torch.randn_like(clean)
        # Noise levels spread evenly, then shifted as the sampler's are, less strongly.
        level = (torch.arange(batch, device=device) + torch.rand(batch, device=device)) / batch
        level = 2.0 * level / (1.0 + level)
        sigma = level.view(-1, 1, 1, 1, 1)
        mask = masks[row]
        with trainer.autocast():
            # A ready additive mask: making one from 0s and 1s would read it back on the host.
            text = text_encoder(ids[row], (mask[:, None, None] - 1.0) * 1e9).last_hidden_state
            text = F.pad(text * mask[..., None], (0, 0, 0, padded - SHORT_TEXT))
            velocity = transformer(
                (1 - sigma) * clean + sigma * noise, level * 1000.0, text, return_dict=False
            )[0]
        loss = F.mse_loss(velocity.float(), noise - clean)
        running.lerp_(loss.detach(), 0.01)
        optimizer.step(loss)

    runs: dict[int, Callable[[], None]] = {}
    step = 0
    for step, progress in length.walk():
        padded = LONG_TEXT if step % 8 == 7 else SHORT_TEXT
        optimizer.set_rate(learning_rate(peak, step, progress, warm_up=500))
        if padded not in runs:
            runs[padded] = trainer.recorded(functools.partial(update, padded))
        runs[padded]()
        average.update(step)
        if step % 2000 == 0:
            trainer.log(f"denoiser step {step} progress {progress:.3f} loss {running.item():.5f}")
    average.apply()
    trainer.log(f"denoiser done after {step + 1} steps of {batch}, loss {running.item():.5f}")


def choose_settings(trainer: Trainer, pipeline: Any, batch: int, films: int) -> model.Settings:
    """Guidance and steps by obedience on training wishes with validation seeds: best, then fewest steps."""
    wishes = [TRAINING[i % len(TRAINING)] for i in range(films)]
    seeds = [VALIDATION_SEED + i for i in range(films)]
    best, chosen = -1.0, model.Settings()
    for steps in (10, 16, 24):
        for guidance in (1.0, 2.0, 3.0, 4.0):
            settings = replace(model.Settings(), steps=steps, guidance=guidance)
            made = make_films(pipeline, wishes, seeds, settings, batch)
            result = score(wishes, [judge(film) for film in made])
            trainer.log(
                f"validation steps {steps} guidance {guidance}: "
                f"{result.obeyed}, all three {result.everything} of {films}"
            )
            if result.everything / films > best + 1e-9:
                best, chosen = result.everything / films, settings
    return chosen


def save(folder: Path, vae: Any, text_encoder: Any, transformer: Any) -> None:
    """Write the pipeline folder in float16 safetensors."""
    fresh = (copy.deepcopy(vae), model.build_text_encoder(), model.build_transformer())
    fresh[1].load_state_dict(text_encoder.state_dict())
    fresh[2].load_state_dict(transformer.state_dict())
    model.build_pipeline(*(part.cpu().half() for part in fresh)).save_pretrained(
        str(folder), safe_serialization=True
    )


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="pipeline folder to write")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    vae = parser.add_mutually_exclusive_group(required=True)
    vae.add_argument("--vae-steps", type=int)
    vae.add_argument("--vae-seconds", type=float)
    denoiser = parser.add_mutually_exclusive_group(required=True)
    denoiser.add_argument("--steps", type=int)
    denoiser.add_argument("--seconds", type=float)
    parser.add_argument("--start-from", type=Path, help="pipeline folder whose weights to go on from")
    parser.add_argument("--vae-batch", type=int, default=24)
    parser.add_argument("--vae-rate", type=float, default=1.5e-3)
    parser.add_argument("--window", type=int, default=48, help="pixels of the VAE's training windows")
    parser.add_argument("--window-frames", type=int, default=FRAMES)
    parser.add_argument(
        "--least-psnr", type=float, default=26.0, help="dB below which stage two is not begun"
    )
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--pool", type=int, default=120_000, help="clips whose latents stage two draws from")
    parser.add_argument("--films", type=int, default=120, help="validation films for each setting")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--compile", action="store_true", help="compile the denoiser's blocks")
    return parser.parse_args()


def main() -> None:
    """Train, choose settings, measure, write."""
    options = parse()
    started = time.perf_counter()
    options.out.mkdir(parents=True, exist_ok=True)
    lines: list[str] = []

    def log(line: str) -> None:
        lines.append(f"{time.perf_counter() - started:7.1f} s  {line}")
        print(lines[-1], flush=True)

    torch.manual_seed(options.seed)
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    trainer = Trainer(options.device, np.random.default_rng(options.seed), log)
    if options.start_from is not None:
        old = model.load_pipeline(options.start_from, options.device)
        vae, text_encoder, transformer = old.vae, old.text_encoder, old.transformer
    else:
        parts = (model.build_vae(), model.build_text_encoder(), model.build_transformer())
        vae, text_encoder, transformer = (part.to(options.device) for part in parts)
    # written once before it is worth anything: a missing package shows now and not after the training
    save(options.out, vae, text_encoder, transformer)
    for name, part in (("vae", vae), ("text encoder", text_encoder), ("transformer", transformer)):
        part.requires_grad_(True).train()
        log(f"{name}: {sum(p.numel() for p in part.parameters()) / 1e6:.3f} M parameters")

    train_vae(
        trainer,
        vae,
        Length(options.vae_steps, options.vae_seconds),
        options.vae_batch,
        options.vae_rate,
        size=options.window,
        frames=options.window_frames,
    )
    vae.eval().requires_grad_(False)
    psnr = check_vae(trainer, vae, 2)
    log(f"vae psnr on fresh clips {psnr:.2f} dB")
    save(options.out, vae, text_encoder, transformer)
    if psnr < options.least_psnr:
        raise SystemExit(
            f"the VAE reaches {psnr:.2f} dB, --least-psnr asks for {options.least_psnr}: go on "
            f"from {options.out} with --start-from and more --vae-steps"
        )
    pool = encode_pool(trainer, vae, options.pool, 512)
    log(f"encoded {options.pool} clips; latents_std {[round(s, 3) for s in vae.config.latents_std]}")
    if options.compile:
        transformer.compile_repeated_blocks(fullgraph=True, dynamic=False)
    text_encoder.train()
    length = Length(options.steps, options.seconds)
    train_denoiser(trainer, text_encoder, transformer, pool, length, options.batch, options.rate)

    save(options.out, vae, text_encoder, transformer)
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    pipeline = model.load_pipeline(options.out, options.device)
    settings = choose_settings(trainer, pipeline, options.films, options.films)
    settings.write(options.out)
    scores, films = measure(pipeline, settings, len(TRAINING))
    for name, result in scores.items():
        log(f"{name}: {json.dumps(vars(result))}")
    contact_sheet(films, options.out.parent / f"{options.out.name}-films.png")
    (options.out.parent / f"{options.out.name}-log.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
