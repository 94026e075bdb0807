"""Kills, damage, faults and hostile input, tried once, or `STRESS` times as in `STRESS=100 pytest tests/stress`."""

import os

TRIES = int(os.environ.get("STRESS", "1"))
