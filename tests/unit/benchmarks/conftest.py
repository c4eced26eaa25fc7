from __future__ import annotations

import sys
from pathlib import Path

# The scripts are run from the repository's root and are no part of the installed package.
sys.path.insert(0, str(Path(__file__).parents[3]))
