"""Claims on cores and GPUs: who may have what beside whom. Other agents are real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_pinning import Claimed, Claims, Wishes, make_plan
from gpu_pinning.claims import Claim, claims, clashes
from gpu_pinning.plan import SlotPlan
from tests.unit.gpu_pinning.trees import recorded

# CPUs that no machine has, so that no agent that works here is in the way
HOLD = """
import sys
from gpu_pinning.claims import Claims
from tests.unit.gpu_pinning.test_claims import slot
claims = Claims("other")
claims.add([slot(int(cpu) for cpu in sys.argv[1].split(","))])
print("held", flush=True)
sys.stdin.read()
"""


def slot(cpus: object, gpus: tuple[str, ...] = (), kind: str = "gpu") -> SlotPlan:
    plan = make_plan(recorded("laptop"), Wishes.parse('[[slots]]\nname = "a"\npools = ["render"]\ncores = 1'))
    chosen = {"cpus": tuple(cpus), "gpus": gpus, "kind": kind if gpus else "cpu"}  # type: ignore[arg-type]
    return plan.slot("a").model_copy(update=chosen)


def test_clashes_are_what_others_give_out_of_ones_own_slots() -> None:
    slots = [slot((0, 1, 2, 3), ("GPU-1",)), slot((8, 9), ("GPU-2",), "mps")]
    taken = [
        Claim(7, "x", cpus=frozenset({2, 3, 4})),
        Claim(7, "x", cpus=frozenset({9})),
        Claim(7, "x", gpu="GPU-1"),
        Claim(8, "y", gpu="GPU-2"),
        Claim(9, "me", cpus=frozenset({0, 1})),
    ]
    # an MPS slot shares its GPU by wish; 9 is ourselves
    assert clashes(slots, taken, 9) == [
        "CPUs 2-3,9 and GPU GPU-1 are given out already by the agent of node 'x' (pid 7) on this machine"
    ]
    assert clashes([slot((4,))], taken[1:], 9) == []


def test_another_process_cannot_claim_the_same_and_may_once_the_first_is_gone() -> None:
    root = str(Path(__file__).parents[3])
    first = subprocess.Popen(
        [sys.executable, "-c", HOLD, "60001,60002,60003,60007"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=root, env=os.environ | {"PYTHONPATH": root},
    )  # fmt: skip
    assert first.stdout is not None and first.stdout.readline() == b"held\n"
    mine = Claims("mine")
    try:
        with pytest.raises(Claimed, match=rf"CPUs 60003 are .* node 'other' \(pid {first.pid}\).*`cpus = "):
            mine.add([slot((60003, 60004))])
        assert [claim for claim in claims() if claim.pid == os.getpid()] == [], "nothing of it is claimed"
        mine.add([slot((60004, 60005))])
        # a killed agent needs no clearing up
        first.kill()
        first.wait()
        mine.add([slot((60003,))])
        mine.keep([slot((60003, 60004))])
        held = [claim.cpus for claim in claims() if claim.pid == os.getpid()]
        assert held == [frozenset({60003, 60004})]
    finally:
        first.kill()
        first.wait()
        first.stdout.close()
        assert first.stdin is not None
        first.stdin.close()
        mine.close()
    assert [claim for claim in claims() if claim.pid == os.getpid()] == []
