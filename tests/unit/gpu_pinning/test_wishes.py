"""farm.toml: everything wrong is told at once, with field, value and fix."""

from __future__ import annotations

import re
from math import inf
from pathlib import Path

import pytest

from gpu_pinning.errors import ConfigError
from gpu_pinning.wishes import MigWish, NeighbourWish, PlacementWish, SlotWish, Wishes

FULL = """
name = "rack1-04"
labels = { room = "north" }
preemptible = true

[placement]
system_cores = 2
lowest_class = "B"
device_fence = "required"

[[neighbours]]
name = "decode-0"
role = "decode"
gpus = ["GPU-5a1f0000-1111", "0000:3B:00.0"]
cores = "0-15,64-79"
url = "http://127.0.0.1:8000"
budget_ratio = 1.05

[[slots]]
name = "video"
pools = ["video", "nerf"]
count = "all"
gpus = 1
memory = "64 GiB"

[budgets]
spool = "1.5 TB"

[paths]
work = "/var/lib/stillframe"
"""


def test_a_whole_file_is_read() -> None:
    wishes = Wishes.parse(FULL)
    assert wishes.neighbours[0].cores == (*range(16), *range(64, 80))
    assert wishes.slots[0].memory == 64 * 1024**3
    assert wishes.budgets.spool == 1_500_000_000_000
    assert wishes.preemptible


def test_cpus_names_what_cores_counts() -> None:
    assert Wishes.parse(slot('cpus = "0-3"')).slots[0].cores == (0, 1, 2, 3)
    assert Wishes.parse(slot("cores = 4")).slots[0].cores == 4


def test_an_empty_file_wishes_nothing() -> None:
    assert Wishes.parse("") == Wishes()


def slot(lines: str) -> str:
    return f'[[slots]]\nname = "a"\npools = ["video"]\n{lines}'


def neighbour(lines: str) -> str:
    return f'[[neighbours]]\nname = "n"\n{lines}'


