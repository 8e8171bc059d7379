"""Module whose import never finishes."""

import time

time.sleep(600)
