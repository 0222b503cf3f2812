"""``.ci/need.sh``: a missing system tool is named with its package, and installed only by root on Debian."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

NEED = Path(__file__).parents[1] / ".ci" / "need.sh"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A PATH with nothing on it but what the script itself calls."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in ("bash", "id"):
        found = shutil.which(tool)
        assert found is not None
        (folder / tool).symlink_to(found)
    return folder


def need(path: Path, *tools: str, **environment: str) -> subprocess.CompletedProcess[str]:
    bash = shutil.which("bash")
    assert bash is not None
    env = {"PATH": str(path), "HOME": os.environ.get("HOME", "/"), **environment}
    return subprocess.run([bash, NEED, *tools], env=env, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("tool", "package"),
    [("make", "make"), ("g++", "g++"), ("python", "python3-venv"), ("ip", "iproute2"), ("sshd", "openssh-server")],
)
def test_a_missing_tool_is_named_with_its_package(path: Path, tool: str, package: str) -> None:
    done = need(path, tool)  # no apt-get on this PATH, so nothing is installed
    assert done.returncode == 1
    assert f"Debian's package: {package}" in done.stderr
    assert f"apt-get install {package}" in done.stderr


def test_a_tool_that_is_there_is_enough(path: Path) -> None:
    (path / "g++").symlink_to("/bin/true")
    assert need(path, "g++").returncode == 0


def test_root_on_debian_installs_it(path: Path) -> None:
    """A stand-in apt-get on the PATH: the real one would change the machine."""
    if os.getuid() != 0 or not Path("/etc/debian_version").exists():
        pytest.skip("only root on Debian installs")
    log = path / "log"
    (path / "apt-get").write_text(
        f"#!{shutil.which('bash')}\necho \"$@\" >> '{log}'\n"
        f"if [ $1 = install ]; then {shutil.which('ln')} -s /bin/true '{path}/make'; fi\n"
    )
    (path / "apt-get").chmod(0o755)
    done = need(path, "make")
    assert done.returncode == 0, done.stderr
    assert log.read_text().splitlines() == ["update -qq", "install -y -qq make"]


def test_python_is_chosen_and_an_old_one_is_not(path: Path) -> None:
    (path / "python3.11").write_text(f"#!{shutil.which('bash')}\nexit 1\n")
    (path / "python3.11").chmod(0o755)
    (path / "python3").symlink_to(os.path.realpath(sys.executable))
    done = need(path, "python")
    assert done.stdout.split() == ["python3"]


def test_a_chosen_python_that_will_not_do_is_an_error(path: Path) -> None:
    done = need(path, "python", PYTHON="/bin/false")
    assert done.returncode == 1
    assert "PYTHON=/bin/false is not such an interpreter" in done.stderr
