"""The step on a device: memory, clock, out of memory, emulated cards. Runs without Ray."""
