"""The guard's rule, as a pure function of its state and one window (DESIGN section 6).

The statistic is the share of decode steps over budget. A breach is a share that lies above the allowed one
with confidence, seen over the last one, two, four, eight, … windows of the last two seconds: gross harm shows
in the window in which it begins, slight harm in two seconds. Windows may be of any length: where farm work
runs on the neighbour's own GPU they are short. On a breach the guard climbs a ladder, mildest rung first, and
goes on climbing while the breach lasts; farm work on the neighbour's own GPU is frozen at once. It lets go
one rung after each clean dwell; the dwell doubles when the breach comes back soon after letting go.

When everything that may be held is held, and the share is no better than it was before, the farm was not
the cause: the guard lets go, says so, and looks away for a while that doubles each time. Only a comparison
of shares can end a hold during a breach, so it never lets go while holding helps.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import IntEnum

from gpu_pinning.guard.windows import Condition, Window, tail_bound, wilson_bounds


class Rung(IntEnum):
    """What is held, mildest first. Each rung includes the ones below it."""

    FREE = 0
    NO_NEW_WORK = 1
    """No claims, no model loads."""
    SLOW_HOST = 2
    """Encodes and uploads run at a fraction of their cores."""
    PAUSE = 3
    """Engines stop at their next step boundary; foreign renderers are frozen."""
    PARK = 4
    """Tasks save a checkpoint and leave the slot."""
    KILL = 5
    """What has not parked is ended; its work goes back to the queue free of charge."""


@dataclass(frozen=True, slots=True)
class Policy:
    """The numbers of the rule. Times in seconds."""

    allowed_share: float = 0.02
    chance: float = 0.002
    """Bound on how likely a look calls a neighbour breached whose share is just the allowed one; the true
    chance is a third of it or less. There are up to six looks a window and twenty windows a second."""
    z: float = 2.326
    """One-sided 99 % for the comparison of a hold with the time before it."""
    history_s: float = 2.0
    """How far back the windows go that a breach is read from."""
    min_steps: int = 4
    """A look at fewer steps says nothing by itself."""
    climb_after: tuple[float, ...] = (0.0, 0.5, 0.75, 6.0, 20.0)
    """How long a breach lasts on each rung before the next is climbed: from FREE, NO_NEW_WORK, …"""
    top: Rung = Rung.PARK
    """The last rung that the guard climbs by itself; ``KILL`` only where an operator allows it."""
    dwell: float = 5.0
    dwell_max: float = 300.0
    flap_within: float = 30.0
    """A breach this soon after letting go is a flap: the dwell doubles."""
    calm: float = 300.0
    """After this long without a breach the dwell returns to its first value."""
    prove_after: float = 3.0
    """How long everything is held before the shares are compared."""
    helped_factor: float = 0.7
    """Holding helped if the share fell to this fraction of what it was, or below the allowed share."""
    look_away: float = 30.0
    look_away_max: float = 900.0


@dataclass(frozen=True, slots=True)
class Tally:
    """Steps and steps over budget, added up."""

    steps: int = 0
    over: int = 0

    def add(self, window: Window) -> Tally:
        """This tally and one window more."""
        return Tally(self.steps + window.steps, self.over + window.over)

    @property
    def share(self) -> float:
        """Share of steps over budget; 0 when there were none."""
        return self.over / self.steps if self.steps else 0.0


@dataclass(frozen=True, slots=True)
class GuardState:
    """What the rule remembers about one neighbour."""

    rung: Rung = Rung.FREE
    since: float = 0.0
    """When this rung was reached."""
    recent: tuple[Window, ...] = ()
    clean_since: float | None = None
    breach_began: float | None = None
    let_go_at: float | None = None
    last_breach: float | None = None
    dwell: float = 0.0
    before: Tally = field(default_factory=Tally)
    """The breach as it was before everything was held."""
    held: Tally = field(default_factory=Tally)
    """Since everything is held and has had time to stop."""
    look_away: float = 0.0
    look_away_until: float | None = None
    lost_hold: bool = False
    """The present hold is for lost telemetry, not for a breach."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to do now. ``event`` names what changed (``None``: nothing did), ``reason`` says why."""

    rung: Rung
    freeze_shared: bool
    """Freeze farm work on the neighbour's own GPU, whatever the rung."""
    event: str | None
    reason: str
    share: float
    breached: bool


