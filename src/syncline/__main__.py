"""`python -m syncline`, for `torchrun -m syncline`."""

from syncline.cli.app import main

if __name__ == "__main__":
    main()
