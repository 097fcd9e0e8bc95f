"""Run the command `dcpm` as `python -m dcp_dsl`, where its script is not on the path."""

from dcp_dsl.cli import main

if __name__ == "__main__":
    main()
