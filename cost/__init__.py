"""Prices and arithmetic of a fine-tune: which machine, how many hours, how much money.

This package needs nothing but Python, imports in milliseconds and can be taken out and used alone. Import its modules:
``catalogue`` (flavours and prices), ``verdict`` (does it fit), ``throughput`` (seconds of a step), ``project`` (hours
and money of a run), ``choose`` (which flavour, and why not the others).
"""
