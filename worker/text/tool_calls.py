"""Tool calls in the text of an answer, and the text around them. Knows no run and no surface.

Reads tags, JSON inside tags, and a whole answer that is bare JSON, whichever a model was taught.
Only offered names are calls, unless somebody judges the others; all else stays text as it was
written. What comes out depends on the characters, never on how they were cut into pieces.
"""

from collections.abc import Callable, Sequence
from typing import Literal

from proto.chat import Tool
from proto.messages import CallPart
from worker.text.bare_call import BareCall
from worker.text.call_output import CallOutput, Stream
from worker.text.call_syntax import CALL, CALL_END, FUNCTION, AnyName, CallReader, held_length
from worker.text.code_fence import CodeFence
from worker.text.json_call import JsonCall
from worker.text.json_copy import BLANKS
from worker.text.xml_call import XmlCall

# head: behind the marker; next: behind a call of the same block; broken: rest of a cut call.
_Where = Literal["start", "text", "head", "call", "next", "broken"]


class CallText:
    """Text in, visible text and calls out. Held back is only what may be markup.

    `most_calls`: further ones are dropped. `new_id`: makes the id of a call that goes out.
    `takes_any_name`: markup with a name that is not offered is a call too, but in code.
    """

    def __init__(
        self,
        tools: Sequence[Tool],
        *,
        stream: Stream,
        most_calls: int | None,
        new_id: Callable[[], str],
        takes_any_name: bool = False,
    ) -> None:
        self._fence = CodeFence() if takes_any_name else None
        self._tools = {tool.name: tool for tool in tools}
        self._output = CallOutput(stream, most_calls, new_id)
        self._where: _Where = "start"
        self._bare = BareCall(self._tools)
        self._reader: CallReader = JsonCall(self._tools)
        self._raw: list[str] = []  # as written: text again if it turns out to be no call
        self._token = ""  # of a marker
        self._held = ""  # the end of the text: blanks before a marker, and its beginning
        self._is_edge = True  # nothing visible since the start or the last call
        self._has_call = False  # one was complete, dropped ones included
        self._has_cut = False
        self.cut_text = ""  # of a call that a limit cut before anything of it went out

    @property
    def calls(self) -> int:
        """Number of complete calls that went out."""
        return self._output.count

    @property
    def is_in_call(self) -> bool:
        """Whether a call is open, or was cut: by a limit, or by its own syntax once sent.

        A call beyond `most_calls` is none.
        """
        return self._has_cut or (self._where == "call" and not self._is_beyond)

    @property
    def is_clean(self) -> bool:
        """Whether nothing is held back but blanks, and no call was begun."""
        if self._where == "start":
            return not self._bare.raw.strip()
        return self._where == "text" and not (self._has_call or self._held.strip())

    def push(self, text: str, at: int) -> list[str | CallPart]:
        """Takes text of the answer; `at`: number of the token that completed it."""
        self._output.at = at
        if self._tools:
            self._read(text)
        else:
            self._output.say(text)
        return self._output.take()

    def finish(self, at: int, *, is_cut: bool) -> list[str | CallPart]:
        """What was held back, at the end. `is_cut`: a limit ended the answer, not the model."""
        self._output.at = at
        if self._where == "start":
            self._finish_bare()
        if self._where == "call":
            self._finish_call(is_cut=is_cut)
        elif self._where == "head":
            self._say_unread("".join(self._raw) + self._token, is_cut=is_cut)
        is_behind_call = self._is_edge and self._has_call and not self._held.strip()
        if self._where == "text" and not is_behind_call:
            self._say(self._held)
        self._where, self._held = "text", ""
        return self._output.take()

    @property
    def _is_beyond(self) -> bool:
        return self._output.is_full and self._reader.name is not None

    def _read(self, text: str) -> None:
        at = 0
        while at < len(text):
            again = ""
            if self._where == "text":
                at = self._read_text(text, at)
            elif self._where == "call":
                at, again = self._read_call(text, at)
            elif self._where == "start":
                again = self._read_start(text)
                at = len(text)
            elif self._where == "broken":
                at = self._skip(text, at)
            else:
                again = self._read_marker(text[at])
                at += 1
            if again:
                text, at = again + text[at:], 0

    def _read_start(self, text: str) -> str:
        self._bare.read(text)
        if self._bare.is_possible:
            return ""
        self._where = "text"
        return self._bare.raw

    def _read_text(self, text: str, at: int) -> int:
        chunk = self._held + text[at:]
        found = chunk.find(CALL)
        end = found if found >= 0 else len(chunk) - held_length(chunk, CALL)
        blank = self._blank_before(chunk[:end])
        self._say(chunk[:blank])
        if found < 0:
            self._held = chunk[blank:]
            return len(text)
        behind = found + len(CALL)
        at += behind - len(self._held)
        if self._fence is not None:  # blanks end the line of a fence, even where they are dropped
            self._fence.read(chunk[blank:found])
        self._where, self._held = "head", ""
        self._raw, self._token = [chunk[blank:behind]], ""
        return at

    def _blank_before(self, text: str) -> int:
        """Where the blanks at the end of `text` begin that are dropped if a call follows.

        From their first newline on; where nothing visible stands before them, all of them.
        """
        visible = len(text.rstrip())
        if self._is_edge and not visible:
            return 0
        newline = text.find("\n", visible)
        return newline if newline >= 0 else len(text)

    def _say(self, text: str) -> None:
        if text:
            self._is_edge = False
            self._output.say(text)
            if self._fence is not None:
                self._fence.read(text)

    def _read_marker(self, char: str) -> str:
        """A character where a call may begin; returns what is to be read once more."""
        token = self._token = self._token + char
        is_next = self._where == "next"
        if token == FUNCTION:
            self._begin(XmlCall(self._tools, takes_any_name=self._takes_any_name))
        elif token == "{":
            self._begin(JsonCall(AnyName() if self._takes_any_name else self._tools))
        elif is_next and token == CALL_END:
            self._where = "text"
        elif token in BLANKS or (is_next and token == "}"):  # a brace too many
            self._raw.append(token)
            self._token = ""
        elif not FUNCTION.startswith(token) and not (is_next and CALL_END.startswith(token)):
            self._where = "text"
            if is_next:
                return "".join(self._raw) + token
            self._say("".join(self._raw))
            return token
        return ""

    @property
    def _takes_any_name(self) -> bool:
        """Whether a call that begins here may have a name that is not offered."""
        return self._fence is not None and not self._fence.is_code

    def _begin(self, reader: CallReader) -> None:
        self._raw.append(self._token)
        self._where, self._token = "call", ""
        self._reader = reader

    def _read_call(self, text: str, at: int) -> tuple[int, str]:
        """Reads on in a call; returns where it stopped and what is to be read once more."""
        reader = self._reader
        end = reader.read(text, at)
        if not self._output.is_started:
            self._raw.append(text[at:end])
        self._output.write(reader.name, reader.take())
        if reader.outcome == "done":
            self._end_call()
        elif reader.outcome == "failed":
            self._fail()
        else:
            return end, ""
        return end, reader.unread

    def _end_call(self) -> None:
        self._output.end()
        self._where, self._raw = "next", []
        self._has_call = self._is_edge = True

    def _fail(self) -> None:
        if self._output.is_started:
            self._cut()
            self._where = "broken"
            return
        self._output.drop()
        self._say("".join(self._raw).removesuffix(self._reader.unread))
        self._where = "text"

    def _cut(self) -> None:
        self._output.cut(self._reader.close())
        self._has_cut = self._has_call = self._is_edge = True

    def _skip(self, text: str, at: int) -> int:
        """The rest of a block whose call was cut is markup nobody can read."""
        chunk = self._held + text[at:]
        found = chunk.find(CALL_END)
        if found < 0:
            self._held = chunk[len(chunk) - held_length(chunk, CALL_END) :]
            return len(text)
        at += found + len(CALL_END) - len(self._held)
        self._where, self._held = "text", ""
        return at

    def _finish_bare(self) -> None:
        call = self._bare.finish()
        if call is not None:
            self._output.write(*call)
            self._end_call()
            return
        self._where = "text"
        self._read(self._bare.raw)

    def _finish_call(self, *, is_cut: bool) -> None:
        if not is_cut:
            self._reader.finish()
            self._output.write(self._reader.name, self._reader.take())
        if self._reader.outcome == "done":
            self._end_call()
        elif self._output.is_started:
            self._cut()
        elif self._is_beyond:
            self._output.drop()
        else:
            self._output.drop()
            self._say_unread("".join(self._raw), is_cut=is_cut)

    def _say_unread(self, text: str, *, is_cut: bool) -> None:
        """What may have become a call is text at the answer's end."""
        self._has_cut = is_cut
        self.cut_text = text if is_cut else ""
        self._say(text)
