"""farm.toml: what the operator wants of a node, as typed, strict data.

Everything that describes one node stands in this file: its name, its neighbours, its slots, its budgets and
its paths. Unknown fields are refused. Errors come all at once, each with field, value and fix.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, get_args
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    ValidatorFunctionWrapHandler,
    model_validator,
)

from gpu_pinning import cpulist
from gpu_pinning.errors import ConfigError

Pool = Literal["video", "nerf", "render", "encode", "openjd"]
POOLS: tuple[str, ...] = get_args(Pool)
Role = Literal["decode", "prefill"]
Guarantee = Literal["A", "B", "C"]
_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_UNITS |= {"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}
THREAD_COUNTS = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "NUMEXPR_MAX_THREADS",
    "RAYON_NUM_THREADS",
    "OPENCV_FOR_THREADS_NUM",
    "NUMBA_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)
"""Variables by which numeric libraries learn how many threads to start."""
_FIXED = {"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES"}
_FIXED_HEADS = ("CUDA_MPS_", "STILLFRAME_")
_MOST_BYTES = 2**63 - 1
_MOST_CPUS = 65_536
_MOST_THREADS = 4096
_MOST_PROCESSES = 1 << 22
"""The kernel's PID_MAX_LIMIT."""
_VARIABLE_BYTES = 128 << 10
"""The kernel's MAX_ARG_STRLEN, for name, value and the zero byte."""
_NAME = r"[a-z0-9][a-z0-9-]{0,39}"


def parse_size(value: object) -> object:
    """Bytes out of ``"64 GiB"`` or a whole number. Raises ValueError."""
    if isinstance(value, str):
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-zA-Z]*)", value.strip())
        if match is None or match[2].lower() not in _UNITS:
            raise ValueError("write a size in bytes or with a unit, for example '64 GiB'")
        return int(Decimal(match[1]) * _UNITS[match[2].lower()])
    if isinstance(value, bool):
        raise ValueError("must be a size: bytes, or with a unit, for example '64 GiB'")
    return value


def _parse_cores(value: object) -> object:
    if isinstance(value, str):
        cpus = cpulist.parse(value)
        if not cpus:
            raise ValueError("is empty; write a number of cores or a list of CPUs such as '0-15'")
        return cpus
    if isinstance(value, list | tuple):
        if not value:
            raise ValueError("is empty; write a number of cores or a list of CPUs such as '0-15'")
        return value
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError("must be 1 or more, or a list of CPUs such as '0-15'")
    return value


def _parse_nodes(value: object) -> object:
    if isinstance(value, str):
        nodes = cpulist.parse(value)
        if not nodes:
            raise ValueError("is empty; write a list of memory nodes such as '0-1'")
        return nodes
    if isinstance(value, list) and not value:
        raise ValueError("is empty; leave it out, or write a list of memory nodes such as '0-1'")
    if not isinstance(value, list | tuple):
        raise ValueError("must be a list of memory nodes such as '0-1'")
    return value


def _parse_gpu(value: object) -> object:
    if isinstance(value, int):
        raise ValueError(
            "is ambiguous: NVML, CUDA and /dev/nvidiaN number GPUs three ways; "
            "write a UUID or a PCI address out of `farm topology`"
        )
    if isinstance(value, str) and not re.fullmatch(
        r"GPU-[0-9a-fA-F-]{4,36}|([0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]", value
    ):
        raise ValueError(
            "is neither a UUID ('GPU-…') nor a PCI address ('0000:3b:00.0'); see `farm topology`"
        )
    return value


def _parse_url(value: object) -> object:
    if isinstance(value, str):
        parts = urlsplit(value)
        try:
            good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            good = False
        if not good:
            raise ValueError("is no URL of a server; write for example 'http://127.0.0.1:8000'")
    return value


def _parse_environment(value: dict[str, str]) -> dict[str, str]:
    faults = []
    for name, text in value.items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            faults.append(f"{name!r} is no name of a variable: letters, digits and _, no digit first")
        elif name in THREAD_COUNTS:
            faults.append(f"sets {name}, which follows the slot's cores: use threads")
        elif name in _FIXED or name.startswith(_FIXED_HEADS):
            faults.append(f"sets {name}, which the plan sets: use gpus, mig or mps_percent")
        elif len(os.fsencode(f"{name}={text}")) >= _VARIABLE_BYTES:
            faults.append(
                f"{name} is longer than the {_VARIABLE_BYTES >> 10} KiB that a program can be given"
            )
    if faults:
        raise ValueError("; ".join(faults))
    return value


