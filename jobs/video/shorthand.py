"""The short form of a video job: a prompt and a few options, for ``farm submit video``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from farm.errors import FieldFault, InvalidInput
from jobs.video.safetensors_header import read_header

OPTIONS: Final = (
    "model", "preset", "frames", "size", "fps", "seed", "seeds", "device", "film", "image", "last_image",
    "video", "lora",
)  # fmt: skip
_PLAIN: Final = ("model", "preset", "size", "fps", "seeds", "device")
_TITLE_LENGTH: Final = 60


def TITLE(prompt: str) -> str:
    """A job's name from its prompt: the first words on one line."""
    words = " ".join("".join(c if c.isprintable() else " " for c in prompt).split())
    short = words[:_TITLE_LENGTH].rsplit(" ", 1)[0] if len(words) > _TITLE_LENGTH else words
    return short or "video"


def build(
    prompt: str, options: Mapping[str, Any], root: Path | None = None
) -> tuple[dict[str, Any], dict[str, Path]]:
    """Spec and files (by job path) of making ``prompt`` into a film; ``root`` has no meaning here.

    ``frames`` is a count. ``lora`` holds ``FILE`` or ``FILE:WEIGHT``. Raises
    :class:`farm.errors.InvalidInput`, also for a LoRA that is no whole safetensors file.
    """
    if root is not None:
        raise InvalidInput("--root is for scenes; a video job's files are named one by one")
    if "model" not in options:
        raise InvalidInput("say which model with --model NAME; `farm models` lists them")
    spec: dict[str, Any] = {"prompt": prompt}
    spec |= {name: options[name] for name in _PLAIN if name in options}
    files: dict[str, Path] = {}
    if "seed" in options:
        spec["seeds"] = [options["seed"]]
    if "frames" in options:
        text = str(options["frames"]).strip()
        if not text.lstrip("-").isdigit():
            message = f"--frames {text[:20]!r}: a video job takes how many, such as 81"
            raise InvalidInput(message, [FieldFault("/spec/frames", message)])
        spec["frames"] = int(text)
    if "film" in options:
        spec["film"] = {"formats": list(options["film"])}
    for name in ("image", "last_image", "video"):
        if name in options:
            path = Path(options[name])
            if not path.is_file():
                raise InvalidInput(f"there is no file {path}")
            spec[name] = f"inputs/{name}{path.suffix.lower()}"
            files[spec[name]] = path
    if "lora" in options:
        spec["loras"] = [_lora(text, files) for text in options["lora"]]
    return spec, files


def _lora(text: str, files: dict[str, Path]) -> dict[str, Any]:
    path, weight = Path(text), 1.0
    if not path.is_file() and ":" in text:
        name, _, number = text.rpartition(":")
        path = Path(name)
        try:
            weight = float(number)
        except ValueError:
            raise InvalidInput(
                f"--lora {text}: write FILE or FILE:WEIGHT, such as style.safetensors:0.8"
            ) from None
    if not path.is_file():
        raise InvalidInput(f"there is no file {path}")
    with path.open("rb") as file:
        read_header(file, str(path))
    job_path = f"loras/{path.name}"
    if files.get(job_path, path) != path:
        job_path = f"loras/{len(files)}-{path.name}"
    files[job_path] = path
    return {"path": job_path, "weight": weight}
