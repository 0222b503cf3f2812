"""Build Horovod against the torch that is installed here: ``python -m gptf_gpytorch.distributed.build_horovod``.

Horovod 0.28.1 asks for C++14, and torch's headers need C++17 (horovod#3998), so the release does not compile as
it is. This downloads it, changes that one number in two files, builds a wheel with the Gloo controller, keeps
the wheel in the user cache under the versions it was built for, and installs it into the running interpreter's
environment. A second run finds the wheel and needs no network.
"""

import hashlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import click

VERSION = "0.28.1"
SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"

_STANDARD = re.compile(r"set\(CMAKE_CXX_STANDARD 14\)")
_PATCHED = ("CMakeLists.txt", "horovod/torch/CMakeLists.txt")
_FLAGS = {
    "HOROVOD_WITH_PYTORCH": "1",
    "HOROVOD_WITH_GLOO": "1",
    "HOROVOD_WITHOUT_MPI": "1",
    "HOROVOD_WITHOUT_TENSORFLOW": "1",
    "HOROVOD_WITHOUT_MXNET": "1",
}
# What Horovod imports, and what its build calls: named, because its setup.py would fetch them by itself, unpinned.
_RUNTIME = ("cffi", "cloudpickle", "packaging", "psutil", "pyyaml")
_BUILD = ("cmake<4", "setuptools<80", "wheel")


def wheel_folder(cache: Path | None = None) -> Path:
    """Where the wheel for this torch, this Python and this machine is kept."""
    if cache is None:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gptf_gpytorch"
    torch = importlib.metadata.version("torch")
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    return cache / "wheels" / f"horovod-{VERSION}-torch-{torch}-{python}-{sysconfig.get_platform()}"


def patch(source: Path) -> None:
    """Ask for C++17 in the two files that ask for C++14."""
    for name in _PATCHED:
        path = source / name
        text, count = _STANDARD.subn("set(CMAKE_CXX_STANDARD 17)", path.read_text())
        if count != 1:
            raise click.ClickException(
                f"{name} of Horovod {VERSION} must ask for C++14 exactly once. Found {count} times."
            )
        path.write_text(text)


def _pip(constraint: Path | None, *arguments: str, **options: object) -> None:
    pinned = ["--constraint", str(constraint.resolve())] if constraint else []
    command = [sys.executable, "-m", "pip", arguments[0], "--quiet", *pinned, *arguments[1:]]
    subprocess.run(command, check=True, **options)  # type: ignore[call-overload]


def _download(folder: Path, constraint: Path | None) -> Path:
    """The source archive, its checksum verified, unpacked and patched."""
    _pip(
        constraint, "download", "--no-deps", "--no-build-isolation", "--no-binary=horovod",
        f"--dest={folder}", f"horovod=={VERSION}",
    )  # fmt: skip
    archive = folder / f"horovod-{VERSION}.tar.gz"
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    if digest != SHA256:
        raise click.ClickException(f"SHA-256 of {archive.name} must be {SHA256}. Got {digest}.")
    shutil.unpack_archive(archive, folder)
    source = folder / f"horovod-{VERSION}"
    patch(source)
    return source


def _build(target: Path, constraint: Path | None) -> None:
    """Build the wheel in a temporary folder and move it into the cache in one step."""
    if shutil.which("g++") is None:
        raise click.ClickException("g++ is needed to build Horovod and was not found. Debian's package: g++")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="gptf-horovod-") as name:
        source = _download(Path(name), constraint)
        # The build calls `cmake`: the pinned one of this environment first.
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        log = Path(name) / "build.log"
        click.echo(f"building Horovod {VERSION} (3 to 4 minutes on 2 cores)")
        with log.open("w") as stream:
            try:
                _pip(
                    None, "wheel", "--verbose", "--no-deps", "--no-build-isolation", "--wheel-dir=wheel", ".",
                    cwd=source, stdout=stream, stderr=stream, env={**os.environ, **_FLAGS, "PATH": path},
                )  # fmt: skip
            except subprocess.CalledProcessError as error:
                tail = "\n".join(log.read_text(errors="replace").splitlines()[-40:])
                raise click.ClickException(f"Horovod did not build. The end of its log:\n{tail}") from error
        staged = Path(tempfile.mkdtemp(prefix=".building-", dir=target.parent))
        shutil.copy2(next((source / "wheel").glob("horovod-*.whl")), staged)
        if target.exists():
            shutil.rmtree(target)
        staged.rename(target)


@click.command(help=__doc__)
@click.option("--constraint", type=click.Path(path_type=Path, exists=True), help="pip constraints to obey.")
@click.option("--force", is_flag=True, help="Build again even if the cache holds the wheel.")
def main(constraint: Path | None, force: bool) -> None:
    """Build, cache and install."""
    if sys.version_info >= (3, 12):
        raise click.ClickException(
            f"Horovod {VERSION} needs Python 3.11 or older (it imports distutils). "
            f"Got {sys.version_info.major}.{sys.version_info.minor}."
        )
    target = wheel_folder()
    # The build tools are installed even if the wheel is there: what an environment holds must not depend on the cache.
    _pip(constraint, "install", *_RUNTIME, *_BUILD)
    if force or not list(target.glob("horovod-*.whl")):
        _build(target, constraint)
    wheel = next(target.glob("horovod-*.whl"))
    _pip(None, "install", "--no-deps", "--no-index", "--force-reinstall", str(wheel))
    click.echo(f"installed {wheel}")


if __name__ == "__main__":
    main()
