"""``python -m resumable_data`` is the ``resumable-data`` command."""

import sys

from resumable_data.cli import main

sys.exit(main())
