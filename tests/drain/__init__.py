"""What becomes of what runs when something is drained."""
