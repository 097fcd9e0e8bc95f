"""Move blocks between ranks, notice ranks that fail, and record when work ran."""
