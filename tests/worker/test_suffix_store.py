"""The suffix store: tenants apart, nothing lost, nobody waits; and the corpus."""

import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from proto.worker_settings import StoreMode
from worker.draft import corpus as corpus_module
from worker.draft import suffix_store
from worker.draft.corpus import read_corpus
from worker.draft.suffix_array import CONTEXT, SuffixArray
from worker.draft.suffix_log import STORE_HALVED, STORE_READ_ONLY, STORE_REFUSED
from worker.draft.suffix_store import STORE_FAILED, StoreBounds, SuffixStore, SuffixStores
from worker.faults import StartFault

WAIT_S = 20.0
PHRASE = list(range(50, 60))
AT_ONCE = StoreBounds(sorted_after=1)

Open = Callable[..., SuffixStores]


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[Open]:
    """Opens stores in one folder; closes them all."""
    opened: list[SuffixStores] = []

    def open_stores(
        mode: StoreMode = "all", tokenizer_hash: str = "t" * 64, **more: Any
    ) -> SuffixStores:
        bounds = more.pop("bounds", AT_ONCE)
        opened.append(SuffixStores(tmp_path / "s", mode, tokenizer_hash, bounds=bounds, **more))
        return opened[-1]

    yield open_stores
    for one in opened:
        one.close(WAIT_S)


def settle(stores: SuffixStores) -> None:
    """Until everything that was asked for is written and sorted."""
    assert stores._writer.wait(WAIT_S)


def store_of(stores: SuffixStores, salt: str = "tenant") -> SuffixStore:
    store = stores.of(salt)
    assert store is not None
    return store


def after_phrase(store: SuffixStore, phrase: list[int] = PHRASE) -> list[Sequence[int]]:
    return store.find(phrase, 7)[1]


def test_what_was_added_is_found_now_and_after_a_restart(stores: Open):
    first = stores()
    store_of(first).add([*PHRASE, 1, 2, 3])
    settle(first)
    assert store_of(first).find([7, *PHRASE], 7)[0] == 8
    assert after_phrase(store_of(first)) == [[1, 2, 3]]
    store_of(first).add([*PHRASE, 4])
    first.close()
    second = stores()
    store = store_of(second)
    settle(second)
    assert sorted(after_phrase(store)) == [[1, 2, 3], [4]]


def test_the_end_of_one_document_is_no_context_of_the_next(stores: Open):
    one = stores()
    store_of(one).add(PHRASE)
    store_of(one).add([1, 2, 3])
    settle(one)
    assert store_of(one).find(PHRASE, 1) == (0, [])


def test_b21_nothing_of_one_tenant_is_found_by_another(stores: Open):
    one = stores()
    for salt in ("a", "b", ""):
        store_of(one, salt)
    store_of(one, "a").add([*PHRASE, 1])
    settle(one)
    assert after_phrase(store_of(one, "a")) == [[1]]
    assert after_phrase(store_of(one, "b")) == after_phrase(store_of(one, "")) == []
    one.close()
    again = stores()
    found = {salt: store_of(again, salt) for salt in ("a", "b", "")}
    settle(again)
    assert {salt: after_phrase(store) for salt, store in found.items()} == {
        "a": [[1]], "b": [], "": [],
    }  # fmt: skip


def test_another_tokenizer_has_stores_of_its_own(stores: Open, tmp_path: Path):
    first = stores()
    store_of(first).add([*PHRASE, 1])
    first.close()
    other = stores(tokenizer_hash="u" * 64)
    store = store_of(other)
    settle(other)
    assert after_phrase(store) == []
    store.add([*PHRASE, 2])
    settle(other)
    assert after_phrase(store) == [[2]]
    other.close()
    # The same beginning of the hash, or a file that was moved: the header tells.
    near = stores(tokenizer_hash="t" * 63 + "x")
    with capture_logs() as lines:
        store = store_of(near)
        store.add([*PHRASE, 3])
        settle(near)
    assert [line["event"] for line in lines] == [STORE_REFUSED]
    assert after_phrase(store) == []
    back = stores()
    store = store_of(back)
    settle(back)
    assert after_phrase(store) == [[1]]


