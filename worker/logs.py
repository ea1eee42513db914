"""How a worker logs. Knows no event."""

import logging
import sys

import structlog


def configure_logging() -> None:
    """One JSON object a line on stderr, times in UTC.

    A line goes out in one write: the gateway writes to the same pipe.
    """
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
    )