def decide(
    state: GuardState, window: Window, policy: Policy, *, shares_gpu: bool = False
) -> tuple[GuardState, Verdict]:
    """One window later: the new state and the verdict.

    ``shares_gpu`` says whether farm work runs on the neighbour's own GPU. A window that begins before the
    last one ended (a clock that jumped back) clears the history and decides nothing by itself.
    """
    if state.recent and window.start < state.recent[-1].start:
        state = replace(state, recent=(), clean_since=None, since=min(state.since, window.end))
    if window.condition is Condition.LOST:
        return _lost(state, window)
    if window.condition is not Condition.SERVING:
        return _undisturbed(state, window, policy)

    if state.lost_hold:
        state = replace(state, lost_hold=False, clean_since=None, recent=())
    oldest = window.end - policy.history_s - 1e-6
    recent = (*(one for one in state.recent if one.start >= oldest), window)
    state = replace(state, recent=recent)
    breached, share = _breach(recent, policy)
    if state.look_away_until is not None:
        if window.end < state.look_away_until:
            return state, Verdict(
                Rung.FREE, False, None, "looking away: holding did not help", share, breached
            )
        state = replace(state, look_away_until=None, recent=(window,))
        breached, share = _breach(state.recent, policy)
    if breached:
        return _on_breach(state, window, policy, share, shares_gpu)
    return _on_clean(state, window, policy, share, shares_gpu)


def _breach(recent: tuple[Window, ...], policy: Policy) -> tuple[bool, float]:
    """Whether the share is above the allowed one with confidence, and the share that shows it best."""
    worst = 0.0
    length = 1
    tally = Tally()
    breached = False
    for count, window in enumerate(reversed(recent), start=1):
        tally = tally.add(window)
        if count == length:
            length *= 2
            enough = tally.steps >= policy.min_steps
            if enough and tail_bound(tally.over, tally.steps, policy.allowed_share) <= policy.chance:
                breached = True
                worst = max(worst, tally.share)
    return breached, worst if breached else tally.share


def _on_breach(
    state: GuardState, window: Window, policy: Policy, share: float, shares_gpu: bool
) -> tuple[GuardState, Verdict]:
    now = window.end
    dwell = state.dwell or policy.dwell
    flapped = state.let_go_at is not None and now - state.let_go_at <= policy.flap_within
    if state.breach_began is None:
        if flapped:
            dwell = min(dwell * 2, policy.dwell_max)
        elif state.last_breach is not None and now - state.last_breach > policy.calm:
            dwell = policy.dwell
        state = replace(state, breach_began=now, before=Tally(), held=Tally())
    state = replace(state, clean_since=None, last_breach=now, dwell=dwell)

    top = min(policy.top, Rung.KILL)
    everything_held = state.rung >= min(Rung.PAUSE, top)
    if not everything_held:
        state = replace(state, before=state.before.add(window))
    elif now - state.since > policy.history_s:
        # the windows before that are still in the history that this breach is read from
        state = replace(state, held=state.held.add(window))
        if now - state.since >= policy.prove_after and not _helps(state, policy):
            return _not_us(state, window, policy, share)

    target = state.rung
    if state.rung < top and now - state.since >= policy.climb_after[state.rung]:
        target = Rung(state.rung + 1)
    if shares_gpu:
        target = max(target, Rung.NO_NEW_WORK)
    if target == state.rung:
        reason = f"{share:.1%} of decode steps over budget; held at {state.rung.name.lower()}"
        return state, Verdict(state.rung, shares_gpu, None, reason, share, True)
    # from PAUSE on everything is held already, so the proof goes on over the higher rungs
    since = state.since if state.rung >= Rung.PAUSE else now
    state = replace(state, rung=target, since=since if target > Rung.PAUSE else now)
    reason = (
        f"{share:.1%} of decode steps over budget ({policy.allowed_share:.1%} allowed): "
        f"climbing to {target.name.lower()}" + ("; farm work on the same GPU is frozen" if shares_gpu else "")
    )
    return state, Verdict(target, shares_gpu, "climb", reason, share, True)