@pytest.mark.parametrize(
    ("text", "field", "value", "fix"),
    [
        (slot("corse = 2"), "slots[0].corse", 2, "did you mean 'cores'"),
        (slot('cores = 2\ncpus = "0-3"'), "slots[0]", "a", "has both cores and cpus"),
        (slot('cpus = "4-2"'), "slots[0].cpus", "4-2", "write for example '0-3,8'"),
        (slot("cpus = 2"), "slots[0].cpus", 2, "to count cores write cores = 4"),
        (slot("cores = 0"), "slots[0].cores", 0, "must be 1 or more"),
        (slot('cores = "4-2"'), "slots[0].cores", "4-2", "write for example '0-3,8'"),
        (slot("gpus = [1]"), "slots[0].gpus[0]", 1, "number GPUs three ways"),
        (slot('gpus = ["cuda:1"]'), "slots[0].gpus[0]", "cuda:1", "UUID"),
        (slot('memory = "64 gigs"'), "slots[0].memory", "64 gigs", "'64 GiB'"),
        (slot("mps_percent = 20"), "slots[0]", "a", "exactly one GPU named"),
        (slot('gpus = 1\nmig = "1g.5gb"'), "slots[0]", "a", "both gpus and mig"),
        (slot('share_with = "x"'), "slots[0]", "a", "needs mps_percent or mig"),
        (slot('count = 2\ncores = "0-3"'), "slots[0]", "a", "one [[slots]] each"),
        (slot("count = 0"), "slots[0].count", 0, "must be 1 or more, or 'all'"),
        ('[[slots]]\nname = "a"\npools = ["rendr"]', "slots[0].pools[0]", "rendr", "'render'"),
        (
            '[[slots]]\nname = "A b"\npools = ["video"]',
            "slots[0].name",
            "A b",
            "small letters, digits and dashes",
        ),
        ('[[slots]]\nname = "a"', "slots[0].pools", None, "is missing"),
        ('[[neighbours]]\nname = "n"', "neighbours[0]", "n", "neither gpus, mig nor cores"),
        (neighbour('gpus = ["3b:00.0"]\nmig = ["MIG-1"]'), "neighbours[0]", "n", "both gpus and mig"),
        # slots a-0 and a-1: the second a-1 would take the first one's place
        (slot("count = 2\n") + slot("").replace('"a"', '"a-1"'), "farm.toml", "…", "rename it"),
        (slot('count = "all"\n') + slot("").replace('"a"', '"a-77"'), "farm.toml", "…", "rename it"),
        ('[[neighbours]]\nname = "n"\ncores = 2\nrole = "both"', "neighbours[0].role", "both", "'decode'"),
        (
            '[[neighbours]]\nname = "n"\ncores = 2\nurl = "localhost:80"',
            "neighbours[0].url",
            "localhost:80",
            "no URL",
        ),
        ("[placement]\nlowest_class = 'D'", "placement.lowest_class", "D", "'A'"),
        ("[plcement]\n", "plcement", "…", "did you mean 'placement'"),
        (slot("") + slot(""), "farm.toml", "…", "the name 'a' stands twice"),
        (slot('mig = "any"\nshare_with = "n"'), "farm.toml", "…", "no neighbour is called 'n'"),
        # values of another type
        (slot("memory = true"), "slots[0].memory", True, "must be a size"),
        (slot('memory = "' + "9" * 400 + '"'), "slots[0].memory", "9" * 400, "or less"),
        (slot("count = true"), "slots[0].count", True, "must be a whole number, or 'all'"),
        (slot('count = "2"'), "slots[0].count", "2", "must be a whole number, or 'all'"),
        (slot("gpus = true"), "slots[0].gpus", True, "must be a whole number, or a list in brackets"),
        (slot("cores = true"), "slots[0].cores", True, "must be 1 or more, or a list of CPUs"),
        (slot("cores = 2.0"), "slots[0].cores", 2.0, "must be 1 or more, or a list of CPUs"),
        (slot('nice = "1"'), "slots[0].nice", "1", "must be a whole number"),
        (slot("threads = 999999999"), "slots[0].threads", 999999999, "must be 4096 or less"),
        (slot("memory_nodes = 1"), "slots[0].memory_nodes", 1, "must be a list of memory nodes"),
        (slot("memory_nodes = [true]"), "slots[0].memory_nodes[0]", True, "must be a whole number"),
        (slot('pools = "video"').replace('pools = ["video"]\n', ""), "slots[0].pools", "video", "be a list"),
        ('preemptible = "yes"', "preemptible", "yes", "must be true or false, without quotes"),
        ("labels = { row = 7 }", "labels.row", 7, "must be text in quotes"),
        ('[placement]\nsystem_cores = "1"', "placement.system_cores", "1", "must be a whole number"),
        ("placement = 3", "placement", 3, "must be a table, begun by [placement]"),
        ("slots = 3", "slots", 3, "must be tables, each begun by [[slots]]"),
        ("slots = [3]", "slots[0]", 3, "must be a table, begun by [[slots]]"),
        (neighbour("cores = 1\nbudget_ms = inf"), "neighbours[0].budget_ms", inf, "finite number"),
        (neighbour("cores = 1\nbudget_ratio = true"), "neighbours[0].budget_ratio", True, "be a number"),
        # what no program can be given
        (
            slot('environment = { "A=B" = "x" }'),
            "slots[0].environment",
            "…",
            "'A=B' is no name",
        ),
        (slot('environment = { "" = "x" }'), "slots[0].environment", "…", "'' is no name"),
        (slot('environment = { A = "x\\u0000" }'), "slots[0].environment.A", "x\0", "holds a zero byte"),
        ('[paths]\nwork = "/a\\u0000b"', "paths.work", "/a\0b", "holds a zero byte"),
        (slot(f'environment = {{ A = "{"x" * 200_000}" }}'), "slots[0].environment", "…", "128 KiB"),
        # what the plan sets
        (slot('environment = { CUDA_VISIBLE_DEVICES = "0" }'), "slots[0].environment", "…", "plan sets"),
        (slot('environment = { STILLFRAME_SLOT_PCI = "" }'), "slots[0].environment", "…", "plan sets"),
        (slot('environment = { OMP_NUM_THREADS = "x" }'), "slots[0].environment", "…", "use threads"),
        ("a = 1\nb = \n", "TOML", "b = ", "line 2"),
    ],
)
def test_bad_values_name_field_value_and_fix(text: str, field: str, value: object, fix: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Wishes.parse(text)
    assert [(f, v) for f, v, _ in caught.value.problems] == [(field, value)]
    assert fix in caught.value.problems[0][2]


@pytest.mark.parametrize("other", ["a-2", "a-01", "a-1-x", "b-1"])
def test_names_that_no_numbered_slot_has_are_free(other: str) -> None:
    wishes = Wishes.parse(slot("count = 2\n") + slot("").replace('"a"', f'"{other}"'))
    assert [wish.name for wish in wishes.slots] == ["a", other]


def test_all_problems_come_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        Wishes.parse(slot("cores = 0\ncorse = 1\nnice = 40"))
    assert [field for field, _, _ in caught.value.problems] == [
        "slots[0].cores",
        "slots[0].nice",
        "slots[0].corse",
    ]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"farm\.toml"):
        Wishes.load(tmp_path / "farm.toml")


