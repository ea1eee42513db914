"""Everything one sequence owns while it runs. Knows no run, no client and no model."""

from worker.state.cache import SequenceCache


class Slot:
    """A sequence: its token ids and its cache. One owner, the loop.

    While decoding, `len(ctx) == kv_len + 1`: the last id (the root) is chosen, not forwarded.
    """

    def __init__(self, cache: SequenceCache) -> None:
        self.cache = cache
        self.ctx: list[int] = []
        self.kv_len = 0

    def reset(self, prompt: tuple[int, ...]) -> None:
        """Takes a new prompt, of which nothing is forwarded yet."""
        self.ctx = list(prompt)
        self.kv_len = 0
        self.cache.clear()

    def commit_forward(self, count: int) -> None:
        """Notes that the next `count` tokens of ctx are in the cache."""
        self.kv_len += count
        assert self.kv_len <= len(self.ctx), "more tokens forwarded than there are"

    def commit_choice(self, token: int) -> None:
        """Appends the chosen token, which becomes the root."""
        self.ctx.append(token)
        assert len(self.ctx) == self.kv_len + 1, "the root must be the only token not forwarded"
