"""What one training step is: model, adapter, checkpointing, loss, optimizer.

One definition, two devices: ``raysweep.trace`` runs this code on meta tensors, ``raysweep.probe`` on a device.
"""
