"""How the gateway speaks to its operator: structured lines on standard error. Knows no event.

Facts are keys with units; no line holds text of a prompt or an answer, or a key.
"""

import logging
import sys

import structlog


def configure(level: str = "info") -> None:
    """Sets logging up for this process: JSON lines, or readable ones on a terminal."""
    is_terminal = sys.stderr.isatty()
    renderer: structlog.types.Processor = structlog.processors.JSONRenderer()
    if is_terminal:
        # The default formatter prints local variables: bodies and keys would be among them.
        renderer = structlog.dev.ConsoleRenderer(
            pad_event_to=24, exception_formatter=structlog.dev.plain_traceback
        )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=not is_terminal),
            *([] if is_terminal else [structlog.processors.format_exc_info]),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(name)s: %(message)s")
