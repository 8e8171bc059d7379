"""`Sanitize`: arguments checked before the tool runs, results cleaned before they are read."""
