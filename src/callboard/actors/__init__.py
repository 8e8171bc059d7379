"""Actors: mailboxes, supervision, restarts and keyed actors. This package does not import LangChain.

    caller ── reference ──> cell ──> mailbox ──> incarnation (task) ──> code runner
                             ^                        ^
                             └──── unit of an actor ──┘ <── supervisor (task)

A cell outlives the incarnations of its actor; a restart makes a new incarnation in the same cell. A code runner runs
the actor's methods: in this process, in a worker of an engine, or only while this process owns the key in a fleet.

Callers may be in any thread and event loop. Supervisors and incarnations stay in the loop in which they were started.
A cell's lock guards its mailbox and the state of its messages; no task awaits while it holds it.
"""
