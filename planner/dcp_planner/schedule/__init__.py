"""Turn a placement into divisions, routes, transfers and one program per device."""
