"""What watches calls and runs, and what it keeps of them."""
