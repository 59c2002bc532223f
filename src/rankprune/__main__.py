"""`python -m rankprune` is the command `rankprune`."""

from __future__ import annotations

import sys

from .cli import main

sys.exit(main())
