"""``python -m raysweep.cli``: the same program where its script is not on the path."""

from raysweep.cli import main

main()
