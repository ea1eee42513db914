"""The price table as people read it. Knows nothing of how it came about."""

from collections.abc import Iterator

from worker.speculation.prices import SHAPES, Prices

COLUMN = 18  # characters


def table_lines(prices: Prices) -> Iterator[str]:
    """Milliseconds of a round by rows and context, and how many plain steps that is."""
    contexts = sorted(prices.plain)
    yield "One round in ms, commit included, and in plain steps; across: tokens of context."
    yield ""
    yield _line("rows", [f"{context:,}" for context in contexts])
    yield _line("plain", [_cell(prices.plain[at], prices.plain[at]) for at in contexts])
    for shape in SHAPES:
        commit_ms = prices.commit[shape]
        for rows in sorted(prices.verify[contexts[0]][shape]):
            if rows > (1 if shape == "chain" else 2):  # fewer do not fork
                times = [prices.verify[at][shape][rows] + commit_ms for at in contexts]
                plain = [prices.plain[at] for at in contexts]
                yield _line(f"{shape} {rows}", list(map(_cell, times, plain)))


def _cell(ms: float, plain_ms: float) -> str:
    return f"{ms:.2f} ({ms / plain_ms:.2f})"


def _line(name: str, cells: list[str]) -> str:
    return f"{name:<9}" + "".join(f"{cell:>{COLUMN}}" for cell in cells)
