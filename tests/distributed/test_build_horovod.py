"""The parts of the Horovod build that decide what is built and where it is kept."""

import importlib.metadata
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from gptf_gpytorch.distributed import build_horovod

FILES = ("CMakeLists.txt", "horovod/torch/CMakeLists.txt")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("before\nset(CMAKE_CXX_STANDARD 14)\nset(CMAKE_CXX_STANDARD_REQUIRED ON)\n")
    return tmp_path


def test_the_patch_asks_for_the_standard_torch_needs(source: Path) -> None:
    build_horovod.patch(source)
    for name in FILES:
        text = (source / name).read_text()
        assert text == "before\nset(CMAKE_CXX_STANDARD 17)\nset(CMAKE_CXX_STANDARD_REQUIRED ON)\n"


def test_the_patch_refuses_a_source_it_does_not_know(source: Path) -> None:
    (source / FILES[1]).write_text("set(CMAKE_CXX_STANDARD 17)")
    with pytest.raises(click.ClickException, match=r"exactly once\. Found 0 times"):
        build_horovod.patch(source)


def test_the_cache_is_keyed_by_every_version_that_matters(tmp_path: Path) -> None:
    name = build_horovod.wheel_folder(tmp_path).name
    for part in ("0.28.1", importlib.metadata.version("torch"), f"cp3{sys.version_info.minor}"):
        assert part in name


def test_the_cache_follows_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert build_horovod.wheel_folder().is_relative_to(tmp_path / "gptf_gpytorch")


def test_a_python_that_horovod_cannot_run_on_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    version = type("Version", (tuple,), {"major": 3, "minor": 12})
    monkeypatch.setattr(build_horovod.sys, "version_info", version((3, 12)))
    result = CliRunner().invoke(build_horovod.main, [])
    assert result.exit_code == 1
    assert "needs Python 3.11" in result.output
    assert "Got 3.12" in result.output
