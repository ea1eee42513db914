"""Reasoning that goes in circles or past its budget: tasks D1, D1b and D2. Knows no verdict.

Each looks at positions that the tokens decide, so that cuts of blocks change nothing.
"""

from collections import deque

from conductor.monitor.passages import Passage, Sentences
from conductor.monitor.pieces import Piece, Pieces
from conductor.monitor.tasks import Params
from conductor.monitor.trail import KEPT_PIECES, Recurrences, Rolling, Trail

STEP_TOKENS = 64  # of a phase: where detectors decide


class Circles:
    """Watches reasoning for loops (D1) and for going on without saying anything new (D1b)."""

    def __init__(self, loop: Params, drift: Params) -> None:
        self._pieces, self._trail = Pieces(), Trail()
        self._loop, self._drift = loop, drift
        times, window = loop.count("times"), loop.count("window_pieces")
        self._unit_pieces = loop.count("unit_pieces")
        self._unit = Rolling(self._unit_pieces)
        self._units = Recurrences(times=times, window=window, apart=self._unit_pieces)
        self._unit_prose: deque[bool] = deque(maxlen=self._unit_pieces)
        self._prose_in_unit = 0
        self._sentences = Sentences()
        self._repeats = Recurrences(times=times, window=window, apart=0)
        self._least_chars = loop.count("sentence_chars")
        self._least_prose = loop.share("prose_share")
        self._since: tuple[str, int] | None = None  # what recurred, and from which piece on
        # Pieces there were at the last decisions, one more than steps are looked back.
        self._steps = -(-loop.count("cycle_tokens") // STEP_TOKENS)
        self._marks: deque[int] = deque([0], maxlen=self._steps + 1)

    def read(self, text: str) -> None:
        """Takes text of the reasoning."""
        for piece in self._pieces.push(text):
            self._trail.push(piece)
            self._read_unit(piece)
            sentence = self._sentences.push(piece)
            if sentence is not None and self._is_whole(sentence):
                first = self._repeats.push(sentence.hash, self._trail.count - 1)
                if first is not None:
                    self._since = ("sentence", first)

    def loop(self) -> str | None:
        """At a decision: what the reasoning repeats, in a word; None where it does not (D1)."""
        self._marks.append(self._trail.count)
        since, self._since = self._since, None
        if since is not None:
            word, first = since
            least_new = self._loop.share("new_share")
            if self._trail.new_share(self._trail.count - first) < least_new:
                return word
        return "cycle" if self._has_cycle() else None

    def drift(self, tokens: int) -> bool:
        """At a decision: whether nothing new is said any more (D1b). `tokens`: reasoned so far."""
        window = self._drift.count("window_pieces")
        return (
            tokens >= self._drift.count("min_tokens")
            and self._trail.count >= window
            and self._trail.new_share(window) < self._drift.share("new_share")
            and self._trail.prose_share(window) >= self._drift.share("prose_share")
        )

    def _read_unit(self, piece: Piece) -> None:
        if len(self._unit_prose) == self._unit_pieces:
            self._prose_in_unit -= self._unit_prose[0]
        self._unit_prose.append(piece.is_prose)
        self._prose_in_unit += piece.is_prose
        unit = self._unit.push(piece.id)
        if not unit or self._prose_in_unit < self._least_prose * self._unit_pieces:
            return
        first = self._units.push(unit, self._trail.count)
        if first is None:
            return
        if self._trail.distinct(self._unit_pieces) >= self._loop.count("distinct_pieces"):
            self._since = ("unit", first)

    def _is_whole(self, sentence: Passage) -> bool:
        is_prose = sentence.prose >= self._least_prose * sentence.pieces
        return is_prose and sentence.chars >= self._least_chars

    def _has_cycle(self) -> bool:
        if len(self._marks) <= self._steps:
            return False
        written = self._trail.count - self._marks[0]
        least = min(max(self._loop.count("cycle_pieces"), written), KEPT_PIECES)
        periods = range(1, self._loop.count("long_period") + 1)
        found = (one for one in periods if self._trail.has_period(one, self._least(one, least)))
        period = next(found, None)
        if period is None or period <= self._loop.count("cycle_period"):
            return period is not None
        return self._trail.distinct(period) >= self._loop.count("long_distinct")

    def _least(self, period: int, least: int) -> int:
        """Pieces over which a cycle of this period must hold."""
        if period <= self._loop.count("cycle_period"):
            return least
        return max(least, self._loop.count("long_times") * period)
