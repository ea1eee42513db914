"""A recorded agent session, and clients that lead it: what people and tools say is recorded, what
the model says is the model's own."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from proto.deltas import events_of
from scripted import Bench, submit

from proto.chat import Call, Message, TextPart, Tool, ToolChoice, reply_message
from proto.messages import Delta, Done
from proto.plan import Plan, Thinking

RECORDED = json.loads(
    (Path(__file__).parent / "recorded" / "agent_session.json").read_text(encoding="utf-8")
)
TURNS = len(RECORDED["turns"])
TOOLS = tuple(Tool(**tool) for tool in RECORDED["tools"])
THOUGHTS, WORDS = 10, 12  # tokens of reasoning and of an answer, at most
# As Qwen's: a tool's result opens a user's turn in a way of its own; reasoning is written where it
# is sent back.
TEMPLATE = (
    "{%- if tools %}{{- '<|im_start|>system\n' }}{%- if messages[0].role == 'system' %}"
    "{{- messages[0].content + '\n\n' }}{%- endif %}{{- '# Tools\n' }}"
    "{%- for tool in tools %}{{- tool | tojson + '\n' }}{%- endfor %}{{- '<|im_end|>\n' }}"
    "{%- endif %}"
    "{%- for message in messages %}"
    "{%- if message.role == 'system' %}{%- if not tools %}"
    "{{- '<|im_start|>system\n' + message.content + '<|im_end|>\n' }}{%- endif %}"
    "{%- elif message.role == 'tool' %}"
    "{{- '<|im_start|>user\n<tool_response>\n' + message.content + '\n</tool_response><|im_end|>\n'"
    " }}"
    "{%- else %}{{- '<|im_start|>' + message.role + '\n' }}"
    "{%- if message.reasoning_content %}"
    "{{- '<think>\n' + message.reasoning_content.strip('\n') + '\n</think>\n\n' }}{%- endif %}"
    "{{- message.content }}"
    "{%- for call in message.tool_calls or [] %}"
    "{{- '<tool_call>\n' + {'name': call.function.name, 'arguments': call.function.arguments}"
    " | tojson + '\n</tool_call>' }}{%- endfor %}"
    "{{- '<|im_end|>\n' }}{%- endif %}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}"
    "{%- if enable_thinking %}{{- '<think>\n' }}{%- endif %}{%- endif %}"
)


@dataclass(frozen=True, slots=True)
class Turn:
    """What a client heard in one turn: token ids, its reply, and the record of the end."""

    ids: tuple[int, ...]
    reply: Message
    done: Done
    prompt_tokens: int


@dataclass
class Client:
    """Leads the session. `keeps_reasoning`: whether it sends reasoning back with its history.

    `caches`: whether it may use kept states; `idle_turns`: of the loop, behind each answer.
    """

    bench: Bench
    name: str
    keeps_reasoning: bool = False
    caches: bool = True
    idle_turns: int = 40
    is_thinking: bool = True
    params: dict[str, Any] = field(default_factory=lambda: {"temperature": 0.0})
    messages: list[Message] = field(
        default_factory=lambda: [Message("system", (TextPart(RECORDED["system"]),))]
    )
    turns: list[Turn] = field(default_factory=list)

    def turn(self) -> Turn:
        """The next turn: what came is sent, the answer is read to its end."""
        self.messages.append(self._came(len(self.turns)))
        made = self.ask(f"{self.name}-{len(self.turns)}")
        self.turns.append(made)
        reply = made.reply
        if not self.keeps_reasoning:
            reply = Message("assistant", reply.content, reply.calls)
        self.messages.append(reply)
        self.bench.turn(self.idle_turns)
        return made

    def ask(self, run_id: str) -> Turn:
        """Sends the conversation as it stands."""
        number = len(self.turns)
        is_call = number + 1 < TURNS and RECORDED["turns"][number + 1]["from"] == "tool"
        call = Call(
            "m",
            tuple(self.messages),
            TOOLS,
            ToolChoice("required" if is_call else "none"),
            parallel_tool_calls=False,
        )
        # A call is ended by its grammar; an answer by its length.
        params = {**self.params, "cache_prompt": self.caches}
        params["max_tokens"] = 120 if is_call else THOUGHTS + WORDS
        thinking = Thinking(on=self.is_thinking, budget=THOUGHTS)
        salt = self.name.partition("/")[0]
        submitted = submit(
            run_id, call=call, params=params, plan=Plan(thinking=thinking), cache_salt=salt,
            credit=10_000,
        )  # fmt: skip
        self.bench.say(submitted)
        done = self.bench.turn_until_done(run_id, limit=3000)
        deltas = [delta for delta in self.bench.messages(Delta) if delta.run_id == run_id]
        ids = tuple(token for delta in deltas for token in delta.ids)
        events = [event for delta in deltas for event in events_of(delta)]
        return Turn(ids, reply_message(events), done, done.usage.prompt_tokens)

    def _came(self, number: int) -> Message:
        turn = RECORDED["turns"][number]
        content = (TextPart(turn["text"]),)
        if turn["from"] == "user":
            return Message("user", content)
        return Message("tool", content, call_id=self.messages[-1].calls[0].id)
