"""Shows a running query to people: `weir ui` in a browser, `weir top` in a terminal.

Start at `live.LiveQuery`, which follows what tasks publish. `headline` says in one sentence how far results are and
what holds them back; `picture` makes the document that the page draws; `server` serves it. Nothing here changes a
query.
"""
