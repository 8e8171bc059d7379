"""`Redact`: tokens in place of secrets and personal data in arguments, results and errors."""