def _helps(state: GuardState, policy: Policy) -> bool:
    """Whether the share while all is held is clearly lower than before; undecided counts as helping."""
    if state.held.steps < policy.min_steps * 4 or state.before.steps == 0:
        return True
    lower, _ = wilson_bounds(state.held.over, state.held.steps, policy.z)
    return lower <= max(policy.allowed_share, state.before.share * policy.helped_factor)


def _not_us(state: GuardState, window: Window, policy: Policy, share: float) -> tuple[GuardState, Verdict]:
    away = min(max(state.look_away * 2, policy.look_away), policy.look_away_max)
    reason = (
        f"not us: {state.held.share:.1%} of steps over budget with the farm held, "
        f"{state.before.share:.1%} before; letting go for {away:.0f} s"
    )
    state = replace(
        state,
        rung=Rung.FREE,
        since=window.end,
        recent=(),
        clean_since=None,
        breach_began=None,
        let_go_at=None,
        look_away=away,
        look_away_until=window.end + away,
        before=Tally(),
        held=Tally(),
    )
    return state, Verdict(Rung.FREE, False, "not_us", reason, share, True)


def _on_clean(
    state: GuardState, window: Window, policy: Policy, share: float, shares_gpu: bool
) -> tuple[GuardState, Verdict]:
    now = window.end
    clean_since = window.start if state.clean_since is None else state.clean_since
    state = replace(state, clean_since=clean_since)
    frozen = shares_gpu and state.rung > Rung.FREE
    if state.rung is Rung.FREE:
        if state.last_breach is not None and now - state.last_breach > policy.calm:
            state = replace(state, dwell=policy.dwell, look_away=0.0, last_breach=None)
        return state, Verdict(Rung.FREE, False, None, "within budget", share, False)
    dwell = state.dwell or policy.dwell
    # the steps that were slow before the hold took effect must leave the history first
    if now - clean_since < dwell:
        return state, Verdict(
            state.rung, frozen, None, f"clean for {now - clean_since:.1f} of {dwell:.0f} s", share, False
        )
    target = Rung(state.rung - 1)
    if target is Rung.PARK or target is Rung.SLOW_HOST or state.rung is Rung.KILL:
        # parked work has left its slot: the next rung down that changes anything is no new work
        target = Rung.NO_NEW_WORK if state.rung >= Rung.PARK else target
    state = replace(
        state,
        rung=target,
        since=now,
        clean_since=now,
        let_go_at=now,
        breach_began=None,
        before=Tally(),
        held=Tally(),
    )
    return state, Verdict(
        target,
        shares_gpu and target > Rung.FREE,
        "let_go",
        f"clean for {dwell:.0f} s: down to {target.name.lower()}",
        share,
        False,
    )


def _lost(state: GuardState, window: Window) -> tuple[GuardState, Verdict]:
    """Without telemetry: no new work and a pause, no further; a hold that is there stays."""
    reason = "nothing can be read from the neighbour: new work is held and running work paused"
    state = replace(state, recent=(), clean_since=None)
    if state.rung >= Rung.PAUSE:
        return state, Verdict(state.rung, False, None, reason, 0.0, False)
    state = replace(state, rung=Rung.PAUSE, since=window.end, lost_hold=True, breach_began=None)
    return state, Verdict(Rung.PAUSE, False, "telemetry_lost", reason, 0.0, False)


def _undisturbed(state: GuardState, window: Window, policy: Policy) -> tuple[GuardState, Verdict]:
    """A neighbour that is idle, starting or stopped cannot be disturbed: clean time, no statistics."""
    state = replace(state, recent=(), lost_hold=False)
    reason = f"the neighbour is {window.condition.value}"
    if window.condition is Condition.STOPPED and state.rung is not Rung.FREE:
        state = replace(
            state, rung=Rung.FREE, since=window.end, clean_since=window.end, breach_began=None, let_go_at=None
        )
        return state, Verdict(Rung.FREE, False, "let_go", reason + ": nothing to protect", 0.0, False)
    if state.rung is Rung.FREE:
        return state, Verdict(Rung.FREE, False, None, reason, 0.0, False)
    clean_since = window.start if state.clean_since is None else state.clean_since
    state = replace(state, clean_since=clean_since)
    return _on_clean(state, window, policy, 0.0, False)
