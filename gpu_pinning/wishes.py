"""farm.toml: what the operator wants of a node, as typed, strict data.

Everything that describes one node stands in this file: its name, its neighbours, its slots, its budgets and
its paths. Unknown fields are refused. Errors come all at once, each with field, value and fix.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    ValidatorFunctionWrapHandler,
    model_validator,
)

from gpu_pinning.errors import ConfigError
from gpu_pinning.wish_faults import line_of, zero_bytes
from gpu_pinning.wish_faults import problems as problems_of
from gpu_pinning.wish_values import (
    MOST_CPUS,
    MOST_PROCESSES,
    MOST_THREADS,
    NAME,
    Cores,
    Environment,
    Flag,
    GpuName,
    MemoryNodes,
    Rate,
    Size,
    Url,
    Whole,
)

Pool = Literal["video", "nerf", "render", "encode", "openjd"]
POOLS: tuple[str, ...] = get_args(Pool)
Role = Literal["decode", "prefill"]
Guarantee = Literal["A", "B", "C"]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", str_strip_whitespace=True)


class PlacementWish(_Strict):
    """``[placement]``"""

    system_cores: Annotated[Whole, Field(ge=0, le=MOST_CPUS)] = 0
    """Physical cores, lowest first, left to the system."""
    lowest_class: Guarantee = "C"
    """Slots that cannot reach this class beside every neighbour are refused."""
    move_interrupts: Flag = True
    """Plan to move device interrupts off the cores of decode neighbours."""
    share_cores: Flag = False
    """Slots that find no free core sit on the cores of other slots, never of neighbours: for small
    machines."""
    copy_rate: Rate = 4 << 30
    """Bytes per second between a GPU and the host in slots that share a PCIe switch with a decode neighbour;
    0: as fast as it goes."""
    device_fence: Literal["required", "try"] = "try"
    """``required`` refuses to start a slot whose device nodes cannot be fenced."""


def _cpus_fault(table: dict[str, Any]) -> tuple[str, str] | None:
    """What is wrong with how a table names its cores: the field (empty: the whole table) and the fix."""
    if "cpus" not in table:
        return None
    if "cores" in table:
        return "", "has both cores and cpus; cores counts cores, cpus names CPUs: write one"
    if not isinstance(table["cpus"], str):
        return "cpus", "must name CPUs, for example cpus = '0-15'; to count cores write cores = 4"
    return None


class _Seated(_Strict):
    """What has cores: ``cores`` counts them, ``cpus`` names CPUs; both end in ``cores``."""

    cores: Cores | None = None
    """A number of whole physical cores, or the CPUs themselves (``cpus = "0-15"`` says the same)."""

    _written: str = PrivateAttr("cores")

    @property
    def cores_field(self) -> str:
        """Which of the two fields was written: ``cores`` or ``cpus``."""
        return self._written

    @model_validator(mode="wrap")
    @classmethod
    def _cpus(cls, data: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        if not isinstance(data, dict) or "cpus" not in data:
            return handler(data)
        if fault := _cpus_fault(data):
            raise ValueError(fault[1])
        made = handler(
            {**{key: value for key, value in data.items() if key != "cpus"}, "cores": data["cpus"]}
        )
        made._written = "cpus"
        return made


class NeighbourWish(_Seated):
    """``[[neighbours]]``: a language model server that must not be disturbed.

    A number of cores (or none) reserves cores for it, but promises no fence; ``cpus`` says that it is held
    there.
    """

    name: Annotated[str, Field(pattern=f"^{NAME}$")]
    role: Role = "decode"
    gpus: tuple[GpuName, ...] = ()
    mig: tuple[str, ...] = ()
    """UUIDs of MIG instances, where it has no whole GPU."""
    url: Url | None = None
    """Its OpenAI-style endpoint, ``http://127.0.0.1:8000``."""
    model: str | None = None
    budget_ms: Annotated[float, Field(gt=0, strict=True, allow_inf_nan=False)] | None = None
    """Absolute budget of inter-token latency, in milliseconds."""
    budget_ratio: Annotated[float, Field(gt=1, strict=True, allow_inf_nan=False)] | None = None
    """Budget relative to the learnt quiet baseline, 1.05 for 5 % over it."""
    command: tuple[str, ...] = ()
    """The server's own command, where the node agent shall start it."""

    @model_validator(mode="after")
    def _either(self) -> NeighbourWish:
        if self.gpus and self.mig:
            raise ValueError("has both gpus and mig; name whole GPUs, or MIG instances alone")
        if not self.gpus and not self.mig and self.cores is None:
            raise ValueError("has neither gpus, mig nor cores; say what the server uses")
        return self


