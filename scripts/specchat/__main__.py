"""`python -m specchat`: the same as the command `specchat`."""

from specchat.app.cli.main import main

if __name__ == "__main__":
    main()
