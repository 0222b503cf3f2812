"""What all commands share: how an error becomes one line and an exit code."""

import os
import signal
import warnings
from functools import cache
from typing import Any

import click

from gptf_gpytorch.errors import GPTFError, InterruptedRunError
from gptf_gpytorch.training.checkpoints import Checkpoints
from gptf_gpytorch.training.signals import StopRequest
from gptf_gpytorch.wording import as_flag, spelled

DEBUG = "Show where an error came from."


class Group(click.Group):
    """Errors that the package raises on purpose are one line; anything else is a defect and shows where it came from."""

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        """Add a command, which takes --debug as the group itself does."""
        cmd.params.append(click.Option(["--debug"], is_flag=True, expose_value=False, callback=_debug, help=DEBUG))
        super().add_command(cmd, name)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse what comes before the command."""
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            raise _brief(error) from error

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command that was named."""
        say_once = cache(lambda: _say_stopped(ctx, "Stopped at once."))

        def leave(number: int) -> None:
            say_once()
            # Not an ordinary end, which waits for threads that may be in the middle of a file, or of a pipe.
            os._exit(128 + number)

        with StopRequest(at_once=leave).listening() as stop:
            try:
                return self._invoke(ctx)
            except KeyboardInterrupt:  # there was nothing to save, or a second Ctrl-C did not wait for it
                say_once()
                ctx.exit(128 + (stop.signal or signal.SIGINT))

    def _invoke(self, ctx: click.Context) -> Any:
        try:
            with spelled(as_flag), warnings.catch_warnings():
                warnings.showwarning = lambda message, *_, **__: say(ctx, f"Note: {message}")
                return super().invoke(ctx)
        except click.UsageError as error:
            raise _brief(error) from error
        except InterruptedRunError as stopped:
            _say_stopped(ctx, str(stopped))
            if "workers" in ctx.obj:
                ctx.obj["workers"].close()  # nobody leaves before worker 0 has written and spoken
            ctx.exit(128 + stopped.signal)
        except (GPTFError, OSError) as error:
            if ctx.params.get("debug"):
                raise
            click.echo(f"Error: {' '.join(str(error).split())}", err=True)
            ctx.exit(1)


def _brief(error: click.UsageError) -> click.UsageError:
    """The same on one line, with the command that says more."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError) or error.ctx is None:
        return error
    message = " ".join(error.format_message().split())
    end = "" if message.endswith((".", "?", ")")) else "."
    return click.UsageError(f"{message}{end} See {error.ctx.command_path} --help.")


def _debug(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        ctx.find_root().params["debug"] = True


def _say_stopped(ctx: click.Context, text: str) -> None:
    """Print why a command was stopped, and how a run goes on if it can: once, as horovodrun ends workers that leave."""
    if ctx.obj:
        if ctx.obj.get("stopped"):
            return
        ctx.obj["stopped"] = True
    say(ctx, text)
    if ctx.obj and ctx.obj.get("resume") and Checkpoints(ctx.obj["output"]).steps():
        say(ctx, f"Resume: {ctx.obj['resume']}")


def say(ctx: click.Context, text: str) -> None:
    """Print a line, on one worker."""
    workers = (ctx.obj or {}).get("workers")
    if workers is None or workers.rank == 0:
        click.echo(text, err=True)
