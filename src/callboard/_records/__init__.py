"""Records and protocols for policies, limits, engines, events, reports, fleets of actors and shared documents."""
