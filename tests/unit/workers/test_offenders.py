"""Slots whose work was frozen again and again."""

from __future__ import annotations

from workers.offenders import AWAY_MOST_S, AWAY_S, WITHIN_S, Offenders


def test_the_second_freeze_within_minutes_sends_the_work_away() -> None:
    offenders = Offenders()
    assert not offenders.froze("slot", 100.0)
    assert not offenders.away("slot", 100.0)
    assert offenders.froze("slot", 110.0)
    assert offenders.away("slot", 110.0 + AWAY_S - 1) and not offenders.away("slot", 110.0 + AWAY_S + 1)
    assert not offenders.away("other", 111.0)


def test_two_freezes_far_apart_are_two_accidents() -> None:
    offenders = Offenders()
    assert not offenders.froze("slot", 0.0)
    assert not offenders.froze("slot", WITHIN_S + 1)


def test_the_time_away_doubles_up_to_an_hour_and_is_forgotten_in_the_end() -> None:
    offenders, now, spans = Offenders(), 0.0, []
    for _ in range(8):
        offenders.froze("slot", now)
        assert offenders.froze("slot", now + 1)
        begin = now + 1
        now = begin
        while offenders.away("slot", now):
            now += 10
        spans.append(round(now - begin, -1))
    assert spans == [AWAY_S * 2**n for n in range(5)] + [AWAY_MOST_S] * 3
    now += 4 * 3600
    offenders.froze("slot", now)
    offenders.froze("slot", now + 1)
    assert not offenders.away("slot", now + 1 + AWAY_S)


def test_a_freeze_while_it_leaves_is_not_counted_again() -> None:
    offenders = Offenders()
    offenders.froze("slot", 0.0)
    offenders.froze("slot", 1.0)
    assert not offenders.froze("slot", 2.0)
