"""``agentkv store``: looking after a store's folder. Needs no model, and loads no torch."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from agentkv.errors import InvalidInput
from agentkv.store import care
from agentkv.store.folder import Folder

BROKEN = 1
"""Exit code of a check that found something."""

FolderArgument = Annotated[Path, typer.Argument(metavar="DIR", help="The folder of the store.")]
ArchiveArgument = Annotated[Path, typer.Argument(metavar="FILE", help="The archive, a tar file.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]

app = typer.Typer(
    name="store",
    help="Look after a store on a disk: check it, clean it, take it elsewhere. Needs no model.",
    no_args_is_help=True,
)


@app.command()
def verify(folder: FolderArgument, as_json: JsonOption = False) -> None:
    """Read every byte and compare checksums, names and index. Changes nothing; exit code 1 if something is
    wrong."""
    with _opened(folder) as opened, _progress("checking") as progress:
        report = care.check(opened, progress)
    _print(report.to_dict(), as_json)
    if not report.fine:
        raise typer.Exit(BROKEN)


@app.command()
def stats(folder: FolderArgument, as_json: JsonOption = False) -> None:
    """Entries and bytes, by kind and by tenant (tenants show as digests of their names)."""
    with _opened(folder) as opened:
        _print(care.figures(opened), as_json)


@app.command()
def gc(
    folder: FolderArgument,
    max_bytes: Annotated[
        int | None,
        typer.Option(min=0, help="Also drop the least recently used until so many bytes are left."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Remove what is broken, what no entry leads to, and what writers that died have left."""
    with _opened(folder) as opened, _progress("cleaning") as progress:
        done = care.clean(opened, progress, max_bytes)
    _print(done, as_json)


@app.command("export")
def export_(
    folder: FolderArgument,
    archive: ArchiveArgument,
    tenant: Annotated[
        str | None, typer.Option(help="Only what this tenant stored.", show_default=False)
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write all entries into one file, for another machine. Refuses a file that exists."""
    if archive.exists():
        raise InvalidInput(got=f"{archive}, which exists", expected="a new file", do="choose another name")
    with _opened(folder) as opened, _progress("writing") as progress:
        done = care.export(opened, archive, progress, tenant)
    _print(done, as_json)


@app.command("import")
def import_(folder: FolderArgument, archive: ArchiveArgument, as_json: JsonOption = False) -> None:
    """Add the entries of an exported file; the folder is made when it is missing. Each entry is checked."""
    if not archive.is_file():
        raise InvalidInput(got=f"{archive}", expected="an exported file", do="check the path")
    with _opened(folder, create=True) as opened, _progress("reading") as progress:
        done = care.take_in(opened, archive, progress)
    _print(done, as_json)


@contextmanager
def _opened(path: Path, create: bool = False) -> Iterator[Folder]:
    folder = Folder(path, create=create)
    try:
        yield folder
    finally:
        folder.close()


@contextmanager
def _progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr, so that stdout stays the result."""
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, of: bar.update(task, completed=done, total=of)


def _print(found: dict[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    for name, value in found.items():
        if isinstance(value, dict):
            typer.echo(f"{_words(name)}:")
            for inner, figure in value.items():
                text = (
                    ", ".join(f"{v} {k}" for k, v in figure.items()) if isinstance(figure, dict) else figure
                )
                typer.echo(f"  {inner or '(none)'}: {text}")
        elif isinstance(value, list):
            typer.echo(f"{_words(name)}: {len(value)}")
            for item in value:
                typer.echo("  " + "  ".join(map(str, item.values())))
        else:
            typer.echo(f"{_words(name)}: {value}")


def _words(name: str) -> str:
    return {"nbytes": "bytes"}.get(name, name).replace("_", " ")