class MigWish(_Strict):
    """``[[mig]]``: instances that a GPU in MIG mode is to have; the agent makes those that are missing."""

    gpu: GpuName
    profiles: Annotated[tuple[str, ...], Field(min_length=1, max_length=7)]
    """As ``nvidia-smi mig -lgip`` calls them, each as often as it is wanted."""


class SlotWish(_Seated):
    """``[[slots]]``: one slot, or ``count`` equal ones.

    Without cores a CPU slot gets 2 and a GPU slot up to 4.
    """

    name: Annotated[str, Field(pattern=f"^{NAME}$")]
    pools: Annotated[tuple[Pool, ...], Field(min_length=1)]
    """Pools that it serves, first choice first."""
    count: Annotated[Whole, Field(ge=1, le=4096)] | Literal["all"] = 1
    """``all``: as many as the machine has room for."""
    gpus: Annotated[Whole, Field(ge=0, le=64)] | tuple[GpuName, ...] = 0
    """How many GPUs each slot owns, or which."""
    mig: str | None = None
    """A MIG profile (``1g.10gb``), a MIG UUID, or ``any``."""
    mps_percent: Annotated[Whole, Field(ge=1, le=100)] | None = None
    """Share of a GPU's multiprocessors under MPS. Class C, and such a slot is drained, never killed."""
    share_with: str | None = None
    """Name of the neighbour whose GPU an MPS or MIG slot may share."""
    memory: Size | None = None
    memory_nodes: MemoryNodes | None = None
    """Memory nodes by hand, for example a CPU-less one."""
    nice: Annotated[Whole, Field(ge=-20, le=19)] | None = None
    """Default 0 for GPU slots and 10 for CPU slots."""
    ionice: Literal["none", "best-effort", "idle"] | None = None
    cpu_weight: Annotated[Whole, Field(ge=1, le=10_000)] | None = None
    """Share of contended CPUs. Default, where there is a right to it: 100 for GPU slots, 20 for CPU slots."""
    processes: Annotated[Whole, Field(ge=16, le=MOST_PROCESSES)] | None = None
    """Most processes and threads."""
    disk_write: Size | None = None
    """Bytes per second to the disk under ``paths.work``."""
    lowest_class: Guarantee | None = None
    threads: Annotated[Whole, Field(ge=1, le=MOST_THREADS)] | None = None
    """Threads of numeric libraries; default: its cores."""
    environment: Environment = {}
    """More variables, set before exec."""

    @model_validator(mode="after")
    def _consistent(self) -> SlotWish:
        named = isinstance(self.gpus, tuple) and self.gpus and not self.mps_percent
        faults = [
            fault
            for wrong, fault in (
                (self.mig and self.gpus, "has both gpus and mig; a MIG slot names its instance alone"),
                (
                    self.mps_percent and (not isinstance(self.gpus, tuple) or len(self.gpus) != 1),
                    "mps_percent needs gpus with exactly one GPU named, since MPS shares that GPU",
                ),
                (self.mps_percent and self.mig, "has both mps_percent and mig; choose one"),
                (
                    self.share_with and not (self.mps_percent or self.mig),
                    "share_with needs mps_percent or mig: a GPU is not shared otherwise",
                ),
                (len(set(self.pools)) != len(self.pools), "names a pool twice"),
                (
                    self.count != 1 and (named or isinstance(self.cores, tuple)),
                    "count over 1 cannot be had with named GPUs or CPUs: write one [[slots]] each",
                ),
            )
            if wrong
        ]
        if faults:
            raise ValueError("; ".join(faults))
        return self


class Budgets(_Strict):
    """``[budgets]``: bytes per medium on this node."""

    vram: Size | None = None
    pinned: Size | None = None
    shm: Size | None = None
    spool: Size | None = None
    store: Size | None = None


class Paths(_Strict):
    """``[paths]``"""

    work: str | None = None
    spool: str | None = None


