"""A module that never finishes loading."""

import time

time.sleep(600)
