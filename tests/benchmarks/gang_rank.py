"""A rank of ``gang_gpu``'s gangs: ``jobs.video.gang_child`` with the benchmark's model."""

import sys

from jobs.video.gang_child import main
from tests.benchmarks.gang_model import engine

if __name__ == "__main__":
    sys.exit(main(engine))
