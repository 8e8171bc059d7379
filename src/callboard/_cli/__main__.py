"""Entry point of `python -m callboard._cli`."""

from callboard._cli import main

if __name__ == "__main__":
    main()
