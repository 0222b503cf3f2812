"""``gptf doctor``."""

import click

from gptf_gpytorch import health
from gptf_gpytorch.distributed import communicator, threads
from gptf_gpytorch.tracking import mlflow_store
from gptf_gpytorch.variational import paths


@click.command()
def doctor() -> None:
    """Say what is installed, whether it works, and what provides what is missing.

    The exit code is 0 if everything that is installed works, 1 otherwise.

    Example: gptf doctor
    """
    facts = [fact for layer in (health, threads, paths, communicator, mlflow_store) for fact in layer.describe()]
    width = max(len(fact.topic) for fact in facts)
    for fact in facts:
        click.echo(f"{fact.state:<8} {fact.topic:<{width}}  {fact.value}")
        if fact.remedy is not None:
            click.echo(f"{'':<8} {'':<{width}}  -> {fact.remedy}")
    broken = [fact.topic for fact in facts if fact.state == "broken"]
    if broken:
        raise click.ClickException(f"does not work: {', '.join(broken)}")
