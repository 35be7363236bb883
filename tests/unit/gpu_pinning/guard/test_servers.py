"""Metrics pages of every server, written here in their documented form, read to worked-out values."""

from __future__ import annotations

import json
import math

import pytest

from gpu_pinning.guard.servers import Histogram, Page, Server, read_page, recognise

VLLM = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="org/model, \\"v}2\\""} 5.0
vllm:num_requests_running{engine="1",model_name="m"} 3.0
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.75
vllm:generation_tokens_total{engine="0",model_name="m"} 1.2345e+04
# TYPE vllm:inter_token_latency_seconds histogram
vllm:inter_token_latency_seconds_bucket{engine="0",le="0.01",model_name="m"} 60.0
vllm:inter_token_latency_seconds_bucket{engine="0",le="0.025",model_name="m"} 90.0
vllm:inter_token_latency_seconds_bucket{engine="0",le="0.05",model_name="m"} 98.0
vllm:inter_token_latency_seconds_bucket{engine="0",le="+Inf",model_name="m"} 100.0
vllm:inter_token_latency_seconds_count{engine="0",model_name="m"} 100.0
vllm:inter_token_latency_seconds_sum{engine="0",model_name="m"} 1.5
vllm:inter_token_latency_seconds_created{engine="0",model_name="m"} 1.7e+09
vllm:request_time_per_output_token_seconds_bucket{le="0.01",model_name="m"} 1.0
vllm:request_time_per_output_token_seconds_bucket{le="+Inf",model_name="m"} 4.0
vllm:request_time_per_output_token_seconds_sum{model_name="m"} 0.08
vllm:time_to_first_token_seconds_bucket{le="0.1",model_name="m"} 3.0
vllm:time_to_first_token_seconds_bucket{le="+Inf",model_name="m"} 4.0
vllm:time_to_first_token_seconds_sum{model_name="m"} 0.6
"""

SGLANG = """\
sglang:num_running_reqs{model_name="m",tp_rank="0"} 4
sglang:num_queue_reqs{model_name="m",tp_rank="0"} 1
sglang:token_usage{model_name="m"} 0.5
sglang:generation_tokens_total{model_name="m"} 900
sglang:inter_token_latency_seconds_bucket{le="0.002",model_name="m"} 10
sglang:inter_token_latency_seconds_bucket{le="0.004",model_name="m"} 30
sglang:inter_token_latency_seconds_bucket{le="+Inf",model_name="m"} 40
sglang:inter_token_latency_seconds_sum{model_name="m"} 0.13
sglang:time_to_first_token_seconds_bucket{le="+Inf",model_name="m"} 2
"""

TRTLLM = """\
trtllm_time_per_output_token_seconds_bucket{le="0.01",model_name="m"} 7
trtllm_time_per_output_token_seconds_bucket{le="+Inf",model_name="m"} 9
trtllm_time_per_output_token_seconds_sum{model_name="m"} 0.1
trtllm_time_to_first_token_seconds_bucket{le="+Inf",model_name="m"} 9
trtllm_kv_cache_utilization{model_name="m"} 0.3
"""

TGI = """\
tgi_batch_current_size 6
tgi_queue_size 0
tgi_batch_inference_duration_bucket{method="prefill",le="0.1"} 2
tgi_batch_inference_duration_bucket{method="prefill",le="+Inf"} 3
tgi_batch_inference_duration_bucket{method="decode",le="0.02"} 40
tgi_batch_inference_duration_bucket{method="decode",le="+Inf"} 50
tgi_batch_inference_duration_sum{method="decode"} 0.9
tgi_request_mean_time_per_token_duration_bucket{le="+Inf"} 3
tgi_request_generated_tokens_sum 300
"""

LLAMA = """\
# HELP llamacpp:tokens_predicted_total Number of generation tokens processed.
llamacpp:tokens_predicted_total 640
llamacpp:tokens_predicted_seconds_total 8
llamacpp:requests_processing 2
llamacpp:requests_deferred 1
llamacpp:kv_cache_usage_ratio nan
"""


@pytest.mark.parametrize(
    ("text", "server"),
    [
        (VLLM, Server.VLLM),
        (SGLANG, Server.SGLANG),
        (SGLANG.replace("sglang:", "sglang_"), Server.SGLANG),
        (TRTLLM, Server.TENSORRT_LLM),
        (TRTLLM.replace("trtllm_", "trtllm:"), Server.TENSORRT_LLM),
        (TGI, Server.TGI),
        (LLAMA, Server.LLAMA_CPP),
        (json.dumps(LLAMA), Server.LLAMA_CPP),
        ("node_cpu_seconds_total 5\n", None),
        ("", None),
    ],
)
def test_pages_are_recognised(text: str, server: Server | None) -> None:
    assert recognise(text) == server


def test_vllm_page_gives_sums_over_engines_and_the_fullest_cache() -> None:
    page = read_page(VLLM, Server.VLLM)
    assert (page.running, page.waiting, page.kv_usage, page.tokens) == (8.0, 2.0, 0.75, 12345.0)
    assert page.steps == Histogram(
        "vllm:inter_token_latency_seconds", (0.01, 0.025, 0.05, math.inf), (60.0, 90.0, 98.0, 100.0), 1.5
    )
    assert page.first_token is not None and page.first_token.count == 4.0
    assert page.missing == ()


def test_per_step_and_per_request_histograms_are_kept_apart() -> None:
    page = read_page(VLLM, Server.VLLM)
    assert page.requests is not None and page.steps is not None
    assert page.requests.name == "vllm:request_time_per_output_token_seconds"
    assert (page.requests.count, page.steps.count) == (4.0, 100.0)
    trt = read_page(TRTLLM, Server.TENSORRT_LLM)
    assert trt.steps is None and trt.requests is not None and trt.requests.count == 9.0


def test_vllm_before_the_renaming_is_read_too() -> None:
    old = VLLM.replace("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds")
    old = old.replace("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
    page = read_page(old, Server.VLLM)
    assert page.steps is not None and page.steps.count == 100.0
    assert page.kv_usage == 0.75


def test_both_names_at_once_are_not_added_up() -> None:
    both = VLLM + VLLM.replace("inter_token_latency", "time_per_output_token")
    page = read_page(both, Server.VLLM)
    assert page.steps is not None and page.steps.count == 100.0


def test_sglang_with_either_mark() -> None:
    for text in (SGLANG, SGLANG.replace("sglang:", "sglang_")):
        page = read_page(text, Server.SGLANG)
        assert (page.running, page.waiting, page.kv_usage) == (4.0, 1.0, 0.5)
        assert page.steps is not None and page.steps.counts == (10.0, 30.0, 40.0)
        assert page.missing == ("requests",)


def test_tgi_counts_decode_batches_alone() -> None:
    page = read_page(TGI, Server.TGI)
    assert page.steps is not None
    assert (page.steps.bounds, page.steps.counts, page.steps.sum) == ((0.02, math.inf), (40.0, 50.0), 0.9)


def test_llama_cpp_has_counters_only_and_says_what_is_missing() -> None:
    page = read_page(LLAMA, Server.LLAMA_CPP)
    assert (page.tokens, page.token_seconds, page.running, page.waiting) == (640.0, 8.0, 2.0, 1.0)
    assert page.kv_usage is None and page.missing == ("kv_usage",)
    assert read_page(json.dumps(LLAMA), Server.LLAMA_CPP) == page


def test_an_empty_page_says_that_all_is_missing() -> None:
    page = read_page("# nothing yet\n", Server.VLLM)
    assert page == Page(
        Server.VLLM,
        missing=("steps", "requests", "first_token", "running", "waiting", "kv_usage", "tokens"),
    )


def test_quantiles_are_linear_within_a_bucket() -> None:
    steps = read_page(VLLM, Server.VLLM).steps
    assert steps is not None
    assert steps.quantile(0.5) == pytest.approx(0.01 * 50 / 60)
    assert steps.quantile(0.75) == pytest.approx(0.01 + 0.015 * 15 / 30)
    assert steps.quantile(0.999) == 0.05
    assert Histogram("h", (1.0, math.inf), (0.0, 0.0), 0.0).quantile(0.5) is None


def test_steps_over_a_budget_are_bounded_by_the_buckets() -> None:
    steps = read_page(VLLM, Server.VLLM).steps
    assert steps is not None
    assert steps.over(0.025) == (2.0, 10.0)
    assert steps.over(0.03) == (2.0, 10.0)
    assert steps.over(0.005) == (40.0, 100.0)
    assert steps.over(1.0) == (0.0, 2.0)


def test_differences_and_a_counter_that_was_reset() -> None:
    bounds = (0.01, math.inf)
    first, second = Histogram("h", bounds, (5.0, 9.0), 0.2), Histogram("h", bounds, (7.0, 12.0), 0.5)
    gained = second.since(first)
    assert gained.counts == (2.0, 3.0) and gained.sum == pytest.approx(0.3)
    assert second.since(None) is second
    assert first.since(second) is first, "a server that restarted counts from zero"
    other = Histogram("h", (0.02, math.inf), (1.0, 1.0), 0.0)
    assert second.since(other) is second, "other buckets cannot be subtracted"


@pytest.mark.parametrize("bound", ["oops", "NaN", ""])
def test_a_bucket_whose_bound_is_no_number_is_left_out(bound: str) -> None:
    odd = f'vllm:inter_token_latency_seconds_bucket{{le="{bound}",model_name="m"}} 7\n'
    steps = read_page(odd + VLLM, Server.VLLM).steps
    assert steps is not None
    assert steps.bounds == (0.01, 0.025, 0.05, math.inf) and steps.counts == (60.0, 90.0, 98.0, 100.0)
