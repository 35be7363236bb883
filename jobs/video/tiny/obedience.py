"""Does the tiny model make what the prompt asks for? Films for all wishes, judged by geometry.

One film a wish, one fixed seed a wish (its place in `ALL_WISHES` plus an offset), no second tries:

    python -m jobs.video.tiny.obedience
"""

from __future__ import annotations

import argparse
import importlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jobs.video.tiny.clips import ALL_WISHES, HELD_OUT, Wish
from jobs.video.tiny.judge import Verdict, judge
from jobs.video.tiny.model import WEIGHTS, Settings, load_pipeline

Films = np.ndarray[Any, np.dtype[np.float32]]

BOUNDS = {"colour": 0.95, "direction": 0.95, "shape": 0.80}
"""Least share of the films that obey, for the seen and the held-out wishes alike."""


@dataclass(frozen=True)
class Score:
    """Films judged, how many obey in each attribute and in all three at once, and the wishes missed."""

    films: int
    obeyed: dict[str, int]
    everything: int
    missed: list[str]

    def share(self, attribute: str) -> float:
        """Share of the films that obey in one attribute."""
        return self.obeyed[attribute] / self.films


def make_films(
    pipeline: Any, wishes: Sequence[Wish], seeds: Sequence[int], settings: Settings, batch: int = 12
) -> Films:
    """One film a wish: (N, frames, height, width, 3) float32 in 0..1; the noise is drawn on the CPU."""
    torch = importlib.import_module("torch")
    films = []
    for at in range(0, len(wishes), batch):
        output = pipeline(
            prompt=[w.prompt for w in wishes[at : at + batch]],
            negative_prompt=settings.negative_prompt,
            width=settings.width,
            height=settings.height,
            num_frames=settings.frames,
            num_inference_steps=settings.steps,
            guidance_scale=settings.guidance,
            max_sequence_length=settings.max_sequence_length,
            generator=[torch.Generator("cpu").manual_seed(seed) for seed in seeds[at : at + batch]],
            output_type="np",
        )
        films.append(np.asarray(output.frames, dtype=np.float32))
    return np.concatenate(films)


def score(wishes: Sequence[Wish], verdicts: Sequence[Verdict]) -> Score:
    """Count which films obey their wishes."""
    obeyed = dict.fromkeys(BOUNDS, 0)
    everything, missed = 0, []
    for wish, verdict in zip(wishes, verdicts, strict=True):
        result = verdict.obeys(wish)
        for attribute, good in result.items():
            obeyed[attribute] += good
        everything += all(result.values())
        if not all(result.values()):
            missed.append(f"{wish.prompt}: saw {verdict.colour} {verdict.shape} {verdict.direction}")
    return Score(len(wishes), obeyed, everything, missed)


def measure(pipeline: Any, settings: Settings, batch: int = 12) -> tuple[dict[str, Score], Films]:
    """The score over all 72 wishes, over the 60 seen in training and over the 12 held out; and the films."""
    films = make_films(pipeline, ALL_WISHES, range(len(ALL_WISHES)), settings, batch)
    judged = [(w, judge(film)) for w, film in zip(ALL_WISHES, films, strict=True)]
    groups = {
        "all": judged,
        "seen": [(w, v) for w, v in judged if w not in HELD_OUT],
        "held_out": [(w, v) for w, v in judged if w in HELD_OUT],
    }
    return {name: score([w for w, _ in g], [v for _, v in g]) for name, g in groups.items()}, films


def contact_sheet(films: Films, path: Path, every: int = 4, scale: int = 2, columns: int = 3) -> None:
    """Write a PNG: each film a row of every fourth frame, several films side by side."""
    image = importlib.import_module("PIL.Image")
    strips = np.concatenate([films[:, i] for i in range(0, films.shape[1], every)], axis=2)
    strips = np.pad(strips, ((0, 0), (1, 1), (2, 2), (0, 0)), constant_values=1.0)
    rows = [
        np.concatenate(list(strips[i : i + columns]), axis=1)
        for i in range(0, len(strips) - columns + 1, columns)
    ]
    sheet = (np.concatenate(rows, axis=0).clip(0, 1) * 255).round().astype(np.uint8)
    image.fromarray(sheet.repeat(scale, axis=0).repeat(scale, axis=1)).save(path)


def main() -> None:
    """Measure a folder's obedience and print it as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--weights", type=Path, default=WEIGHTS)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch", type=int, default=12)
    parser.add_argument("--sheet", type=Path, help="write a contact sheet (PNG) here")
    options = parser.parse_args()
    settings = Settings.read(options.weights)
    started = time.perf_counter()
    scores, films = measure(load_pipeline(options.weights, options.device), settings, options.batch)
    seconds = round(time.perf_counter() - started, 1)
    if options.sheet is not None:
        contact_sheet(films, options.sheet)
    report = {name: vars(s) for name, s in scores.items()}
    print(json.dumps({"settings": vars(settings), "seconds": seconds, **report}, indent=2))


if __name__ == "__main__":
    main()
