"""Behind the page `/edit`: texts from a browser are checked, drawn and planned in worker processes.

`tasks` is what a worker can do, `worker` its loop, `frames` what travels over its pipes;
`worker_process` starts, times and ends workers; `jobs` are plans that take longer than a request;
`routes` answers the page; `specs` are the texts to start from.
"""
