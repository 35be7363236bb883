"""PSNR and SSIM against values worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from jobs.video.likeness import psnr_db, ssim


def flat(shade: int, size: int = 16) -> np.ndarray:
    return np.full((size, size, 3), shade, np.uint8)


def test_psnr_follows_its_definition() -> None:
    assert psnr_db(flat(7), flat(7)) == 100.0
    # an error of 1 everywhere: 20 log10(255); of 255 everywhere: 0
    assert psnr_db(flat(10), flat(11)) == pytest.approx(48.1308, abs=1e-4)
    assert psnr_db(flat(0), flat(255)) == pytest.approx(0.0)
    half = flat(10)
    half[:8] += 2
    # a mean square of 2
    assert psnr_db(flat(10), half) == pytest.approx(10 * np.log10(255**2 / 2), abs=1e-9)


def test_ssim_of_flat_pictures_is_their_luminance_term() -> None:
    # no variance: (2 a b + c1) / (a^2 + b^2 + c1) with c1 = 2.55^2 = 6.5025
    a, b = 100, 120
    wanted = (2 * a * b + 6.5025) / (a * a + b * b + 6.5025)
    assert ssim(flat(a), flat(b)) == pytest.approx(wanted, abs=1e-12)
    assert ssim(flat(a), flat(a)) == pytest.approx(1.0)


def test_ssim_tells_structure_from_brightness() -> None:
    random = np.random.default_rng(0)
    noise = random.integers(60, 180, (32, 32, 3)).astype(np.uint8)
    assert ssim(noise, noise) == pytest.approx(1.0)
    assert ssim(noise, noise + 5) > 0.99
    assert ssim(noise, 240 - noise) < 0
    assert abs(ssim(noise, random.integers(60, 180, (32, 32, 3)).astype(np.uint8))) < 0.1


def test_ssim_is_a_window_sum_written_out() -> None:
    """One window, summed straight from the paper's equations."""
    random = np.random.default_rng(1)
    x, y = (random.integers(0, 256, (11, 11, 1)).astype(np.uint8) for _ in range(2))
    at = np.arange(11) - 5
    weights = np.exp(-(at[:, None] ** 2 + at[None] ** 2) / (2 * 1.5**2))
    weights /= weights.sum()
    p, q = x[..., 0].astype(float), y[..., 0].astype(float)
    mx, my = (weights * p).sum(), (weights * q).sum()
    vx, vy = (weights * (p - mx) ** 2).sum(), (weights * (q - my) ** 2).sum()
    cov = (weights * (p - mx) * (q - my)).sum()
    wanted = (2 * mx * my + 6.5025) * (2 * cov + 58.5225) / ((mx**2 + my**2 + 6.5025) * (vx + vy + 58.5225))
    assert ssim(x, y) == pytest.approx(wanted, abs=1e-9)


def test_pictures_that_cannot_be_compared_are_refused() -> None:
    with pytest.raises(ValueError, match="11x11 or more"):
        ssim(flat(0, 8), flat(0, 8))
    with pytest.raises(ValueError, match="one size"):
        ssim(flat(0, 16), flat(0, 32))
