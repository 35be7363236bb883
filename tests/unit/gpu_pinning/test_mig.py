"""HAMi 2131: MIG creation exits 0 and makes nothing. The result counts, not the exit code."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from gpu_pinning import Topology, Wishes
from gpu_pinning.errors import MigError
from gpu_pinning.machine import MigInstance
from gpu_pinning.mig import ensure_instances, make_wished


def instance(profile: str, number: int) -> MigInstance:
    return MigInstance(
        uuid=f"MIG-{number}", profile=profile, gpu_instance=number, compute_instance=0, memory_bytes=1
    )


def test_a_tool_that_exits_0_and_makes_nothing_is_an_error() -> None:
    with pytest.raises(MigError, match=r"1g\.5gb was not made; nvidia-smi ended with 0: Success"):
        ensure_instances("GPU-1", ["1g.5gb"], lambda: (), run=lambda _: (0, "Successfully created"))


def test_what_is_there_is_not_made_again() -> None:
    def run(argv: Sequence[str]) -> tuple[int, str]:
        raise AssertionError("nothing is missing")

    there = (instance("1g.5gb", 0), instance("2g.10gb", 1))
    assert ensure_instances("GPU-1", ["1g.5gb"], lambda: there, run=run) == there


def test_only_what_is_missing_is_made_and_a_bad_exit_code_that_made_it_is_fine() -> None:
    there = [instance("1g.5gb", 0)]
    calls: list[Sequence[str]] = []

    def run(argv: Sequence[str]) -> tuple[int, str]:
        calls.append(argv)
        there.append(instance("1g.5gb", 1))
        there.append(instance("3g.20gb", 2))
        return 1, "warning"

    made = ensure_instances("GPU-1", ["1g.5gb", "1g.5gb", "3g.20gb"], lambda: tuple(there), run=run)
    assert len(made) == 3
    assert calls == [["nvidia-smi", "mig", "-i", "GPU-1", "-cgi", "1g.5gb,3g.20gb", "-C"]]


def test_a_missing_tool_is_named() -> None:
    with pytest.raises(MigError, match="nvidia-smi"):
        ensure_instances("GPU-1", ["7g.80gb"], lambda: ())


MIG_BOX = Path(__file__).parents[2] / "recorded_machines" / "mig-box.json"


def wished(gpu: str, *profiles: str) -> Wishes:
    return Wishes.parse(f'[[mig]]\ngpu = "{gpu}"\nprofiles = {list(profiles)!r}')


def test_what_farm_toml_asks_for_is_made_on_the_gpu_that_it_names() -> None:
    machine = Topology.load(MIG_BOX)
    calls: list[Sequence[str]] = []

    def read() -> Topology:
        if not calls:
            return machine
        more = machine.gpus[0].model_copy(update={"mig": (*machine.gpus[0].mig, instance("1g.5gb", 9))})
        return machine.model_copy(update={"gpus": (more, *machine.gpus[1:])})

    def run(argv: Sequence[str]) -> tuple[int, str]:
        calls.append(argv)
        return 0, ""

    # the recorded GPU has 3g.20gb, 2g.10gb and two of 1g.5gb
    make_wished(wished("07:00.0", "1g.5gb", "1g.5gb", "2g.10gb").mig, read, run)
    assert calls == []
    make_wished(wished("0000:07:00.0", "1g.5gb", "1g.5gb", "1g.5gb").mig, read, run)
    assert calls == [["nvidia-smi", "mig", "-i", machine.gpus[0].uuid, "-cgi", "1g.5gb", "-C"]]


def test_a_gpu_that_is_not_in_mig_mode_is_left_in_its_mode_and_named() -> None:
    machine = Topology.load(MIG_BOX)

    def run(argv: Sequence[str]) -> tuple[int, str]:
        raise AssertionError("nothing may be run")

    with pytest.raises(MigError, match=r"mig\[0\]\.gpu: GPU-98126cbf.* is not in MIG mode.*-mig 1"):
        make_wished(wished("GPU-98126cbf", "1g.5gb").mig, lambda: machine, run)
    with pytest.raises(MigError, match=r"mig\[0\]\.gpu: 'GPU-77777777' fits no GPU"):
        make_wished(wished("GPU-77777777", "1g.5gb").mig, lambda: machine, run)


def test_a_farm_toml_without_the_table_reads_no_machine() -> None:
    def read() -> Topology:
        raise AssertionError("nothing is to be made")

    make_wished(Wishes.parse("").mig, read)
