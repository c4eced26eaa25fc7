"""Which probe to buy next: pure ask / tell, without Ray, torch or a device."""
