"""Where a budget of reasoning ends, to the token: task D2. Knows no text but its line ends.

Behind the budget every token is looked at until a line ends, so that no sentence is cut in half.
"""


class Budget:
    """Counts down. `grace`: tokens that may follow for a line's end."""

    def __init__(self, tokens: int, grace: int) -> None:
        self._tokens, self._grace = tokens, grace
        self._read = 0
        self._is_at_line_end = False

    @property
    def left(self) -> int:
        """Tokens to the next place where it must be asked; at least 1."""
        return max(self._tokens - self._read, 1)

    def is_spent(self, text: str, tokens: int) -> bool:
        """Takes a block; whether the reasoning is to end here."""
        was_over = self._read >= self._tokens
        self._read += tokens
        if self._read < self._tokens:
            if text:
                self._is_at_line_end = text.endswith("\n")
            return False
        over = self._read - self._tokens
        ended = "\n" in text if was_over else self._ends_line(text)
        return ended or over >= self._grace

    def _ends_line(self, text: str) -> bool:
        return text.endswith("\n") if text else self._is_at_line_end
