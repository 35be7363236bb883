"""The rules of picking, each alone, and what holds whatever the situation is."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farm.scheduler.fit import fits
from farm.scheduler.picking import (
    Candidate,
    IdleSlot,
    PickRules,
    PoolLimits,
    ProjectLimits,
    ReadyStep,
    Situation,
    bundle_size,
    choose,
    take_bundle,
)

RULES = PickRules()


def step(id: str, **fields: Any) -> ReadyStep:
    values: dict[str, Any] = {
        "id": id, "job_id": f"job-{id}", "project_id": "p", "pool": "render", "priority": 50,
        "created_at": 0.0, "position": 0, "n_ready": 1,
    }  # fmt: skip
    return ReadyStep(**(values | fields))


def slot(id: str, *pools: str, warm: tuple[str, ...] = (), **fields: Any) -> IdleSlot:
    return IdleSlot(id, pools or ("render",), warm=frozenset(warm), **fields)


def chosen(**fields: Any) -> list[tuple[str, str]]:
    values: dict[str, Any] = {"now": 0.0, "slots": [slot("s1")], "steps": []}
    return [(pick.slot_id, pick.step.id) for pick in choose(Situation(**(values | fields)))]


# --- order within a project ----------------------------------------------------------------------------


def test_higher_priority_goes_first() -> None:
    assert chosen(steps=[step("low", priority=10), step("high", priority=60)]) == [("s1", "high")]


def test_age_lifts_a_job_past_younger_ones_of_higher_priority() -> None:
    # 10 points an hour: after 5 h the old job has 50 points more, which beats 40, and not 60
    old = step("old", priority=10, created_at=0.0)
    five_hours = 5 * 3600.0
    young = {"created_at": five_hours, "now": five_hours}
    assert chosen(steps=[old, step("young", priority=50, created_at=five_hours)], now=young["now"]) == [
        ("s1", "old")
    ]
    assert chosen(steps=[old, step("young", priority=70, created_at=five_hours)], now=young["now"]) == [
        ("s1", "young")
    ]


def test_equal_jobs_go_by_age_then_steps_by_position() -> None:
    later = step("b", created_at=1.0, job_id="j2")
    first, second = step("z", job_id="j1", position=0), step("a", job_id="j1", position=1)
    rules = replace(RULES, age_boost_per_hour=0.0)
    slots = [slot("s1"), slot("s2"), slot("s3")]
    picks = chosen(steps=[later, second, first], slots=slots, rules=rules)
    assert [id for _, id in picks] == ["z", "a", "b"]


# --- fair share ----------------------------------------------------------------------------------------


def test_project_furthest_below_its_share_goes_first() -> None:
    steps = [step("a", project_id="a"), step("b", project_id="b")]
    projects = {"a": ProjectLimits(share=1), "b": ProjectLimits(share=3)}
    # a has used 1 per share; b, with 2 or 4 slot-seconds, 0.67 or 1.33
    for used, winner in ((2.0, "b"), (4.0, "a")):
        use = {("render", "a"): 1.0, ("render", "b"): used}
        assert chosen(steps=steps, projects=projects, use=use) == [("s1", winner)]


def test_eight_idle_slots_are_split_by_share_at_once() -> None:
    steps = [step("a", project_id="a", n_ready=100), step("b", project_id="b", n_ready=100)]
    projects = {"a": ProjectLimits(share=1), "b": ProjectLimits(share=3)}
    slots = [slot(f"s{i}") for i in range(8)]
    assert Counter(id for _, id in chosen(steps=steps, projects=projects, slots=slots)) == {"a": 2, "b": 6}


def test_priority_of_one_project_does_not_outweigh_the_share_of_another() -> None:
    steps = [step("a", project_id="a", priority=100), step("b", project_id="b", priority=0)]
    assert chosen(steps=steps, use={("render", "a"): 1.0}) == [("s1", "b")]


def test_project_without_a_share_gets_what_nobody_else_wants() -> None:
    steps = [step("a", project_id="a"), step("b", project_id="b")]
    projects = {"a": ProjectLimits(share=0), "b": ProjectLimits(share=1)}
    assert chosen(steps=steps, projects=projects, use={("render", "b"): 1e9}) == [("s1", "b")]
    assert chosen(steps=steps[:1], projects=projects) == [("s1", "a")]


# --- limits --------------------------------------------------------------------------------------------


def test_caps_of_project_and_pool_hold_together_with_what_runs() -> None:
    slots = [slot(f"s{i}") for i in range(5)]
    steps = [step("a", n_ready=9)]
    busy = {("render", "p"): 2, ("video", "p"): 1, ("render", "q"): 1}
    # the project's cap counts all its slots (3 busy), the pool's all of its (3 busy)
    assert len(chosen(steps=steps, slots=slots, busy=busy, projects={"p": ProjectLimits(max_slots=4)})) == 1
    assert len(chosen(steps=steps, slots=slots, busy=busy, pools={"render": PoolLimits(max_slots=5)})) == 2
    assert chosen(steps=steps, slots=slots, busy=busy, projects={"p": ProjectLimits(max_slots=3)}) == []
    assert len(chosen(steps=steps, slots=slots, busy=busy)) == 5


def test_spent_quota_and_paused_pool_give_nothing() -> None:
    steps = [step("a")]
    spent = {"p": ProjectLimits(quota_slot_s=10, used_slot_s=10)}
    left = {"p": ProjectLimits(quota_slot_s=10, used_slot_s=9)}
    assert chosen(steps=steps, projects=spent) == []
    assert chosen(steps=steps, projects=left) == [("s1", "a")]
    assert chosen(steps=steps, pools={"render": PoolLimits(paused=True)}) == []


def test_capped_project_does_not_hold_up_others() -> None:
    steps = [step("a", project_id="a"), step("b", project_id="b")]
    projects = {"a": ProjectLimits(max_slots=0)}
    assert chosen(steps=steps, projects=projects, use={("render", "b"): 99.0}) == [("s1", "b")]


# --- pools and devices ---------------------------------------------------------------------------------


def test_first_pool_with_work_wins() -> None:
    gpu = slot("gpu", "video", "render")
    steps = [step("r", priority=100), step("v", pool="video", priority=0)]
    assert chosen(slots=[gpu], steps=steps) == [("gpu", "v")]
    assert chosen(slots=[gpu], steps=steps[:1]) == [("gpu", "r")]


def test_slots_of_a_pool_come_before_slots_that_are_lent_to_it() -> None:
    slots = [slot("a-gpu", "video", "render"), slot("z-cpu", "render")]
    assert chosen(slots=slots, steps=[step("r")]) == [("z-cpu", "r")]
    assert len(chosen(slots=slots, steps=[step("r", n_ready=2)])) == 2


def test_step_waits_for_a_slot_with_its_device_and_others_pass() -> None:
    needs = step("gpu", requires={"device": "cuda"}, priority=90)
    assert chosen(steps=[needs]) == []
    assert chosen(steps=[needs, step("cpu")]) == [("s1", "cpu")]
    assert chosen(steps=[needs, step("cpu")], slots=[slot("g", device={"device": "cuda"})]) == [("g", "gpu")]


# --- warm slots ----------------------------------------------------------------------------------------


def test_warm_slot_is_preferred_for_its_step() -> None:
    slots = [slot("s1"), slot("s2", warm=("scene",))]
    assert chosen(slots=slots, steps=[step("a", warm_key="scene")]) == [("s2", "a")]


def test_cold_step_takes_the_slot_that_nobody_wants_warm() -> None:
    slots = [slot("s1", warm=("b",)), slot("s2")]
    steps = [step("a", warm_key="a", created_at=0), step("b", warm_key="b", created_at=1)]
    assert chosen(slots=slots, steps=steps, now=1.0) == [("s2", "a"), ("s1", "b")]


def test_warm_task_passes_at_most_32_places() -> None:
    slots = [slot("s1", warm=("b",))]
    for ahead, winner in ((31, "b"), (32, "a")):
        steps = [step("a", n_ready=ahead, warm_key="a"), step("b", warm_key="b", created_at=1.0)]
        assert chosen(slots=slots, steps=steps, now=1.0) == [("s1", winner)]


def test_warm_task_never_passes_one_of_higher_priority() -> None:
    steps = [step("a", priority=51), step("b", priority=50, warm_key="b")]
    assert chosen(slots=[slot("s1", warm=("b",))], steps=steps) == [("s1", "a")]


def test_no_step_is_passed_for_ever() -> None:
    steps = [step("a"), step("b", warm_key="b", created_at=1.0)]
    slots = [slot("s1", warm=("b",))]
    assert chosen(slots=slots, steps=steps, now=1.0, passed={"a": 31}) == [("s1", "b")]
    assert chosen(slots=slots, steps=steps, now=1.0, passed={"a": 32}) == [("s1", "a")]


def test_who_was_passed_is_said() -> None:
    situation = Situation(
        1.0, [slot("s1", warm=("b",))], [step("a"), step("b", warm_key="b", created_at=1.0)]
    )
    (pick,) = choose(situation)
    assert (pick.step.id, pick.passed) == ("b", ("a",))


# --- bundles -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mean", "ready", "slots", "expected"),
    [
        (0.1, 100, 1, 10),  # ten of them last a second
        (0.001, 100, 1, 16),  # never more than 16
        (0.3, 100, 1, 3),
        (0.6, 100, 1, 1),
        (30.0, 100, 1, 1),
        (0.01, 8, 4, 2),  # shared out among the slots that wait
        (0.01, 3, 1, 3),
        (None, 100, 1, 16),  # not measured: the tasks' own expectations decide
        (0.0, 100, 1, 16),
    ],
)
def test_bundle_size(mean: float | None, ready: int, slots: int, expected: int) -> None:
    assert bundle_size(mean, ready, slots, RULES) == expected


def tasks(*seconds: float | None, solo: tuple[int, ...] = ()) -> list[Candidate]:
    return [Candidate(str(i), i in solo, s) for i, s in enumerate(seconds)]


def test_unmeasured_tasks_travel_alone_unless_their_plan_knows() -> None:
    assert take_bundle(tasks(None, None), 16, None, RULES) == ["0"]
    assert take_bundle(tasks(0.4, 0.4, 0.4), 16, None, RULES) == ["0", "1"]
    assert take_bundle(tasks(0.4, None), 16, None, RULES) == ["0"]
    assert take_bundle(tasks(5.0, 0.1), 16, None, RULES) == ["0"]
    assert take_bundle(tasks(None, None, None), 2, 0.1, RULES) == ["0", "1"]
    assert take_bundle([], 16, 0.1, RULES) == []


def test_task_that_killed_a_slot_travels_alone() -> None:
    assert take_bundle(tasks(0, 0, 0, solo=(0,)), 16, 0.01, RULES) == ["0"]
    assert take_bundle(tasks(0, 0, 0, solo=(1,)), 16, 0.01, RULES) == ["0", "2"]


# --- whatever the situation is -------------------------------------------------------------------------

POOLS = ("render", "encode", "video")
KEYS = ("k1", "k2", "k3")
PROJECTS = ("p1", "p2", "p3")


@st.composite
def situations(draw: st.DrawFn) -> Situation:
    devices = st.sampled_from([{}, {"device": "cuda"}, {"device": "cuda", "vram": 80}])
    slots = [
        IdleSlot(
            f"s{i}",
            tuple(draw(st.lists(st.sampled_from(POOLS), min_size=1, max_size=3, unique=True))),
            draw(devices),
            draw(st.frozensets(st.sampled_from(KEYS))),
        )
        for i in range(draw(st.integers(0, 8)))
    ]
    steps = [
        ReadyStep(
            id=f"t{i}",
            job_id=f"j{draw(st.integers(0, 3))}",
            project_id=draw(st.sampled_from(PROJECTS)),
            pool=draw(st.sampled_from(POOLS)),
            priority=draw(st.integers(0, 100)),
            created_at=draw(st.floats(0, 1e5)),
            position=i,
            n_ready=draw(st.integers(1, 50)),
            requires=draw(st.sampled_from([{}, {}, {"device": "cuda"}, {"min_vram": 80}])),
            warm_key=draw(st.sampled_from([None, *KEYS])),
            mean_task_s=draw(st.none() | st.floats(0, 100)),
        )
        for i in range(draw(st.integers(0, 10)))
    ]
    caps = st.none() | st.integers(0, 6)
    projects = {
        p: ProjectLimits(
            draw(st.floats(0, 10)), draw(caps), draw(st.none() | st.floats(0, 5)), draw(st.floats(0, 6))
        )
        for p in PROJECTS
    }
    pools = {p: PoolLimits(draw(caps), draw(st.booleans()) and draw(st.booleans())) for p in POOLS}
    pairs = st.tuples(st.sampled_from(POOLS), st.sampled_from(PROJECTS))
    busy = draw(st.dictionaries(pairs, st.integers(0, 4)))
    use = draw(st.dictionaries(pairs, st.floats(0, 1e6)))
    passed = draw(st.dictionaries(st.sampled_from([f"t{i}" for i in range(10)]), st.integers(0, 40)))
    return Situation(1e5, slots, steps, projects, pools, busy, use, passed)


@given(situations())
@settings(max_examples=150, deadline=None)
def test_what_always_holds(situation: Situation) -> None:
    picks = choose(situation)
    slots = {slot.id: slot for slot in situation.slots}
    assert len({pick.slot_id for pick in picks}) == len(picks)
    taken: Counter[str] = Counter()
    used_by_project: Counter[str] = Counter()
    used_by_pool: Counter[str] = Counter()
    for (pool, project), number in situation.busy.items():
        used_by_project[project] += number
        used_by_pool[pool] += number
    for pick in picks:
        taken[pick.step.id] += pick.max_tasks
        assert 1 <= pick.max_tasks <= 16
        assert fits(pick.step.requires, slots[pick.slot_id].device)
        assert pick.step.pool in slots[pick.slot_id].pools
        assert not situation.pools[pick.step.pool].paused
        limits = situation.projects[pick.step.project_id]
        assert limits.quota_slot_s is None or limits.used_slot_s < limits.quota_slot_s
        used_by_project[pick.step.project_id] += 1
        used_by_pool[pick.step.pool] += 1
        assert limits.max_slots is None or used_by_project[pick.step.project_id] <= limits.max_slots
        pool_cap = situation.pools[pick.step.pool].max_slots
        assert pool_cap is None or used_by_pool[pick.step.pool] <= pool_cap
        for other in pick.passed:
            passed_step = next(s for s in situation.steps if s.id == other)
            assert passed_step.project_id == pick.step.project_id
            assert passed_step.priority <= pick.step.priority
            assert pick.step.warm_key in slots[pick.slot_id].warm
    assert all(taken[step.id] <= step.n_ready for step in situation.steps)


@given(situations())
@settings(max_examples=80, deadline=None)
def test_no_slot_idles_beside_work_that_it_could_do(situation: Situation) -> None:
    picks = choose(situation)
    busy_slots = {pick.slot_id for pick in picks}
    taken = Counter[str]()
    slots_of_project, slots_of_pool = Counter[str](), Counter[str]()
    for (pool, project), number in situation.busy.items():
        slots_of_project[project] += number
        slots_of_pool[pool] += number
    for pick in picks:
        taken[pick.step.id] += pick.max_tasks
        slots_of_project[pick.step.project_id] += 1
        slots_of_pool[pick.step.pool] += 1
    for step_ in situation.steps:
        if taken[step_.id] >= step_.n_ready:
            continue
        project, pool = situation.projects[step_.project_id], situation.pools[step_.pool]
        blocked = (
            pool.paused
            or (project.quota_slot_s is not None and project.used_slot_s >= project.quota_slot_s)
            or (project.max_slots is not None and slots_of_project[step_.project_id] >= project.max_slots)
            or (pool.max_slots is not None and slots_of_pool[step_.pool] >= pool.max_slots)
        )
        if not blocked:
            for idle in situation.slots:
                if idle.id not in busy_slots and step_.pool in idle.pools:
                    assert not fits(step_.requires, idle.device)


@given(situations(), st.randoms())
@settings(max_examples=50, deadline=None)
def test_order_of_the_input_does_not_count(situation: Situation, random: Any) -> None:
    slots, steps = list(situation.slots), list(situation.steps)
    random.shuffle(slots)
    random.shuffle(steps)
    assert choose(situation) == choose(replace(situation, slots=slots, steps=steps))


@given(situations(), st.integers(0, 3))
@settings(max_examples=50, deadline=None)
def test_limit_gives_the_first_ones(situation: Situation, limit: int) -> None:
    assert choose(situation, limit) == choose(situation)[:limit]
