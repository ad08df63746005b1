"""Servers that several files share: the built-in tiny omni model in both layouts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from model.make_tiny import make_tiny

from tests.flow.served import Served, serve


@pytest.fixture(scope="package")
def tiny_omni(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tiny") / "tiny-omni"
    make_tiny(directory)
    return directory


@pytest.fixture(scope="package")
def e_pd(tiny_omni: Path) -> Iterator[Served]:
    yield from serve(tiny_omni, "e+pd")


@pytest.fixture(scope="package")
def none(tiny_omni: Path) -> Iterator[Served]:
    yield from serve(tiny_omni, "none")


@pytest.fixture(scope="package", params=["none", "e+pd"])
def server(request: pytest.FixtureRequest) -> Served:
    """Each layout in turn."""
    return request.getfixturevalue("none" if request.param == "none" else "e_pd")
