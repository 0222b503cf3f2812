"""Tells MLflow what a journal holds: in a process of its own, beside training, or afterwards.

python -m gptf_gpytorch.tracking.sender FOLDER...

It follows the journal until its standard input ends, which is when whoever writes the journal ends, in whatever way. A server
that is away is asked again and again meanwhile. The exit code is 0 if everything was sent.
"""

import fcntl
import importlib
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gptf_gpytorch.tracking import mlflow_store, system_metrics
from gptf_gpytorch.tracking.journal import Journal

# What MLflow takes in one request.
_METRICS, _PAIRS = 1000, 100
_PAUSE = 1.0  # seconds between two looks at the journal
_PATIENCE = 30.0  # at most that many between two tries of a server that is away
KEY = "gptf.journal"


class Sender:
    """Sends one journal. Every request may be repeated: it is made so that the second does nothing.

    :param journal: whose lines are sent.
    """

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self._client: Any = None

    def send(self) -> None:
        """Send all whole lines that were not sent. Whatever MLflow raises is raised."""
        with self._alone():
            sent = self.journal.sent
            metrics: list[tuple[dict[str, Any], int]] = []
            for record, end in self.journal.records(sent["start"]):
                if record["kind"] in ("metrics", system_metrics.KIND):
                    metrics.append((record, end))
                    continue
                self._send_metrics(sent, metrics)
                self._connect(sent, record)
                getattr(self, f"_{record['kind']}")(sent, record)
                self._remember(sent, end)
            self._send_metrics(sent, metrics)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One sender at a time."""
        descriptor = os.open(self.journal.folder / ".sending", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _remember(self, sent: dict[str, Any], end: int) -> None:
        sent.update(start=end, trouble=None)
        self.journal.remember(sent)

    def _connect(self, sent: Mapping[str, Any], record: Mapping[str, Any]) -> None:
        if self._client is None:
            mlflow = importlib.import_module("mlflow")
            uri = sent.get("uri") or record.get("uri")
            if uri:
                mlflow.set_tracking_uri(uri)
            self._client = importlib.import_module("mlflow.tracking").MlflowClient()

    def _begin(self, sent: dict[str, Any], record: Mapping[str, Any]) -> None:
        """Find the run, or make it; say what it is."""
        entities = importlib.import_module("mlflow.entities")
        sent["uri"] = mlflow_store.absolute(str(importlib.import_module("mlflow").get_tracking_uri()))
        run_id = record["run_id"] or self._run(self.journal.key, record)
        sent["run_id"] = run_id
        self._set(run_id, {**record["tags"], KEY: self.journal.key}, record["params"])
        if record["dataset"]:
            dataset = entities.Dataset(**record["dataset"])
            context = [entities.InputTag("mlflow.data.context", record["context"])]
            self._client.log_inputs(run_id, [entities.DatasetInput(dataset, context)])

    def _run(self, key: str, record: Mapping[str, Any]) -> str:
        """The run with that key. A request that made it may have been answered to nobody, so look first."""
        parent = self._parent(record["parent"]) if record["parent"] else None
        if parent is not None:  # MLflow shows runs as nested within one experiment
            experiment = self._client.get_run(parent).info.experiment_id
        else:
            experiment = record["experiment_id"] or self._experiment(record["experiment"])
        found = self._client.search_runs([experiment], f"tags.`{KEY}` = '{key}'", max_results=1)
        if found:
            return str(found[0].info.run_id)
        tags = {KEY: key, **({"mlflow.parentRunId": parent} if parent else {})}
        return str(self._client.create_run(experiment, record["time"], tags, record["name"]).info.run_id)

    @staticmethod
    def _parent(parent: str) -> str:
        """A run's id, or that of the run whose journal has this path."""
        if not Path(parent).is_dir():
            return parent
        journal = Journal(Path(parent))
        if journal.sent["run_id"] is None:
            Sender(journal).send()
        return str(journal.sent["run_id"])

    def _experiment(self, name: str | None) -> str:
        """The experiment of that name, or MLflow's default."""
        if not name:
            return "0"
        found = self._client.get_experiment_by_name(name)
        return str(found.experiment_id if found else self._client.create_experiment(name))

    def _set(self, run_id: str, tags: Mapping[str, Any], params: Mapping[str, Any] | None = None) -> None:
        """Set tags, and params that the run has not got. MLflow never changes one: what it is now becomes a tag."""
        entities = importlib.import_module("mlflow.entities")
        if params:
            there = self._client.get_run(run_id).data
            new = [(name, value) for name, value in params.items() if name not in there.params]
            for part in _parts(new, _PAIRS):
                self._client.log_batch(run_id, params=[entities.Param(name, str(value)) for name, value in part])
            now = {name: str(value) for name, value in params.items() if name in there.params}
            known = {name: there.tags.get(f"now.{name}", there.params[name]) for name in now}
            tags = {**tags, **{f"now.{name}": value for name, value in now.items() if value != known[name]}}
        for part in _parts(list(tags.items()), _PAIRS):
            self._client.log_batch(run_id, tags=[entities.RunTag(name, str(value)) for name, value in part])

    def _send_metrics(self, sent: dict[str, Any], waiting: list[tuple[dict[str, Any], int]]) -> None:
        """Metrics of several lines in one request. MLflow keeps one of two that are equal in value, step and time."""
        entities = importlib.import_module("mlflow.entities") if waiting else None
        batch: list[Any] = []
        for place, (record, end) in enumerate(waiting):
            self._connect(sent, record)
            step, moment = record["step"], record["time"]
            batch += [entities.Metric(name, value, moment, step) for name, value in record["values"].items()]  # type: ignore[union-attr]
            last = place + 1 == len(waiting)
            if last or len(batch) + len(waiting[place + 1][0]["values"]) > _METRICS:
                self._client.log_batch(sent["run_id"], metrics=batch)
                self._remember(sent, end)
                batch = []
        waiting.clear()

    def _tags(self, sent: Mapping[str, Any], record: Mapping[str, Any]) -> None:
        self._set(sent["run_id"], record["tags"])

    def _again(self, sent: Mapping[str, Any], record: Mapping[str, Any]) -> None:
        """The run goes on."""
        if not record["run_id"]:  # of a run that somebody else has opened they know best
            self._client.update_run(sent["run_id"], "RUNNING")
        self._set(sent["run_id"], record["tags"], record["params"])

    def _child(self, sent: Mapping[str, Any], record: Mapping[str, Any]) -> None:
        """A nested run of which only the end is known."""
        entities, moment = importlib.import_module("mlflow.entities"), record["time"]
        experiment = self._client.get_run(sent["run_id"]).info.experiment_id
        key = f"{self.journal.key}/{record['name']}"
        found = self._client.search_runs([experiment], f"tags.`{KEY}` = '{key}'", max_results=1)
        tags = {KEY: key, "mlflow.parentRunId": sent["run_id"]}
        run = found[0] if found else self._client.create_run(experiment, moment, tags, record["name"])
        metrics = [entities.Metric(name, value, moment, 0) for name, value in record["values"].items()]
        params = [entities.Param(name, str(value)) for name, value in record["params"].items()]
        self._client.log_batch(run.info.run_id, metrics=metrics, params=params)
        self._client.set_terminated(run.info.run_id, "FINISHED", moment)

    def _files(self, sent: Mapping[str, Any], record: Mapping[str, Any]) -> None:
        """A folder of the journal, as it is, among the run's artifacts."""
        self._client.log_artifacts(sent["run_id"], str(self.journal.folder / record["path"]), record["to"])

    def _model(self, sent: Mapping[str, Any], record: Mapping[str, Any]) -> None:
        """The model, as one that MLflow serves. One that did not arrive whole is sent again, in its place."""
        client, run = self._client, self._client.get_run(sent["run_id"])
        key = f"{self.journal.key}/{record['time']}"  # a run that went on when it had ended has another one
        experiment = run.info.experiment_id
        found = client.search_logged_models([experiment], f"tags.`{KEY}` = '{key}'", max_results=1)
        model = (
            found[0]
            if found
            else client.create_logged_model(
                experiment, name="model", source_run_id=run.info.run_id, tags={KEY: key}, params=record["params"]
            )
        )
        if model.status != "READY":
            pyfunc, models = importlib.import_module("mlflow.pyfunc"), importlib.import_module("mlflow.models")
            pandas = importlib.import_module("pandas")  # which MLflow brings
            pyfunc.log_model(
                name="model",
                model_id=model.model_id,
                python_model=record["code"],
                artifacts={"model": str((self.journal.folder / record["path"]).resolve())},
                signature=models.ModelSignature.from_dict(record["signature"]),
                input_example=pandas.DataFrame(record["example"]),
                pip_requirements=record["requirements"],
                metadata=record["metadata"],
            )
        outputs = run.outputs.model_outputs if run.outputs else []
        if all(output.model_id != model.model_id for output in outputs):
            output = importlib.import_module("mlflow.entities").LoggedModelOutput(model.model_id, step=0)
            client.log_outputs(run.info.run_id, [output])
        if record["register"]:
            self._register(model.model_id, **record["register"])

    def _register(self, model_id: str, name: str, alias: str | None) -> None:
        versions = self._client.search_model_versions(f"name = '{name}'")
        found = next((version for version in versions if version.source.endswith(model_id)), None)
        version = found or importlib.import_module("mlflow").register_model(f"models:/{model_id}", name)
        if alias:
            self._client.set_registered_model_alias(name, alias, version.version)

    def _end(self, sent: Mapping[str, Any], record: Mapping[str, Any]) -> None:
        self._set(sent["run_id"], record["tags"])
        self._clear(sent["run_id"])
        if record["status"]:  # a run that somebody else began is for them to end
            self._client.set_terminated(sent["run_id"], record["status"], record["time"])

    def _clear(self, run_id: str) -> None:
        """Delete what a server made so late that it was asked a second time: empty runs and models of this journal."""
        experiment, key = self._client.get_run(run_id).info.experiment_id, self.journal.key
        for run in self._client.search_runs([experiment], f"tags.`{KEY}` LIKE '{key}%'"):
            if run.info.run_id != run_id and run.info.status == "RUNNING":
                self._client.delete_run(run.info.run_id)
        for model in self._client.search_logged_models([experiment], f"tags.`{KEY}` LIKE '{key}%'"):
            if model.status != "READY":
                self._client.delete_logged_model(model.model_id)


