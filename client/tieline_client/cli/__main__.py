"""``python -m tieline_client.cli``: the command ``tieline``."""

import sys

from tieline_client.cli import main

sys.exit(main())
