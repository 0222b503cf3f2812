"""Imports point up: a module may import only what stands above it in the reading order of docs/design.md."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = "gptf_gpytorch"

# The reading order. A name stands for that module, or for all of a folder that has no finer entries.
ORDER = [
    "version",
    "errors",
    "wording",
    "health",
    "distributed.build_horovod",
    "distributed.watchdog",
    "distributed.guardian",
    "distributed.links",
    "distributed.communicator",
    "distributed.elastic",
    "distributed.slots",
    "distributed.verdicts",
    "distributed.supervisor",
    "distributed.threads",
    "distributed.sharded_sum",
    "distributed",
    "data.storage",
    "data.vocabulary",
    "data.rules",
    "data.entries",
    "data.cells",
    "data.duplicates",
    "data.readers.request",
    "data.readers.rows",
    "data.readers.numbers",
    "data.readers.packing",
    "data.readers.ids",
    "data.readers.collect",
    "data.readers.lines",
    "data.readers.text",
    "data.readers.tables",
    "data.readers.arrays",
    "data.readers.shards",
    "data.readers",
    "data.sampling",
    "data.splits",
    "data",
    "factors",
    "kernels",
    "likelihoods",
    "multilinear.layout",
    "multilinear.state",
    "multilinear.covariates",
    "multilinear.labels",
    "multilinear.priors",
    "multilinear.reference",
    "multilinear.loops",
    "multilinear.sampler",
    "multilinear.samples",
    "multilinear",
    "variational.checks",
    "variational.shards",
    "variational.statistics",
    "variational.stationary",
    "variational.workspace",
    "variational.native",
    "variational.rows",
    "variational.loops",
    "variational.compiled",
    "variational.fused",
    "variational.paths",
    "variational.bounds",
    "variational.fixed_point",
    "variational.natural",
    "variational.evaluation",
    "variational.distributions",
    "variational.strategy",
    "variational.prediction",
    "variational.elbo",
    "variational",
    "models",
    "initialization",
    "tracking.tracker",
    "tracking.journal",
    "tracking.mlflow_store",
    "tracking.system_metrics",
    "tracking.sender",
    "tracking.logged",
    "tracking",
    "training.config",
    "training.optimizers",
    "training.objective",
    "training.signals",
    "training.timings",
    "training.history",
    "training.problem",
    "training.state",
    "training.checkpoints",
    "training.commits",
    "training.store",
    "training.recipe",
    "training.minimise",
    "training.process",
    "training.chains",
    "training.race",
    "training.fitted",
    "training.paper_model",
    "training.sampled_model",
    "training.saved",
    "training.result",
    "training.loop",
    "training.start",
    "training.progress",
    "training.run",
    "training.paper_run",
    "training.sampled_run",
    "training.fit",
    "training",
    "serving.lookup",
    "serving.reading",
    "serving.predictions",
    "serving.tables",
    "serving.served",
    "serving.pyfunc_model",
    "serving.metrics",
    "serving.averages",
    "serving.recommend",
    "serving.explain",
    "serving.fold_in_samples",
    "serving.fold_in",
    "serving",
    "reporting.figures",
    "reporting.report",
    "reporting.described",
    "reporting.mlflow_tracker",
    "reporting",
    "commands.options",
    "commands.tracked",
    "commands.printing",
    "commands.loading",
    "commands.group",
    "commands",
    "cli",
    "__main__",
    "",
]
HOMES = {
    "horovod": ("distributed.communicator",),
    "mlflow": ("tracking", "serving"),
    "numba": ("variational.native", "variational.rows", "variational.loops", "multilinear.loops"),
    "llvmlite": ("variational.native",),
}


def place(module: str) -> int | None:
    """The position of a dotted name (without the package) in ORDER, by its longest listed prefix."""
    parts = module.split(".") if module else []
    for length in range(len(parts), 0, -1):
        if ".".join(parts[:length]) in ORDER:
            return ORDER.index(".".join(parts[:length]))
    return ORDER.index("") if not module else None


def module_name(path: Path, package: Path) -> str:
    parts = path.relative_to(package).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(path: Path, package: Path) -> Iterator[tuple[int, str]]:
    """Every absolute dotted name that a file imports, with its line: statements, nested ones, and calls by name."""
    here = [PACKAGE, *path.relative_to(package).parts[:-1]]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = [*here[: len(here) - node.level + 1]] if node.level else []
            base += node.module.split(".") if node.module else []
            for alias in node.names:
                # `from package.folder import x` may mean the module x: take the longest name that is a module.
                whole = [*base, alias.name]
                below = package.joinpath(*whole[1:])
                is_module = whole[0] == PACKAGE and (below.is_dir() or below.with_suffix(".py").exists())
                yield node.lineno, ".".join(whole if is_module else base)
        elif isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in ("import_module", "__import__") and node.args and isinstance(node.args[0], ast.Constant):
                yield node.lineno, str(node.args[0].value)


def violations(package: Path) -> list[str]:
    found = []
    for path in sorted(package.rglob("*.py")):
        source = module_name(path, package)
        mine = place(source)
        if mine is None:
            found.append(f"{source}: has no place in the reading order")
            continue
        for line, name in imported(path, package):
            top, _, rest = name.partition(".")
            if top == PACKAGE:
                theirs = place(rest)
                if theirs is None:
                    found.append(f"{source}:{line}: imports {name}, which has no place in the reading order")
                elif theirs > mine:
                    found.append(f"{source}:{line}: imports {name}, which stands below it")
            homes = HOMES.get(top)
            if homes and not any(source == home or source.startswith(f"{home}.") for home in homes):
                found.append(f"{source}:{line}: imports {name} outside {' and '.join(homes)}")
    return found


def test_imports_point_up() -> None:
    assert violations(ROOT / PACKAGE) == []


def test_the_mlflow_folder_is_not_importable() -> None:
    assert (ROOT / "mlflow").is_dir()
    assert not list((ROOT / "mlflow").rglob("__init__.py"))


@pytest.mark.parametrize(
    ("module", "code", "complaint"),
    [
        ("factors", "import gptf_gpytorch.models", "stands below"),
        ("factors", "from gptf_gpytorch import models", "stands below"),
        ("factors", "from .models import GPTF", "stands below"),
        ("factors", "from . import models", "stands below"),
        ("factors", "def f():\n    from gptf_gpytorch.cli import main", "stands below"),
        ("factors", "from gptf_gpytorch import __version__", "stands below"),
        ("distributed/communicator", "from gptf_gpytorch.distributed.sharded_sum import s", "stands below"),
        ("training/fit", "import horovod.torch as hvd", "outside distributed.communicator"),
        ("models", "import importlib\nm = importlib.import_module('mlflow.tracking')", "outside tracking"),
        ("surprise", "x = 1", "has no place"),
    ],
)
def test_a_bad_import_is_found(tmp_path: Path, module: str, code: str, complaint: str) -> None:
    package = tmp_path / PACKAGE
    for name in ("__init__", "models", "cli", "distributed/__init__", "distributed/sharded_sum", f"{module}"):
        path = package / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    assert [line for line in violations(package) if "has no place" not in line] == []
    (package / f"{module}.py").write_text(code)
    assert any(complaint in line for line in violations(package))


@pytest.mark.parametrize(
    ("module", "code"),
    [
        ("models", "from gptf_gpytorch.factors import LatentFactors\nimport gptf_gpytorch.errors"),
        ("distributed/communicator", "import importlib\nhvd = importlib.import_module('horovod.torch')"),
        ("tracking/sender", "import mlflow\nfrom gptf_gpytorch.tracking.journal import Journal"),
        ("__init__", "from gptf_gpytorch.models import GPTF"),
    ],
)
def test_a_good_import_passes(tmp_path: Path, module: str, code: str) -> None:
    path = tmp_path / PACKAGE / f"{module}.py"
    path.parent.mkdir(parents=True)
    path.write_text(code)
    assert violations(tmp_path / PACKAGE) == []
