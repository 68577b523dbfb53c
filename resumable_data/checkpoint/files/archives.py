"""What the items of data files hold, by their directories and pickles, and whether their contents are as recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from resumable_data.checkpoint.files.dtypes import ITEM_BYTES
from resumable_data.checkpoint.files.opening import open_file
from resumable_data.checkpoint.files.payload import fast_crc32, record_crc32
from resumable_data.checkpoint.files.pickled import Global, PickleFormatError
from resumable_data.checkpoint.files.pickles import parse_pickle
from resumable_data.checkpoint.files.tensors import TensorLayout, is_plain_global, tensor_layout
from resumable_data.checkpoint.files.zips import Archive, ArchiveError, Record, Window, read_archive
from resumable_data.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from resumable_data.checkpoint.files.findings import Findings
    from resumable_data.checkpoint.files.metadata import Metadata, StorageItem

PICKLE_NAME = "data.pkl"
MAX_PICKLE_BYTES = 2**28
_KEPT_PICKLES = 4096
_ORDERS = (b"little", b"big")


class ItemContent(NamedTuple):
    """An item, and what is kept of the archive that it is.

    Attributes:
        item: The item.
        layout: Of a tensor, how it lies in its record; None for objects.
        record: Of a tensor, that record.
        crc32: What identifies the contents, see `Archive.payload_crc32`.
        has_checksums: Whether the archive records checksums.
    """

    item: StorageItem
    layout: TensorLayout | None
    record: Record | None
    crc32: int
    has_checksums: bool


class ExpectedTensor(NamedTuple):
    """What ``.metadata`` says of a chunk."""

    dtype: str
    sizes: tuple[int, ...]


class ArchiveChecker:
    """Checks archives, one after another, and notes what it finds.

    Args:
        findings: Where it notes it.
        with_payload: Whether contents are read and compared with their checksums.

    Attributes:
        crc_library: What computes CRC32s.
        num_checked_bytes: How many bytes of contents had their checksum compared.
        num_unrecorded: Archives without checksums.
    """

    def __init__(self, findings: Findings, *, with_payload: bool) -> None:
        self.findings, self.with_payload = findings, with_payload
        self.crc_library, self._crc32 = fast_crc32()
        self.num_checked_bytes = self.num_unrecorded = 0
        # Tensors of one shape have the same pickle, byte for byte.
        self._layouts: dict[bytes, tuple[TensorLayout | None, tuple[Global, ...]]] = {}

    def read(self, window: Window, *, file: str, key: str = "") -> Archive | None:
        """The archive in a window; None where there is none that makes sense."""
        try:
            archive = read_archive(window)
        except ArchiveError as error:
            self.findings.add(
                "RD831", file=file, key=key, offset=window.start, expected="an archive of torch.save", found=str(error)
            )
            return None
        if archive.has_checksums:
            if self.with_payload:
                self._check_payload(window, archive, file=file, key=key)
        else:
            self.num_unrecorded += 1
        return archive

    def _check_payload(self, window: Window, archive: Archive, *, file: str, key: str) -> None:
        for record in archive.records:
            found = record_crc32(window, record, self._crc32)
            self.num_checked_bytes += record.size
            if found != record.crc32:
                self.findings.add(
                    "RD841",
                    file=file,
                    key=key,
                    offset=record.start,
                    expected=f"CRC32 {record.crc32:08x} of the {record.size:,} bytes of {record.name}",
                    found=f"{found:08x}",
                )

    def check_item(self, window: Window, item: StorageItem, expected: ExpectedTensor | None) -> ItemContent | None:
        """Read an item's archive and compare it with what ``.metadata`` says; None where that fails."""
        archive = self.read(window, file=item.file, key=item.key)
        if archive is None:
            return None
        try:
            layout, names = self._parse(window, archive)
        except PickleFormatError as error:
            self._note("RD832", item, "a pickle", str(error))
            return None
        record = None if layout is None else archive.find(layout.record)
        content = ItemContent(item, layout, record, archive.payload_crc32, archive.has_checksums)
        if expected is not None:
            self._check_tensor(content, expected)
        elif names:
            self._note("RD835", item, "data", ", ".join(map(str, names[:5])))
        return content

    def _parse(self, window: Window, archive: Archive) -> tuple[TensorLayout | None, tuple[Global, ...]]:
        order = archive.find("byteorder")
        if order is not None and (order.size > 8 or _content(window, order) not in _ORDERS):
            raise PickleFormatError("a byte order that is neither little nor big")
        record = archive.find(PICKLE_NAME)
        if record is None or record.size > MAX_PICKLE_BYTES:
            raise PickleFormatError(f"no {PICKLE_NAME} of at most {MAX_PICKLE_BYTES:,} bytes")
        data = _content(window, record)
        known = self._layouts.get(data)
        if known is None:
            value, names = parse_pickle(data)
            known = (tensor_layout(value), tuple(name for name in names if not is_plain_global(*name)))
            if len(self._layouts) < _KEPT_PICKLES and len(data) < 1024:
                self._layouts[data] = known
        return known

    def _check_tensor(self, content: ItemContent, expected: ExpectedTensor) -> None:
        item, layout = content.item, content.layout
        if layout is None:
            self._note("RD836", item, "a plain tensor", "one of another class, of which only the checksums are checked")
        elif (layout.dtype, layout.shape) != expected:
            found = f"{layout.dtype} of sizes {list(layout.shape)}"
            self._note("RD833", item, f"{expected.dtype} of sizes {list(expected.sizes)}", found)
        else:
            self._check_room(item, content.record, layout)

    def _check_room(self, item: StorageItem, record: Record | None, layout: TensorLayout) -> None:
        size = 0 if record is None else record.size
        if size != layout.record_bytes or layout.stop_bytes > size or layout.num_elements > size // _item_bytes(layout):
            needed = max(layout.record_bytes, layout.stop_bytes, layout.num_elements * _item_bytes(layout))
            self._note("RD834", item, f"{needed:,} bytes in {layout.record}", f"{size:,}")

    def _note(self, code: str, item: StorageItem, expected: str, found: str) -> None:
        self.findings.add(code, file=item.file, key=item.key, offset=item.start, expected=expected, found=found)


def _item_bytes(layout: TensorLayout) -> int:
    return ITEM_BYTES[layout.dtype]


def _content(window: Window, record: Record) -> bytes:
    return window.read(record.start - window.start, record.size)


def read_items(
    path: Path, files: Mapping[str, Sequence[StorageItem]], metadata: Metadata, checker: ArchiveChecker
) -> Iterator[ItemContent]:
    """The items of all files, in the order of the files, without those that cannot be read."""
    expected = {
        (key, chunk.offsets): ExpectedTensor(tensor.dtype, chunk.sizes)
        for key, tensor in metadata.tensors.items()
        for chunk in tensor.chunks
    }
    for name, items in files.items():
        try:
            with open_file(path / name) as file:
                for item in items:
                    if item.transforms:
                        found = ", ".join(item.transforms)
                        checker.findings.add("RD836", file=name, key=item.key, expected="plain bytes", found=found)
                        continue
                    wanted = None if item.offsets is None else expected.get((item.key, item.offsets))
                    content = checker.check_item(Window(file, item.start, item.length), item, wanted)
                    if content is not None:
                        yield content
        except (CheckpointError, FileNotFoundError) as error:
            checker.findings.add("RD826", file=name, expected="a data file that can be read", found=str(error))
