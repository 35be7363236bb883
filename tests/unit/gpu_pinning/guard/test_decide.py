"""The guard's rule against simulated neighbours."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_pinning.guard.decide import GuardState, Policy, Rung, decide
from gpu_pinning.guard.simulate import Moment, Neighbour, run
from gpu_pinning.guard.windows import Condition, Window, wilson_bounds

POLICY = Policy()


def after(moments: list[Moment], seconds: float) -> list[Moment]:
    return [moment for moment in moments if moment.window.start >= seconds]


def first(moments: list[Moment], rung: Rung) -> float:
    return next(moment.window.end for moment in moments if moment.verdict.rung >= rung)


@pytest.mark.parametrize(
    ("hits", "trials", "low", "high"),
    # worked out from Wilson's formula with z = 2: centre (p + 2/n)/(1 + 4/n), and so on
    [(0, 0, 0.0, 1.0), (0, 16, 0.0, 0.2), (8, 16, 0.276393, 0.723607), (16, 16, 0.8, 1.0)],
)
def test_wilson_bounds_match_worked_values(hits: int, trials: int, low: float, high: float) -> None:
    assert wilson_bounds(hits, trials, 2.0) == pytest.approx((low, high), abs=1e-6)


def test_a_quiet_neighbour_is_left_alone() -> None:
    for seed in range(20):
        moments = list(run(Neighbour(), 120, seed=seed))
        held = sum(moment.verdict.rung > Rung.FREE for moment in moments)
        assert held / len(moments) < 0.05, f"seed {seed}"
        assert max(moment.verdict.rung for moment in moments) <= Rung.SLOW_HOST


def test_gross_harm_is_paused_within_five_seconds_and_gone_after() -> None:
    moments = list(run(Neighbour(harm=lambda t: 0.6 if t >= 10 else 0.0), 40))
    assert 10 < first(moments, Rung.NO_NEW_WORK) <= 10.5
    assert first(moments, Rung.PAUSE) <= 15
    over = [m.window.over for m in after(moments, 13) if m.verdict.rung >= Rung.PAUSE]
    assert sum(over) / (25 * len(over)) < 0.03


def test_slight_harm_is_found_too() -> None:
    moments = list(run(Neighbour(harm=lambda t: 0.10 if t >= 10 else 0.0), 60))
    assert first(moments, Rung.PAUSE) <= 20


def test_a_ramp_is_caught_before_it_is_steep() -> None:
    moments = list(run(Neighbour(harm=lambda t: min(0.5, t / 120)), 60))
    caught = first(moments, Rung.PAUSE)
    assert caught < 40
    assert max(m.window.over for m in moments if m.window.end <= caught) / 25 < 0.6


def test_one_spike_does_not_stop_the_farm() -> None:
    moments = list(run(Neighbour(own=lambda t: 0.8 if 10 <= t < 10.25 else 0.0), 60))
    assert max(m.verdict.rung for m in moments) <= Rung.SLOW_HOST or all(
        m.verdict.rung is Rung.FREE for m in after(moments, 50)
    )
    assert moments[-1].verdict.rung is Rung.FREE


def test_shared_gpu_is_frozen_in_the_window_of_the_breach() -> None:
    moments = list(run(Neighbour(harm=lambda t: 0.9 if t >= 5 else 0.0), 20, shares_gpu=True))
    breach = next(m for m in moments if m.verdict.breached)
    assert breach.verdict.freeze_shared
    assert breach.window.end <= 5.5


def test_farm_that_is_not_the_cause_is_let_go_and_says_so() -> None:
    moments = list(run(Neighbour(own=lambda t: 0.5 if t >= 5 else 0.0), 120))
    verdicts = [m.verdict for m in moments if m.verdict.event == "not_us"]
    assert verdicts and "not us" in verdicts[0].reason
    held = sum(m.verdict.rung >= Rung.PAUSE for m in moments) * 0.25
    assert held < 30, "a breach that is not ours must not hold the farm for long"


def test_not_us_looks_away_longer_each_time() -> None:
    moments = list(run(Neighbour(own=lambda _: 0.5), 400))
    times = [m.window.end for m in moments if m.verdict.event == "not_us"]
    gaps = [b - a for a, b in pairwise(times)]
    assert len(gaps) >= 2 and all(later > earlier * 1.3 for earlier, later in pairwise(gaps))


def test_never_lets_go_while_it_helps_and_the_breach_lasts() -> None:
    for seed in range(10):
        moments = list(run(Neighbour(harm=lambda _: 0.5, quiet=0.005), 120, seed=seed))
        for before, moment in pairwise(moments):
            if moment.verdict.breached:
                assert moment.verdict.rung >= before.verdict.rung
                assert moment.verdict.event != "not_us"


def test_flapping_doubles_the_dwell() -> None:
    moments = list(run(Neighbour(harm=lambda _: 0.6), 300))
    releases = [m.window.end for m in moments if m.verdict.event == "let_go"]
    gaps = [b - a for a, b in pairwise(releases)]
    assert len(releases) < 12, "flaps are bounded"
    assert gaps and gaps[-1] > gaps[0] * 1.5
    assert max(m.state.dwell for m in moments) <= POLICY.dwell_max


@pytest.mark.parametrize("condition", [Condition.IDLE, Condition.STARTING, Condition.STOPPED])
def test_a_neighbour_that_decodes_nothing_is_not_breached(condition: Condition) -> None:
    moments = list(run(Neighbour(harm=lambda _: 0.9, condition=lambda _: condition), 30))
    assert all(m.verdict.rung is Rung.FREE for m in moments)


def test_a_neighbour_that_stops_during_a_hold_frees_the_farm_at_once() -> None:
    def condition(time: float) -> Condition:
        return Condition.SERVING if time < 10 else Condition.STOPPED

    moments = list(run(Neighbour(harm=lambda _: 0.9, condition=condition), 20))
    assert first(moments, Rung.PAUSE) < 10
    assert after(moments, 10)[0].verdict.rung is Rung.FREE


def test_lost_telemetry_pauses_and_goes_no_further() -> None:
    def condition(time: float) -> Condition:
        return Condition.LOST if 5 <= time < 200 else Condition.SERVING

    moments = list(run(Neighbour(condition=condition), 260))
    lost = [m for m in moments if m.window.condition is Condition.LOST]
    assert {m.verdict.rung for m in lost} == {Rung.PAUSE}
    assert moments[-1].verdict.rung is Rung.FREE


def test_lost_telemetry_keeps_a_harder_hold() -> None:
    state = GuardState(rung=Rung.PARK, since=1.0)
    state, verdict = decide(state, Window(2.0, 2.25, Condition.LOST), POLICY)
    assert verdict.rung is Rung.PARK


def test_a_clock_that_jumps_back_neither_holds_nor_frees() -> None:
    jumped = Neighbour(clock=lambda t: t if t < 10 else t - 8)
    assert all(m.verdict.rung is Rung.FREE for m in run(jumped, 30))
    harmed = Neighbour(harm=lambda _: 0.6, clock=lambda t: t if t < 5 else t - 4)
    assert first(list(run(harmed, 30)), Rung.PAUSE) < 10


def test_the_guard_stops_at_its_top_rung() -> None:
    policy = Policy(top=Rung.PAUSE, prove_after=1e9)
    moments = list(run(Neighbour(own=lambda _: 0.9), 60, policy=policy))
    assert max(m.verdict.rung for m in moments) is Rung.PAUSE


CONDITIONS = st.sampled_from(list(Condition))
WINDOWS = st.lists(
    st.tuples(CONDITIONS, st.integers(0, 60), st.floats(0, 1), st.booleans()), min_size=1, max_size=400
)


@settings(max_examples=150, deadline=None)
@given(WINDOWS)
def test_any_history_keeps_the_rules(history: list[tuple[Condition, int, float, bool]]) -> None:
    state, time, previous = GuardState(), 0.0, Rung.FREE
    for condition, steps, share, shares_gpu in history:
        serving = condition is Condition.SERVING
        count = steps if serving else 0
        window = Window(time, time + 0.25, condition, count, int(count * share))
        state, verdict = decide(state, window, POLICY, shares_gpu=shares_gpu)
        assert verdict.rung is state.rung or state.look_away_until is not None
        assert verdict.rung <= POLICY.top
        assert verdict.rung - previous <= 1 or condition is Condition.LOST
        if verdict.breached and verdict.rung < previous:
            assert verdict.event == "not_us"
        if verdict.rung > previous:
            assert verdict.event in {"climb", "telemetry_lost"}
        assert (verdict.event is not None) == (verdict.rung is not previous) or verdict.event == "not_us"
        assert verdict.reason
        previous, time = verdict.rung, time + 0.25


@settings(max_examples=40, deadline=None)
@given(st.floats(0.3, 0.9), st.integers(0, 1000))
def test_never_holds_for_ever(share: float, seed: int) -> None:
    """A breach that the farm does not cause is let go within half a minute, whatever its size."""
    moments = list(run(Neighbour(own=lambda _: share), 40, seed=seed))
    assert any(m.verdict.event == "not_us" for m in moments)
