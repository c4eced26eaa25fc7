"""What one training step is: model, adapter, checkpointing, loss, optimizer.

One definition, two devices: ``raysweep.trace`` runs this code under fake tensors, ``raysweep.probe`` on a device.
"""
