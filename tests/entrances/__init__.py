"""Every entrance of the framework, with each value that cannot be stored, sent or shown."""
