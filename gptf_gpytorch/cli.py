"""The ``gptf`` command."""

import click

from gptf_gpytorch.commands.doctor import doctor
from gptf_gpytorch.commands.explore import explain, inspect, recommend
from gptf_gpytorch.commands.group import DEBUG, Group
from gptf_gpytorch.commands.predict import evaluate, predict
from gptf_gpytorch.commands.reproduce import reproduce
from gptf_gpytorch.commands.sweep import sweep
from gptf_gpytorch.commands.sync import sync
from gptf_gpytorch.commands.train import train
from gptf_gpytorch.version import __version__


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--debug", is_flag=True, help=DEBUG)
@click.version_option(__version__, prog_name="gptf")
@click.pass_context
def main(ctx: click.Context, debug: bool) -> None:
    """Nonlinear tensor factorization with Gaussian processes."""
    ctx.obj = {}


for command in (train, sweep, evaluate, predict, recommend, explain, inspect, sync, reproduce, doctor):
    main.add_command(command)
