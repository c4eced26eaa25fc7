"""Makes the records of these tests importable from any of them."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
