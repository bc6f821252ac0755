"""``agentkv store``: check, count, clean, export and import, offline and without torch."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from agentkv.cli import app
from agentkv.errors import BadStore, InvalidInput
from agentkv.store.base import Key, Note
from agentkv.store.disk import DiskStore
from agentkv.store.tenancy import TenantStore
from agentkv.testing import kv_block, same_bits

run = CliRunner()


def key(name: int) -> Key:
    return Key("conditioned", f"chunk{name}", "context")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    store = DiskStore(tmp_path / "s")
    for name in range(4):
        store.put(key(name), kv_block(24, name), Note(0.5))
    TenantStore(store, "ann").put(Key("canonical", "a"), kv_block(24, 9))
    store.close()
    return tmp_path / "s"


def told(*args: object, code: int = 0) -> dict[str, Any]:
    result = run.invoke(app, ["store", *map(str, args), "--json"])
    assert result.exit_code == code, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def blob(folder: Path, name: int) -> Path:
    store = DiskStore(folder)
    path = store.folder.blob(key(name))
    store.close()
    return path


def test_a_sound_store_verifies(folder: Path) -> None:
    found = told("verify", folder)
    assert (found["blobs"], found["whole"], found["fine"]) == (5, 5, True)
    assert "whole: 5" in run.invoke(app, ["store", "verify", str(folder)]).output


def test_what_is_wrong_is_found_and_cleaned_away(folder: Path) -> None:
    whole = bytearray(blob(folder, 0).read_bytes())
    whole[-1] ^= 1
    blob(folder, 0).write_bytes(whole)
    os.truncate(blob(folder, 1), 300)
    stray = blob(folder, 7)
    stray.parent.mkdir(exist_ok=True)
    stray.write_bytes(b"what is this")
    blob(folder, 2).unlink()
    (folder / "tmp" / "left").write_bytes(b"x" * 100)
    found = told("verify", folder, code=1)
    assert sorted(item["reason"] for item in found["broken"]) == ["checksum", "torn", "torn"]
    assert (found["missing"], found["leftovers"], found["whole"]) == (1, 100, 2)
    done = told("gc", folder)
    assert (done["broken"], done["missing"]) == (3, 3)  # the two that were broken are missing by now
    assert done["freed_bytes"] > 100
    assert told("verify", folder)["fine"]
    store = DiskStore(folder)
    found_block = store.get(key(3))
    assert found_block is not None
    assert same_bits(found_block.entry, kv_block(24, 3))  # type: ignore[arg-type]


def test_files_that_no_entry_leads_to_are_cleaned_away(folder: Path) -> None:
    store = DiskStore(folder)
    with store.folder.index.writing() as writing:
        writing.remove(key(0))
    store.close()
    assert told("verify", folder, code=1)["unlisted"] == 1
    assert told("gc", folder)["unlisted"] == 1
    assert told("verify", folder)["fine"]


def test_a_smaller_store_keeps_what_was_used_last(folder: Path) -> None:
    store = DiskStore(folder)
    store.get(key(0))
    store.close()
    size = told("stats", folder)["bytes"] // 5
    assert told("gc", folder, "--max-bytes", 2 * size + 200)["evicted"] == 3
    assert set(DiskStore(folder).keys()) == {
        key(0),
        Key("canonical", "a", "", DiskStore(folder).keys()[0].tenant),
    }


def test_figures_by_kind_and_tenant(folder: Path) -> None:
    found = told("stats", folder)
    assert found["entries"] == 5
    assert found["kinds"]["conditioned"]["entries"] == 4
    assert (
        sum(found["tenants"].values()) == found["bytes"] == sum(k["bytes"] for k in found["kinds"].values())
    )
    assert len(found["tenants"]) == 2
    assert "ann" not in json.dumps(found)


def test_an_exported_store_is_the_same_elsewhere(folder: Path, tmp_path: Path) -> None:
    assert told("export", folder, tmp_path / "a.tar")["entries"] == 5
    assert told("import", tmp_path / "t", tmp_path / "a.tar")["entries"] == 5
    there = DiskStore(tmp_path / "t")
    assert set(there.keys()) == set(DiskStore(folder).keys())
    for name in range(4):
        found = there.get(key(name))
        assert found is not None
        assert same_bits(found.entry, kv_block(24, name))  # type: ignore[arg-type]
        assert found.note == Note(0.5)
    assert told("export", folder, tmp_path / "ann.tar", "--tenant", "ann")["entries"] == 1


def test_an_archive_with_anything_in_it_writes_nothing_outside(folder: Path, tmp_path: Path) -> None:
    """Names, links, sizes and contents of the archive are someone else's."""
    good = blob(folder, 0).read_bytes()
    bad = bytearray(good)
    bad[-1] ^= 1
    with tarfile.open(tmp_path / "evil.tar", "w") as tar:
        for name, data in (
            ("../../outside", good),
            ("/etc/agentkv", bytes(bad)),
            ("x", b"\xff" * 50),
            ("y", b""),
        ):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    found = told("import", tmp_path / "t", tmp_path / "evil.tar")
    assert found["entries"] == 1
    assert found["refused"] == {"checksum": 1, "torn": 2, "foreign": 1}
    assert told("verify", tmp_path / "t")["whole"] == 1
    assert not (tmp_path / "outside").exists()
    assert not (tmp_path.parent / "outside").exists()
    assert not Path("/etc/agentkv").exists()


def test_a_torn_archive_is_told_and_what_came_is_whole(folder: Path, tmp_path: Path) -> None:
    told("export", folder, tmp_path / "a.tar")
    os.truncate(tmp_path / "a.tar", 9000)
    result = run.invoke(app, ["store", "import", str(tmp_path / "t"), str(tmp_path / "a.tar")])
    assert isinstance(result.exception, BadStore)
    assert told("verify", tmp_path / "t")["fine"]
    (tmp_path / "b.tar").write_bytes(b"no archive")
    result = run.invoke(app, ["store", "import", str(tmp_path / "t"), str(tmp_path / "b.tar")])
    assert isinstance(result.exception, BadStore)


def test_paths_that_make_no_sense_are_told(folder: Path, tmp_path: Path) -> None:
    for args, error in (
        (["verify", tmp_path / "nowhere"], BadStore),
        (["stats", tmp_path], BadStore),
        (["import", tmp_path / "t", tmp_path / "nothing.tar"], InvalidInput),
        (["export", folder, folder / "agentkv-store.json"], InvalidInput),
    ):
        result = run.invoke(app, ["store", *map(str, args)])
        assert isinstance(result.exception, error)
    assert not (tmp_path / "nowhere").exists()


def test_it_needs_no_torch(folder: Path) -> None:
    code = (
        "import sys; sys.argv = ['agentkv', 'store', 'verify', sys.argv[1]]\n"
        "from agentkv.cli import app\n"
        "try: app()\n"
        "finally: print('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines()[-1] == "False", done.stdout + done.stderr
