"""What is written to both databases: text and JSON that each of them can hold."""

from __future__ import annotations

import json
import math

from hypothesis import given
from hypothesis import strategies as st

from farm.db.rows import clean_json, clean_text, dumps

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=15,
)


@given(st.text(st.characters()))
def test_cleaned_text_has_no_nul_and_can_be_encoded(text: str) -> None:
    cleaned = clean_text(text)
    assert "\x00" not in cleaned
    cleaned.encode("utf-8")
    assert len(cleaned) == len(text)


@given(VALUES)
def test_cleaned_json_can_be_written_and_read_back(value: object) -> None:
    cleaned = clean_json(value)
    assert json.loads(dumps(cleaned)) == cleaned


def test_numbers_that_no_database_takes_become_null() -> None:
    assert clean_json({"psnr": math.inf, "ssim": math.nan, "n": 1.5}) == {
        "psnr": None,
        "ssim": None,
        "n": 1.5,
    }


def test_broken_bytes_of_a_log_are_replaced() -> None:
    broken = b"\x82\xff\x00ok".decode("utf-8", "surrogateescape")
    assert clean_text(broken) == "??\N{REPLACEMENT CHARACTER}ok"
