"""`megarl drift` without an installed command: python tools/drift.py report DUMP."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from megarl.cli import main

sys.exit(main(["drift", *sys.argv[1:]]))
