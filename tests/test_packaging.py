"""What a user installs: the metadata, the typed marker, the pins, and a core that needs no extra."""

import importlib.metadata
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import gptf_gpytorch

ROOT = Path(__file__).parents[1]
OPTIONAL = ("horovod", "mlflow", "matplotlib", "tensorly", "pooch", "polars", "sparse")
# What only `make bench` installs: it is not pinned.
UNPINNED = {"peers"}


def pins() -> dict[str, str]:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and line[0] != "#"]
    return {canonicalize_name(name): version for name, version in (line.split("==") for line in lines)}


def test_version_is_the_installed_one() -> None:
    assert importlib.metadata.version("gptf_gpytorch") == gptf_gpytorch.__version__


def test_types_are_shipped() -> None:
    assert (Path(gptf_gpytorch.__file__).parent / "py.typed").exists()


def test_every_declared_requirement_is_pinned_within_its_range() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    pinned_extras = [lines for extra, lines in extras.items() if extra not in UNPINNED]
    declared = [*project["dependencies"], *(line for lines in pinned_extras for line in lines)]
    pinned = pins()
    for requirement in map(Requirement, declared):
        name = canonicalize_name(requirement.name)
        if name == "gptf-gpytorch":
            assert requirement.extras == set(extras) - {"all", "horovod"} - UNPINNED
        else:
            assert requirement.specifier.contains(pinned[name]), f"{requirement}: pinned {pinned[name]}"


@pytest.mark.skipif(Path(sys.prefix) != ROOT / ".venv", reason="checks the environment of make test")
def test_everything_installed_is_pinned() -> None:
    pinned = pins()
    # Of this folder alone: a test that imports setuptools puts the copies it brings on sys.path.
    found = importlib.metadata.distributions(path=[sysconfig.get_path("purelib")])
    installed = {canonicalize_name(one.name): one.version for one in found}
    installed.pop("gptf-gpytorch")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    beyond = {canonicalize_name(Requirement(line).name) for extra in UNPINNED for line in extras[extra]} & set(
        installed
    )
    if beyond:
        pytest.skip(f"the environment also holds {', '.join(sorted(beyond))}, which only make bench installs")
    unpinned = {name: version for name, version in installed.items() if pinned.get(name) != version.partition("+")[0]}
    assert unpinned == {}
    assert set(pinned) - set(installed) == set(), "a pin for something that is not installed: make lock"


def test_the_core_imports_and_trains_without_any_extra() -> None:
    code = f"""
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {OPTIONAL!r}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Refuse())
import gptf_gpytorch, gptf_gpytorch.cli, gpytorch, torch
model = gptf_gpytorch.GPTF(shape=(4, 3), rank=1, num_inducing=2)
mll = gptf_gpytorch.CollapsedELBO(gpytorch.likelihoods.GaussianLikelihood(), model, num_data=3)
optimizer = torch.optim.Adam(mll.parameters())
(-mll(model([[0, 0], [1, 1], [3, 2]]), [0.0, 1.0, 2.0])).backward()
optimizer.step()
assert model.eval()([[0, 1]]).mean.isfinite().all()
print(sorted(name for name in {OPTIONAL!r} if name in sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "[]"


def test_what_sends_runs_beside_training_does_without_torch() -> None:
    """Importing torch takes more than a second of the cores that train."""
    code = "import sys, gptf_gpytorch.tracking.sender; print('torch' in sys.modules, 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["False", "False"]


def test_a_name_that_is_not_public_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="gptf_gpytorch"):
        gptf_gpytorch.nothing_of_this_name  # noqa: B018
