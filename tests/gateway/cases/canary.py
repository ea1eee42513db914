"""Unique strings that must turn up nowhere, and the search for them. Knows no scenario."""

import base64
import re
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote, quote_plus

# Characters that every encoding changes; long enough that no part of them comes by chance.
CLIENT_KEY = "sk-canary/client+Key=a1b2c3d4"
WRONG_KEY = "sk-canary/wrong+Key=e5f6a7b8"
BACKEND_KEY = "sk-canary/backend+Key=c9d0e1f2"
HEADER_KEY = "sk-canary/header+Key=b3c4d5e6"
QUERY_KEY = "sk-canary/query+Key=f7a8b9c0"
COOKIE = "canary/cookie+Value=d1e2f3a4"
PROMPT = "canary/prompt: Grüße+aus=東京 b5c6d7e8"
ANSWER = "canary/answer: Wörter+und=🚲 a9b0c1d2"
ALL = (CLIENT_KEY, WRONG_KEY, BACKEND_KEY, HEADER_KEY, QUERY_KEY, COOKIE, PROMPT, ANSWER)


def forms(canary: str) -> set[bytes]:
    """A string as it is, in other encodings, percent-encoded, as JSON, and in base64."""
    raw = canary.encode()
    plain = max(re.findall("[ -~]+", canary), key=len)  # the part that most encodings keep
    found = {raw, plain.encode(), canary.encode("utf-16-le")}
    for encode in (quote, quote_plus):
        for safe in ("", "/", "/="):
            text = encode(canary, safe=safe)
            found |= {text.encode(), text.lower().encode()}
    found.add(raw.hex().encode())
    for shift in range(3):  # base64 depends on what stands before
        for pack in (base64.b64encode, base64.urlsafe_b64encode):
            packed = pack(b"\0" * shift + raw)
            found.add(packed[4 : len(packed) // 4 * 4 - 4])
    return found


def leaks(places: dict[str, bytes]) -> list[str]:
    """Which canary was found where."""
    return [
        f"{canary.split('=')[0]} as {form[:40]!r} in {place}"
        for canary in ALL
        for form in forms(canary)
        for place, content in places.items()
        if form in content
    ]


def files_below(folders: Iterable[Path]) -> dict[str, bytes]:
    """Every file: databases, their journals, spill files, backups, what was left in `tmp`."""
    return {
        str(path): path.read_bytes()
        for folder in folders
        for path in folder.rglob("*")
        if path.is_file()
    }
