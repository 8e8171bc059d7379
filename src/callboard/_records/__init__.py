"""Data classes and protocols: policies, limits, engines, events, reports, fleets of actors."""
