"""`Sanitize`: validation of arguments before the tool runs, and cleaning of results before the model reads them."""
