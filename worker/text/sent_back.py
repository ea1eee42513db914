"""Whether a client sends a reply's reasoning back with its next request. Knows no tokens.

A guess by what it did before: what is read ahead for a wrong guess is of no use, and harms nothing.
"""

import hashlib
import json
from collections import OrderedDict
from typing import Literal

from proto.chat import Message
from worker.limits import REASONED_REPLIES

FirstTurn = Literal["omit", "keep"]


class SentBack:
    """What is known of the replies that had reasoning, by tenant. One thread uses it.

    `first_turn`: what is assumed of a conversation in which nothing was sent back yet.
    """

    def __init__(self, first_turn: FirstTurn = "omit") -> None:
        self._first_turn = first_turn
        self._reasoned: OrderedDict[bytes, None] = OrderedDict()  # the latest one last

    def saw_reply(self, salt: str, reply: Message) -> None:
        """Remembers a reply that is sent to a client of this tenant, if it has reasoning."""
        if not reply.reasoning:
            return
        key = _key(salt, reply)
        self._reasoned.pop(key, None)
        self._reasoned[key] = None
        while len(self._reasoned) > REASONED_REPLIES:
            self._reasoned.popitem(last=False)

    def keeps_reasoning(self, salt: str, messages: tuple[Message, ...]) -> bool:
        """Whether the reply to these messages is expected back with its reasoning.

        Decided by the latest earlier reply that is known to have had some.
        """
        earlier = [message for message in messages if message.role == "assistant"]
        if not earlier:
            return self._first_turn == "keep"
        for message in reversed(earlier):
            if message.reasoning:
                return True
            if _key(salt, message) in self._reasoned:
                return False
        return False

    def next_form(self, salt: str, messages: tuple[Message, ...], reply: Message) -> Message:
        """The reply as the client is expected to send it back."""
        if self.keeps_reasoning(salt, messages):
            return reply
        return Message("assistant", reply.content, reply.calls)


def _key(salt: str, reply: Message) -> bytes:
    """A reply as it is recognized, however its client writes blanks, arguments and ids."""
    calls = [(call.name, _canonical(call.arguments)) for call in reply.calls]
    identity = json.dumps([salt, reply.text.strip(), calls])
    return hashlib.sha256(identity.encode()).digest()


def _canonical(arguments: str) -> str:
    try:
        return json.dumps(json.loads(arguments), sort_keys=True)
    except (ValueError, RecursionError):
        return arguments
