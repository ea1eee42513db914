"""Several answers to one prompt, counted as one. Knows no run and no stream."""

from collections.abc import Sequence
from dataclasses import fields, replace

from proto.events import Finished, Speculation, Timings, Usage


def merged(ends: Sequence[Finished]) -> Finished:
    """One end for all. The prompt counts once, what was written and forwarded adds up.

    Times: from the first run's start to the last one's end, the first token being the first run's.
    """
    first = ends[0]
    if len(ends) == 1:
        return first
    usages = [end.usage for end in ends]
    once = {"prompt_tokens", "cached_tokens", "note_tokens"} | {
        "upstream_input_tokens", "upstream_cached_tokens", "upstream_cache_write_tokens",
    }  # fmt: skip
    counts = {
        part.name: sum(getattr(usage, part.name) for usage in usages)
        for part in fields(Usage)
        if part.name not in once
    }
    timings = [end.timings for end in ends]
    total_ms = max(one.total_ms for one in timings)
    return replace(
        first,
        usage=replace(usages[0], **counts),
        timings=Timings(
            queue_ms=timings[0].queue_ms,
            prompt_ms=timings[0].prompt_ms,
            ttft_ms=timings[0].ttft_ms,
            decode_ms=max(total_ms - timings[0].ttft_ms, 0.0),
            total_ms=total_ms,
            forwarded_tokens=sum(one.forwarded_tokens for one in timings),
        ),
        speculation=Speculation(
            rounds=sum(end.speculation.rounds for end in ends),
            plain=sum(end.speculation.plain for end in ends),
            draft_tokens=sum(end.speculation.draft_tokens for end in ends),
            draft_accepted=sum(end.speculation.draft_accepted for end in ends),
        ),
    )
