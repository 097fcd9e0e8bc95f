"""The pages: each module gives the content of one kind of URL, `routes` says which."""
