"""MLflow as the place where runs are seen."""

import csv
import importlib.metadata
import importlib.util
import json
import math
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from gptf_gpytorch.data.entries import TensorEntries
from gptf_gpytorch.errors import InputError
from gptf_gpytorch.health import pip_install
from gptf_gpytorch.reporting import described, report
from gptf_gpytorch.serving import served
from gptf_gpytorch.tracking.journal import Journal
from gptf_gpytorch.tracking.tracker import Tracker
from gptf_gpytorch.training.saved import FittedModel
from gptf_gpytorch.version import __version__

# Seconds that the end of a run waits for a server that answers, and one that was stopped; after them what is left is sent
# by the process that sends, which stays.
_PATIENCE, _STOPPED = 20.0, 3.0
# Of that process, as `nice` counts: it takes what training leaves of the cores.
_PRIORITY = 19
_SENDING: list[subprocess.Popen[bytes]] = []  # those that were left to go on by themselves


class MLflowTracker(Tracker):
    """Logs a run to MLflow: parameters, tags, metrics of every step, the data set, figures, and the model.

    Everything is written to a journal in the run's folder first, and sent by a process of its own: training waits for no
    server. What a server that was away has not heard is sent by ``gptf sync``, or when the next run begins in that folder.

    The store is MLflow's: ``MLFLOW_TRACKING_URI``, or ``mlflow.set_tracking_uri``, or `mlflow.db` here. If a run is active
    (``mlflow.start_run()``, or ``mlflow run``) this is the one that is logged to, and ends when its owner ends it.

    :param experiment: its name; by default MLflow's own setting.
    :param name: of the run.
    :param source: the file that the entries are from, for the data set's record.
    :param reading: the options that it was read with, which ``gptf reproduce`` reads it with again.
    :param tags: more of them.
    :param parent: the run that this one is nested in: a tracker that has begun, or the id of a run.
    :param system_metrics: whether the use of processors, memory and network is logged as well.
    :param register: the name under which the model is registered.
    :param alias: that the registered version gets.

    Example:
        >>> tracker = MLflowTracker("clicks", name="rank 5", tags={"team": "ads"})

    """

    def __init__(
        self,
        experiment: str | None = None,
        *,
        name: str | None = None,
        source: str | Path | None = None,
        reading: Mapping[str, Any] | None = None,
        tags: Mapping[str, str] | None = None,
        parent: "MLflowTracker | str | None" = None,
        system_metrics: bool = False,
        register: str | None = None,
        alias: str | None = None,
    ) -> None:
        try:
            self._version = importlib.metadata.version("mlflow")
        except importlib.metadata.PackageNotFoundError:
            raise InputError(
                f"Runs are tracked by MLflow, which must be installed. Got none: {pip_install('mlflow')}"
            ) from None
        if system_metrics and importlib.util.find_spec("psutil") is None:
            raise InputError(f"System metrics need psutil. Got none: {pip_install('mlflow')}")
        if alias and not register:
            raise InputError(f"An alias is that of a registered model. Got {alias!r} without a name to register.")
        self.experiment, self.name, self.tags = experiment, name, dict(tags or {})
        self.source, self.reading = source, dict(reading or {})
        self.parent, self.system_metrics = parent, system_metrics
        self.register = None if register is None else {"name": register, "alias": alias}
        self._journal: Journal | None = None
        self._sender: subprocess.Popen[bytes] | None = None
        self._home: Path | None = None
        self._temporary = False  # whether what is there goes when it was sent
        self.run_id: str | None = None  # MLflow's, when it is known
        self._last = 0  # the last step that the journal holds

    @property
    def journal(self) -> Journal:
        """What the run has said so far; it must have begun."""
        if self._journal is None:
            raise InputError("A tracker has a journal when its run has begun. Got one that has not.")
        return self._journal

    def start(self, run: Mapping[str, Any]) -> None:
        """Open the journal, or the one of the run that goes on, and begin to send it."""
        self._temporary = run["output"] is None
        self._home = home = Path(run["output"] or tempfile.mkdtemp(prefix="gptf-mlflow-"))
        earlier = Journal.all(home)
        kept = {} if self._temporary else {"output": str(home.resolve())}
        tags = {**described.tags(run), **kept, **self.tags}
        if run["resumed"] and earlier:
            self._journal = earlier.pop()
            steps = (record["step"] for record, _ in self._journal.records() if record["kind"] == "metrics")
            self._last = max(steps, default=0)
            self._go_on(tags, described.parameters(run))
        else:
            dataset = described.dataset(run, self.source)
            self._begin(Journal.new(home), described.parameters(run), tags, dataset)
        described.write_files(run, self.source, self.reading, self.journal.folder / "run")
        self.journal.append("files", path="run", to=None)
        self._send([journal.folder for journal in earlier if journal.waiting])

    def begin(self, output: Path, params: Mapping[str, Any]) -> None:
        """Begin a run that is only the parent of others; the one that is there goes on if it has the same parameters."""
        self._home = output
        earlier = Journal.all(output)
        if earlier and earlier[-1].first.get("params") == dict(params):
            self._journal = earlier[-1]
            self._go_on(self.tags, params)
        else:
            self._begin(Journal.new(output), params, self.tags, None)
        others = (journal.folder for journal in Journal.below(output) if journal.waiting)
        self._send([folder for folder in others if folder != self.journal.folder])

    def _begin(
        self,
        journal: Journal,
        params: Mapping[str, Any],
        tags: Mapping[str, Any],
        dataset: Any,
        context: str = "training",
    ) -> None:
        self._journal = journal
        parent = self.parent
        self._journal.append(
            "begin",
            **described.chosen(self.experiment, nested=parent is not None),
            name=self.name,
            parent=str(parent.journal.folder.resolve()) if isinstance(parent, MLflowTracker) else parent,
            params=dict(params),
            tags=dict(tags),
            dataset=dataset,
            context=context,
            system_metrics=self.system_metrics,
        )

    def _go_on(self, tags: Mapping[str, Any], params: Mapping[str, Any]) -> None:
        """Go on in the run of the journal, which is its owner's to end if somebody has opened it again."""
        active = described.chosen(None, nested=self.parent is not None)["run_id"]
        lent = active and active in (self.journal.first["run_id"], self.journal.sent["run_id"])
        self.journal.append(
            "again",
            run_id=active if lent else None,
            params=dict(params),
            tags=dict(tags),
            system_metrics=self.system_metrics,
        )

    def _send(self, earlier: Sequence[Path]) -> None:
        folders = [str(folder.resolve()) for folder in (*earlier, self.journal.folder)]
        self._sender = subprocess.Popen(
            [sys.executable, "-m", "gptf_gpytorch.tracking.sender", *folders],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # what ends training must not end what tells of it
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": "1"},
        )
        # From its first moment: what it imports is most of what it costs, and training has the cores. Linux may share them
        # between sessions first, whatever their processes' priorities.
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, self._sender.pid, _PRIORITY)
            Path(f"/proc/{self._sender.pid}/autogroup").write_text(str(_PRIORITY), encoding="ascii")

    def step(self, record: Mapping[str, Any]) -> None:
        """Write the numbers of a step. Those of steps that are taken again after a resumption were written before."""
        if record["iteration"] > self._last:
            self._metrics(record["iteration"], described.numbers(record))
            self._last = record["iteration"]

    def _metrics(self, step: int, values: Mapping[str, float]) -> None:
        finite = {name: float(value) for name, value in values.items() if math.isfinite(value)}
        self.journal.append("metrics", step=step, values=finite)

    def note(self, text: str) -> None:
        """Keep the last note as a tag."""
        if self._journal is not None:
            self._journal.append("tags", tags={"gptf.note": text[:5000]})

    def compared(self, starts: Sequence[Mapping[str, Any]]) -> None:
        """Write each start, or each row of a race, as a nested run."""
        for start in starts:
            self.journal.append("child", **described.child(start))

    def finish(self, result: Any) -> None:
        """Write the final numbers, the figures and the model, and wait until a server that answers has them."""
        summary = result.summary
        names = ("bound", "steps", "seconds", "held_out")
        # A sampled model has no bound, and scores of its held-out entries by name, which report.scores has.
        final = {f"final_{name}": summary[name] for name in names if isinstance(summary.get(name), int | float)}
        timings = {f"seconds_{name}": seconds for name, seconds in result.timings.items()}
        values = {**final, **timings, **report.scores(result)}
        self._metrics(summary["steps"], {name: value for name, value in values.items() if value is not None})
        report.draw(result, self.journal.folder / "figures")
        self.journal.append("files", path="figures", to="figures")
        self._write_model(result.fitted)
        self.close("FINISHED", summary["reason"])

    def summarize(self, rows: Sequence[Mapping[str, Any]], score: str) -> None:
        """End a run that is the parent of others: their table, best first, and the best one's numbers."""
        folder = self.journal.folder / "table"
        folder.mkdir(exist_ok=True)
        with (folder / "runs.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        (folder / "runs.json").write_text(json.dumps(list(rows), indent=1) + "\n")
        self.journal.append("files", path="table", to=None)
        numbers = {f"best_{name}": value for name, value in rows[0].items() if not isinstance(value, str)}
        self._metrics(0, numbers)
        chosen = {f"best.{name}": value for name, value in rows[0].items() if isinstance(value, str)}
        self.journal.append("tags", tags=chosen)
        self.close("FINISHED", f"{len(rows)} runs, compared by {score}")

    def evaluated(self, folder: Path, fitted: FittedModel, entries: TensorEntries, scores: Mapping[str, float]) -> None:
        """Log how good a saved model is on entries, in the run that is active or in one of its own.

        :param folder: where the model is.
        """
        self._temporary, self._home = True, Path(tempfile.mkdtemp(prefix="gptf-mlflow-"))
        about = described.evaluation(fitted, entries)
        trained = [journal.sent["run_id"] for journal in Journal.all(folder)][-1:]
        tags = {**described.tags(about), **({"trained_in": trained[0]} if any(trained) else {}), **self.tags}
        dataset = described.dataset(about, self.source)
        files = {"model": str(folder.resolve()), "data": str(self.source)}
        self._begin(Journal.new(self._home), files, tags, dataset, "evaluation")
        self._send([])
        self._metrics(0, {f"test_{name}": score for name, score in scores.items()})
        figures = self.journal.folder / "figures"
        figures.mkdir()
        report.draw_predictions(fitted, entries, figures)
        self.journal.append("files", path="figures", to="figures")
        self.close("FINISHED", f"{len(entries):,} entries were predicted")

    def fail(self, reason: str) -> None:
        """Say why the run has ended."""
        self.close("KILLED" if reason.startswith("InterruptedRunError") else "FAILED", reason, _STOPPED)

    def close(self, status: str, reason: str, patience: float = _PATIENCE) -> None:
        """End the run, and wait a while for what a server that answers has still to hear."""
        if self._journal is None or self._sender is None:
            return
        self.journal.append("end", status=None if self.journal.lent else status, tags={"gptf.reason": reason[:5000]})
        sender, self._sender = self._sender, None
        sender.stdin.close()  # type: ignore[union-attr]
        try:  # a server that has not answered so far is hardly worth waiting for
            sender.wait(min(patience, _STOPPED) if self.journal.sent["trouble"] else patience)
        except subprocess.TimeoutExpired:  # it goes on by itself
            _SENDING.append(sender)
        self.run_id = self.journal.sent["run_id"]
        if self._temporary and not self.journal.waiting:
            shutil.rmtree(self._home or "", ignore_errors=True)

    @property
    def trouble(self) -> str | None:
        """What could not be sent and why, on one line, after the run has ended; None if everything was."""
        waiting = self.journal.waiting
        if not waiting:
            return None
        why = (self.journal.sent["trouble"] or "the tracking server has not answered yet").rstrip(".")
        return (
            f"MLflow has not got {waiting} records of this run: {why}. Later: gptf sync {shlex.quote(str(self._home))}"
        )

    def _write_model(self, fitted: FittedModel) -> None:
        model = (self._home or Path()) / "model"
        if self._temporary:
            fitted.save(model)
        self.journal.append(
            "model",
            path=os.path.relpath(model, self.journal.folder),
            code=str(served.CODE),
            params=described.parameters({"config": fitted.config.to_dict()}),
            signature=served.signature(fitted),
            example=served.example(fitted),
            requirements=[f"gptf_gpytorch=={__version__}", f"mlflow=={self._version}"],
            metadata={"gptf_gpytorch": __version__, "likelihood": fitted.config.likelihood},
            register=self.register,
        )