def _parts(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    return (items[start : start + size] for start in range(0, len(items), size))


def attempt(journal: Journal, sender: Sender | None = None) -> str | None:
    """Send what waits; None if all was sent, else why not, on one line, which is remembered beside the journal as well."""
    try:
        (sender or Sender(journal)).send()
    except Exception as error:  # whatever MLflow and its stores raise: nothing is lost, and the next try may do better
        trouble = mlflow_store.explain(error)
        journal.remember({**journal.sent, "trouble": trouble})
        return trouble
    return None


def main() -> None:
    """Follow the journals that are named until standard input ends; then send the rest, or leave it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for training, which still has to say how it ended
    mlflow_store.bound_requests()
    *before, journal = (Journal(Path(folder)) for folder in sys.argv[1:])
    over = threading.Event()

    def wait_for_the_end() -> None:
        sys.stdin.read()
        over.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    starts = [record for record, _ in journal.records() if record["kind"] in ("begin", "again")]
    sampler = system_metrics.Sampler(journal) if starts[-1]["system_metrics"] else None
    sender, pause, trouble = Sender(journal), _PAUSE, None
    while not over.wait(pause):
        trouble = attempt(journal, sender)
        pause = _PAUSE if trouble is None else min(2.0 * pause, _PATIENCE)
        if trouble is None and before:
            attempt(before.pop())
    if sampler is not None:
        sampler.stop()
    said = [record["kind"] for record, _ in journal.records() if record["kind"] != system_metrics.KIND]
    if said[-1] != "end":  # nobody is left to say it
        reason = "The process that trained ended without a word: it was killed."
        journal.append("end", status=None if journal.lent else "FAILED", tags={"gptf.reason": reason})
    troubles = [attempt(journal, sender), *(attempt(earlier) for earlier in before)]
    sys.exit(3 if any(troubles) else 0)


if __name__ == "__main__":
    main()
