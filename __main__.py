"""`python -m pybroker` is the same as the `pybroker` command."""

from pybroker.broker.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
