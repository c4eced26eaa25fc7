"""A step on tensors without storage: a device's own code, and what it would allocate there. No GPU is needed."""
