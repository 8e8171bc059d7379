"""A module that tells the test which processes have loaded it."""

import os

from ._bodies import say_where

say_where(os.environ["CALLBOARD_TEST_LOADED"])
