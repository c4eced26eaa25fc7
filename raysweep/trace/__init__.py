"""A step under fake tensors: the same code as on a device, and a program of what it would allocate there. No GPU is needed."""
