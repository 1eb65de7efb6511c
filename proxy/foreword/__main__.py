"""``python -m foreword``."""

import sys

from foreword.cli import main

if __name__ == "__main__":
    sys.exit(main())
