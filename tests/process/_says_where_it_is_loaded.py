"""Module that records which processes have imported it."""

import os

from ._bodies import say_where

say_where(os.environ["CALLBOARD_TEST_LOADED"])
