"""`python -m headrace …` is the `headrace` command."""

from __future__ import annotations

import sys

from headrace import hidden_package

if __name__ == "__main__":
    if hidden := hidden_package():
        sys.exit(f"headrace: {hidden}")
    from deploy.cli.main import main

    sys.exit(main())
