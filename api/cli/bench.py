"""``farm bench``: measurements that anyone can make on their own machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from api.cli.folders import check_folder
from api.cli.terminal import EXIT_FARM_ERROR, EXIT_USAGE

app = typer.Typer()
bench = typer.Typer(no_args_is_help=True, help="Measure on this machine.")
app.add_typer(bench, name="bench")


@bench.callback()
def _bench() -> None:
    """Measure on this machine."""


@bench.command()
def stillness(
    seconds: Annotated[float, typer.Option(help="How long the run may take, about; 20 or more.")] = 300.0,
    form: Annotated[
        str,
        typer.Option(help="Decode load: auto, graph, eager (both need CUDA and torch) or cpu."),
    ] = "auto",
    url: Annotated[str | None, typer.Option(help="A real server instead, by its base URL.")] = None,
    model: Annotated[str | None, typer.Option(help="Its model; default: the first it lists.")] = None,
    hurt: Annotated[
        bool,
        typer.Option("--hurt", help="Also run the positive control: farm work without a fence. It hurts."),
    ] = False,
    explain: Annotated[
        bool,
        typer.Option(
            "--explain",
            help="Also, without the guard: fenced, fenced with half of the workers at rest, and not fenced. "
            "It hurts.",
        ),
    ] = False,
    live: Annotated[
        bool,
        typer.Option("--live", help="Show it on this machine's dashboard as it happens (costs a little)."),
    ] = False,
    config: Annotated[
        Path | None, typer.Option("--config", help="farm.toml whose neighbours and slots are tried.")
    ] = None,
    quartets: Annotated[int, typer.Option(help="Rounds of idle, farm, farm, idle.")] = 6,
    out: Annotated[Path, typer.Option(help="Folder for stillness.json and stillness.html.")] = Path(
        "stillness"
    ),
) -> None:
    """Prove that farm work does not disturb decode here, or find that it does.

    Exit code 0 still, 4 disturbed, 5 void, 6 inconclusive; 1 where it could not be run.
    """
    from gpu_pinning.errors import PinningError
    from gpu_pinning.stillness.run import Options, run

    check_folder(out, "--out")
    try:
        options = Options(
            seconds,
            form,
            url,
            model,
            hurt,
            config,
            out,
            quartets,
            live=_live_folder() if live else None,
            explain=explain,
        )
    except ValueError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(EXIT_USAGE) from None
    try:
        _, code = run(options, typer.echo)
    except PinningError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(EXIT_FARM_ERROR) from None
    typer.echo(f"report: {out / 'stillness.html'} and {out / 'stillness.json'}")
    raise typer.Exit(code)


def _live_folder() -> Path:
    """Where this machine's dashboard looks for a live run; tells where to watch."""
    from farm.settings import settings

    known = settings()
    typer.echo(
        f"live: http://{known.listen}/stillness (the dashboard of `farm up` or `farm api` on this machine)"
    )
    return known.stillness
