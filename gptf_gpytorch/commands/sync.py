"""``gptf sync``."""

from pathlib import Path

import click

from gptf_gpytorch.commands.options import PATH
from gptf_gpytorch.errors import InputError, TrackingError
from gptf_gpytorch.tracking import mlflow_store
from gptf_gpytorch.tracking.journal import Journal
from gptf_gpytorch.tracking.sender import attempt


@click.command()
@click.argument("folders", type=PATH, nargs=-1, required=True, metavar="FOLDER...")
def sync(folders: tuple[Path, ...]) -> None:
    """Send MLflow what it has not got of the runs in FOLDER and below it.

    Nothing is sent twice. The store is the one that the run began with, else MLFLOW_TRACKING_URI.

    Example: gptf sync runs/clicks
    """
    mlflow_store.bound_requests()
    for folder in folders:
        journals = Journal.below(folder)
        if not journals:
            raise InputError(f"A folder to sync must be the output of a run with --track mlflow. Got {folder}.")
        for journal in journals:
            home, waiting = journal.folder.parents[1], journal.waiting
            trouble = attempt(journal) if waiting else None
            if trouble is not None:
                raise TrackingError(
                    f"MLflow must take what a run has to say. Got {journal.waiting} records of {home} left: {trouble}"
                )
            click.echo(f"{home}: {waiting} records sent, run {journal.sent['run_id']}", err=True)
