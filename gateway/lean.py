"""msgspec, without a module that it asks for and does not need: 4 MB of a gateway's memory.

It takes helpers from `typing_extensions` where that is installed, else the same from `typing`.
Whoever uses msgspec imports it from here.
"""

import sys
from typing import Any

_modules: dict[str, Any] = sys.modules
_EXTENSIONS = "typing_extensions"
if _EXTENSIONS in _modules:
    import msgspec
else:
    _modules[_EXTENSIONS] = None  # to Python: there is no such module
    try:
        import msgspec
    finally:
        del _modules[_EXTENSIONS]

__all__ = ["msgspec"]
