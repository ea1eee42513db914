"""Bug class 18: a status line comes back in the history, and a user writes lines like it."""

from conductor.profiles import StatusRules
from conductor.status import Queued, StatusLines, without_lines
from proto.chat import Message, TextPart


def test_the_first_goes_and_the_second_stays() -> None:
    lines = StatusLines(StatusRules(enabled=True, channel="content"), 0)
    ours = lines.line(Queued(2, 40_000), 0)
    assert ours == "› waiting, position 2, about 40 s\n"
    history = [
        Message("user", (TextPart(ours), TextPart("what does that mean?"))),
        Message("assistant", (TextPart(ours), TextPart(f"It means:\n{ours}"))),
        Message("tool", (TextPart(ours),), call_id="c"),
        Message("assistant", (TextPart("› a mark of my own\nyes"),)),
    ]
    found = without_lines(history, frozenset(lines.sent))
    assert found[1] == Message("assistant", (TextPart(f"It means:\n{ours}"),))
    assert [found[n] for n in (0, 2, 3)] == [history[n] for n in (0, 2, 3)]
