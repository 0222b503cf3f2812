"""What a run prints: a live bar on a terminal, plain lines in a pipe."""

import sys
from collections.abc import Mapping
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column

from gptf_gpytorch.tracking.tracker import Tracker
from gptf_gpytorch.training.sampled_model import SampledModel


class ProgressPrinter(Tracker):
    """Prints a run to a stream.

    :param stream: where to; standard error by default, so that results can be piped.
    :param every: in a pipe, steps between two lines.
    """

    def __init__(self, stream: TextIO | None = None, every: int = 10) -> None:
        self.console = Console(file=sys.stderr if stream is None else stream, highlight=False, soft_wrap=True)
        self.every, self._task = every, TaskID(0)
        self._bar: Progress | None = None

    @property
    def _narrow(self) -> bool:
        return self.console.width < 120

    def start(self, run: Mapping[str, Any]) -> None:
        """Say what is trained, and open the bar."""
        workers = run["workers"]
        modes = " x ".join(f"{size} {name}" for name, size in run["modes"].items())
        held = f", {run['held_out']:,} held out" if run["held_out"] else ""
        self.console.print(
            f"{run['entries']:,} entries of {modes}{held}; {run['text']}{f', {workers} workers' if workers > 1 else ''}",
            markup=False,
        )
        if self.console.is_terminal:
            self._bar = Progress(
                TextColumn("step {task.completed}/{task.total}", table_column=Column(no_wrap=True)),
                BarColumn(bar_width=10 if self._narrow else 40, table_column=Column(no_wrap=True)),
                TextColumn("{task.fields[numbers]}", table_column=Column(no_wrap=True, ratio=1)),  # gives way first
                TimeElapsedColumn(table_column=Column(no_wrap=True)),
                TextColumn("left", table_column=Column(no_wrap=True)),
                TimeRemainingColumn(table_column=Column(no_wrap=True)),
                console=self.console,
                expand=True,
            )
            self._task = self._bar.add_task("train", total=run["steps"], numbers="")
            self._bar.start()

    def step(self, record: Mapping[str, Any]) -> None:
        """Move the bar, or print a line now and then."""
        if self._bar is not None:
            self._bar.update(self._task, completed=record["iteration"], numbers=_numbers(record, brief=self._narrow))
        elif record["last"] if "stage" in record else record["iteration"] % self.every == 0 or record["iteration"] == 1:
            self._line(record)

    def _line(self, record: Mapping[str, Any]) -> None:
        seconds = f"{record['seconds']:.1f} s"
        what = "sweep" if "stage" in record else "step"
        self.console.print(f"{what} {record['iteration']}  {_numbers(record)}  {seconds}", markup=False)

    def note(self, text: str) -> None:
        """Print a line above the bar."""
        self.console.print(text, markup=False)

    def finish(self, result: Any) -> None:
        """Close the bar, and say why it ended and what the model is worth."""
        self._close()
        summary = result.summary
        steps = "sweeps" if isinstance(result.fitted, SampledModel) else "steps"
        bound = f"; bound {summary['bound']:.6g} an entry" if "bound" in summary else ""
        self.console.print(
            f"done after {summary['steps']} {steps} and {summary['seconds']:.1f} s: {summary['reason']}{bound}",
            markup=False,
        )
        if isinstance(result.fitted, SampledModel):
            for line in worth(result.fitted):
                self.console.print(line, markup=False)

    def fail(self, reason: str) -> None:
        """Close the bar."""
        self._close()

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def worth(fitted: SampledModel) -> list[str]:
    """The scores of held-out entries as lines of a table: this model's, trivial ones, and those of the runners."""
    rows = fitted.history["race"]
    if not rows:
        return []
    measures = [name for name in rows[0] if name not in ("name", "weight")]
    width = max(len(row["name"]) for row in rows)
    lines = [f"{'held-out entries':<{width}}  weight  " + "  ".join(f"{name:>17}" for name in measures)]
    for row in rows:
        weight = "" if row["weight"] is None else f"{row['weight']:.2f}"
        numbers = "  ".join(f"{row[name]:>17.4f}" for name in measures)
        lines.append(f"{row['name']:<{width}}  {weight:>6}  {numbers}")
    return lines


def _numbers(record: Mapping[str, Any], *, brief: bool = False) -> str:
    if "stage" in record:
        score = "" if record["held_out"] is None else f"  held out {record['held_out']:.4g}"
        return f"{record['stage']} {record['chain']}/{record['of']}  noise {record['noise']:.4g}{score}"
    if brief:
        held_out = "" if record["held_out"] is None else f" held out {record['held_out']:.3g}"
        return f"bound {record['bound']:.4g}{held_out}"
    parts = [f"bound {record['bound']:.6g}", f"gradient {record['gradient_norm']:.2g}"]
    if record["held_out"] is not None:
        parts.append(f"held out {record['held_out']:.4g}")
    if record["lambda_passes"] is not None:
        parts.append(f"passes {record['lambda_passes']}")
    parts.append(f"{record['entries_per_second']:.3g} entries/s")
    return "  ".join(parts)