def test_parts_grow_and_everything_in_them_is_found(stores: Open, monkeypatch: pytest.MonkeyPatch):
    """A part is not sorted again with every document, and yet there are few of them."""
    sizes: list[int] = []
    sort = suffix_store.sort_part

    def counted_sort(words: Any, start: int, is_over: Any) -> SuffixArray | None:
        sizes.append(len(words) - start)
        return sort(words, start, is_over)

    monkeypatch.setattr(suffix_store, "sort_part", counted_sort)
    one = stores()
    store = store_of(one)
    for number in range(300):
        store.add([1_000 + number, *PHRASE[:7], number])
        if number % 100 == 99:  # so many may wait to be written
            settle(one)
    assert len(sizes) == 300 and sum(sizes) < 25 * sum(part.size for part in store._parts)
    assert len(store._parts) <= 3
    for number in range(0, 300, 7):
        assert after_phrase(store, [1_000 + number, *PHRASE[:7]]) == [[number]]


def test_a_search_does_not_wait_while_the_store_sorts(
    stores: Open, monkeypatch: pytest.MonkeyPatch
):
    one = stores()
    store = store_of(one)
    store.add([*PHRASE, 1])
    settle(one)
    sort, is_sorting, may_go_on = suffix_store.sort_part, threading.Event(), threading.Event()
    in_time: list[bool] = []

    def slow_sort(*arguments: Any) -> SuffixArray | None:
        is_sorting.set()
        in_time.append(may_go_on.wait(5.0))  # not if anybody below waits for this sort
        return sort(*arguments)

    monkeypatch.setattr(suffix_store, "sort_part", slow_sort)
    store.add([*PHRASE, 2])
    assert is_sorting.wait(WAIT_S)
    for number in range(3, 20):
        store.add([*PHRASE, number])
        assert after_phrase(store) == [[1]]
    may_go_on.set()
    settle(one)
    assert all(in_time)
    assert sorted(after_phrase(store)) == [[number] for number in range(1, 20)]


def test_documents_are_sorted_when_enough_are_new(stores: Open):
    one = stores(bounds=StoreBounds(sorted_after=40))
    store = store_of(one)
    store.add([*PHRASE, 1])
    store.add([*PHRASE, 2])
    settle(one)
    assert after_phrase(store) == []
    store.add([*PHRASE, 3])  # 42 words
    settle(one)
    assert after_phrase(store) == [[1], [2], [3]]


def test_a_store_that_is_full_forgets_its_older_half(stores: Open):
    one = stores(bounds=StoreBounds(limit=700, sorted_after=1))
    store = store_of(one)
    with capture_logs() as lines:
        for number in range(100):  # of 14 words each
            store.add([*PHRASE, number])
        settle(one)
    halvings = [line["words"] for line in lines if line["event"] == STORE_HALVED]
    assert len(halvings) == 3 and all(300 <= words <= 32 + 350 for words in halvings)
    kept = [found for (found,) in after_phrase(store)]
    assert kept == list(range(100 - len(kept), 100)) and 20 <= len(kept) <= 48
    one.close()
    again = stores()
    store = store_of(again)
    settle(again)
    assert [found for (found,) in after_phrase(store)] == kept


def test_of_a_document_too_long_the_end_is_kept(stores: Open):
    one = stores(bounds=StoreBounds(limit=400, sorted_after=1))
    store = store_of(one)
    store.add([*range(1_000, 2_000), *PHRASE, 1])
    settle(one)
    assert after_phrase(store) == [[1]]
    assert store.find(list(range(1_000, 1_008)), 1) == (0, [])


def test_readonly_finds_and_changes_not_a_byte(stores: Open, tmp_path: Path):
    nothing = stores("readonly")
    assert nothing.of("tenant") is None and not list(tmp_path.iterdir())
    first = stores()
    store_of(first).add([*PHRASE, 1])
    first.close()
    before = _picture(tmp_path)
    reader = stores("readonly")
    store = store_of(reader)
    store.add([*PHRASE, 2])
    settle(reader)
    assert after_phrase(store) == [[1]] and reader.of("another") is None
    reader.close()
    assert _picture(tmp_path) == before


