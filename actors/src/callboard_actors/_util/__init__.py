"""Helpers of several rooms that belong to none of them."""
