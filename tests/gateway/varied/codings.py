"""Content codings without their libraries: brotli and zstd can hold bytes as they are.

Knows nothing of what is coded. Source: RFC 7932 (9.2, uncompressed meta-blocks), RFC 8878 (3.1.1,
raw blocks), RFC 1952, RFC 1950.
"""

import zlib
from collections.abc import Iterable

STORED_BYTES = 32 * 1024  # of one stored block: below the least window of either form


def coded(coding: str, pieces: Iterable[bytes]) -> list[bytes]:
    """The pieces in this coding, each one readable as soon as it is there, and the end."""
    return {"gzip": _gzip, "deflate": _deflate, "br": _brotli, "zstd": _zstd}[coding](pieces)


def _gzip(pieces: Iterable[bytes]) -> list[bytes]:
    return _zlib(pieces, 16 + zlib.MAX_WBITS)


def _deflate(pieces: Iterable[bytes]) -> list[bytes]:
    return _zlib(pieces, zlib.MAX_WBITS)


def _zlib(pieces: Iterable[bytes], window_bits: int) -> list[bytes]:
    packer = zlib.compressobj(wbits=window_bits)
    done = [packer.compress(piece) + packer.flush(zlib.Z_SYNC_FLUSH) for piece in pieces]
    return [*done, packer.flush()]


def _brotli(pieces: Iterable[bytes]) -> list[bytes]:
    blocks = []
    bits, count = 0b0, 1  # WBITS: one bit 0, a window of 64 KiB
    for block in _blocks(pieces):
        bits |= 0b0 << count  # ISLAST
        bits |= 0b00 << count + 1  # MNIBBLES: four
        bits |= len(block) - 1 << count + 3
        bits |= 1 << count + 19  # ISUNCOMPRESSED
        blocks.append(bits.to_bytes((count + 20 + 7) // 8, "little") + block)
        bits = count = 0
    bits |= 0b11 << count  # ISLAST, ISLASTEMPTY
    return [*blocks, bytes([bits])]


def _zstd(pieces: Iterable[bytes]) -> list[bytes]:
    # Magic number, no content size, no checksum, a window of 64 KiB.
    frame = [b"\x28\xb5\x2f\xfd\x00\x30"]
    frame += [(len(block) << 3).to_bytes(3, "little") + block for block in _blocks(pieces)]
    return [*frame, b"\x01\x00\x00"]  # an empty last block


def _blocks(pieces: Iterable[bytes]) -> Iterable[bytes]:
    for piece in pieces:
        for at in range(0, len(piece), STORED_BYTES):
            yield piece[at : at + STORED_BYTES]
