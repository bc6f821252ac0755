"""What the documents say about the code is there: links, paths, names, op table, glossary, snippets."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from agentkv_orchestrator import plan
from agentkv_orchestrator.diff import Kind as ChangeKind
from agentkv_orchestrator.policy import PolicyName
from agentkv_orchestrator.trace import parse

from agentkv.store.base import Kind as EntryKind
from agentkv.testing import recording_engine

ROOT = Path(__file__).parents[2]
DOCS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
EACH = pytest.mark.parametrize("path", DOCS, ids=lambda path: path.name)

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_CODE = re.compile(r"`([^`\n]+)`")
_PATH = re.compile(r"(?:[\w.-]+/)+(?:[\w-]+\.\w+)?")
_NAME = re.compile(r"agentkv(?:_orchestrator|_kernels)?(?:\.\w+)+")
_TERM = re.compile(r"^- \*\*(.+?)\*\*: ", re.MULTILINE)
_FIGURE = re.compile(r"\d\s*(?:ms|s|×|x|%|nats|[MG]i?B|tokens/s)(?!\w)")


def prose(path: Path) -> str:
    """The document without its code blocks."""
    return _FENCE.sub("", path.read_text())


def anchors(path: Path) -> set[str]:
    """Anchors that GitHub gives the headings."""
    titles = re.findall(r"^#+ (.+)$", prose(path), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def broken_links(path: Path) -> Iterator[str]:
    for link in _LINK.findall(prose(path)):
        if re.match(r"[a-z]+:", link):
            continue
        file, _, anchor = link.partition("#")
        target = path.parent / file if file else path
        if not target.exists() or (anchor and anchor not in anchors(target)):
            yield link


def resolves(name: str) -> bool:
    """Whether a dotted name is a module, or an attribute path inside one."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[end:]:
            if not hasattr(found, attribute):
                return False
            found = getattr(found, attribute)
        return True
    return False


def op_classes() -> dict[str, str]:
    """Op literal by class name, from the union that plans are made of."""
    return {kind.__name__: name for kind, name in plan.NAMES.items()}


def op_table() -> dict[str, str]:
    """The same, from the rows `| op | class | ...` of the concepts."""
    section = (ROOT / "docs/concepts.md").read_text().split("## Operations")[1].split("\n## ")[0]
    return {name: op for op, name in re.findall(r"^\| `(\w+)` \| `(\w+)` \|", section, re.MULTILINE)}


def terms() -> list[str]:
    found: list[str] = _TERM.findall((ROOT / "docs/glossary.md").read_text())
    return found


@EACH
def test_relative_links_resolve(path: Path) -> None:
    assert not list(broken_links(path))


def test_a_broken_link_would_show(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A title\n[a](#a-title) [b](#no-title) [c](no.md) [d](page.md) [e](https://e.org)\n")
    assert list(broken_links(page)) == ["#no-title", "no.md"]


@EACH
def test_paths_in_backticks_exist(path: Path) -> None:
    named = {code for code in _CODE.findall(prose(path)) if _PATH.fullmatch(code)}
    assert not sorted(name for name in named if not (ROOT / name).exists())


@EACH
def test_names_in_backticks_import(path: Path) -> None:
    named = {name for code in _CODE.findall(prose(path)) for name in [code.partition("(")[0]]}
    assert not sorted(name for name in named if _NAME.fullmatch(name) and not resolves(name))


def test_a_wrong_name_would_show() -> None:
    assert resolves("agentkv.Window.audit")
    assert not resolves("agentkv.Window.no_such_method")
    assert not resolves("agentkv.no_such_module.Window")


def test_the_op_table_is_the_plan_s_ops() -> None:
    assert op_table() == op_classes()


def test_glossary_terms_are_unique_and_sorted() -> None:
    folded = [term.casefold() for term in terms()]
    assert len(folded) > 50
    assert len(set(folded)) == len(folded)
    letters = [re.sub(r"[^\w ]", " ", term) for term in folded]
    assert letters == sorted(letters)


def test_the_glossary_has_the_words_of_the_interface() -> None:
    wanted = {*get_args(ChangeKind), *get_args(EntryKind), *get_args(PolicyName)}
    assert not wanted - set(terms())


MEASURED = (
    "families.md",
    "performance.md",
    "placement.md",
    "quality.md",
    "redis.md",
    "registry.md",
    "simulate.md",
    "window.md",
)


@pytest.mark.parametrize("name", MEASURED)
def test_figures_come_from_tables(name: str) -> None:
    text = (ROOT / "docs" / name).read_text()
    by_hand = re.sub(r"<!-- table:\w+ -->.*?<!-- /table -->", "", text, flags=re.DOTALL)
    assert "<!--" not in by_hand, "a table marker without its other half"
    assert not _FIGURE.findall(by_hand)


@pytest.mark.parametrize("name", ["concepts.md", "placement.md", "window.md"])
def test_snippets_run(name: str) -> None:
    """They need no model; each runs in a namespace of its own."""
    blocks = _FENCE.findall((ROOT / "docs" / name).read_text())
    snippets = [code for language, code in blocks if language == "python"]
    assert snippets
    for snippet in snippets:
        exec(compile(ast.parse(snippet), f"docs/{name}", "exec"), {})


@pytest.mark.slow
def test_the_snippet_of_the_registry_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """On the embedded model: below the header that changed nothing is computed."""
    ((_, snippet),) = _FENCE.findall((ROOT / "docs/registry.md").read_text())
    exec(compile(ast.parse(snippet), "docs/registry.md", "exec"), {})
    assert "rotated" in capsys.readouterr().out


@pytest.mark.slow
def test_the_snippets_about_langgraph_run(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = _FENCE.findall((ROOT / "docs/agents/langgraph.md").read_text())
    for _, snippet in blocks:
        exec(compile(ast.parse(snippet), "docs/agents/langgraph.md", "exec"), {})
    assert "cache_creation" in capsys.readouterr().out


def test_messages_of_a_recording_engine_have_no_template() -> None:
    """The frame snippet counts tokens: a template would add to them."""
    with recording_engine() as engine, engine.window() as window:
        assert len(window) == 0
        assert window.append("w1 w2 w3", kind="system").tokens == 3


def test_the_example_trace_is_one() -> None:
    """What docs/simulate.md shows is read as it stands."""
    blocks = _FENCE.findall((ROOT / "docs/simulate.md").read_text())
    (example,) = [code for language, code in blocks if language == "json"]
    trace = parse(example.splitlines())
    assert [turn.window for turn in trace.turns] == ["", "agent-2"]
    assert trace.turns[1].messages[-1].order_free
