"""Documents that every installation has: the READMEs in the metadata of installed packages.

Which ones is decided by code: all packages sorted by name, those whose README holds enough English prose.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
from typing import Any

from agentkv.demo.errors import TooFewDocuments

OWN = "agentkv-window"
"""This package's own README is left out: it changes with every release."""
_ENOUGH = 230
"""Words of prose that a README must have: more than the largest document is cut to."""
_COMMON = frozenset(
    [
        "a",
        "an",
        "and",
        "are",
        "as",
        "at",
        "be",
        "by",
        "can",
        "for",
        "from",
        "if",
        "in",
        "is",
        "it",
        "not",
        "of",
        "on",
        "or",
        "that",
        "the",
        "this",
        "to",
        "with",
        "you",
    ]
)
_ENGLISH = 0.22
"""Share of common words from which a paragraph counts as English prose; lists of names stay far below."""

_NOISE = tuple(
    (re.compile(pattern, flags), to)
    for pattern, flags, to in (
        (r"^(```|~~~).*?^\1", re.M | re.S, " "),  # code blocks
        (r"<!--.*?-->", re.S, " "),
        (r"<(\w+)[^>]*>|</\w+>", 0, " "),  # HTML tags
        (r"^\.\. [^\n]*\n(?:[ \t]+[^\n]*\n|\n(?=[ \t]))*", re.M, "\n"),  # rst directives with their bodies
        (r"!\[[^\]]*\](\([^)]*\)|\[[^\]]*\])", 0, " "),  # images, badges
        (r"\[([^\]]*)\](\([^)]*\)|\[[^\]]*\])", 0, r"\1"),  # links keep their text
        (r"^\s*\[[^\]]+\]:.*$", re.M, " "),  # link targets
        (r"`([^`<]+?)\s*<[^>]+>`_+", 0, r"\1"),  # rst links
        (r":\w+:`~?([^`]+)`", 0, r"\1"),  # rst roles
        (r"`+([^`]*)`+_*", 0, r"\1"),
        (r"\|[^|\n]+\|", 0, " "),  # rst substitutions, table cells
        (r"https?://\S+", 0, " "),
        (r"(\*\*|__)(.+?)\1", re.S, r"\2"),
        (r":\w+:", 0, " "),  # emoji names
    )
)


@dataclass(frozen=True)
class Document:
    """name: of the package. text: prose, cut to ``tokens`` of the tokenizer it was asked for."""

    name: str
    text: str
    tokens: int


def choose_documents(
    tokenizer: Any, sizes: Iterable[int], found: Iterable[Distribution] | None = None
) -> list[Document]:
    """One document for each of ``sizes`` (tokens at most, markers not counted), in order of their names.

    found: packages to look at (default: all that are installed). Raises TooFewDocuments.
    """
    wanted = list(sizes)
    texts = readable(distributions() if found is None else found)
    chosen = [_cut(tokenizer, name, text, size) for size, (name, text) in zip(wanted, texts, strict=False)]
    if len(chosen) < len(wanted):
        raise TooFewDocuments(
            got=f"{len(chosen)} installed packages with a README of {_ENOUGH} words of English prose",
            expected=f"{len(wanted)}",
            do="run the demo in an environment with agentkv's own dependencies installed",
        )
    return chosen


def readable(found: Iterable[Distribution]) -> Iterator[tuple[str, str]]:
    """(name, prose) of the packages whose README is long enough, sorted by name."""
    by_name = {str(d.metadata["Name"]): d for d in found if d.metadata["Name"]}
    for name in sorted(by_name, key=lambda n: (n.casefold(), n)):
        text = "" if name == OWN or _older_name(name) in by_name else prose(readme(by_name[name]))
        if len(text.split()) >= _ENOUGH:
            yield name, text


def _older_name(name: str) -> str:
    """The name without its number: httpcore2 has nearly the README of httpcore. Empty without one."""
    return name.rstrip("0123456789") if name[-1:].isdigit() else ""


def readme(distribution: Distribution) -> str:
    """The long description: a header in old metadata, the body in new one."""
    meta: Any = (
        distribution.metadata
    )  # an email.message.Message everywhere, which its protocol does not promise
    return str(meta.get("Description") or meta.get_payload() or "")


def prose(text: str) -> str:
    """Paragraphs of English prose, without markup, links, badges, code and tables."""
    for pattern, to in _NOISE:
        text = pattern.sub(to, text)
    paragraphs = (" ".join(p.split()).strip(" #*=-_>~^:") for p in re.split(r"\n\s*\n|\n(?=\s*[-*#] )", text))
    return "\n".join(p for p in paragraphs if _is_prose(p))


def _is_prose(paragraph: str) -> bool:
    words = re.findall(r"[A-Za-z']+", paragraph)
    letters = sum(c.isascii() and (c.isalpha() or c in " .,;'") for c in paragraph)
    if len(words) < 8 or letters < 0.9 * len(paragraph):
        return False
    return sum(w.lower() in _COMMON for w in words) >= _ENGLISH * len(words)


def _cut(tokenizer: Any, name: str, text: str, size: int) -> Document:
    """The first words that are at most ``size`` tokens, up to the end of a sentence where one is near."""
    words = text.split(" ")
    low, high = 1, len(words)
    while low < high:  # the most words that fit
        middle = (low + high + 1) // 2
        low, high = (
            (middle, high) if _count(tokenizer, " ".join(words[:middle])) <= size else (low, middle - 1)
        )
    kept = " ".join(words[:low])
    stop = max(kept.rfind(end) for end in (". ", ".\n"))
    if stop > 0.85 * len(kept):
        kept = kept[: stop + 1]
    return Document(name, kept, _count(tokenizer, kept))


def _count(tokenizer: Any, text: str) -> int:
    return len(tokenizer(text, add_special_tokens=False)["input_ids"])
