"""What is kept of earlier requests, told and dropped on an operator's word.

Knows no tensor and no socket; how a state is kept is the engine's.
"""

from typing import Protocol

import structlog

from proto.messages import CacheInfo, Refused
from worker.mailbox import Outbox
from worker.state.facts import CacheFacts
from worker.types import CacheQuestion, Outgoing

log = structlog.get_logger()

STATES_CLEARED = "states.cleared"
STATES_FAILED = "states.failed"


class KeptStates(Protocol):
    """What is asked of the engine here. Both are called between two rounds."""

    def cache_facts(self) -> CacheFacts:
        """The numbers of now."""

    def clear_kept(self, kinds: frozenset[str]) -> int:
        """Drops what is kept of these kinds, but nothing that a run uses; the bytes that it was."""


class CacheAnswers:
    """Answers every question at once. A fault ends its question alone."""

    def __init__(self, states: KeptStates, outbox: Outbox) -> None:
        self._states = states
        self._outbox = outbox

    def answer(self, question: CacheQuestion) -> None:
        """Does what is asked and says what is kept then."""
        message: CacheInfo | Refused
        try:
            message = self._info(question)
        except AssertionError:
            raise
        except Exception as fault:  # a file that cannot be deleted must end no run
            log.exception(STATES_FAILED, op=question.op)
            message = Refused("internal", type(fault).__name__, req_id=question.req_id)
        self._outbox.put(Outgoing(message, question.asker))

    def _info(self, question: CacheQuestion) -> CacheInfo:
        cleared_bytes = None
        if question.op == "clear":
            cleared_bytes = self._states.clear_kept(question.kinds)
            log.info(STATES_CLEARED, kinds=sorted(question.kinds), cleared_bytes=cleared_bytes)
        facts = self._states.cache_facts()
        return CacheInfo(
            question.req_id,
            entries=dict(facts.entries),
            size_bytes=dict(facts.size_bytes),
            cleared_bytes=cleared_bytes,
            hits=dict(facts.hits),
            evictions=dict(facts.evictions),
            skipped=dict(facts.skipped),
            misses=facts.misses,
            collisions=facts.collisions,
        )
