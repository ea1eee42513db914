"""What the bits of a kept state depend on beside its tokens. Knows no file and no tensor."""

import hashlib
import json
from dataclasses import asdict, dataclass

# Moves whenever the rows or states that a prompt leaves behind get other bits than before, by a
# change of kernels, of layouts or of how chunks are cut: files of earlier versions are then gone.
STATE_VERSION = 1


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Of the worker that wrote a file, and of the one that reads it: they must be equal.

    `model`: family and shape, in full. `device`: the name of its maker; `torch`: its version.
    """

    weights_hash: str
    layout: str
    kv_dtype: str
    tokenizer_hash: str
    model: str
    chunk: int
    attention: str
    device: str
    threads: int
    torch: str
    version: int = STATE_VERSION

    @property
    def hash(self) -> str:
        """All of it in 64 hex digits."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()
