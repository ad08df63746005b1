from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from triptych import telemetry
from triptych.messages import StageTiming


def test_everything_recorded_is_exposed_under_its_name() -> None:
    metrics = telemetry.Metrics(CollectorRegistry())
    metrics.observe((StageTiming(stage=telemetry.ENCODE, milliseconds=20),))
    metrics.request_ended("encode", "ok")
    metrics.item_encoded("image", 1024)
    metrics.item_cached("audio")
    metrics.engine_step(3, num_running=2, num_waiting=1, kv_usage=0.25)
    metrics.kv_layout(16, 100)
    text = generate_latest(metrics.registry).decode()
    assert 'triptych_stage_seconds_sum{stage="encode"} 0.02' in text
    assert 'triptych_requests_total{code="ok",role="encode"} 1.0' in text
    assert 'triptych_encoded_items_total{modality="image"} 1.0' in text
    assert "triptych_published_bytes_total 1024.0" in text
    assert 'triptych_encoder_cache_hits_total{modality="audio"} 1.0' in text
    assert "triptych_output_tokens_total 3.0" in text
    assert "vllm:num_requests_running 2.0" in text
    assert "vllm:num_requests_waiting 1.0" in text
    assert "vllm:kv_cache_usage_perc 0.25" in text
    assert 'vllm:cache_config_info{block_size="16",num_gpu_blocks="100"} 1.0' in text


def test_stage_names_are_unique() -> None:
    assert len(set(telemetry.STAGES)) == len(telemetry.STAGES)


def test_a_role_exposes_only_what_it_writes() -> None:
    def names(role: str) -> str:
        return generate_latest(telemetry.Metrics(CollectorRegistry(), role).registry).decode()

    assert "vllm:num_requests_running" not in names("router")
    assert "vllm:num_requests_running" not in names("encode")
    assert "vllm:num_requests_running" in names("prefill-decode")
    assert "triptych_published_bytes" not in names("prefill-decode")
    assert "triptych_published_bytes" in names("encode")
    assert "triptych_requests" in names("router")
