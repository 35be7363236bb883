"""Proofs of variants: asked once for a machine, anew when what they depend on has changed."""

from __future__ import annotations

from pathlib import Path

from jobs.render.mitsuba.proofs import once


def test_a_good_proof_is_asked_for_once(tmp_path: Path) -> None:
    asked: list[str] = []

    def prove() -> str:
        asked.append("x")
        return "rendered the probe"

    assert [once(tmp_path / "new", "llvm_ad_rgb", {}, prove) for _ in range(2)] == ["rendered the probe"] * 2
    assert len(asked) == 1
    once(tmp_path / "new", "scalar_rgb", {}, prove)
    assert len(asked) == 2, "another variant has a proof of its own"


def test_a_bad_one_is_asked_for_again(tmp_path: Path) -> None:
    answers = [None, "rendered the probe"]
    assert once(tmp_path, "llvm_ad_rgb", {}, lambda: answers.pop(0)) is None
    assert once(tmp_path, "llvm_ad_rgb", {}, lambda: answers.pop(0)) == "rendered the probe"


def test_another_library_under_the_same_name_is_proven_anew(tmp_path: Path) -> None:
    library = tmp_path / "libLLVM.so"
    library.write_bytes(b"one")
    env = {"DRJIT_LIBLLVM_PATH": str(library)}
    assert once(tmp_path / "p", "llvm_ad_rgb", env, lambda: "first") == "first"
    assert once(tmp_path / "p", "llvm_ad_rgb", env, lambda: "second") == "first"
    library.write_bytes(b"another")
    assert once(tmp_path / "p", "llvm_ad_rgb", env, lambda: "third") == "third"


def test_what_was_kept_and_is_broken_is_asked_for_again(tmp_path: Path) -> None:
    once(tmp_path, "llvm_ad_rgb", {}, lambda: "first")
    for path in tmp_path.iterdir():
        path.write_text("{")
    assert once(tmp_path, "llvm_ad_rgb", {}, lambda: "second") == "second"


def test_a_folder_that_cannot_be_written_costs_only_another_probe(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    assert once(blocked / "p", "llvm_ad_rgb", {}, lambda: "found") == "found"