Flag = Annotated[bool, Field(strict=True)]
Whole = Annotated[int, Field(strict=True)]
Size = Annotated[Whole, BeforeValidator(parse_size), Field(ge=1, le=_MOST_BYTES)]
Cores = Annotated[
    Annotated[Whole, Field(le=_MOST_CPUS)] | tuple[Whole, ...],
    BeforeValidator(_parse_cores),
]
"""A number of physical cores, or the CPUs themselves."""
GpuName = Annotated[str, BeforeValidator(_parse_gpu)]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", str_strip_whitespace=True)


class PlacementWish(_Strict):
    """``[placement]``"""

    system_cores: Annotated[Whole, Field(ge=0, le=_MOST_CPUS)] = 0
    """Physical cores, lowest first, left to the system."""
    lowest_class: Guarantee = "C"
    """Slots that cannot reach this class beside every neighbour are refused."""
    move_interrupts: Flag = True
    """Plan to move device interrupts off the cores of decode neighbours."""
    share_cores: Flag = False
    """Slots that find no free core sit on the cores of other slots, never of neighbours: for small
    machines."""
    copy_rate: Annotated[Whole, BeforeValidator(parse_size), Field(ge=0, le=_MOST_BYTES)] = 4 << 30
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

    name: Annotated[str, Field(pattern=f"^{_NAME}$")]
    role: Role = "decode"
    gpus: tuple[GpuName, ...] = ()
    mig: tuple[str, ...] = ()
    """UUIDs of MIG instances, where it has no whole GPU."""
    url: Annotated[str, BeforeValidator(_parse_url)] | None = None
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


class SlotWish(_Seated):
    """``[[slots]]``: one slot, or ``count`` equal ones.

    Without cores a CPU slot gets 2 and a GPU slot up to 4.
    """

    name: Annotated[str, Field(pattern=f"^{_NAME}$")]
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
    memory_nodes: Annotated[tuple[Whole, ...], BeforeValidator(_parse_nodes)] | None = None
    """Memory nodes by hand, for example a CPU-less one."""
    nice: Annotated[Whole, Field(ge=-20, le=19)] | None = None
    """Default 0 for GPU slots and 10 for CPU slots."""
    ionice: Literal["none", "best-effort", "idle"] | None = None
    cpu_weight: Annotated[Whole, Field(ge=1, le=10_000)] | None = None
    """Share of contended CPUs. Default, where there is a right to it: 100 for GPU slots, 20 for CPU slots."""
    processes: Annotated[Whole, Field(ge=16, le=_MOST_PROCESSES)] | None = None
    """Most processes and threads."""
    disk_write: Size | None = None
    """Bytes per second to the disk under ``paths.work``."""
    lowest_class: Guarantee | None = None
    threads: Annotated[Whole, Field(ge=1, le=_MOST_THREADS)] | None = None
    """Threads of numeric libraries; default: its cores."""
    environment: Annotated[dict[str, str], AfterValidator(_parse_environment)] = {}
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
            raise ConfigError(source, [("TOML", _line_of(error, text), str(error))]) from None
        problems = [*_zero_bytes(data), *_take_out_bad_cpus(data)]
        try:
            made = cls.model_validate(data)
        except ValidationError as error:
            problems += _problems(error, data)
        if problems:
            raise ConfigError(source, problems)
        return made


def _zero_bytes(value: object, field: str = "") -> Iterator[tuple[str, object, str]]:
    """Text with a zero byte, which neither programs nor databases take."""
    if isinstance(value, str) and "\0" in value:
        yield field, value, "holds a zero byte; remove it"
    elif isinstance(value, dict):
        for key, each in value.items():
            inner = f"{field}.{key}".lstrip(".")
            if "\0" in key:
                yield inner, key, "has a zero byte in its name; remove it"
            yield from _zero_bytes(each, inner)
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from _zero_bytes(each, f"{field}[{number}]")


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


