"""`python -m deploy.cli` is the `headrace` command."""

from __future__ import annotations

import sys

from deploy.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
