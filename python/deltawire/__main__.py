"""``python -m deltawire`` is the ``deltawire`` command."""

import sys

from .cli import main

sys.exit(main())
