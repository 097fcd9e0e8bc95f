"""Place work without searching, as systems without a planner do."""