def test_the_reference_s_example_and_tables_fit_the_model() -> None:
    text = (Path(__file__).parents[3] / "docs/reference/farm_toml.md").read_text()
    example = text.partition("```toml\n")[2].partition("```")[0]
    assert [slot.name for slot in Wishes.parse(example).slots] == ["video", "encode"]
    for head, model in (
        ("Top level", Wishes),
        ("`[placement]`", PlacementWish),
        ("`[[neighbours]]`", NeighbourWish),
        ("`[[slots]]`", SlotWish),
        ("`[[mig]]`", MigWish),
    ):
        part = text.partition(f"## {head}\n")[2].partition("\n## ")[0]
        first_cells = [row.split("|")[1] for row in part.splitlines() if row.startswith("|")]
        told = {name for cell in first_cells for name in re.findall(r"`(\w+)`", cell)}
        fields = set(model.model_fields)
        if model is Wishes:
            fields -= {"placement", "neighbours", "slots", "mig", "budgets", "paths"}
        assert told - {"cpus"} == fields, head


def test_two_ways_to_name_cores_hide_no_other_fault() -> None:
    text = slot('cores = 2\ncpus = "0-3"\nnice = 70\n') + slot("cpus = 3\ncount = 0").replace('"a"', '"b"')
    with pytest.raises(ConfigError) as caught:
        Wishes.parse(text)
    assert [field for field, _, _ in caught.value.problems] == [
        "slots[0]",
        "slots[1].cpus",
        "slots[0].nice",
        "slots[1].count",
    ]


def test_all_that_does_not_go_together_in_a_slot_is_told() -> None:
    with pytest.raises(ConfigError) as caught:
        Wishes.parse(slot('gpus = 1\nmig = "any"\nmps_percent = 20\ncount = 2\ncpus = "0-1"'))
    (problem,) = caught.value.problems
    for part in ("both gpus and mig", "exactly one GPU named", "both mps_percent and mig", "[[slots]] each"):
        assert part in problem[2]


WRONG = {"text": "'x'", "true": "true", "real": "1.5", "whole": "3", "list": "[[1]]", "table": "{ a = [1] }"}
FIELDS = [
    *(f"[placement]\n{name}" for name in PlacementWish.model_fields),
    *(
        f"[[slots]]\nname = 'a'\npools = ['video']\n{n}"
        for n in SlotWish.model_fields
        if n not in ("name", "pools")
    ),
    *(f"[[neighbours]]\nname = 'n'\n{name}" for name in NeighbourWish.model_fields if name != "name"),
]


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("wrong", WRONG)
def test_no_fault_speaks_of_the_program_that_reads_the_file(field: str, wrong: str) -> None:
    try:
        Wishes.parse(f"{field} = {WRONG[wrong]}\n")
    except ConfigError as error:
        for _, _, fix in error.problems:
            assert not re.search(
                r"Input|tuple|Wish|[Bb]oolean|integer|dictionary|instance|int\b|str\b", fix
            ), fix
    else:
        assert wrong not in ("list", "table"), "nothing takes these"


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://127.0.0.1:8000/v1", "leave that out"),
        ("http://127.0.0.1:8000/llm/v1/", "leave that out"),
        ("http://me:secret@127.0.0.1:8000", "FARM_NEIGHBOUR_KEY"),
    ],
)
def test_a_servers_address_is_its_base_and_holds_no_secret(url: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Wishes.parse(f'[[neighbours]]\nname = "llm"\ncores = 1\nurl = "{url}"\n')
    ((field, _, message),) = caught.value.problems
    assert field == "neighbours[0].url"
    assert words in message
