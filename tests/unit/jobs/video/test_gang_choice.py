"""How a gang shares a film when the job does not say: by measured rows, else by arithmetic; and why."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from farm.errors import PermanentFailure
from jobs.video import gang_choice, payload
from jobs.video.gang_choice import Measured
from jobs.video.payload import Generation
from tests.unit.jobs.video.making import spec, step_of

WIDTH, LAYERS = 24, 2
"""The tiny Wan's: two heads of 12, two blocks."""
TOKENS = 2 * 2 * 2
"""32x32 pixels and 5 frames are 2 latent frames of 2x2 patches."""


def asked(name: str = "wan", **wish: Any) -> Generation:
    made = payload.read_step(step_of(spec(name)).payload)
    return made.model_copy(update={"gpus": 2, **wish})


def denoisers(heads: int = 2) -> list[Any]:
    return [SimpleNamespace(config=SimpleNamespace(num_attention_heads=heads))]


def row(**fields: Any) -> Measured:
    known = {"gpu": "A100", "width": WIDTH, "layers": LAYERS, "tokens": TOKENS, "gpus": 2, "alone_s": 4.0}
    return Measured(**(known | fields))


@pytest.mark.parametrize(
    ("wish", "heads", "share"),
    [
        ({}, 2, "guidance"),
        ({"guidance": 1.0}, 2, "ulysses"),
        ({"gpus": 4}, 8, "ulysses"),
        ({"gpus": 3, "attention": "cudnn"}, 8, "ring"),
    ],
)
def test_without_a_measured_row_arithmetic_decides(wish: dict[str, Any], heads: int, share: str) -> None:
    choice = gang_choice.choose(asked(**wish), denoisers(heads), "A100")
    size = wish.get("gpus", 2)
    assert choice.share == share
    assert (choice.ring, choice.ulysses) == {
        "guidance": (1, 1),
        "ulysses": (1, size),
        "ring": (size, 1),
    }[share]
    assert "arithmetic" in choice.why or "heads cannot be divided" in choice.why


def test_a_measured_row_of_the_same_denoiser_gpu_and_length_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    near = row(tokens=TOKENS + 4, shared_s={"guidance": 2.5, "ulysses": 2.0, "ring": 1.0})
    far = row(tokens=TOKENS * 3, shared_s={"guidance": 1.0})
    monkeypatch.setattr(gang_choice, "MEASURED", (far, near))
    choice = gang_choice.choose(asked(), denoisers(), "A100")
    # the ring would be quickest, and native attention cannot make one
    assert choice.share == "ulysses"
    assert "measured on A100, 12 tokens" in choice.why
    assert "(Ulysses) 2.00x, the guidance split 1.60x" in choice.why
    assert gang_choice.choose(asked(), denoisers(), "H100").share == "guidance"
    assert gang_choice.choose(asked(gpus=4), denoisers(4), "A100").why.startswith("by arithmetic")
    assert gang_choice.choose(asked(attention="cudnn"), denoisers(), "A100").share == "ring"


@pytest.mark.parametrize(
    ("wish", "heads", "text"),
    [
        ({"gang": "ring"}, 2, r"^/gang: ring cannot be here: .* attention native does not give; take cudnn"),
        (
            {"gang": "ulysses", "gpus": 3},
            8,
            r"^/gang: ulysses .* 8 attention heads cannot be divided",
        ),
        ({"gpus": 3}, 8, r"^/gpus: 3 do not share this film: 8 attention heads .* set gpus to 1"),
    ],
)
def test_what_cannot_be_is_refused_with_what_can(wish: dict[str, Any], heads: int, text: str) -> None:
    with pytest.raises(PermanentFailure, match=text):
        gang_choice.choose(asked(**wish), denoisers(heads), "A100")


def test_what_the_job_names_is_taken_as_it_is() -> None:
    choice = gang_choice.choose(asked(gang="ulysses"), denoisers(), "A100")
    assert (choice.share, choice.why) == ("ulysses", "asked for by the job")
