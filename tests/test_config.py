from __future__ import annotations

from pathlib import Path

import pytest

from triptych.config import SECRET_VARIABLE, cluster_secret, new_secret
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
