"""The flags that commands share, and a flag for every field of a configuration."""

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from gptf_gpytorch.training import config as configuration
from gptf_gpytorch.training.config import TrainConfig

FOLDER = click.Path(path_type=Path)
FILE = click.Path(exists=True, path_type=Path)

unseen = click.option(
    "--unseen",
    type=click.Choice(["error", "prior"]),
    default="error",
    show_default=True,
    help="What to do with an id that was not in training: stop, or predict the prior mean.",
)
fold_in = click.option("--fold-in", "few", type=FILE, help="A few entries of new entities, to learn them from.")
interval = click.option("--interval", default=0.95, show_default=True, help="The probability of the interval.")


def columns(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say what a file's columns are."""
    for option in (
        click.option("--duplicates", type=click.Choice(["error", "mean", "sum", "last", "keep"]), default="error"),
        click.option("--modes", metavar="A,B,C", help="The mode columns.  [default: all but the value]"),
        click.option("--value", default="value", show_default=True, help="The value column."),
    ):
        command = option(command)
    return command


def _rank(ctx: click.Context, param: click.Parameter, value: str | None) -> int | tuple[int, ...] | None:
    if value is None:
        return None
    try:
        parts = tuple(int(part) for part in value.split(","))
    except ValueError:
        raise click.BadParameter(f"one number, or one for each mode as in 3,3,5. Got {value!r}.") from None
    return parts[0] if len(parts) == 1 else parts


def flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """An option for every field of a configuration."""
    documented = dict(_documentation())
    for field in reversed(fields(TrainConfig)):
        flag, text = f"--{field.name.replace('_', '-')}", documented[field.name]
        shown = "none" if field.default == float("inf") else field.default
        settings: dict[str, Any] = {"default": None, "help": f"{text}  [default: {shown}]"}
        choices = configuration.CHOICES.get(field.name)
        if field.name == "rank":
            settings |= {"callback": _rank, "metavar": "R or R,R,..."}
        elif field.name == "balance":
            settings |= {"type": float, "is_flag": False, "flag_value": 1.0, "metavar": "[RATIO]"}
        elif isinstance(field.default, bool):
            flag = f"{flag}/--no-{field.name}"
        elif choices is not None:
            settings["type"] = click.Choice(choices)
        else:
            settings["type"] = type(field.default)
        command = click.option(flag, field.name, **settings)(command)
    return command


def _documentation() -> list[tuple[str, str]]:
    """What the docstring of TrainConfig says of each field, on one line."""
    parts = (TrainConfig.__doc__ or "").split("Example:")[0].split(":param ")[1:]
    found = []
    for part in parts:
        name, _, text = part.partition(":")
        found.append((name, " ".join(text.split()).replace("``", "")))
    return found
