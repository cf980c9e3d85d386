"""``python -m roleagent VERB`` is ``roleagent VERB``."""

import sys

from roleagent.cli import main

sys.exit(main())
