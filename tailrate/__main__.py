"""`python -m tailrate` is the command `tailrate`."""

from tailrate.cli.main import main

main(prog_name="tailrate")