def test_the_second_worker_on_a_folder_reads_only(stores: Open):
    first, second = stores(), stores()
    store_of(first).add([*PHRASE, 1])
    settle(first)
    with capture_logs() as lines:
        store = store_of(second)
        store.add([*PHRASE, 2])
        settle(second)
    assert [line["event"] for line in lines] == [STORE_READ_ONLY]
    assert after_phrase(store) == [[1]]
    store_of(first).add([*PHRASE, 3])
    settle(first)
    assert sorted(after_phrase(store_of(first))) == [[1], [3]]


def test_the_store_not_used_for_longest_is_closed(stores: Open, tmp_path: Path):
    one = stores(most=2)
    a, _b = store_of(one, "a"), store_of(one, "b")
    a.add([*PHRASE, 1])
    settle(one)
    assert _files_open(tmp_path) == 2 + 2 + 1  # files, locks, and the map of what is sorted
    assert store_of(one, "a") is a
    store_of(one, "c")  # b goes
    assert store_of(one, "a") is a
    b = store_of(one, "b")  # c goes
    store_of(one, "c")  # a goes
    settle(one)
    assert _files_open(tmp_path) == 2 + 2
    a.add([*PHRASE, 2])  # somebody still holds it
    settle(one)
    assert after_phrase(a) == [] and store_of(one, "b") is b
    again = store_of(one, "a")
    settle(one)
    assert again is not a and after_phrase(again) == [[1]]


def test_a_folder_that_cannot_be_used_costs_one_line_and_no_fault(stores: Open, tmp_path: Path):
    (tmp_path / "s").write_text("in the way")
    one = stores()
    with capture_logs() as lines:
        store = store_of(one)
        store.add([*PHRASE, 1])
        store.add([*PHRASE, 2])
        settle(one)
    assert [line["event"] for line in lines] == [STORE_FAILED]
    assert after_phrase(store) == []


def test_a_full_disk_is_told_once_and_what_is_there_is_found(
    stores: Open, monkeypatch: pytest.MonkeyPatch
):
    one = stores()
    store = store_of(one)
    store.add([*PHRASE, 1])
    settle(one)

    def full(*_: object) -> None:
        raise OSError("no space")

    monkeypatch.setattr(suffix_store.SuffixLog, "append", full)
    with capture_logs() as lines:
        store.add([*PHRASE, 2])
        store.add([*PHRASE, 3])
        settle(one)
    assert [(line["event"], line["fault"]) for line in lines] == [(STORE_FAILED, "OSError")]
    assert after_phrase(store) == [[1]]


def test_documents_are_dropped_when_the_writer_is_far_behind(
    stores: Open, monkeypatch: pytest.MonkeyPatch
):
    one = stores()
    store = store_of(one)
    settle(one)
    may_go_on = threading.Event()
    one._writer.put(lambda: _check(may_go_on.wait(WAIT_S)))
    for number in range(2_000):
        store.add([*PHRASE, number])
    dropped = one._writer.dropped_documents
    assert one.of("another") is None  # not now
    may_go_on.set()
    settle(one)
    assert 2_000 - suffix_store.STORE_JOBS - 1 <= dropped < 2_000
    assert {found[0] for found in after_phrase(store)} <= set(range(2_000 - dropped))


def test_the_last_documents_are_written_at_the_end_without_a_sort(
    stores: Open, monkeypatch: pytest.MonkeyPatch
):
    one = stores()
    store = store_of(one)
    settle(one)
    sorts: list[object] = []
    sort = suffix_store.sort_part

    def counted_sort(*arguments: Any) -> SuffixArray | None:
        sorts.append(sort(*arguments))
        return sorts[-1]  # type: ignore[return-value]

    monkeypatch.setattr(suffix_store, "sort_part", counted_sort)
    started = threading.Event()
    one._writer.put(lambda: _check(started.wait(WAIT_S)))
    store.add([*PHRASE, 1])
    closing = threading.Thread(target=one.close)
    closing.start()
    while not one._writer.is_closing:
        assert closing.is_alive()
    started.set()
    closing.join(WAIT_S)
    assert sorts == [None]
    again = stores()
    store = store_of(again)
    settle(again)
    assert after_phrase(store) == [[1]]


