"""`python -m tests.token_path`."""

from tests.token_path.watch import main

if __name__ == "__main__":
    main()
