"""Strict JSON: what would reach a database or a kind as something odd is refused with a pointer."""

from __future__ import annotations

import pytest

from api import strict_json
from api.problems import HttpProblem


def refused(body: bytes) -> HttpProblem:
    with pytest.raises(HttpProblem) as caught:
        strict_json.parse(body)
    assert caught.value.status_code == 422
    return caught.value


def test_ordinary_json_is_read_as_it_stands() -> None:
    body = '{"a": [1, -2.5, "é", null, true], "b": {"": "€"}}'.encode()
    assert strict_json.parse(body) == {"a": [1, -2.5, "é", None, True], "b": {"": "€"}}


@pytest.mark.parametrize("body", [b"", b"{", b"[1,]", b"{'a': 1}", b"nul"])
def test_bad_syntax_says_where(body: bytes) -> None:
    assert "line 1 column" in refused(body).detail


@pytest.mark.parametrize("word", [b"NaN", b"Infinity", b"-Infinity"])
def test_words_that_are_no_json_numbers_are_refused(word: bytes) -> None:
    assert word.decode() in refused(b'{"a": ' + word + b"}").detail


def test_a_number_that_overflows_to_infinity_is_refused_with_its_pointer() -> None:
    assert refused(b'{"spec": {"x": [0, 1e999]}}').faults[0]["pointer"] == "/spec/x/1"


def test_integers_stop_at_64_bits() -> None:
    assert strict_json.parse(b"[9223372036854775807]") == [2**63 - 1]
    assert refused(b"[9223372036854775808]").faults[0]["pointer"] == "/0"
    assert refused(b"[" + b"9" * 5000 + b"]")


def test_nul_and_lone_surrogates_are_refused_in_values_and_in_names() -> None:
    assert refused(rb'{"a": "x\u0000"}').faults[0]["pointer"] == "/a"
    assert refused(rb'{"a": {"b": "\ud800"}}').faults[0]["pointer"] == "/a/b"
    assert refused(rb'{"a": {"\u0000": 1}}').faults[0]["pointer"] == "/a"
    assert strict_json.parse(rb'["\ud83d\ude00"]') == ["\U0001f600"]


def test_a_name_given_twice_is_refused() -> None:
    assert "'a'" in refused(b'{"a": 1, "b": 2, "a": 3}').detail


def test_nesting_is_bounded_even_where_the_parser_would_recurse_too_deep() -> None:
    assert strict_json.parse(b"[" * 64 + b"]" * 64)
    assert "nested" in refused(b"[" * 65 + b"]" * 65).detail
    assert "nested" in refused(b"[" * 200_000 + b"]" * 200_000).detail


def test_bytes_that_are_no_utf8_are_named() -> None:
    assert "byte 1 is 0xff" in refused(b'"\xff"').detail


def test_pointers_escape_slash_and_tilde() -> None:
    assert refused(rb'{"a/b~c": "\u0000"}').faults[0]["pointer"] == "/a~1b~0c"
