"""`python -m portable_spdnn` is the command line."""

from portable_spdnn.cli import main

if __name__ == "__main__":
    main()