class Wishes(_Strict):
    """A whole farm.toml. ``slots`` empty asks for the default slots."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$")] | None = None
    """The node's name; default: the host's."""
    labels: dict[str, str] = {}
    preemptible: Flag = False
    """A machine that may be taken away at short notice; it does not count towards reserved floors."""
    placement: PlacementWish = PlacementWish()
    neighbours: tuple[NeighbourWish, ...] = ()
    slots: tuple[SlotWish, ...] = ()
    mig: tuple[MigWish, ...] = ()
    budgets: Budgets = Budgets()
    paths: Paths = Paths()

    @model_validator(mode="after")
    def _names(self) -> Wishes:
        for kind, names in (
            ("neighbours", [n.name for n in self.neighbours]),
            ("slots", [s.name for s in self.slots]),
        ):
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise ValueError(f"{kind}: the name {twice[0]!r} stands twice; names are unique")
        for slot in self.slots:
            # The second slot of a name would take the first one's place, and its GPU with it.
            clash = [s.name for s in self.slots if s.name != slot.name and _numbered(slot, s)]
            if clash:
                raise ValueError(
                    f"slots: {slot.name!r} with count = {slot.count!r} makes slots called {slot.name}-0, "
                    f"{slot.name}-1, …, and {clash[0]!r} may be one of them; rename it"
                )
        if (limited := next((s for s in self.slots if s.disk_write), None)) and not self.paths.work:
            raise ValueError(
                f"slots.{limited.name}.disk_write limits writes to the disk of paths.work, which is not set; "
                "set it to the folder in which slots are to write"
            )
        known = [n.name for n in self.neighbours]
        for slot in self.slots:
            if slot.share_with and slot.share_with not in known:
                raise ValueError(f"slots.{slot.name}.share_with: no neighbour is called {slot.share_with!r}")
        return self

    @classmethod
    def load(cls, path: Path) -> Wishes:
        """farm.toml at ``path``. Raises ConfigError."""
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(str(path), [("file", str(path), str(error))]) from None
        return cls.parse(text, str(path))

    @classmethod
    def parse(cls, text: str, source: str = "farm.toml") -> Wishes:
        """farm.toml's text. Raises ConfigError."""
        try:
            data = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(source, [("TOML", line_of(error, text), str(error))]) from None
        problems = [*zero_bytes(data), *_take_out_bad_cpus(data)]
        try:
            made = cls.model_validate(data)
        except ValidationError as error:
            problems += problems_of(error, data, _known_fields)
        if problems:
            raise ConfigError(source, problems)
        return made


def _take_out_bad_cpus(data: dict[str, Any]) -> list[tuple[str, object, str]]:
    """Faults in how slots and neighbours name their cores. They are taken out, so that the rest is looked at
    too."""
    found: list[tuple[str, object, str]] = []
    for kind in ("neighbours", "slots"):
        tables = data.get(kind)
        for number, table in enumerate(tables if isinstance(tables, list) else ()):
            if isinstance(table, dict) and (fault := _cpus_fault(table)):
                field = f"{kind}[{number}]"
                value = table["cpus"] if fault[0] else table.get("name", "…")
                found.append((f"{field}.{fault[0]}".rstrip("."), value, fault[1]))
                del table["cpus"]
                table.setdefault("cores", 1)
    return found


def _numbered(many: SlotWish, other: SlotWish) -> bool:
    """Whether a slot of ``other`` may be called as one of ``many``'s numbered slots is."""
    match = re.fullmatch(re.escape(many.name) + r"-(0|[1-9]\d*)", other.name)
    if match is None or many.count == 1 or other.count != 1:
        return False
    return many.count == "all" or int(match[1]) < many.count


def default_slots() -> tuple[SlotWish, ...]:
    """The slots of a node without wishes: one per free GPU, and one CPU slot per two remaining cores."""
    return (
        SlotWish(name="gpu", pools=("video", "nerf", "render"), gpus=1, count="all"),
        SlotWish(name="mig", pools=("video", "nerf", "render"), mig="any", count="all"),
        SlotWish(name="cpu", pools=("render", "encode", "nerf", "video"), cores=2, count="all"),
    )


def _known_fields(path: list[int | str]) -> list[str]:
    models: dict[str, type[BaseModel]] = {
        "placement": PlacementWish,
        "neighbours": NeighbourWish,
        "slots": SlotWish,
        "mig": MigWish,
        "budgets": Budgets,
        "paths": Paths,
    }
    model = models.get(str(path[0]), Wishes) if path else Wishes
    return [*model.model_fields, *(["cpus"] if issubclass(model, _Seated) else [])]
