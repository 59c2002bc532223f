"""`python -m rankprune` is the command `rankprune`."""

from __future__ import annotations

import sys

from rankprune.cli import main

sys.exit(main())
