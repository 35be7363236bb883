"""Training: never a held-out wish, lengths that end, a decode that equals the VAE's own."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (extra [video])")
pytest.importorskip("diffusers", reason="diffusers is not installed (extra [video])")

from jobs.video.tiny import model  # noqa: E402
from jobs.video.tiny.clips import FRAMES, HELD_OUT, SIZE  # noqa: E402
from jobs.video.tiny.train import decode_unclamped, prompt_table  # noqa: E402
from jobs.video.tiny.trainer import Length, Trainer, learning_rate  # noqa: E402


@pytest.fixture
def trainer() -> Trainer:
    torch.manual_seed(0)
    return Trainer("cpu", np.random.default_rng(0), print)


def test_training_draws_no_held_out_wish(trainer: Trainer) -> None:
    assert HELD_OUT.isdisjoint(trainer.wishes(5000))


def test_prompts_fit_the_short_text_and_know_every_word_but_the_planted_one(trainer: Trainer) -> None:
    tokenizer = model.build_tokenizer()
    ids, masks = prompt_table(trainer, tokenizer, 2)
    assert ids.shape == masks.shape == (60 * 2 + 1, 32)
    assert masks[:, -1].sum() == 0  # nothing was cut
    assert ids[-1, 0] == tokenizer.eos_token_id
    assert tokenizer("a red circle moves left").input_ids.count(tokenizer.unk_token_id) == 0


def test_a_length_in_steps_walks_that_many() -> None:
    assert [step for step, _ in Length(5, None).walk()] == [0, 1, 2, 3, 4]


def test_the_rate_warms_up_and_falls_to_zero() -> None:
    assert learning_rate(1.0, 0, 0.0, warm_up=10) == pytest.approx(0.1)
    assert learning_rate(1.0, 10, 0.5, warm_up=10) == pytest.approx(0.5)
    assert learning_rate(1.0, 100, 1.0) == pytest.approx(0.0)


def test_windows_are_parts_of_whole_clips(trainer: Trainer) -> None:
    wishes = trainer.wishes(4)
    clips = trainer.clips(trainer.windows(wishes, 32, 9), 32, 9)
    assert clips.shape == (4, 3, 9, 32, 32)
    whole = trainer.clips(trainer.scenes(wishes))
    assert whole.shape == (4, 3, FRAMES, SIZE, SIZE)
    chroma = clips.amax(dim=1) - clips.amin(dim=1)
    assert (chroma.amax(dim=(1, 2, 3)) > 1.0).all()  # every window shows its object


def test_the_unclamped_decode_is_the_vaes_own_but_for_the_clamp() -> None:
    torch.manual_seed(0)
    vae = model.build_vae().eval()
    latents = torch.randn(1, 16, 3, 2, 2)
    with torch.no_grad():
        assert torch.equal(decode_unclamped(vae, latents).clamp(-1, 1), vae.decode(latents).sample)
