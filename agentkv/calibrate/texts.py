"""Texts of several kinds to calibrate over: prose, source code, tool schemas and short notes.

They come from the distributions that are installed here, or from the user's files. All texts of one source
(a distribution, a file) fall into one of three parts, so that errors are fitted, bounded and judged on
sources that share nothing.
"""

from __future__ import annotations

import ast
import importlib.metadata
import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from agentkv.demo.documents import OWN
from agentkv.diagnose import documents
from agentkv.diagnose.errors import BadText

Kind = Literal["document", "code", "tool", "note"]
Part = Literal["fit", "bound", "judge"]
PARTS: tuple[Part, ...] = ("fit", "bound", "judge")
SUFFIXES: dict[str, Kind] = {".py": "code", ".json": "tool", ".yaml": "tool", ".yml": "tool", ".log": "note"}
"""What a user's file is taken for; prose where its suffix is not here."""
_FILES = 4
"""Source files that are read of one distribution: a few large ones would crowd out the rest."""
_MOST = 40_000
"""Characters that are read of one file."""


@dataclass(frozen=True)
class Text:
    """source: what it came from; no two parts share one."""

    source: str
    kind: Kind
    text: str


@dataclass(frozen=True)
class Pool:
    """Token ids by source, of one kind."""

    kind: Kind
    ids: dict[str, tuple[int, ...]]


def installed() -> list[Text]:
    """Texts of every distribution that is installed here, sorted by source."""
    found = [Text(name, "document", text) for name, text in documents.readmes() if name != OWN]
    for distribution in importlib.metadata.distributions():
        name = (distribution.metadata["Name"] or "").lower()
        if name not in ("", OWN) and (code := _sources(distribution)):
            found += [Text(name, "code", text) for text in code]
            found += [Text(name, "tool", text) for text in map(_schemas, code) if text]
            found += [Text(name, "note", text) for text in (_notes(name, text) for text in code) if text]
    return sorted(found, key=lambda text: (text.source, text.kind, text.text))


def read(paths: Sequence[Path]) -> list[Text]:
    """The user's files, and those under the folders; each is a source of its own. Raises BadText."""
    found: list[Text] = []
    for path in paths:
        if path.is_dir():
            inside = [f for suffix in SUFFIXES for f in path.rglob(f"*{suffix}") if f.is_file()]
            prose = any(f.suffix.lower() in documents.SUFFIXES for f in path.rglob("*"))
            texts = documents.read([*inside, *([path] if prose or not inside else [])])
        else:
            texts = documents.read([path])
        found += [
            Text(name, SUFFIXES.get(Path(name).suffix.lower(), "document"), text) for name, text in texts
        ]
    return found


def split(texts: Sequence[Text], seed: int) -> dict[Part, list[Text]]:
    """Sources dealt out to the three parts, half of them to fit on. Raises BadText for fewer than three."""
    sources = sorted({text.source for text in texts})
    if len(sources) < len(PARTS):
        raise BadText(
            got=f"{len(sources)} texts",
            expected=f"at least {len(PARTS)}: to fit on, to bound on and to judge on",
            do="give more files",
        )
    random.Random(seed).shuffle(sources)
    rest = max(1, len(sources) // 4)
    dealt: dict[str, Part] = dict.fromkeys(sources[:rest], "judge")
    dealt |= dict.fromkeys(sources[rest : 2 * rest], "bound")
    return {part: [t for t in texts if dealt.get(t.source, "fit") == part] for part in PARTS}


def pools(texts: Sequence[Text], encode: Callable[[str], Sequence[int]]) -> list[Pool]:
    """Tokenised texts by kind; those of one source and kind one behind the other."""
    found: dict[Kind, dict[str, tuple[int, ...]]] = {}
    for text in texts:
        of_kind = found.setdefault(text.kind, {})
        of_kind[text.source] = of_kind.get(text.source, ()) + tuple(encode(text.text[:_MOST]))
    return [Pool(kind, ids) for kind, ids in sorted(found.items())]


def _sources(distribution: importlib.metadata.Distribution) -> list[str]:
    """Some Python files of a distribution, always the same ones."""
    files = [f for f in distribution.files or () if f.suffix == ".py" and f.name != "__init__.py"]
    files = [f for f in files if "test" not in str(f).lower()]
    random.Random(0).shuffle(files)
    found: list[str] = []
    for file in files[: 4 * _FILES]:
        path = Path(str(file.locate()))
        if len(found) == _FILES or not path.is_file():
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue  # another file of the same distribution does as well
        if len(text) > 800:
            found.append(text[:_MOST])
    return found


def _functions(code: str) -> Iterator[ast.FunctionDef]:
    try:
        tree = ast.parse(code)
    except SyntaxError:  # cut off, or of another Python
        return
    yield from (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def _schemas(code: str) -> str:
    """Functions of a source file as the JSON that agents are shown their tools in."""
    tools = []
    for node in _functions(code):
        names = [a.arg for a in node.args.args if a.arg != "self"]
        if node.name.startswith("_") or not names:
            continue
        shown = {a.arg: ast.unparse(a.annotation) if a.annotation else "string" for a in node.args.args}
        about = (ast.get_docstring(node) or node.name.replace("_", " ")).split("\n\n")[0]
        parameters = {
            "type": "object",
            "properties": {name: {"type": shown[name]} for name in names},
            "required": names[: len(names) - len(node.args.defaults)],
        }
        tools.append({"name": node.name, "description": about, "parameters": parameters})
    return "\n".join(json.dumps(tool) for tool in tools)


_TURNS = (
    "Can you check how {name} does this: {words}",
    "I looked at it. {words} That is all I found in {name} so far.",
    "Note: {words}",
    "Thanks. And remember for later that {words}",
    "Done. The next step was: {words} Shall I go on?",
)


def _notes(name: str, code: str) -> str:
    """What two people would write to each other about a source file, from its docstrings."""
    lines = [" ".join((ast.get_docstring(node) or "").split())[:240] for node in _functions(code)]
    said = [line for line in lines if len(line) > 40]
    return "\n".join(_TURNS[i % len(_TURNS)].format(name=name, words=line) for i, line in enumerate(said))
