"""Looking after a store's folder without a model: check it, clean it, take it elsewhere. No torch."""

from __future__ import annotations

import tarfile
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from agentkv.errors import BadStore
from agentkv.store.blob import HEADER_LIMIT, Header, Unreadable, verify
from agentkv.store.files import FileSource
from agentkv.store.folder import Folder, Progress
from agentkv.store.index import Row
from agentkv.store.key import SAVED, scope_of
from agentkv.store.notes import note_text

_STEP = 8 << 20


@dataclass
class Report:
    """What a check found. whole: blobs with the right checksum, under the right name, of this format. broken:
    file and reason. unlisted: whole ones that the index does not have. missing: entries of the index without
    a file. leftovers: bytes of writes that never ended."""

    blobs: int = 0
    nbytes: int = 0
    whole: int = 0
    broken: list[tuple[str, str]] = field(default_factory=list)
    unlisted: int = 0
    missing: int = 0
    leftovers: int = 0

    @property
    def fine(self) -> bool:
        return not (self.broken or self.unlisted or self.missing)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        broken = [{"file": name, "reason": reason} for name, reason in self.broken]
        return {**asdict(self), "broken": broken, "fine": self.fine}


def check(folder: Folder, progress: Progress) -> Report:
    """Read every byte; change nothing."""
    listed = {folder.blob(row.key) for row in folder.current().rows()}
    report, blobs = Report(), folder.blobs()
    for number, path in enumerate(blobs):
        with suppress(FileNotFoundError):  # pushed out since
            report.nbytes += path.stat().st_size
        try:
            _verified(folder, path)
            report.whole += 1
            report.unlisted += path not in listed
        except (Unreadable, OSError) as error:
            reason = error.reason if isinstance(error, Unreadable) else "io"
            report.broken.append((str(path.relative_to(folder.root)), reason))
        progress(number + 1, len(blobs))
    report.blobs, report.missing = len(blobs), len(listed - set(blobs))
    report.leftovers = sum(p.stat().st_size for p in (folder.root / "tmp").iterdir())
    return report


def figures(folder: Folder) -> dict[str, Any]:
    """Entries and bytes, by kind and by tenant."""
    entries, sizes, tenants = Counter[str](), Counter[str](), Counter[str]()
    for row in folder.current().rows():
        entries[row.key.kind] += 1
        sizes[row.key.kind] += row.nbytes
        tenants[row.key.tenant] += row.nbytes
    kinds = {kind: {"entries": entries[kind], "bytes": sizes[kind]} for kind in sorted(entries)}
    total = {"entries": sum(entries.values()), "bytes": sum(sizes.values())}
    return {**total, "kinds": kinds, "tenants": dict(tenants)}


def clean(folder: Folder, progress: Progress, max_bytes: int | None = None) -> dict[str, int]:
    """Remove broken blobs, files without an entry, entries without a file, and leftovers of writes; with
    ``max_bytes`` also the least recently used, but no saved window, until at most so many bytes are left.
    Returns how many, and bytes freed."""
    found, freed = Counter[str](), folder.sweep()
    for name, _ in check(folder, progress).broken:
        with suppress(OSError):
            freed += (folder.root / name).stat().st_size
            folder.files.remove(folder.root / name)
            found["broken"] += 1
    rows = folder.current().rows()
    with folder.current().writing() as writing:  # whoever writes enters what it wrote before this begins
        listed = {folder.blob(row.key) for row in folder.current().rows()}
        for path in folder.blobs():
            if path not in listed:
                freed += path.stat().st_size
                folder.files.remove(path)
                found["unlisted"] += 1
        total = sum(row.nbytes for row in rows)
        for row in rows:
            path = folder.blob(row.key)
            lost = not path.exists()
            over = max_bytes is not None and total > max_bytes and row.key.kind not in SAVED
            if lost or over:
                total -= writing.remove(row.key) or 0
                found["missing" if lost else "evicted"] += 1
            if over and not lost:
                folder.files.remove(path)
                freed += row.nbytes
    counted = ("broken", "unlisted", "missing", "evicted")
    return {**{what: found[what] for what in counted}, "freed_bytes": freed}


def export(folder: Folder, archive: Path, progress: Progress, tenant: str | None = None) -> dict[str, int]:
    """Write the entries (of one tenant, by its name) into a tar file; broken ones are left out."""
    rows = [r for r in folder.current().rows() if tenant is None or r.key.tenant == scope_of(tenant)]
    written = skipped = size = 0
    with tarfile.open(archive, "x") as tar:
        for number, row in enumerate(rows):
            path = folder.blob(row.key)
            try:
                size += _verified(folder, path).nbytes
                tar.add(path, f"{path.parent.name}{path.name}", recursive=False)
                written += 1
            except (Unreadable, OSError):
                skipped += 1
            progress(number + 1, len(rows))
    return {"entries": written, "bytes": size, "skipped": skipped}


def take_in(folder: Folder, archive: Path, progress: Progress) -> dict[str, Any]:
    """Add the entries of an exported archive. What they are called there does not matter: each says its own
    key, is checked, and goes where the key says. Raises BadStore for a file that is no archive."""
    added, size, refused = 0, 0, Counter[str]()
    try:
        with tarfile.open(archive, "r:") as tar:
            members = tar.getmembers()
            for number, member in enumerate(members):
                file = tar.extractfile(member) if member.isfile() else None
                try:
                    if file is None:
                        raise Unreadable("foreign", "no file")
                    size += _add(folder, file, member.size)
                    added += 1
                except Unreadable as error:
                    refused[error.reason] += 1
                progress(number + 1, len(members))
    except (tarfile.TarError, EOFError) as error:
        raise BadStore(
            got=f"{archive}, which is no archive ({error})",
            expected="a file that agentkv store export wrote",
            do="check the path; what was added before it ended is whole",
        ) from error
    return {"entries": added, "bytes": size, "refused": dict(refused)}


def _add(folder: Folder, file: Any, size: int) -> int:
    """Copy one blob through tmp/, checked there, to where its key says. Raises Unreadable, OSError."""
    head = file.read(8)
    length = int.from_bytes(head, "little")
    if len(head) < 8 or length > min(HEADER_LIMIT, size - 8):
        raise Unreadable("torn", "no header")
    made = folder.fresh()
    out = folder.files.create(made)
    try:
        folder.files.write(out, [memoryview(head)])
        for part in _parts(file):
            folder.files.write(out, [memoryview(part)])
        folder.files.sync(out)
        header = _verified(folder, made, named=False)
        with folder.current().writing() as writing:
            path = folder.blob(header.record.key)
            path.parent.mkdir(mode=0o700, exist_ok=True)
            folder.files.rename(made, path)
            writing.add(Row(header.record.key, header.nbytes, note_text(header.record.note)))
        return header.nbytes
    finally:
        with suppress(OSError):
            folder.files.remove(made)
        folder.files.close(out)


def _parts(file: Any) -> Iterator[bytes]:
    while part := file.read(_STEP):
        yield part


def _verified(folder: Folder, path: Path, named: bool = True) -> Header:
    """named: it must lie where its key says. Raises Unreadable, OSError."""
    if named:
        folder.header(path)
    file = folder.files.open(path)
    try:
        return verify(FileSource(folder.files, file))
    finally:
        folder.files.close(file)
