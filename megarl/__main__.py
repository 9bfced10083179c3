"""`python -m megarl` is the command `megarl`."""

import sys

from megarl.cli import main

if __name__ == "__main__":
    sys.exit(main())
