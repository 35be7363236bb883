"""MIG instances made on request, and believed only when NVML shows them.

nvidia-smi has been seen to exit 0 and make nothing, so its exit code is read for its message alone.
"""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Callable, Sequence

from gpu_pinning.errors import MigError
from gpu_pinning.machine import MigInstance, Topology
from gpu_pinning.wishes import MigWish

Run = Callable[[Sequence[str]], tuple[int, str]]


def _run(argv: Sequence[str]) -> tuple[int, str]:
    try:
        done = subprocess.run(list(argv), capture_output=True, text=True, timeout=120)
    except (OSError, subprocess.TimeoutExpired) as error:
        return 127, str(error)
    return done.returncode, (done.stdout + done.stderr).strip()


def make_wished(wishes: Sequence[MigWish], read: Callable[[], Topology], run: Run = _run) -> None:
    """Make what farm.toml's ``[[mig]]`` asks for and is not there. ``read`` reads the machine anew.

    The mode itself is never changed: that resets the GPU. Raises MigError, which names the table.
    """
    for number, wish in enumerate(wishes):
        where = f"mig[{number}].gpu"
        machine = read()
        found = machine.gpus_called(wish.gpu)
        if len(found) != 1:
            here = ", ".join(f"{gpu.uuid} at {gpu.pci}" for gpu in machine.gpus) or f"none ({machine.nvml})"
            what = "no GPU" if not found else f"{len(found)} GPUs"
            raise MigError(f"{where}: {wish.gpu!r} fits {what} of this machine; GPUs here: {here}")
        uuid = found[0].uuid
        if not found[0].mig_enabled:
            raise MigError(
                f"{where}: {uuid} is not in MIG mode, and the farm changes no modes; with nothing running "
                f"on it: nvidia-smi -i {uuid} -mig 1"
            )
        ensure_instances(uuid, wish.profiles, lambda uuid=uuid: read().gpu(uuid).mig, run)  # type: ignore[misc]


def ensure_instances(
    uuid: str, profiles: Sequence[str], instances: Callable[[], tuple[MigInstance, ...]], run: Run = _run
) -> tuple[MigInstance, ...]:
    """Make what is missing of ``profiles`` on a GPU in MIG mode; returns its instances as NVML shows them.

    ``instances`` reads them anew. What is there stays: nothing is destroyed. Raises MigError where an
    instance is not there afterwards, whatever the tool said.
    """
    missing = Counter(profiles) - Counter(instance.profile for instance in instances())
    if not missing:
        return instances()
    wanted = ",".join(missing.elements())
    code, text = run(["nvidia-smi", "mig", "-i", uuid, "-cgi", wanted, "-C"])
    there = instances()
    still = Counter(profiles) - Counter(instance.profile for instance in there)
    if still:
        names = ", ".join(still.elements())
        raise MigError(
            f"{uuid}: MIG {names} was not made; nvidia-smi ended with {code}: {text or 'no message'}"
        )
    return there
