"""Hold a plan as tables: blocks, tiles, transfers and the programs of all devices."""
