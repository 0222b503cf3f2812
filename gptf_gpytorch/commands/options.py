"""The flags that commands share, and a flag for every field of a configuration."""

import csv
from collections.abc import Callable
from dataclasses import Field, fields
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args, get_type_hints

import click

from gptf_gpytorch.data.duplicates import DuplicatePolicy
from gptf_gpytorch.data.readers.request import IdKind
from gptf_gpytorch.training import config as configuration
from gptf_gpytorch.training.config import TrainConfig

#: A file or a folder. Whether it is there is for the reader to say: on several hosts it may be missing on one of them.
PATH = click.Path(path_type=Path)

unseen = click.option(
    "--unseen",
    type=click.Choice(["error", "prior"]),
    default="error",
    show_default=True,
    help="What to do with an id that was not in training: stop, or predict the prior mean.",
)
fold_in = click.option("--fold-in", "few", type=PATH, help="A few entries of new entities, to learn them from.")
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, for scripts.")
interval = click.option(
    "--interval",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.95,
    show_default=True,
    help="The probability of the interval.",
)
top = click.option("--top", type=click.IntRange(min=1), default=10, show_default=True, help="How many.")


class RatioCommand(click.Command):
    """A command whose ``--balance`` may stand alone, whatever comes after it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse, with the ratio 1 for a --balance that no number follows."""
        end = args.index("--") if "--" in args else len(args)
        given = [
            f"{argument}=1" if argument == "--balance" and place < end and not _is_number(after) else argument
            for place, (argument, after) in enumerate(pairwise([*args, ""]))
        ]
        return super().parse_args(ctx, given)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def pairs(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> dict[str, str]:
    """Entities that are named MODE=ID, by mode."""
    found: dict[str, str] = {}
    for pair in value:
        mode, equals, item = pair.partition("=")
        if not equals:
            raise click.BadParameter(f"must be MODE=ID, as in user=42. Got {pair!r}.")
        if mode in found:
            raise click.BadParameter(f"must name a mode once. Got {mode}={found[mode]} and {pair}.")
        found[mode] = item
    return found


def _names(ctx: click.Context, param: click.Parameter, value: str | None) -> list[str] | None:
    """Names with commas between them; one that holds a comma stands in quotes, as in csv."""
    return None if value is None else next(csv.reader([value]))


def columns(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say what a file's columns are."""
    for option in (
        click.option(
            "--ids",
            type=click.Choice(get_args(IdKind)),
            default="auto",
            show_default=True,
            help="What ids are; auto takes for integers what is written as integers throughout.",
        ),
        click.option(
            "--duplicates",
            type=click.Choice(get_args(DuplicatePolicy)),
            default="error",
            show_default=True,
            help="What several entries of one cell become.",
        ),
        click.option(
            "--modes", metavar="A,B,C", callback=_names, help="The mode columns.  [default: all but the value]"
        ),
        click.option("--value", default="value", show_default=True, help="The value column."),
    ):
        command = option(command)
    return command


def _rank(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    if value is None or isinstance(value, tuple):
        return value and tuple(_rank(ctx, param, one) for one in value)
    try:
        parts = tuple(int(part) for part in value.split(","))
    except ValueError:
        raise click.BadParameter(f"one number, or one for each mode as in 3,3,5. Got {value!r}.") from None
    return parts[0] if len(parts) == 1 else parts


def flags(*several: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """An option for every field of a configuration.

    :param several: fields whose option may be given more than once.
    """

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        documented = dict(documentation())
        for field in reversed(fields(TrainConfig)):
            flag, settings = _flag(field, documented[field.name])
            if field.name in several:
                settings |= {"multiple": True, "help": f"{settings['help']}  Once for each value."}
            command = click.option(flag, field.name, **settings)(command)
        return command

    return add


def _flag(field: Field[Any], text: str) -> tuple[str, dict[str, Any]]:
    """The name of a field's option, and its settings."""
    flag, shown = f"--{field.name.replace('_', '-')}", shown_default(field.default)
    settings: dict[str, Any] = {"default": None, "help": f"{text}  [default: {shown}]"}
    choices, kind = configuration.CHOICES.get(field.name), _kind(field)
    if field.name == "rank":
        settings |= {"callback": _rank, "metavar": "R or R,R,..."}
    elif field.name == "balance":
        settings |= {"type": float, "metavar": "[RATIO]", "help": f"{text}  [default: {shown}; alone: 1]"}
    elif kind is bool:
        flag = f"{flag}/--no-{field.name}"
    elif choices is not None:
        settings["type"] = click.Choice(choices)
    else:
        settings["type"] = kind
    return flag, settings


def _kind(field: Field[Any]) -> type:
    """Of a field's values; ``int`` of one that is an ``int | None``."""
    if field.default is not None:
        return type(field.default)
    kind: type = get_args(get_type_hints(TrainConfig)[field.name])[0]
    return kind


def shown_default(default: Any) -> str:
    """A default, for people."""
    if default is None:
        return "chosen"
    return "none" if default == float("inf") else str(default).lower() if isinstance(default, bool) else str(default)


def documentation() -> list[tuple[str, str]]:
    """What the docstring of TrainConfig says of each field, on one line."""
    parts = (TrainConfig.__doc__ or "").split("Example:")[0].split(":param ")[1:]
    found = []
    for part in parts:
        name, _, text = part.partition(":")
        found.append((name, " ".join(text.split()).replace("``", "")))
    return found
