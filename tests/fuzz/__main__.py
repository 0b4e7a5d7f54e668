"""`python tests/fuzz` fuzzes all targets; see `harness.main` for its settings."""

import sys

from harness import main
from targets import TARGETS

sys.exit(main(TARGETS))
