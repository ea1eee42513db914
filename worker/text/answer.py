"""The visible text of one answer: detokenised, and ended by stop strings. Knows no run."""

from collections.abc import Sequence

from worker.text.detokenize import Detokenizer, Released, StopSearch


class AnswerText:
    """Token ids in, text that may go out. After a stop string nothing more comes."""

    def __init__(self, token_bytes: Sequence[bytes | None], stops: Sequence[str]) -> None:
        self._detokenizer = Detokenizer(token_bytes)
        self._search = StopSearch(stops)

    def push(self, token: int) -> Released:
        """Takes a token of the answer; its text may be held back for a later one."""
        return self._search.push(self._detokenizer.push(token))

    def finish(self) -> Released:
        """What was held back, at the end of the answer."""
        last = self._search.push(self._detokenizer.finish())
        if last.is_stopped:
            return last
        return Released(last.text + self._search.finish())
