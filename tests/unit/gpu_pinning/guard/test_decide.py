"""The guard's rule against simulated neighbours."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_pinning.guard.decide import GuardState, Policy, Rung, decide
from gpu_pinning.guard.simulate import Moment, Neighbour, run
from gpu_pinning.guard.windows import Condition, Window, tail_bound, wilson_bounds

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


@pytest.mark.parametrize(
    ("hits", "trials", "share", "exact"),
    # sums of the binomial distribution, from its formula
    [(3, 7, 0.02, 2.604e-4), (5, 25, 0.02, 1.220e-4), (4, 4, 0.02, 1.6e-7), (12, 200, 0.02, 7.834e-4)],
)
def test_the_tail_bound_is_never_under_the_exact_tail_and_near_it(
    hits: int, trials: int, share: float, exact: float
) -> None:
    from math import comb

    summed = sum(comb(trials, k) * share**k * (1 - share) ** (trials - k) for k in range(hits, trials + 1))
    assert summed == pytest.approx(exact, rel=0.02)
    assert exact <= tail_bound(hits, trials, share) <= 8 * exact


def test_what_was_to_be_expected_is_no_surprise() -> None:
    assert tail_bound(2, 100, 0.02) == 1.0 and tail_bound(0, 0, 0.02) == 1.0


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


@pytest.mark.parametrize("steps_per_second", [60.0, 140.0, 500.0])
@pytest.mark.parametrize("begins", [5.0, 5.03])
def test_short_windows_freeze_a_shared_gpu_within_three_of_them(
    steps_per_second: float, begins: float
) -> None:
    neighbour = Neighbour(steps_per_second, harm=lambda t: 0.95 if t >= begins else 0.0)
    for seed in range(10):
        moments = list(run(neighbour, 10, window_s=0.05, lag_s=0.01, shares_gpu=True, seed=seed))
        frozen = next(m for m in moments if m.verdict.freeze_shared)
        assert frozen.window.end <= begins + 0.2, "three windows of 50 ms, and the one that it began in"
        assert frozen.window.end > begins


def test_short_windows_do_not_hold_a_quiet_neighbour() -> None:
    held = total = 0
    for seed in range(10):
        for moment in run(Neighbour(140.0), 60, window_s=0.05, lag_s=0.01, shares_gpu=True, seed=seed):
            held += moment.verdict.rung > Rung.FREE
            total += 1
    assert held / total < 0.05


def test_slight_harm_is_found_with_short_windows_too() -> None:
    neighbour = Neighbour(harm=lambda t: 0.10 if t >= 10 else 0.0)
    moments = list(run(neighbour, 30, window_s=0.05, lag_s=0.01, shares_gpu=True))
    assert 10 < next(m for m in moments if m.verdict.freeze_shared).window.end < 13


@pytest.mark.parametrize("over", [1, 2])
def test_one_or_two_slow_steps_of_a_handful_are_chance(over: int) -> None:
    state, verdict = decide(GuardState(), Window(0.0, 0.05, Condition.SERVING, 4, over), POLICY)
    assert not verdict.breached
    _, verdict = decide(state, Window(0.05, 0.10, Condition.SERVING, 4, 3 - over), POLICY)
    assert verdict.breached, "three of eight are not"


def test_a_load_of_our_own_making_at_each_restart_does_not_make_it_flap() -> None:
    """Work that is let go catches up (a burst that harms for three seconds) and is harmless after that."""

    class Restarts:
        def __init__(self) -> None:
            self.working_since: float | None = None

    seen = Restarts()

    def harm(time: float) -> float:
        seen.working_since = time if seen.working_since is None else seen.working_since
        return 0.6 if time - seen.working_since < 3.0 else 0.0

    state, rung, count, pauses = GuardState(), Rung.FREE, 0, 0
    for index in range(4 * 600):
        time = index * 0.25
        if rung >= Rung.PAUSE:
            seen.working_since = None
            share = 0.0
        else:
            share = harm(time)
        window = Window(time, time + 0.25, Condition.SERVING, 25, round(25 * share))
        state, verdict = decide(state, window, POLICY)
        if verdict.rung >= Rung.PAUSE > rung:
            pauses += 1
        rung, count = verdict.rung, count + 1
    # each pause is followed by a dwell that doubles, up to 300 s: 5, 10, 20, … in 600 s
    assert 2 <= pauses <= 8


def test_silence_in_the_middle_of_a_hold_keeps_it_and_then_lets_go() -> None:
    def condition(time: float) -> Condition:
        return Condition.LOST if 12 <= time < 20 else Condition.SERVING

    moments = list(run(Neighbour(harm=lambda t: 0.6 if 5 <= t < 12 else 0.0, condition=condition), 90))
    lost = [m for m in moments if m.window.condition is Condition.LOST]
    assert lost and min(m.verdict.rung for m in lost) >= Rung.PAUSE
    assert moments[-1].verdict.rung is Rung.FREE


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


def test_never_lets_go_while_holding_helps_although_the_breach_goes_on() -> None:
    """Something else slows 8 % of the steps, the farm another 50 %: holding helps, and is no cure."""
    for seed in range(5):
        neighbour = Neighbour(harm=lambda _: 0.5, own=lambda _: 0.08)
        moments = list(run(neighbour, 60, seed=seed))
        held = after(moments, first(moments, Rung.PAUSE))
        assert sum(m.verdict.breached for m in held) > len(held) / 2, "the breach goes on while all is held"
        assert all(m.verdict.rung >= Rung.PAUSE for m in held)
        assert not [m for m in moments if m.verdict.event in ("not_us", "let_go")]


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


def test_windows_from_before_a_clock_jumped_back_are_forgotten() -> None:
    state = GuardState()
    for index in range(8):
        start = 1000 + 0.25 * index
        state, verdict = decide(state, Window(start, start + 0.25, Condition.SERVING, 25, 20), POLICY)
    assert verdict.breached
    state, verdict = decide(state, Window(3.0, 3.25, Condition.SERVING, 25, 0), POLICY)
    assert not verdict.breached, "the slow steps lie in a time that is not the present one's past"
    for index in range(400):
        start = 3.25 + 0.25 * index
        state, verdict = decide(state, Window(start, start + 0.25, Condition.SERVING, 25, 0), POLICY)
    assert verdict.rung is Rung.FREE, "and the dwell is counted on the new clock"


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
