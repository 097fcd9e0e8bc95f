"""Worker processes: requests and answers as frames, time limits, and an end in every case."""
