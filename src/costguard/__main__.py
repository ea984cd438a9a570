"""Run the command line with `python -m costguard`."""

import sys

from costguard.cli.main import main

sys.exit(main())
