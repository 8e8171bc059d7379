"""The conversation of an agent, and how it is kept: each message once, for whoever goes on with it."""
