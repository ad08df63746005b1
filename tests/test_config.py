from __future__ import annotations

from pathlib import Path

import pytest

from triptych.config import (
    SECRET_VARIABLE,
    EncoderConfig,
    ModelConfig,
    WorkerConfig,
    cluster_secret,
    new_secret,
    resolve,
)
from triptych.errors import ConfigError


def test_the_secret_comes_from_a_file_before_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SECRET_VARIABLE, "from the environment")
    file = tmp_path / "secret"
    file.write_text("from the file, long enough\n")
    assert cluster_secret(file) == b"from the file, long enough"
    assert cluster_secret() == b"from the environment"


def test_no_secret_at_all_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SECRET_VARIABLE, raising=False)
    assert cluster_secret() is None


def test_a_short_secret_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECRET_VARIABLE, "short")
    with pytest.raises(ConfigError, match="at least 16"):
        cluster_secret()


def test_a_missing_secret_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere"):
        cluster_secret(tmp_path / "nowhere")


def test_two_starts_have_two_secrets() -> None:
    assert new_secret() != new_secret()
    assert len(new_secret()) >= 16


def worker(device: str, num_threads: int, num_lanes: int = 0) -> WorkerConfig:
    model = ModelConfig(path=Path("m"), served_name="m", device=device, num_threads=num_threads)
    return WorkerConfig(role="all", model=model, secret=b"s", encoder=EncoderConfig(num_lanes=num_lanes))


@pytest.mark.parametrize(
    ("device", "num_threads", "num_cores", "lanes"),
    [("cpu", 1, 2, 2), ("cpu", 4, 16, 4), ("cpu", 8, 4, 1), ("cuda", 1, 16, 1)],
)
def test_an_encoder_gets_lanes_for_the_cores_that_one_pass_leaves_free(
    device: str, num_threads: int, num_cores: int, lanes: int
) -> None:
    assert resolve(worker(device, num_threads), num_cores).encoder.num_lanes == lanes


def test_lanes_that_were_asked_for_stay() -> None:
    assert resolve(worker("cpu", 1, num_lanes=3), 16).encoder.num_lanes == 3
