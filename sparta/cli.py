"""The `sparta` command: each subcommand calls one function and shows what comes back."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import torch
import typer

from sparta.reporting.document import Document
from sparta.reporting.renderers import render
from sparta.reporting.to_json import dumps
from sparta.tesa.errors import SpartaError
from sparta.version import __version__

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no table; errors and --json only.")]
Threads = Annotated[int | None, typer.Option(min=1, help="Threads to use; PyTorch's default if not given.")]
Program = Annotated[Path, typer.Argument(help="Program saved by torch.export.save; load only files you trust.")]
Masks = Annotated[Path | None, typer.Option("--masks", "-m", help="Masks (.pth, .safetensors); zeros if not given.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"sparta {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", callback=_print_version, is_eager=True)] = False,
) -> None:
    """A compiler for sparse PyTorch models: exact, measured, never slower than dense."""


@app.command()
def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="Where the HTML report goes.")] = Path(
        "sparta_demo.html"
    ),
    batch: Annotated[int, typer.Option(min=1, help="Digits per call when latency is measured.")] = 8,
    threads: Threads = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train, prune, optimize and measure two small nets, in about a minute, offline."""
    from sparta import demo as demonstration

    outcomes = demonstration.run(batch=batch, threads=threads, say=_progress(quiet))
    page = demonstration.document(outcomes)
    output.write_text(render(page, "html"), encoding="utf-8")
    _show(page, dumps(outcomes), json=json, quiet=quiet)
    _progress(quiet)(f"wrote {output}")


@app.command()
def inspect(
    file: Annotated[Path, typer.Argument(help="A saved program (.pt2) or masks (.pth, .safetensors).")],
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Show the shapes, patterns and densities in a file."""
    from sparta import inspection

    found = inspection.inspect_file(file)
    _show(inspection.document(found), dumps(found), json=json, quiet=quiet)


@app.command()
def optimize(
    model: Program,
    output: Annotated[Path, typer.Option("--output", "-o", help="Where the optimized model goes.")],
    masks: Masks = None,
    threads: Threads = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Optimize a saved program for its example inputs, and report what that gained."""
    from sparta import exported
    from sparta.reporting.layout import layout

    _use_threads(threads)
    report = exported.optimize_file(model, masks, output, threads=threads)
    _show(layout(report), report.to_json(), json=json, quiet=quiet)


@app.command()
def bench(
    optimized: Annotated[Path, typer.Argument(help="What `sparta optimize` wrote.")],
    model: Annotated[Path | None, typer.Argument(help="The program it came from, to compare with.")] = None,
    masks: Masks = None,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Batch size, where no program is given.")] = 1,
    threads: Threads = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compare a saved optimized model with its dense twin, or with the program it came from: latency and results."""
    from sparta import exported

    _use_threads(threads)
    if model is None:
        comparison = exported.bench_saved(optimized, batch=batch)
    else:
        comparison = exported.bench_file(optimized, model, masks)
    _show(exported.document(comparison, optimized), dumps(comparison), json=json, quiet=quiet)
    raise typer.Exit(0 if comparison.exact else 1)


@app.command()
def doctor(json: Json = False, quiet: Quiet = False) -> None:
    """Show what this machine can do, and what to change where something is missing."""
    from sparta import doctor as examination

    findings = examination.examine()
    _show(examination.document(findings), dumps(findings), json=json, quiet=quiet)
    raise typer.Exit(0 if examination.healthy(findings) else 1)


def _use_threads(threads: int | None) -> None:
    if threads is not None:
        torch.set_num_threads(threads)


def _progress(quiet: bool) -> Callable[[str], None]:
    return (lambda _: None) if quiet else (lambda line: typer.echo(line, err=True))


def _show(document: Document, text: str, *, json: bool, quiet: bool) -> None:
    if json:
        typer.echo(text)
    elif not quiet:
        from rich.console import Console

        from sparta.reporting.to_terminal import renderable

        Console().print(renderable(document))


def main() -> None:
    """Run the command; what sparta or the file system refuses is one line on standard error and exit status 1."""
    try:
        app()
    except (SpartaError, OSError) as error:
        typer.echo(f"sparta: {error}", err=True)
        sys.exit(1)
