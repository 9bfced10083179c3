"""`megarl drift` without an installed command: python tools/drift.py report DUMP."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from megarl.cli import main

# the self-test starts processes, which import this file
if __name__ == "__main__":
    sys.exit(main(["drift", *sys.argv[1:]]))
