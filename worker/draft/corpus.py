"""A folder of text as something to look continuations up in. Knows no tokenizer and no store."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from worker.draft.suffix_array import CONTEXT, SuffixArray, sort_part
from worker.faults import StartFault
from worker.limits import CORPUS_BYTES, CORPUS_FILES

MARK = -1  # any negative word ends a document


def read_corpus(folder: Path, encode: Callable[[str], list[int]]) -> SuffixArray:
    """All files below a folder, each one document, encoded and sorted, in memory only.

    Names that begin with a dot are passed over, links are not followed.
    Raises: StartFault for what cannot be read, is no UTF-8 text, or is too much.
    """
    files = _files(folder)
    parts = [np.full(CONTEXT, MARK, dtype=np.int32)]
    for path in files:
        parts += [np.asarray(encode(_text(path)), dtype=np.int32), parts[0][:1]]
    array = sort_part(np.concatenate(parts), CONTEXT, lambda: False)
    assert array is not None, "nobody called it off"
    return array


def _files(folder: Path) -> list[Path]:
    """Raises: StartFault."""
    where = f"worker.draft.lookup.corpus, {str(folder)!r}"
    if not folder.is_dir():
        raise StartFault(f"{where}, is not a folder that can be read.")
    files: list[Path] = []
    size_bytes = 0
    for path in _walk(folder):
        files.append(path)
        size_bytes += path.stat().st_size
        if len(files) > CORPUS_FILES or size_bytes > CORPUS_BYTES:
            raise StartFault(
                f"{where}, holds more than {CORPUS_FILES:,} files or "
                f"{CORPUS_BYTES // 1024**2} MiB; leave only what answers are likely to repeat."
            )
    if not files:
        raise StartFault(f"{where}, holds no files.")
    return files


def _walk(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        paths = (Path(place, name) for name in sorted(names) if not name.startswith("."))
        yield from (path for path in paths if path.is_file() and not path.is_symlink())


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8")  # line ends as they are
    except (OSError, UnicodeDecodeError) as fault:
        raise StartFault(
            f"{str(path)!r} of worker.draft.lookup.corpus is not UTF-8 text that can be read."
        ) from fault
