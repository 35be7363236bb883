"""Reading JSON bodies strictly, so that nothing odd reaches a database or a kind.

Refused besides bad syntax: a name given twice in one object, NaN and infinities (``1e999`` too), integers
outside 64 bits, strings with NUL or lone surrogates (PostgreSQL cannot store them), and deep nesting.
"""

from __future__ import annotations

import json
import math
from typing import Any

from api.problems import HttpProblem, escape

MAX_DEPTH = 64
_MAX_INT = 2**63 - 1


class _Refused(ValueError):
    """Text for the person; the pointer is not known inside the parser's hooks."""


def parse(body: bytes) -> Any:
    """The value of a JSON body; raises a 422 :class:`~api.problems.HttpProblem` for the first fault."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _fault("", f"the body is not UTF-8: byte {error.start} is {body[error.start]:#04x}") from None
    try:
        value = json.loads(text, object_pairs_hook=_object, parse_constant=_constant)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno} column {error.colno}"
        raise _fault("", f"this is not JSON: {error.msg} at {where}") from None
    except _Refused as error:
        raise _fault("", str(error)) from None
    except RecursionError:
        raise _fault("", f"it is nested more than {MAX_DEPTH} deep") from None
    except ValueError:
        raise _fault("", "a number has too many digits") from None
    _check(value)
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise _Refused(f"the name {twice!r} stands twice in one object")
    return value


def _constant(text: str) -> Any:
    raise _Refused(f"{text} is not a JSON number")


def _check(root: Any) -> None:
    stack: list[tuple[Any, str, int]] = [(root, "", 0)]
    while stack:
        value, pointer, depth = stack.pop()
        if isinstance(value, str):
            _check_text(value, pointer)
        elif isinstance(value, float):
            if not math.isfinite(value):
                raise _fault(pointer, "the number is too large")
        elif isinstance(value, int):
            if abs(value) > _MAX_INT:
                raise _fault(pointer, "the integer does not fit into 64 bits")
        elif isinstance(value, dict | list):
            if depth >= MAX_DEPTH:
                raise _fault(pointer, f"it is nested more than {MAX_DEPTH} deep")
            if isinstance(value, dict):
                for name, item in value.items():
                    _check_text(name, pointer)
                    stack.append((item, f"{pointer}/{escape(name)}", depth + 1))
            else:
                stack += [(item, f"{pointer}/{index}", depth + 1) for index, item in enumerate(value)]


def _check_text(text: str, pointer: str) -> None:
    if "\0" in text:
        raise _fault(pointer, "text may not hold a NUL character")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise _fault(pointer, "text may not hold half of a surrogate pair") from None


def _fault(pointer: str, message: str) -> HttpProblem:
    detail = f"{pointer}: {message}" if pointer else message
    try:
        detail.encode("utf-8")
    except UnicodeEncodeError:
        pointer = pointer.encode("utf-8", "replace").decode()
        detail = f"{pointer}: {message}"
    return HttpProblem(
        422, "invalid-input", detail, faults=[{"in": "body", "pointer": pointer, "message": message}]
    )
