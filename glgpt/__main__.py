"""`python -m glgpt`: the same as the command `glgpt`."""

import sys

from glgpt.cli import main

if __name__ == "__main__":
    sys.exit(main())
