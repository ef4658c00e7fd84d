"""`python -m veredus.demo`."""

import sys

from veredus.demo.show import run_demo

if __name__ == "__main__":
    sys.exit(run_demo())
