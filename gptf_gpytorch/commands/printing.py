"""Answers on standard output: for people, or as JSON for scripts."""

import json
from typing import Any

import click


def table(rows: list[dict[str, Any]], as_json: bool) -> None:
    """Rows in columns, without those that hold nothing."""
    if as_json:
        click.echo(json.dumps(rows))
        return
    names = [name for name in (rows[0] if rows else {}) if rows[0][name] is not None]
    lines = [[f"{row[name]:.6g}" if isinstance(row[name], float) else str(row[name]) for name in names] for row in rows]
    widths = [max(map(len, column)) for column in zip(names, *lines, strict=True)]
    for line in [names, *lines] if rows else []:
        click.echo("  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True)))


def facts(found: dict[str, Any], as_json: bool) -> None:
    """Names and what they stand for, a line each, without those that stand for nothing."""
    if as_json:
        click.echo(json.dumps(found))
        return
    width = max(map(len, found))
    for name, fact in found.items():
        if fact is not None:
            click.echo(f"{name:<{width}}  {_shown(fact)}")


def _shown(fact: Any) -> str:
    if isinstance(fact, dict):
        return ", ".join(f"{_shown(count)} {name}" for name, count in fact.items())
    if isinstance(fact, list | tuple):
        return ", ".join(map(_shown, fact))
    if isinstance(fact, float):
        return f"{fact:.4g}"
    return f"{fact:,}" if isinstance(fact, int) and not isinstance(fact, bool) else str(fact)
