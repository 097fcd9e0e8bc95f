"""Everything about the one selected thing, as text with links that select further."""