def _problems(error: ValidationError, data: dict[str, Any]) -> list[tuple[str, object, str]]:
    """One problem for each field: where a value may be of several types, only the answer that fits it
    best."""
    found: dict[str, tuple[str, object, str]] = {}
    for item in error.errors():
        path = _real_path(item["loc"], data)
        field = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in path).lstrip(".") or "farm.toml"
        if item["type"] == "extra_forbidden":
            known = _known_fields(path[:-1])
            near = difflib.get_close_matches(str(path[-1]), known, 1)
            fix = (
                f"unknown field; did you mean {near[0]!r}?"
                if near
                else f"unknown field; known: {', '.join(known)}"
            )
        elif item["type"] == "missing":
            fix = "is missing; add it"
        else:
            fix = _plain(item["type"], item.get("ctx", {}), item["msg"], path)
        value = _value_at(data, path)
        if (
            path
            and path[-1] == "cores"
            and isinstance(owner := _at(data, path[:-1]), dict)
            and "cpus" in owner
        ):
            field, value = field.removesuffix("cores") + "cpus", owner["cpus"]
        if field not in found or item["type"] == "value_error":
            found[field] = (field, value, fix)
        elif fix not in found[field][2]:
            # what may be of several types
            found[field] = (field, value, f"{found[field][2]}, or {fix.removeprefix('must be ')}")
    # Of a union, the member that got deepest into the value is the one that was meant.
    return [p for f, p in found.items() if not any(o != f and o.startswith(f + "[") for o in found)]


_TEXTS: dict[str, Callable[[dict[str, Any]], str]] = {
    "greater_than_equal": lambda ctx: f"must be {ctx['ge']} or more",
    "less_than_equal": lambda ctx: f"must be {ctx['le']} or less",
    "greater_than": lambda ctx: f"must be more than {ctx['gt']:g}",
    "finite_number": lambda ctx: "must be a finite number",
    "literal_error": lambda ctx: f"must be {ctx['expected']}",
    "too_short": lambda ctx: "must not be empty",
    "string_type": lambda ctx: "must be text in quotes",
}


def _plain(kind: str, ctx: dict[str, Any], text: str, path: list[int | str]) -> str:
    """What a field must be, in words of farm.toml and not of the program that reads it."""
    if kind in _TEXTS:
        return _TEXTS[kind](ctx)
    if kind == "string_pattern_mismatch":
        if path == ["name"]:
            return "must be letters, digits, dots, dashes and underscores, 63 at most, the first no mark"
        return "must be small letters, digits and dashes, 40 at most, the first no dash"
    if kind.startswith("int"):
        return "must be a whole number"
    if kind.startswith("float"):
        return "must be a number"
    if kind.startswith("bool"):
        return "must be true or false, without quotes"
    if kind in ("tuple_type", "list_type"):
        tables = len(path) == 1 and path[0] in ("slots", "neighbours")
        return f"must be tables, each begun by [[{path[0]}]]" if tables else "must be a list in brackets"
    if kind in ("dict_type", "model_type", "model_attributes_type"):
        head = ".".join(str(part) for part in path if isinstance(part, str))
        many = any(isinstance(part, int) for part in path)
        return f"must be a table, begun by [[{head}]]" if many else f"must be a table, begun by [{head}]"
    return text.removeprefix("Value error, ")


def _line_of(error: tomllib.TOMLDecodeError, text: str) -> str:
    """The line that a parse error tells of; the last one where it tells of the end."""
    lines = text.splitlines() or [""]
    match = re.search(r"at line (\d+)", str(error))
    return lines[min(int(match[1]), len(lines)) - 1] if match else lines[-1]


def _real_path(loc: tuple[int | str, ...], data: Any) -> list[int | str]:
    """``loc`` without the names of union members that pydantic puts into it."""
    path: list[int | str] = []
    here = data
    for number, part in enumerate(loc):
        last = number == len(loc) - 1
        if isinstance(here, dict) and (part in here or (last and isinstance(part, str) and "[" not in part)):
            path.append(part)
            here = here.get(part)
        elif isinstance(here, list) and isinstance(part, int):
            path.append(part)
            here = here[part] if part < len(here) else None
    return path


def _at(data: Any, path: list[int | str]) -> Any:
    for part in path:
        try:
            data = data[part]
        except (KeyError, IndexError, TypeError):
            return None
    return data


def _value_at(data: Any, path: list[int | str]) -> object:
    value = _at(data, path)
    return value if not isinstance(value, dict) else value.get("name", "…")


def _known_fields(path: list[int | str]) -> list[str]:
    models: dict[str, type[BaseModel]] = {
        "placement": PlacementWish,
        "neighbours": NeighbourWish,
        "slots": SlotWish,
        "budgets": Budgets,
        "paths": Paths,
    }
    model = models.get(str(path[0]), Wishes) if path else Wishes
    return [*model.model_fields, *(["cpus"] if issubclass(model, _Seated) else [])]
