"""All forty recorded conversations. Knows no conductor."""

from collections.abc import Callable

from tests.conductor.recorded import agents, chats
from tests.conductor.recorded.talk import Talk

Script = Callable[[str], Talk]  # by the name that the conversation has

SHAPES: tuple[Script, ...] = (
    agents.opencode_steps,
    agents.opencode_parallel,
    agents.opencode_title,
    agents.opencode_pruned,
    agents.opencode_pruned_twice,
    agents.opencode_compacted,
    agents.opencode_tomorrow,
    agents.opencode_respelled,
    agents.opencode_forked,
    agents.claude_reminded,
    agents.claude_billed,
    agents.claude_titled,
    agents.claude_other_marks,
    agents.claude_thoughtless,
    agents.claude_rewound,
    agents.claude_commanded,
    agents.claude_tomorrow,
    agents.codex_steps,
    agents.codex_parallel,
    agents.codex_compacted,
    agents.codex_forked,
    agents.codex_respelled,
    agents.codex_goes_on,
    chats.hermes_thinks,
    chats.hermes_thoughtless,
    chats.hermes_titled,
    chats.hermes_compacted,
    chats.hermes_told,
    chats.hermes_parallel,
    chats.webui_chat,
    chats.webui_tasks,
    chats.webui_regenerated,
    chats.webui_edited,
    chats.webui_cloned,
    chats.webui_tools,
    chats.plain_greeting,
    chats.plain_retry,
    chats.plain_fork,
    chats.plain_parts,
    chats.plain_continued,
)
