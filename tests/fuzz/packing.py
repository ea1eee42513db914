"""Bodies under a Content-Encoding, in two members or frames where the format has such."""

import gzip
import zlib

import brotli
import zstandard


def packed(plain: bytes, encoding: bytes | None) -> bytes:
    """Packs as the value of the header says, in whatever capitals; another one packs nothing."""
    half = len(plain) // 2
    match (encoding or b"").strip().lower():
        case b"gzip" | b"x-gzip":
            return gzip.compress(plain[:half], mtime=0) + gzip.compress(plain[half:], mtime=0)
        case b"deflate":
            return zlib.compress(plain)
        case b"br":
            return bytes(brotli.compress(plain, quality=1))
        case b"zstd":
            packer = zstandard.ZstdCompressor(level=1)
            return packer.compress(plain[:half]) + packer.compress(plain[half:])
        case _:
            return plain
