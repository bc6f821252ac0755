"""``python -m bench.traces FOLDER``: write real conversations as traces that `agentkv simulate` replays.

Each prompt is a turn: a header of another length, instructions, one message a tool schema, and what was said.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from agentkv_orchestrator.trace import Header, Message, Trace, Turn, save
from transformers import AutoTokenizer
from xxhash import xxh3_128_hexdigest

from agentkv.models import embedded
from bench.traces import bfcl
from bench.traces.generated import Prompt, under_headers


def turns(prompts: Iterable[Prompt], tokenizer: Any) -> Iterator[Turn]:
    """One a prompt; a segment is a message, whose id is a digest of its text."""
    known: dict[str, Message] = {}
    for prompt in prompts:
        for place, text in enumerate(prompt.segments):
            if text not in known:
                tokens = len(tokenizer(text, add_special_tokens=False)["input_ids"])
                kind = "system" if place < 2 else _kind(text)
                name = xxh3_128_hexdigest(text.encode())
                known[text] = Message(id=name, kind=kind, tokens=tokens, text=text)
        yield Turn(messages=tuple(known[text] for text in prompt.segments), window=prompt.session)


def _kind(text: str) -> str:
    """user, assistant or tool for what was said; a tool's schema is a document."""
    first = text.lstrip("\n").split("\n", 1)[0]
    return first[1:-1] if first in ("<user>", "<assistant>", "<tool>") else "document"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.traces", description=__doc__)
    parser.add_argument("folder", type=Path, help="where the traces go")
    parser.add_argument("--conversations", type=int, default=60, help="how many of the leaderboard's")
    options = parser.parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    tokenizer = AutoTokenizer.from_pretrained(embedded.ensure())
    header = Header(
        name="bfcl",
        source=bfcl.SOURCE,
        licence=bfcl.LICENCE,
        note="a header of changing length in front of each prompt is ours",
    )
    prompts = under_headers(bfcl.conversations()[: options.conversations])
    save(Trace(header=header, turns=tuple(turns(prompts, tokenizer))), options.folder / "bfcl.jsonl")
    return 0


if __name__ == "__main__":
    sys.exit(main())
