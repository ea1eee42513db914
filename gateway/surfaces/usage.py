"""Token counts and times under the names that OpenAI clients read. Knows no stream.

Source: OpenAI API reference, "usage"; llama.cpp server, "timings".
"""

from typing import Any

from proto.events import Finished, Usage


def usage_object(usage: Usage) -> dict[str, Any]:
    """Token counts of one answer, or of several to one prompt."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def timings_object(finished: Finished) -> dict[str, Any]:
    """Milliseconds and rates of one answer. The first token belongs to the prompt's time."""
    timings, usage, spec = finished.timings, finished.usage, finished.speculation
    read, written = timings.forwarded_tokens, usage.completion_tokens
    decoded = max(written - 1, 0)
    return {
        "cache_n": usage.cached_tokens,
        "prompt_n": read,
        "prompt_ms": round(timings.prompt_ms, 3),
        "prompt_per_token_ms": _ratio(timings.prompt_ms, read),
        "prompt_per_second": _ratio(read * 1000, timings.prompt_ms),
        "predicted_n": written,
        "predicted_ms": round(timings.decode_ms, 3),
        "predicted_per_token_ms": _ratio(timings.decode_ms, decoded),
        "predicted_per_second": _ratio(decoded * 1000, timings.decode_ms),
        "draft_n": spec.draft_tokens,
        "draft_n_accepted": spec.draft_accepted,
        "queue_ms": round(timings.queue_ms, 3),
        "ttft_ms": round(timings.ttft_ms, 3),
        "rounds": spec.rounds,
        "tokens_per_round": _ratio(decoded, spec.rounds),
    }


def _ratio(value: float, by: float) -> float:
    return round(value / by, 3) if by > 0 else 0.0
