"""What the Internet is, to who asks it for something: which addresses it knows, and when it wants to be asked again."""
