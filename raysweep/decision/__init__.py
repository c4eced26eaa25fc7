"""What to rent, and why not the others: from artifacts alone, without torch or Ray."""
