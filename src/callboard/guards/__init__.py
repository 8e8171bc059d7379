"""Middleware that guards content."""
