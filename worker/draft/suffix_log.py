"""The file of a suffix store: whole documents of token ids, appended. Knows no text and no search.

Words of 32 bits, little-endian: a header, then records of `~count`, two words of checksum and the
ids. What is no id is negative, so the file itself is the text that a suffix array is made over.
"""

import fcntl
import hashlib
import os
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import structlog
from numpy.typing import NDArray

log = structlog.get_logger()

STORE_REFUSED = "suffix_store.refused"
STORE_CUT_BACK = "suffix_store.cut_back"
STORE_READ_ONLY = "suffix_store.read_only"
STORE_HALVED = "suffix_store.halved"

FORMAT = 1
MAGIC = b"suffixes"
HEADER_WORDS = 32  # magic, format, hashes of tokenizer and salt, checksum
FRAME_WORDS = 3
WORD_BYTES = 4
WORD = np.dtype("<i4")

Words = NDArray[np.int32]


class LogFault(Exception):
    """A file that is not used: `reason` is `format`, `tokenizer`, `salt` or `damaged`."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class LogFile:
    """Whose ids a file holds. Its name is a hash of the salt, which itself is written nowhere."""

    folder: Path
    salt: str
    tokenizer_hash: str
    is_writable: bool

    @property
    def path(self) -> Path:
        """Where it lies."""
        return self.folder / f"{self.salt_hash.hex()[:32]}.ids"

    @property
    def salt_hash(self) -> bytes:
        """SHA-256 of the salt."""
        return hashlib.sha256(self.salt.encode()).digest()

    def header(self) -> bytes:
        """The first bytes of the file."""
        tokenizer = hashlib.sha256(self.tokenizer_hash.encode()).digest()
        fields = struct.pack("<8sI32s32s", MAGIC, FORMAT, tokenizer, self.salt_hash)
        return _summed(fields.ljust((HEADER_WORDS - 1) * WORD_BYTES, b"\xff"))

    def check(self, found: bytes) -> None:
        """Whether a header is the one expected. Raises: LogFault."""
        wanted = self.header()
        if found == wanted:
            return
        if len(found) < len(wanted) or _summed(found[:-WORD_BYTES]) != found:
            raise LogFault("damaged")
        if found[:12] != wanted[:12]:
            raise LogFault("format")
        raise LogFault("tokenizer" if found[12:44] != wanted[12:44] else "salt")


class SuffixLog:
    """An open file. Used by one thread; what `words` gives may be read by any, at any time.

    Written by one process; the next one that wants to reads only, with a line in the log. A file
    that does not end with a whole record is cut back to its last one.
    Raises: OSError, FileNotFoundError where a file that is only read is absent; LogFault.
    """

    def __init__(self, file: LogFile) -> None:
        self._file = file
        self._name = file.path.stem[:8]
        self._lock = _lock(file) if file.is_writable else None
        if file.is_writable and self._lock is None:
            log.warning(STORE_READ_ONLY, store=self._name)
        try:
            self._fd = self._open()
        except BaseException:
            self._unlock()
            raise
        size = os.fstat(self._fd).st_size
        self.end = _end_of_whole(_map(self._fd, size // WORD_BYTES))  # in words
        if size != self.end * WORD_BYTES:
            lost_bytes = size - self.end * WORD_BYTES
            log.warning(STORE_CUT_BACK, store=self._name, lost_bytes=lost_bytes, words=self.end)
            if self.is_writable:
                os.ftruncate(self._fd, self.end * WORD_BYTES)

    @property
    def is_writable(self) -> bool:
        """Whether documents can be appended."""
        return self._lock is not None

    def words(self) -> Words:
        """All whole records, header first. Stays what it is, whatever becomes of the file."""
        return _map(self._fd, self.end)

    def append(self, ids: Words) -> None:
        """Adds one document. Raises: OSError; then the file is as before."""
        body = ids.astype(WORD).tobytes()
        record = _frame(len(ids), body) + body
        try:
            written = os.write(self._fd, record)
            if written != len(record):
                raise OSError(f"{written} of {len(record)} bytes written")
        except OSError:
            os.ftruncate(self._fd, self.end * WORD_BYTES)
            raise
        self.end += len(record) // WORD_BYTES

    def keep_newest(self, limit: int) -> None:
        """Drops the oldest documents until at most `limit` words are left behind the header.

        A new file takes the old one's name when it is whole, so that there is always a whole one.
        Raises: OSError; then the old one stays.
        """
        words, at = self.words(), HEADER_WORDS
        while self.end - at > limit:
            at += FRAME_WORDS + ~int(words[at])
        fd = _write_new(self._file, words[at:])
        os.close(self._fd)
        self._fd, self.end = fd, HEADER_WORDS + self.end - at
        log.info(STORE_HALVED, store=self._name, words=self.end)

    def close(self) -> None:
        """Lets go of the file. What `words` gave stays readable."""
        os.close(self._fd)
        self._unlock()

    def _open(self) -> int:
        path = self._file.path
        access = os.O_RDWR | os.O_APPEND if self.is_writable else os.O_RDONLY
        try:
            return self._checked(os.open(path, access | os.O_CLOEXEC))
        except FileNotFoundError:
            if not self.is_writable:
                raise
        except LogFault as fault:
            log.warning(STORE_REFUSED, store=self._name, reason=fault.reason)
            if not self.is_writable or fault.reason != "damaged":
                raise  # a whole file of others is not ours to replace
            path.replace(path.with_suffix(".damaged"))
        return _write_new(self._file, np.empty(0, WORD))

    def _checked(self, fd: int) -> int:
        try:
            self._file.check(os.pread(fd, HEADER_WORDS * WORD_BYTES, 0))
            if self.is_writable:
                os.fchmod(fd, 0o600)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _lock(file: LogFile) -> int | None:
    """The right to write, as a descriptor to keep open; None when another process has it."""
    file.folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    file.folder.mkdir(exist_ok=True, mode=0o700)
    file.folder.chmod(0o700)
    fd = os.open(file.path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    _new_path(file.path).unlink(missing_ok=True)  # of a process that was killed while it halved
    return fd


def _write_new(file: LogFile, words: Words) -> int:
    """Puts a whole file in the place of what is there; the descriptor of the new one."""
    fresh = _new_path(file.path)
    fd = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        with open(fd, "wb", closefd=False) as stream:
            stream.write(file.header())
            stream.write(words.data)
        os.fsync(fd)
        fresh.replace(file.path)
    except BaseException:
        os.close(fd)
        fresh.unlink(missing_ok=True)
        raise
    folder = os.open(file.folder, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(folder)  # so that the name survives a loss of power as well
    os.close(folder)
    return fd


def _new_path(path: Path) -> Path:
    return path.with_suffix(".new")


def _map(fd: int, count: int) -> Words:
    with open(fd, "rb", closefd=False) as stream:
        return np.memmap(stream, WORD, mode="r", shape=(count,)).view(np.ndarray)


def _end_of_whole(words: Words) -> int:
    """The word after the last record that is whole and everything before it too."""
    at = HEADER_WORDS
    while at + FRAME_WORDS < len(words):
        count = ~int(words[at])
        end = at + FRAME_WORDS + count
        if count <= 0 or end > len(words):
            break
        body = words[at + FRAME_WORDS : end]
        if words[at : at + FRAME_WORDS].tobytes() != _frame(count, body.data):
            break
        at = end
    return at


def _frame(count: int, body: bytes | memoryview) -> bytes:
    """The words before the ids, all negative: the count, and the checksum in two halves."""
    checksum = zlib.crc32(body)
    return struct.pack("<iii", ~count, ~(checksum >> 16), ~(checksum & 0xFFFF))


def _summed(fields: bytes) -> bytes:
    return fields + struct.pack("<I", zlib.crc32(fields))
