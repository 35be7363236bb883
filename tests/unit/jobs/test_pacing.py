"""Copies keep to the pace that the plan gives, in pieces; without one they are left alone."""

from __future__ import annotations

from typing import Any

import pytest

from farm.errors import InvalidInput
from gpu_pinning.placement import COPY_RATE
from jobs.pacing import PIECE, VARIABLE, CopyPace, own_pace

MIB = 2**20


class Time:
    """A clock that only moves when somebody sleeps, or a copy takes its time."""

    def __init__(self) -> None:
        self.now, self.slept = 100.0, []  # type: ignore[var-annotated]

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def pace(rate: int, time: Time) -> CopyPace:
    return CopyPace(rate, clock=lambda: time.now, sleep=time.sleep)


def test_pieces_of_eight_mebibytes_with_rests_in_between() -> None:
    time = Time()
    spans = []
    for span in pace(1024 * MIB, time).spans(4, 8 * MIB):
        spans.append((span.start, span.stop))
        time.now += 0.001  # the copy itself
    assert spans == [(0, 1), (1, 2), (2, 3), (3, 4)]
    # 8 MiB at 1 GiB/s last 7.8125 ms, of which the copy takes one
    assert time.slept == pytest.approx([0.0068125] * 3)


def test_the_rate_holds_from_one_copy_to_the_next() -> None:
    time = Time()
    slow = pace(8 * MIB, time)
    list(slow.spans(1, 8 * MIB))
    list(slow.spans(1, 8 * MIB))
    assert time.slept == pytest.approx([1.0])


def test_time_in_which_nothing_was_copied_is_not_saved_up() -> None:
    time = Time()
    slow = pace(8 * MIB, time)
    list(slow.spans(1, 8 * MIB))
    time.now += 100
    list(slow.spans(2, 8 * MIB))
    assert time.slept == pytest.approx([1.0]), "the second of two pieces rests, however long it was quiet"


def test_small_parts_travel_together() -> None:
    spans = list(pace(2**40, Time()).spans(20, 2 * MIB))
    assert [span.stop - span.start for span in spans] == [PIECE // (2 * MIB)] * 5


def test_without_a_rate_all_goes_at_once() -> None:
    time = Time()
    assert list(CopyPace(sleep=time.sleep).spans(1000, MIB)) == [slice(0, 1000)]
    assert time.slept == []


def test_paced_bytes_arrive_whole() -> None:
    torch = pytest.importorskip("torch")
    source = torch.arange(5 * MIB, dtype=torch.int32).reshape(5, MIB)
    for rate in (0, 2**40):
        target = torch.zeros_like(source)
        CopyPace(rate).copy(target, source, page_locked=False)
        assert torch.equal(target, source)


@pytest.mark.parametrize(("told", "rate"), [({}, 0), ({VARIABLE: "4096"}, 4096)])
def test_the_plan_says_the_rate(told: dict[str, str], rate: int) -> None:
    assert CopyPace.of_environment(told).bytes_per_s == rate
    assert VARIABLE == COPY_RATE


@pytest.mark.parametrize("text", ["fast", "-1", "1.5", ""])
def test_a_rate_that_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match=VARIABLE):
        CopyPace.of_environment({VARIABLE: text})


class Taking(CopyPace):
    """Moves nothing: says what was to be moved, and copies it where it is."""

    taken_bytes = 0

    def taken(self, tensor: Any, device: Any) -> Any:
        self.taken_bytes += tensor.numel() * tensor.element_size()
        return tensor.clone()


def test_weights_and_buffers_go_at_the_pace_and_tied_ones_once() -> None:
    torch = pytest.importorskip("torch")
    first, second = torch.nn.Linear(4, 3, bias=False), torch.nn.Linear(4, 3, bias=False)
    second.weight = first.weight
    second.register_buffer("scale", torch.ones(5, dtype=torch.float64))
    both = torch.nn.Sequential(first, second)
    before = {name: value.clone() for name, value in both.state_dict().items()}
    paced = Taking(1)
    paced.move([both], torch.device("cuda", 0))
    assert paced.taken_bytes == 4 * 3 * 4 + 5 * 8
    assert all(torch.equal(value, before[name]) for name, value in both.state_dict().items())
    assert first.weight is second.weight
    paced.move([both], "cpu")
    assert paced.taken_bytes == 4 * 3 * 4 + 5 * 8, "what is there already stays"
    free = Taking(0)
    free.move([both], torch.device("cuda", 0))
    assert free.taken_bytes == 0


@pytest.mark.parametrize("transposed", [False, True])
def test_what_is_taken_keeps_its_values_and_the_rate_counts_it(transposed: bool) -> None:
    torch = pytest.importorskip("torch")
    source = torch.arange(6 * MIB, dtype=torch.float32).reshape(6, MIB)
    source = source.t() if transposed else source
    time = Time()
    paced = pace(24 * MIB, time)
    # anywhere but where it is: torch's device without memory takes shapes alone
    assert paced.taken(source, "meta").shape == source.shape
    next(iter(paced.spans(1, 1)))
    # 24 MiB at 24 MiB/s: a second, whether by pieces or as one
    assert sum(time.slept) == pytest.approx(1.0)
    assert paced.taken(source, "cpu") is source


def test_all_copies_of_a_process_share_one_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "5000")
    assert own_pace() is own_pace() and own_pace().bytes_per_s == 5000
    monkeypatch.delenv(VARIABLE)
    assert own_pace().bytes_per_s == 0
