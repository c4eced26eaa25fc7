"""Memory without a GPU: what a step allocates as data, and a caching allocator to play it through. No torch here."""
