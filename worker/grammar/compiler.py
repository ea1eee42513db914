"""Grammars to matchers, for one tokenizer; the last ones are kept. Knows no run and no field.

The library is llguidance: it compiles a schema in milliseconds, gives a mask in microseconds, can
roll back and copy.
"""

from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock

import numpy as np
from llguidance import LLMatcher, LLTokenizer
from llguidance._lib import LLParserLimits

from proto.faults import Refusal
from worker.grammar.forms import GrammarForm
from worker.grammar.matcher import GrammarFault, Matcher

KEPT = 64  # compiled grammars
TRIED = 8  # first tokens of a new grammar


class GrammarCompiler:
    """Any thread may compile. `serialized`: the tokenizer as JSON; `width`: of a logit row.

    `end_ids`: ids that end an answer; they are allowed exactly where the grammar may end.
    """

    def __init__(self, serialized: str, *, width: int, end_ids: Sequence[int]) -> None:
        self._tokenizer = LLTokenizer(serialized, n_vocab=width, eos_token=list(end_ids))
        self._width = width
        self._limits = LLParserLimits(verbose_errors=False)
        self._kept: OrderedDict[str, LLMatcher] = OrderedDict()
        self._lock = Lock()

    def compile(self, form: GrammarForm) -> Matcher:
        """A matcher of its own at the grammar's start.

        Raises: Refusal (`bad_request`) with the library's own sentence.
        """
        with self._lock:
            return self._compiled(form)

    def _compiled(self, form: GrammarForm) -> Matcher:
        matcher = self._kept.get(form.source)
        if matcher is None:
            matcher = LLMatcher(self._tokenizer, form.source, log_level=0, limits=self._limits)
            self._try(form, Matcher(matcher.deep_copy(), self._width))
            self._kept[form.source] = matcher
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(form.source)
        return Matcher(matcher.deep_copy(), self._width)

    def _try(self, form: GrammarForm, start: Matcher) -> None:
        """Goes one step in a few ways: what is wrong shows here, and some of it only here."""
        try:
            ways = np.flatnonzero(start.allowed())
            for token in ways[:TRIED].tolist():
                ahead = start.copy()
                ahead.consume(token)
                ahead.mask()
        except GrammarFault as fault:
            raise _unusable(form, str(fault)) from fault
        if not len(ways):
            raise _unusable(form, "nothing can follow it")


def _unusable(form: GrammarForm, reason: str) -> Refusal:
    return Refusal("bad_request", f"no grammar can be made of it: {reason}", param=form.param)
