"""What a pipeline folder is taken for, and what is refused before it is ever loaded."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from farm.errors import InvalidInput, PermanentFailure
from jobs.video.folder import inspect, place_of
from jobs.video.models import check_folder
from tests.kinds import model_folders as made


def change(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_the_families_are_told_by_their_own_files(tmp_path: Path) -> None:
    wan = inspect("wan", made.wan21(tmp_path / "wan")).facts
    assert (wan.family, wan.tasks, wan.size_divisor, wan.temporal) == ("wan2.1", ["t2v", "v2v"], 16, 4)
    assert (wan.resume, wan.boundary_ratio, wan.denoisers) == ("exact", None, ["transformer"])
    # 12 heads of 128 channels; 1,024 positions of 16 pixels each way, and 1,023 latent steps of 4 frames
    assert (wan.denoiser_width, wan.denoiser_layers, wan.most_side) == (1536, 30, 16384)

    experts = inspect("wan", made.wan22(tmp_path / "wan22")).facts
    assert (experts.family, experts.tasks, experts.boundary_ratio) == ("wan2.2", ["t2v"], 0.875)
    assert experts.denoisers == ["transformer", "transformer_2"]

    ltx = inspect("ltx", made.ltx(tmp_path / "ltx")).facts
    # patches of 4, halved three times: 32; frames halved three times: 8
    assert (ltx.family, ltx.tasks, ltx.size_divisor, ltx.temporal) == ("ltx", ["t2v", "i2v"], 32, 8)
    assert ltx.decode_timestep is None
    newer = inspect(
        "ltx", made.ltx(tmp_path / "ltx2", "LTXConditionPipeline", timestep_conditioning=True)
    ).facts
    assert newer.tasks == ["t2v", "i2v", "flf2v", "v2v"]
    assert (newer.decode_timestep, newer.decode_noise_scale) == (0.05, 0.025)
    assert newer.pipeline_for("t2v") == "LTXConditionPipeline"

    cog = inspect("cog", made.cogvideox(tmp_path / "cog")).facts
    assert (cog.family, cog.tasks, cog.size_divisor, cog.max_sequence_length) == (
        "cogvideox",
        ["t2v", "v2v"],
        16,
        226,
    )
    # 90 x 60 latents of 8 pixels
    assert (cog.defaults.size, cog.defaults.frames, cog.defaults.fps) == ((720, 480), 49, "8")
    assert cog.fixed_size is None


def test_channels_and_position_tables_tell_what_a_transformer_was_trained_for(tmp_path: Path) -> None:
    image = inspect("i", made.wan21(tmp_path / "i", in_channels=36)).facts
    assert image.tasks == ["i2v", "flf2v"]
    with pytest.raises(InvalidInput, match="no image_encoder"):
        inspect("i", made.wan21(tmp_path / "embeds", in_channels=36, image_dim=1280))
    with pytest.raises(InvalidInput, match=r"takes 20 channels.*16 \(text\) and 36 \(image\)"):
        inspect("i", made.wan21(tmp_path / "odd", in_channels=20))

    learned = made.cogvideox(
        tmp_path / "c",
        "CogVideoXImageToVideoPipeline",
        in_channels=32,
        use_learned_positional_embeddings=True,
    )
    facts = inspect("c", learned).facts
    assert (facts.tasks, facts.fixed_size) == (["i2v"], (720, 480))
    # CogVideoX 1.5: two latent frames a patch, so video to video takes 5, 13, 21 … frames
    newer = inspect("c", made.cogvideox(tmp_path / "c15", patch_size_t=2)).facts
    assert [n for n in range(1, 30) if newer.counts("v2v").legal(n)] == [5, 13, 21, 29]
    assert [n for n in range(1, 12) if newer.counts("t2v").legal(n)] == [1, 5, 9]


def test_wan_2_2_ti2v_brings_its_authors_settings(tmp_path: Path) -> None:
    folder = made.wan21(tmp_path / "ti2v", in_channels=48)
    change(folder / "model_index.json", expand_timesteps=True)
    change(folder / "vae" / "config.json", z_dim=48, scale_factor_spatial=16)
    facts = inspect("ti2v", folder).facts
    assert (facts.family, facts.tasks, facts.size_divisor) == ("wan2.2", ["t2v", "i2v"], 32)
    assert (facts.defaults.size, facts.defaults.frames, facts.defaults.fps) == ((1280, 704), 121, "24")


def test_any_other_pipeline_goes_through_the_generic_family(tmp_path: Path) -> None:
    parts = {
        "transformer": {"_class_name": "MochiTransformer3DModel", "patch_size": 2},
        "vae": made.COGVIDEOX_VAE,
    }
    exact = inspect("m", made.write_folder(tmp_path / "m", "MochiPipeline", parts)).facts
    assert (exact.family, exact.resume, exact.size_divisor, exact.temporal) == ("generic", "exact", 16, 4)
    nested = inspect("h", made.write_folder(tmp_path / "h", "HeliosPipeline", parts)).facts
    assert (nested.resume, nested.pipeline_for("t2v")) == ("restart", "HeliosPipeline")


def test_a_folders_own_settings_go_before_the_familys(tmp_path: Path) -> None:
    folder = made.wan21(tmp_path / "own")
    settings = {
        "width": 64,
        "height": 48,
        "frames": 17,
        "fps": 8,
        "steps": 16,
        "dtype": "float32",
        "flow_shift": 2.0,
    }
    (folder / "settings.json").write_text(json.dumps(settings))
    found = inspect("own", folder)
    assert found.facts.defaults.model_dump(exclude_none=True) == {
        "keep": True, "size": (64, 48), "frames": 17, "fps": "8", "steps": 16, "dtype": "float32",
        "flow_shift": 2.0,
    }  # fmt: skip
    assert "settings.json" in {file.path for file in found.files}
    (folder / "settings.json").write_text('{"frames": "many"}')
    with pytest.raises(InvalidInput, match=r"settings.json: frames"):
        inspect("own", folder)


def test_the_digest_is_that_of_sha256sum_over_the_files(tmp_path: Path) -> None:
    folder = made.wan21(tmp_path / "wan")
    found = inspect("wan", folder)
    lines = "".join(
        f"{hashlib.sha256((folder / path).read_bytes()).hexdigest()}  {path}\n"
        for path in sorted(
            path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
        )
    )
    assert found.digest == hashlib.sha256(lines.encode()).hexdigest()
    assert inspect("other-name", folder).digest == found.digest
    change(folder / "scheduler" / "scheduler_config.json", flow_shift=5.0)
    assert inspect("wan", folder).digest != found.digest


def test_what_is_no_part_of_the_pipeline_does_not_count(tmp_path: Path) -> None:
    folder = made.wan21(tmp_path / "wan")
    digest = inspect("wan", folder).digest
    (folder / "README.md").write_text("words")
    (folder / "assets").mkdir()
    (folder / "assets" / "a.png").write_bytes(b"x")
    (folder / "vae" / "diffusion_pytorch_model.bin").write_bytes(b"pickle")
    (folder / "vae" / ".cache").mkdir()
    (folder / "vae" / ".cache" / "a.json").write_text("{}")
    assert inspect("wan", folder).digest == digest


Break = Callable[[Path], None]


def _remove(path: str) -> Break:
    return lambda folder: (folder / path).unlink()


def _cut(folder: Path) -> None:
    path = folder / "transformer" / "diffusion_pytorch_model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


def _shard_missing(folder: Path) -> None:
    place = folder / "transformer"
    (place / "diffusion_pytorch_model.safetensors").unlink()
    made.safetensors(place / "diffusion_pytorch_model-00001-of-00002.safetensors", {"a": (1,)})
    shards = {
        "a": "diffusion_pytorch_model-00001-of-00002.safetensors",
        "b": "diffusion_pytorch_model-00002-of-00002.safetensors",
    }
    (place / "diffusion_pytorch_model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))


def _pickle_only(folder: Path) -> None:
    path = folder / "vae" / "diffusion_pytorch_model.safetensors"
    path.rename(path.with_suffix(".bin"))


def _one_expert(folder: Path) -> None:
    change(folder / "model_index.json", boundary_ratio=0.875)


BROKEN: list[tuple[Break, str]] = [
    (_remove("model_index.json"), "no model_index.json"),
    (_remove("transformer/config.json"), "no transformer/config.json; the folder is partial"),
    (_remove("transformer/diffusion_pytorch_model.safetensors"), "partial: transformer has no .safetensors"),
    (_remove("scheduler/scheduler_config.json"), "partial: scheduler has no scheduler_config.json"),
    (_cut, r"transformer/diffusion_pytorch_model.safetensors was cut short"),
    (_shard_missing, "00002-of-00002.safetensors is missing"),
    (_pickle_only, "vae has its weights as a pickle only"),
    (_one_expert, "lacks transformer_2"),
]


@pytest.mark.parametrize(("harm", "message"), BROKEN, ids=[str(i) for i in range(len(BROKEN))])
def test_a_partial_or_unsafe_folder_is_refused_by_what_is_wrong(
    tmp_path: Path, harm: Break, message: str
) -> None:
    folder = made.wan21(tmp_path / "wan")
    harm(folder)
    with pytest.raises(InvalidInput, match=message):
        inspect("wan", folder)


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="there is no folder"):
        inspect("wan", tmp_path / "nowhere")


def _own_pipeline(folder: Path) -> None:
    change(folder / "model_index.json", _class_name=["pipeline", "OwnPipeline"])


def _own_component(folder: Path) -> None:
    change(folder / "model_index.json", transformer=["own_transformer", "OwnTransformer"])


def _auto_map(folder: Path) -> None:
    change(folder / "text_encoder" / "config.json", auto_map={"AutoModel": "own.OwnEncoder"})


@pytest.mark.parametrize("own", [_own_pipeline, _own_component, _auto_map])
def test_a_folders_own_python_needs_an_administrators_word(tmp_path: Path, own: Break) -> None:
    folder = made.wan21(tmp_path / "wan")
    (folder / "transformer" / "own_transformer.py").write_text("print('hello')")
    own(folder)
    with pytest.raises(InvalidInput, match="Python of its own"):
        inspect("wan", folder)
    allowed = inspect("wan", folder, remote_code=True)
    assert allowed.remote_code and allowed.facts.remote_code
    assert "transformer/own_transformer.py" in {file.path for file in allowed.files}


def test_a_version_whose_folder_changed_is_noticed(tmp_path: Path) -> None:
    folder = made.wan21(tmp_path / "wan")
    made.safetensors(folder / "vae" / "diffusion_pytorch_model.safetensors", {"weight": (1024, 1024)})
    found = inspect("wan", folder)
    check_folder(folder, found.files, hashes=True)
    weights = folder / "vae" / "diffusion_pytorch_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    check_folder(folder, found.files, hashes=False)
    with pytest.raises(
        PermanentFailure, match=r"vae/diffusion_pytorch_model.safetensors \(its contents changed\)"
    ):
        check_folder(folder, found.files, hashes=True)
    # a configuration is small, and looked at whenever the version is loaded
    settings = folder / "scheduler" / "scheduler_config.json"
    said = settings.read_text()
    settings.write_text(said.replace("3.0", "5.0"))
    with pytest.raises(PermanentFailure, match=r"scheduler_config.json \(its contents changed\)"):
        check_folder(folder, found.files, hashes=False)
    settings.write_text(said)
    weights.unlink()
    with pytest.raises(PermanentFailure, match=r"is not what was added: vae/.*No such file"):
        check_folder(folder, found.files, hashes=False)


def test_a_folder_is_named_by_a_path_or_by_its_file_address_and_other_stores_are_refused() -> None:
    assert place_of("models/wan") == Path("models/wan")
    assert place_of("file:///mnt/models/a%20b") == Path("/mnt/models/a b")
    for address in ("s3://bucket/wan", "file://host/wan", "https://example.org/wan"):
        with pytest.raises(InvalidInput, match="give a path or file:///path"):
            place_of(address)
