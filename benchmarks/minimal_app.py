"""The smallest application that is typer's and draws with rich: two commands with one option each."""

from __future__ import annotations

import rich.console
import typer

app = typer.Typer()


@app.command()
def one(name: str = typer.Option("x", help="A name.")) -> None:
    """Print a name."""
    rich.console.Console().print(name)


@app.command()
def two(name: str = typer.Option("x", help="A name.")) -> None:
    """Print another name."""
    rich.console.Console().print(name)


if __name__ == "__main__":
    app()
