"""Tandem's version: the one place that says it. Knows nothing."""

VERSION = "0.2.0"
