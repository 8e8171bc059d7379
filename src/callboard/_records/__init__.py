"""Frozen records without behaviour: policies, events and reports."""
