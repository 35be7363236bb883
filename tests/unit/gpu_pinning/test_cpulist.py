from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_pinning import cpulist


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("", ()),
        ("0", (0,)),
        ("0-3,8", (0, 1, 2, 3, 8)),
        ("0-6:2/4", (0, 1, 4, 5)),
        ("8, 0-1", (0, 1, 8)),
        ("2,2,1-2", (1, 2)),
    ],
)
def test_kernel_lists_are_read(text: str, ids: tuple[int, ...]) -> None:
    assert cpulist.parse(text) == ids


@pytest.mark.parametrize("text", ["a", "3-1", "-1", "0-", "1 2", "0-4:0/2", "0-99999999"])
def test_what_is_no_list_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="write for example"):
        cpulist.parse(text)


@given(st.sets(st.integers(0, 600)))
def test_what_is_shown_reads_back(ids: set[int]) -> None:
    assert cpulist.parse(cpulist.show(ids)) == tuple(sorted(ids))


def test_spans_are_joined() -> None:
    assert cpulist.show([8, 0, 1, 2, 3, 10, 11]) == "0-3,8,10-11"
