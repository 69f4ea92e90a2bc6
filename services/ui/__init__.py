"""Shows a running query to people: `weir ui` in a browser, `weir top` in a terminal.

`watch` keeps what is known of the query, `documents` makes what the page shows of it, `page` draws that in the browser.
`serve` puts these together for a query or a group, `cluster` for all that are registered, `file_run` for a run over
files. Only `changes` changes a query, and only where the operator allows it.
"""
