"""Fuzzes all targets (`python tests/fuzz`); see `harness.main` for its settings."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # for `helpers`, which has the layouts of tokenizers

from harness import main
from targets import TARGETS

sys.exit(main(TARGETS))
