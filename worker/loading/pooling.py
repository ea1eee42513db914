"""How a checkpoint's states become one vector a text, as its files say. Knows no tensor.

Source: sentence-transformers, `modules.json` and `1_Pooling/config.json`.
"""

from collections.abc import Mapping
from typing import Any, Literal

import structlog

log = structlog.get_logger()

POOLING_UNSUPPORTED = "pooling.unsupported"

Pooling = Literal["mean", "last", "first"]

# By the name of a mode: older files have a flag for each, newer ones name the one that counts.
_FLAGS = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "lasttoken",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
}
_KNOWN: dict[str, Pooling] = {"mean": "mean", "lasttoken": "last", "cls": "first"}
_MODULES = ("Transformer", "Pooling", "Normalize")  # what is served; a Dense layer would be more


def pooling_of(fields: Mapping[str, Any], modules: Any) -> Pooling | None:
    """The pooling that a folder asks for; None, with a word in the log, for one that is not served.

    `fields`: of `1_Pooling/config.json`. `modules`: of `modules.json`, None where there is none.
    """
    named = fields.get("pooling_mode")
    modes = [mode for flag, mode in _FLAGS.items() if fields.get(flag) is True]
    if isinstance(named, str):
        modes = [named]
    if len(modes) != 1 or modes[0] not in _KNOWN:
        log.warning(POOLING_UNSUPPORTED, reason=f"pooling {' and '.join(modes) or 'of no mode'}")
        return None
    foreign = [kind for kind in _kinds(modules) if kind not in _MODULES]
    if foreign:
        log.warning(POOLING_UNSUPPORTED, reason=f"the module {foreign[0]}")
        return None
    return _KNOWN[modes[0]]


def _kinds(modules: Any) -> list[str]:
    if not isinstance(modules, list):
        return []
    types = [str(module.get("type")) for module in modules if isinstance(module, dict)]
    return [kind.rpartition(".")[2] for kind in types]
