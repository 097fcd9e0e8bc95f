"""The pages: each module builds the content of one kind of URL; `routes` maps paths to pages."""
