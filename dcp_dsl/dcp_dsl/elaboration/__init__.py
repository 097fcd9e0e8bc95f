"""Turn checked masks into core programs: closed trees of about a dozen kinds of nodes."""
