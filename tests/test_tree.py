"""Tests of the code base itself: the tree mirrors, files stay small, exports exist."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "triptych"
MAX_LINES = 400

# Files that hold Protocols, plain types or wiring only: the suites of what implements or uses them test them.
WITHOUT_OWN_TEST = {
    "__main__.py": "one call, run by every test that starts a process",
    "models/interface.py": "Protocols and types",
    "transport/interface.py": "Protocols; tests/transport/test_contract.py runs over all implementations",
    "embeddings/interface.py": "Protocols and types",
    "media/types.py": "types",
    "launch/engine_spec.py": "one dataclass; tests/launch/test_processes.py sends it to a child",
}


def modules() -> list[Path]:
    return sorted(path for path in SOURCE.rglob("*.py") if path.name != "__init__.py")


def test_every_module_has_its_test_file() -> None:
    missing = [
        str(path.relative_to(SOURCE))
        for path in modules()
        if str(path.relative_to(SOURCE)) not in WITHOUT_OWN_TEST
        and not (ROOT / "tests" / path.relative_to(SOURCE).parent / f"test_{path.name}").exists()
    ]
    assert missing == []


def test_the_list_of_exceptions_names_existing_files() -> None:
    assert [name for name in WITHOUT_OWN_TEST if not (SOURCE / name).exists()] == []


def test_no_file_is_longer_than_the_ceiling() -> None:
    files = [*SOURCE.rglob("*.py"), *(ROOT / "tests").rglob("*.py"), *(ROOT / "model").rglob("*.py")]
    too_long = {str(path.relative_to(ROOT)): lines for path in files if (lines := _lines(path)) > MAX_LINES}
    assert too_long == {}


def test_every_package_says_what_it_is() -> None:
    silent = [str(path) for path in SOURCE.rglob("__init__.py") if not path.read_text().startswith('"""')]
    assert silent == []


def _lines(path: Path) -> int:
    return len(path.read_text().splitlines())
