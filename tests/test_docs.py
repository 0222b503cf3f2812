"""The README's Python runs as it stands, and so do the examples in the docstrings of the public names."""

import doctest
import os
import re
import subprocess
import sys
from pathlib import Path

import gpytorch
import pytest
import torch

import gptf_gpytorch
from gptf_gpytorch import TrainConfig
from gptf_gpytorch.cli import main

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_the_readmes_python_runs(tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    assert blocks
    script = tmp_path / "readme.py"
    script.write_text("\n".join(blocks))
    environment = {**os.environ, "PYTHONWARNINGS": "error,ignore::DeprecationWarning"}
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=300, env=environment, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    shown = re.findall(r"^# -> (.*)$", "\n".join(blocks), re.MULTILINE)
    printed = iter(done.stdout.splitlines())
    assert shown
    assert all(line in printed for line in shown), f"in this order: {shown}. Got\n{done.stdout}"
    line = next(line for line in done.stdout.splitlines() if line.startswith("test RMSE"))
    rmse, spread = (float(number) for number in re.findall(r"\d+\.\d+", line))
    assert rmse < 0.5 * spread, done.stdout


def test_the_readmes_commands_and_flags_are_there() -> None:
    known = {
        name: {"--help"} | {flag for param in cmd.params for flag in param.opts} for name, cmd in main.commands.items()
    }
    commands = re.findall(
        r"gptf ([a-z]+)((?: [^`\n#|]*)?)", "\n".join(re.findall(r"`[^`\n]+`|^```\n.*?^```", README, re.M | re.S))
    )
    assert {name for name, _ in commands} == set(known)
    for name, rest in commands:
        assert set(re.findall(r"(?<!\S)--[a-z-]+", rest)) <= known[name], f"gptf {name}{rest}"


def test_the_readmes_configuration_is_one(tmp_path: Path) -> None:
    [block] = re.findall(r"^```toml\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    (tmp_path / "run.toml").write_text(block)
    config = TrainConfig.read(tmp_path / "run.toml", inducing=50)
    assert (config.rank, config.inducing) == ((3, 3, 5), 50)


@pytest.mark.parametrize(
    "name", [name for name in gptf_gpytorch.__all__ if isinstance(getattr(gptf_gpytorch, name), type)]
)
def test_docstring_examples_run(name: str) -> None:
    names = {public: getattr(gptf_gpytorch, public) for public in gptf_gpytorch.__all__}
    globs = {**names, "torch": torch, "gpytorch": gpytorch}
    torch.manual_seed(0)
    finder = doctest.DocTestFinder(recurse=False)
    for test in finder.find(names[name], name, globs=globs):
        result = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(test)
        assert result.failed == 0


@pytest.mark.parametrize(
    "name",
    [
        "GPTF",
        "CollapsedELBO",
        "CollapsedVariationalStrategy",
        "LatentFactors",
        "FactorRBFKernel",
        "ProbitLikelihood",
        "TensorEntries",
        "Vocabulary",
    ],
)
def test_public_classes_have_an_example(name: str) -> None:
    assert ">>>" in getattr(gptf_gpytorch, name).__doc__


def test_every_link_of_the_readme_to_a_file_is_there() -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", README):
        assert (ROOT / target).exists(), target
