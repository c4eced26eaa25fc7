"""Renderings of what was found: one data class in, text, JSON or a page out. No torch, no Ray, no model here."""

JSON_SCHEMA_VERSION = 1
"""Of every object that ``--json`` prints; it rises when a key changes its meaning or goes."""