def test_without_store_and_corpus_there_is_nothing(stores: Open, tmp_path: Path):
    threads = threading.active_count()
    assert stores("off").of("tenant") is None
    assert threading.active_count() == threads and not list(tmp_path.iterdir())


# The corpus.


def encode(text: str) -> list[int]:
    """A byte a token."""
    return list(text.encode())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two files that count, and some that do not."""
    folder = tmp_path / "corpus"
    (folder / "below").mkdir(parents=True)
    (folder / ".git").mkdir()
    (folder / "one.md").write_bytes(b"the number is 12\r\n")
    (folder / "below" / "two.md").write_text("the number is 34")
    (folder / ".git" / "x").write_bytes(b"the number is 56\xff")
    (folder / ".hidden").write_text("the number is 78")
    (folder / "link").symlink_to(folder / "one.md")
    return folder


@pytest.mark.parametrize("mode", ["off", "all", "readonly"])
def test_a_corpus_serves_every_tenant(stores: Open, folder: Path, mode: StoreMode):
    one = stores(mode, corpus=read_corpus(folder, encode))
    for salt in ("a", "b"):
        store = store_of(one, salt)
        store.add(encode("the number is 90"))
        settle(one)
        found = ["".join(map(chr, ids)) for ids in after_phrase(store, encode("number is "))]
        assert sorted(found) == ["12\r\n", "34"] + ["90"] * (mode == "all")


def test_a_corpus_ends_where_its_documents_end(folder: Path):
    array = read_corpus(folder, encode)
    assert (array.words < 0).sum() == CONTEXT + 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda folder: folder.rename(folder.with_name("gone")), "not a folder"),
        (lambda folder: (folder / "x.png").write_bytes(b"\x89PNG\xff"), "not UTF-8"),
        (lambda folder: (folder / "big").write_bytes(b"x" * 100), "MiB"),
        (lambda folder: [(folder / f"{n}").touch() for n in range(9)], "more than 10 files"),
        (lambda folder: [path.unlink() for path in folder.rglob("*.md")], "no files"),
    ],
    ids=["absent", "binary", "large", "many", "empty"],
)
def test_a_corpus_that_cannot_be_used_stops_the_start_with_one_sentence(
    folder: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], None], words: str
):
    monkeypatch.setattr(corpus_module, "CORPUS_BYTES", 100)
    monkeypatch.setattr(corpus_module, "CORPUS_FILES", 10)
    read_corpus(folder, encode)
    change(folder)
    with pytest.raises(StartFault, match=words) as fault:
        read_corpus(folder, encode)
    assert "worker.draft.lookup.corpus" in str(fault.value) and str(fault.value).endswith(".")


def test_b49_a_test_cannot_touch_the_real_state_folder():
    real = str(Path.home() / ".local/state/tandem/suffixes")
    for event, *arguments in (
        ("os.mkdir", real, 0o700, -1),
        ("open", f"{real}/x.ids", None, os.O_RDWR | os.O_CREAT),
        ("os.rename", "/x", real, -1, -1),
        ("os.remove", f"{real}/x.new", -1),
    ):
        with pytest.raises(PermissionError, match="real state folder"):
            sys.audit(str(event), *arguments)


def _check(value: bool) -> None:
    assert value


def _files_open(folder: Path) -> int:
    links = [Path("/proc/self/fd") / name for name in os.listdir("/proc/self/fd")]
    return sum(str(os.path.realpath(link)).startswith(str(folder)) for link in links)


def _picture(folder: Path) -> list[Any]:
    return [
        (path, path.stat().st_mode, path.stat().st_mtime_ns, path.is_file() and path.read_bytes())
        for path in [folder, *sorted(folder.rglob("*"))]
    ]
