"""`Redact`: secrets and personal data, kept from everything outside."""
